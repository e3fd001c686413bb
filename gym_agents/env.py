"""One episode at a time: the Gymnasium environment."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from PIL import Image

from gym_agents import background
from gym_agents.client import Client, Job, checked_reply
from gym_agents.connect import DEADLINE, Connection, connect
from gym_agents.errors import EnvironmentFailure, ItemError, ResetNeeded, UsageError
from gym_agents.items import item_id, item_number, load_items, pick
from gym_agents.lockstep import checked_options
from gym_agents.protocol import MAX_REPLY_BYTES, Answer, Call, Hello, Looked, Question, Started, Stepped
from gym_agents.session import Session
from gym_agents.spaces import UnicodeText

RESET_OPTIONS = ("item", "split")


def next_seed(rng: np.random.Generator) -> int:
    """The seed of the next episode that nobody seeded."""
    return int(rng.integers(2**31))


class Items:
    """Which item a reset means: the one it names, one of a user's list, or one of the split by its seed."""

    def __init__(self, split: str, listed: str | Sequence[str] | None) -> None:
        self.split = split
        self._listed = listed
        self._numbers: tuple[int, ...] | None = None

    def numbers(self, hello: Hello) -> tuple[int, ...] | None:
        """The numbers of the user's own list, `None` where there is none."""
        if self._listed is not None and self._numbers is None:
            self._numbers = load_items(self._listed, hello.numbering)
        return self._numbers

    def choose(self, hello: Hello, seed: int, named: Any) -> int | None:
        """The item's number; `None` leaves the choice to the server."""
        if isinstance(named, str):
            return item_number(named, hello.numbering)
        if named is not None:
            if isinstance(named, bool) or not isinstance(named, (int, np.integer)):
                raise ItemError(f"An item is named by its number or its id, not by {named!r}.")
            return int(named)
        numbers = self.numbers(hello)
        return pick(numbers, seed) if numbers else None


def start_info(hello: Hello, started: Started) -> dict[str, Any]:
    """`info` of a reset."""
    return {
        "item_id": item_id(hello.numbering, started.item),
        "task": started.task,
        "score": 0.0,
        "success": False,
        "valid": True,
        "command": None,
        "instruction": started.instruction,
        **started.info,
    }


def step_info(item: str, task: str | None, stepped: Stepped) -> dict[str, Any]:
    """`info` of a step."""
    return {
        "item_id": item,
        "task": task,
        "score": stepped.score,
        "success": stepped.success,
        "valid": stepped.valid,
        "command": stepped.command,
        **stepped.info,
    }


class TextEnv(gymnasium.Env[str, str]):
    """An episode of a text task: the action is the agent's whole reply, the observation a text.

    Args:
        scenario: a scenario's name (`textcraft`), or a user's own `module:World`.
        task: short name of a task (`Depth2`); `None` is the whole scenario.
        server: address of a server, or several with commas; see `gym_agents.connect`.
        token: the server's token (else the variable `AGENTGYM_TOKEN`).
        split: `train` or `eval`.
        items: item ids, or a JSON file of them, to play instead of the split.
        deadline: seconds that any call may take, recovery included.
        render_mode: what `render` gives: `ansi` the last observation, `rgb_array` a picture of the state, where
            the scenario draws one.
        options: the scenario's own options.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        scenario: str,
        task: str | None = None,
        *,
        server: str | None = None,
        token: str | None = None,
        split: str = "train",
        items: str | Sequence[str] | None = None,
        deadline: float = DEADLINE,
        expert: bool = False,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.connection: Connection = connect(
            scenario, server=server, token=token, deadline=deadline, expert=expert, options=options
        )
        self.task = task
        self.metadata = {**self.metadata, "render_modes": self._render_modes()}
        self.render_mode = self._checked_render_mode(render_mode)
        self.observation_space = UnicodeText(self.connection.scenario.max_observation_chars + 64)
        self.action_space = UnicodeText(MAX_REPLY_BYTES, max_bytes=MAX_REPLY_BYTES)
        self._items = Items(split, items)
        self._session: Session | None = None
        self._info: dict[str, Any] = {}
        self._observation = ""
        self._over = True

    @property
    def client(self) -> Client:
        return self.connection.client

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: picks the item, and rules whatever else is random in the world.
            options: `item` (a number or an id) names the item, `split` replaces the split.

        Raises:
            ItemError: if the item does not exist, is not of this task or is named in another numbering.
            EmptySplit: if the split holds no item.
        """
        super().reset(seed=seed)
        given = checked_options(options, RESET_OPTIONS)
        episode_seed = next_seed(self.np_random) if seed is None else seed
        hello = background.run(self.client.hello())
        item = self._items.choose(hello, episode_seed, given.get("item"))
        if self._session is None:
            self._session = self.client.open(self.task, self.connection.plain_options)
        call = self._session.reset(episode_seed, item, given.get("split", self._items.split))
        self._over = True
        started = self._ask(self._session, call)
        assert isinstance(started, Started)
        self._over = False
        self._info = start_info(hello, started)
        self._observation = started.observation
        return started.observation, dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays the agent's whole reply.

        Raises:
            ResetNeeded: before the first reset, and after the world has ended the episode.
            TypeError: if the reply is no text.
            ReplyTooLong: if the reply is over the limit; the turn is not spent.
            EnvironmentFailure: if the environment failed; reset to go on.
        """
        if self._session is None or self._over:
            raise ResetNeeded("The episode has not started or is over: reset first.")
        call = self._session.step(checked_reply(action))
        self._over = True  # until the answer says otherwise
        stepped = self._ask(self._session, call)
        assert isinstance(stepped, Stepped)
        self._over = stepped.terminated or stepped.truncated
        self._observation = stepped.observation
        info = step_info(self._info["item_id"], self._info["task"], stepped)
        return stepped.observation, stepped.reward, stepped.terminated, stepped.truncated, info

    def look(self, question: Question) -> Any:
        """Asks about the state: `actions`, `view` or `picture` (a PNG in base64). Changes nothing.

        Raises:
            NotOffered: if the world does not answer it.
        """
        if self._session is None:
            raise ResetNeeded("There is nothing to look at before the first reset.")
        looked = self._ask(self._session, self._session.look(question))
        assert isinstance(looked, Looked)
        return looked.content

    def expert(self) -> str:
        """The expert's next command, where the server plays one."""
        if self._session is None:
            raise ResetNeeded("There is nothing to advise on before the first reset.")
        return background.run(self.client.expert(self._session))

    def render(self) -> str | np.ndarray | None:
        """The last observation in mode `ansi`, a picture `[height, width, 3]` of bytes in mode `rgb_array`."""
        if self.render_mode == "rgb_array":
            png = base64.b64decode(self.look("picture"))
            return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
        return self._observation if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Closes the session; closing again does nothing."""
        if self._session is not None:
            background.run(self.client.leave([self._session]))
            self._session = None
        self._over = True

    def _render_modes(self) -> list[str]:
        return ["ansi", "rgb_array"] if self.connection.scenario.draws else ["ansi"]

    def _checked_render_mode(self, mode: str | None) -> str | None:
        if mode is not None and mode not in self._render_modes():
            known = ", ".join(self._render_modes())
            title = self.connection.scenario.title
            raise UsageError(f"{title} cannot be rendered as {mode!r}; its render modes: {known}.")
        return mode

    def _ask(self, session: Session, call: Call) -> Answer:
        """The call's answer; a session whose environment failed is given up."""
        try:
            return background.run(self.client.ask(Job(session, call)))
        except EnvironmentFailure:
            background.spawn(self.client.leave([session]))
            self._session = None
            raise

    def __getstate__(self) -> NoReturn:
        raise TypeError("An environment in play cannot be copied: pickle its spec, and make it anew.")
