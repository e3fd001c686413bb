"""What can go wrong between a policy, its worlds and its gradient."""

from __future__ import annotations

from gym_agents.errors import AgentGymError, EnvironmentFailure, UsageError


class PolicyError(UsageError):
    """The model cannot be loaded, cannot be trained as asked, or its saved weights do not fit it."""

    code = "bad_policy"


class NothingToLearn(UsageError):
    """No trajectory holds a token that the policy sampled."""

    code = "nothing_to_learn"


class NonFiniteUpdate(AgentGymError):
    """The loss or the gradient is not finite; the weights were left as they were."""

    code = "non_finite_update"


class TooManyEnvErrors(EnvironmentFailure):
    """More of the episodes failed by the environment than the run allows: there is nothing sound to train on."""

    code = "too_many_env_errors"


class EngineFailure(AgentGymError):
    """A model server gave no usable answer, however often it was asked; no episode's outcome follows from that."""

    code = "engine_failure"


class EngineRefusal(UsageError):
    """A model server refuses what it was asked: asking again will not help."""

    code = "engine_refusal"


class EvaluationOnly(UsageError):
    """The engine does not give what training needs; it can be evaluated with."""

    code = "evaluation_only"


class ShardedWeights(UsageError):
    """The launch would shard the weights, but the policy generates and learns whole."""

    code = "sharded_weights"
