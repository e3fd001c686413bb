"""The wire, version 1: routes, messages, limits.

Requests are `Call`s; each is answered by one `Answer`. `/v1/batch` takes many calls at once and answers
with JSON Lines, one `Line` per call, in the order in which they finish. Every call may be sent again
after a lost answer: `create` names the session, `reset` its episode and `step` its turn, so that none
plays twice.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

VERSION = 1

HELLO = "/v1/hello"
ITEMS = "/v1/items"
CALL = "/v1/call"
BATCH = "/v1/batch"
RENEW = "/v1/renew"
CLOSE_RUN = "/v1/close_run"
EXPERT = "/v1/expert"
HEALTH = "/healthz"
METRICS = "/metrics"

MAX_REPLY_BYTES = 128 * 1024
"""A reply over this many UTF-8 bytes is refused before it is sent."""
MAX_CALL_BYTES = 6 * MAX_REPLY_BYTES + 4096
"""A body of one call over this is refused unread (a byte takes at most six in JSON)."""
MAX_BATCH_BYTES = 8 * MAX_CALL_BYTES
"""A body of a batch over this is refused unread; the client splits before it."""
MAX_BATCH_CALLS = 16_384
"""A batch of more calls is refused; the client's never come near, since each counts at least 1 KB of its body."""
SERVER_KEEP_ALIVE = 75.0
"""Seconds before the server drops an idle connection."""
CLIENT_KEEP_ALIVE = 15.0
"""Seconds before the client drops one: shorter, so that it never writes to a closing connection."""

RESERVED_INFO = frozenset(
    ("item_id", "task", "score", "success", "valid", "command", "instruction", "truncation")
)
"""What `info` says of every episode; a world's own facts stand beside it under other names."""

Question = Literal["actions", "view", "picture", "text"]


class Hello(msgspec.Struct, frozen=True):
    """The handshake: what is served, and by what."""

    version: int
    scenario: str
    numbering: str
    backend: str
    """Names and versions of the packages that the same episode depends on."""
    tasks: tuple[str, ...]
    replays: bool
    lease: float
    """Seconds for which a session lives without a call or a renewal."""
    max_sessions: int
    server: str
    """Random name of the server process: another name at the same address is another process."""


class Create(msgspec.Struct, frozen=True, tag="create", tag_field="call"):
    """Opens a session under a name made by the client; creating it again changes nothing."""

    session: str
    run: str
    """Sessions of one run are renewed and closed together."""
    task: str | None
    """A task's short name (`Depth2`), or `None` for the whole scenario."""
    options: dict[str, Any]


class Reset(msgspec.Struct, frozen=True, tag="reset", tag_field="call"):
    """Starts episode number `episode` (1, 2, ...) of the session; repeating the number changes nothing."""

    session: str
    episode: int
    seed: int
    item: int | None = None
    """`None`: the seed picks one from the split."""
    split: str = "train"


class Step(msgspec.Struct, frozen=True, tag="step", tag_field="call"):
    """Plays turn number `turn` (1, 2, ...) of the episode; repeating it returns the first answer."""

    session: str
    episode: int
    turn: int
    reply: str


class Look(msgspec.Struct, frozen=True, tag="look", tag_field="call"):
    """Asks a read-only question; it changes nothing and costs no turn."""

    session: str
    question: Question


class Close(msgspec.Struct, frozen=True, tag="close", tag_field="call"):
    """Closes the session; closing it again gives the same answer."""

    session: str


Call = Create | Reset | Step | Look | Close


class Created(msgspec.Struct, frozen=True, tag="created", tag_field="answer"):
    session: str


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="answer"):
    """The episode's first observation."""

    item: int
    task: str | None
    instruction: str
    observation: str
    info: dict[str, Any]


class Stepped(msgspec.Struct, frozen=True, tag="stepped", tag_field="answer"):
    observation: str
    reward: float
    """The change of the score in this step."""
    score: float
    terminated: bool
    truncated: bool
    """The world's own limit ended the episode; the reason stands in `info["truncation"]`."""
    success: bool
    valid: bool
    command: str | None
    info: dict[str, Any]


class Looked(msgspec.Struct, frozen=True, tag="looked", tag_field="answer"):
    """A question's answer: a list of actions, a structured view, a PNG in base64, or a text."""

    content: Any


class Closed(msgspec.Struct, frozen=True, tag="closed", tag_field="answer"):
    session: str


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="answer"):
    """A typed error; `code` is one of `gym_agents.errors`."""

    code: str
    message: str
    retry_after: float | None = None


Answer = Created | Started | Stepped | Looked | Closed | Failed


class Line(msgspec.Struct, frozen=True):
    """One line of a batch's answer: which call (from 0), and its answer."""

    at: int
    answer: Answer


class Run(msgspec.Struct, frozen=True):
    """Body of `/v1/renew` and `/v1/close_run`; both answer with the number of sessions."""

    run: str


class Sessions(msgspec.Struct, frozen=True):
    sessions: int


class Expert(msgspec.Struct, frozen=True):
    """Body of `/v1/expert`: which session wants to know the expert's next command."""

    session: str


class Advice(msgspec.Struct, frozen=True):
    command: str


class Items(msgspec.Struct, frozen=True):
    numbering: str
    items: tuple[int, ...]


def clean(text: str) -> str:
    """The text as it can travel: half a surrogate pair becomes U+FFFD; everything else, NUL too, stays.

    >>> clean("a\\ud800b")
    'a\\ufffdb'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
