"""What can go wrong between a policy and its gradient."""

from __future__ import annotations

from gym_agents.errors import AgentGymError, UsageError


class PolicyError(UsageError):
    """The model cannot be loaded, cannot be trained as asked, or its saved weights do not fit it."""

    code = "bad_policy"


class NothingToLearn(UsageError):
    """No trajectory holds a token that the policy sampled."""

    code = "nothing_to_learn"


class NonFiniteUpdate(AgentGymError):
    """The loss or the gradient is not finite; the weights were left as they were."""

    code = "non_finite_update"
