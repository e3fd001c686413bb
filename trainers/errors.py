"""What can go wrong between a policy, its worlds and its gradient."""

from __future__ import annotations

from gym_agents.errors import AgentGymError, EnvironmentFailure, UsageError


class PolicyError(UsageError):
    """The model cannot be loaded, cannot be trained as asked, or its saved weights do not fit it."""

    code = "bad_policy"


class DamagedCheckpoint(UsageError):
    """A checkpoint's files are all there and cannot be read."""

    code = "damaged_checkpoint"


class NothingToLearn(UsageError):
    """No trajectory holds a token that the policy sampled."""

    code = "nothing_to_learn"


class BadTrajectories(UsageError):
    """A trajectory file cannot be read, or does not hold what the method learns from."""

    code = "bad_trajectories"


class TokenDrift(AgentGymError):
    """Tokens that were trained on are not those that were sampled."""

    code = "token_drift"


class UnsoundUpdate(AgentGymError):
    """A step that must not be made; the weights were left as they were."""

    code = "unsound_update"


class NonFiniteUpdate(UnsoundUpdate):
    """The loss or the gradient is not finite."""

    code = "non_finite_update"


class ExplodingGradient(UnsoundUpdate):
    """The gradient is far larger than any that can be learned from."""

    code = "exploding_gradient"


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
