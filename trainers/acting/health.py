"""When the environment fails too often to go on."""

from __future__ import annotations

from gym_agents.trajectory import Outcome, Trajectory
from trainers.config import EnvConfig
from trainers.errors import TooManyEnvErrors


class ErrorBudget:
    """How many of a number of episodes may fail by the environment; `spend` is told of each that ends."""

    def __init__(self, config: EnvConfig, episodes: int) -> None:
        self._config = config
        self._episodes = episodes
        self._failed: list[Trajectory] = []

    def spend(self, episode: Trajectory) -> None:
        """Counts an episode that failed.

        Raises:
            TooManyEnvErrors: once the share is over `env.max_error_rate`, naming the first cause.
        """
        if episode.outcome is not Outcome.ENV_ERROR:
            return
        self._failed.append(episode)
        if len(self._failed) > self._config.max_error_rate * self._episodes:
            raise TooManyEnvErrors(
                f"{len(self._failed)} of {self._episodes} episodes of {self._config.id} at "
                f"{self._config.server or 'local servers'} failed by the environment, more than "
                f"env.max_error_rate = {self._config.max_error_rate:g} allows. First cause: {self._failed[0].error}"
            )
