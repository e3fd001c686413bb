"""Gymnasium's `reset` and `step` for everyone, on top of `send`, `send_reset` and `recv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv

from gym_agents.errors import OptionError, ResetNeeded, VectorFailure, near_match

if TYPE_CHECKING:
    from gym_agents.vector import Event

RESET_OPTIONS = ("item", "split", "reset_mask")

Infos = dict[str, Any]
Stepped = tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, Infos]


class Lockstep(VectorEnv[tuple[str, ...], Sequence[str], np.ndarray]):
    """The half of a vector environment that waits for everyone.

    A subclass gives `send`, `send_reset` and `recv`, as `TextVectorEnv` has them.
    """

    send: Callable[..., None]
    send_reset: Callable[..., None]
    recv: Callable[..., list[Event]]

    _observations: tuple[str, ...] = ()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], Infos]:
        """Starts an episode in every index, or in those of `options["reset_mask"]`.

        Args:
            seed: `s` gives index i the seed s+i; a list names each; `None` draws the next of each index's
                own sequence, so that it does not depend on who finished first.
            options: `reset_mask` (one bool per index), `item` (one for all, or one per index), `split`.

        Raises:
            VectorFailure: if some failed; the others have started.
        """
        given = checked_options(options, RESET_OPTIONS)
        indices = self._masked(given.get("reset_mask"))
        seeds = self._spread_seed(seed)
        items = self._spread_item(given.get("item"))
        self.send_reset(
            indices,
            seeds=[seeds[index] for index in indices],
            items=[items[index] for index in indices],
            split=given.get("split"),
        )
        observations, *_, infos = self._gather(indices)
        return observations, infos

    def step(self, actions: Sequence[str]) -> Stepped:
        """Plays one reply in every index.

        Raises:
            ResetNeeded: if an index is not in play; nothing was sent.
            ReplyTooLong: if a reply is over the limit; nothing was sent.
            VectorFailure: if some failed; `results` holds the step of the others. They go on by `send` and
                `recv`, or by `step` once the failed indices are reset.
        """
        if len(actions) != self.num_envs:
            raise ValueError(
                f"{self.num_envs} environments need {self.num_envs} replies, not {len(actions)}."
            )
        indices = range(self.num_envs)
        self.send(indices, actions)
        return self._gather(indices)

    def _gather(self, indices: Sequence[int]) -> Stepped:
        """Waits for one event of each index; an index without one keeps its observation."""
        observations = list(self._observations or [""] * self.num_envs)
        rewards = np.zeros(self.num_envs)
        terminations = np.zeros(self.num_envs, dtype=bool)
        truncations = np.zeros(self.num_envs, dtype=bool)
        infos: Infos = {}
        failures = {}
        for event in self._await(len(indices)):
            if event.error is not None:
                failures[event.index] = event.error
                continue
            observations[event.index] = event.observation
            rewards[event.index] = event.reward
            terminations[event.index] = event.terminated
            truncations[event.index] = event.truncated
            infos = self._add_info(infos, event.info, event.index)
        self._observations = tuple(observations)
        results = self._observations, rewards, terminations, truncations, infos
        if failures:
            raise VectorFailure(failures, results)
        return results

    def _await(self, count: int) -> list[Event]:
        """The next `count` events, in the order of their indices."""
        events: list[Event] = []
        while len(events) < count:
            events += self.recv()
        if len(events) > count:
            raise ResetNeeded("Answers of an earlier `send` were still to come: `recv` them first.")
        return sorted(events, key=lambda event: event.index)

    def _masked(self, mask: Any) -> list[int]:
        if mask is None:
            return list(range(self.num_envs))
        chosen = np.asarray(mask)
        if chosen.shape != (self.num_envs,) or chosen.dtype != bool or not chosen.any():
            raise OptionError(f"reset_mask must hold {self.num_envs} bools, at least one of them True.")
        return [int(index) for index in np.flatnonzero(chosen)]

    def _spread_seed(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{self.num_envs} environments need {self.num_envs} seeds, not {len(seed)}.")
        return seed

    def _spread_item(self, item: Any) -> Sequence[Any]:
        if item is None or isinstance(item, (int, np.integer, str)):
            return [item] * self.num_envs
        if len(item) != self.num_envs:
            raise OptionError(f"`item` must be one item, or {self.num_envs} of them, not {len(item)}.")
        return list(item)


def checked_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> dict[str, Any]:
    """A copy of reset's options.

    Raises:
        OptionError: naming every one that is not known.
    """
    given = dict(options or {})
    unknown = [f"{name!r}.{near_match(str(name), known)}" for name in given if name not in known]
    if unknown:
        raise OptionError("reset does not know the option " + "; ".join(unknown))
    return given
