"""The error tree of the whole project, drawn first.

Every error carries a `code`, its name on the wire, and a `status`, the HTTP status it travels under.
Three kinds matter to a caller:

* `UsageError`: the caller asked for something that cannot be; asking again will not help.
* `AgentError`: the agent's reply is at fault; the session lives and its turn is not spent.
* `EnvironmentFailure`: the environment is at fault; such an episode must never be scored or trained on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

import gymnasium


class AgentGymError(Exception):
    """Root of every error that this project raises on purpose."""

    code = "error"
    status = 500

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


# The caller's mistakes.


class UsageError(AgentGymError):
    """The call cannot be answered as it was made."""

    code = "bad_request"
    status = 400


class OptionError(UsageError):
    """An environment option is unknown, of the wrong type, or out of its range."""

    code = "bad_option"


class UnknownTask(UsageError):
    """No scenario or task has this name."""

    code = "unknown_task"
    status = 404


class ItemError(UsageError):
    """The item does not exist, is not of this task, or is named in another numbering."""

    code = "bad_item"


class EmptySplit(ItemError):
    """The task holds no items in the split that was asked for."""

    code = "empty_split"


class LimitError(UsageError):
    """A turn limit is not a positive whole number (or `None` or `-1`, which keep Gymnasium's meaning)."""

    code = "bad_limit"


class BackendMissing(UsageError):
    """The id is in the table, but its backend is not built or not installed."""

    code = "backend_missing"
    status = 501


class ResetNeeded(UsageError, gymnasium.error.ResetNeeded):
    """A step came before the first reset, or after the episode's end."""

    code = "reset_needed"
    status = 409


class TurnConflict(UsageError):
    """A step names an old or a future turn, or repeats a turn with another reply."""

    code = "turn_conflict"
    status = 409


class SessionClosed(UsageError):
    """The session was closed; open a new one."""

    code = "session_closed"
    status = 410


class NotOffered(UsageError):
    """This world does not answer this question (no expert, no picture, no list of actions)."""

    code = "not_offered"
    status = 404


class BodyTooLarge(UsageError):
    """A request body is over the server's stated limit."""

    code = "body_too_large"
    status = 413


# The agent's mistakes.


class AgentError(AgentGymError):
    """The agent's reply is refused before it reaches the world."""

    code = "agent_error"
    status = 422


class ReplyTooLong(AgentError):
    """The reply is over the stated limit of bytes; nothing was sent and no turn was spent."""

    code = "reply_too_long"
    status = 413


# The environment's failures.


class EnvironmentFailure(AgentGymError):
    """The environment, not the agent, is at fault: never score or train this episode."""

    code = "environment_failure"
    status = 500


class ServerUnreachable(EnvironmentFailure):
    """No server answers at the address."""

    code = "server_unreachable"
    status = 502


class DeadlineExceeded(EnvironmentFailure):
    """The answer did not come before the deadline."""

    code = "deadline_exceeded"
    status = 504


class ServerBusy(EnvironmentFailure):
    """Every session of the server is taken; `retry_after` says in how many seconds to come back."""

    code = "busy"
    status = 503


class SessionUnknown(EnvironmentFailure):
    """The server has never seen the session, or its lease ran out."""

    code = "session_unknown"
    status = 404


class VersionMismatch(EnvironmentFailure):
    """The server speaks another version of the wire, or serves another scenario or backend."""

    code = "version_mismatch"
    status = 409


class Unauthorized(EnvironmentFailure):
    """The server wants a token, and this is not it."""

    code = "unauthorized"
    status = 401


class WorldFailure(EnvironmentFailure):
    """The world raised, or answered with something that is not finite or not a text."""

    code = "world_failure"


class RetrieverFailure(WorldFailure):
    """The search behind the world is down, overloaded, late, or answered in a form that it does not have."""

    code = "retriever_failure"
    status = 502


class ReplayMismatch(EnvironmentFailure):
    """A lost session was replayed and an observation differed from the one seen before."""

    code = "replay_mismatch"


class BadAnswer(EnvironmentFailure):
    """The server's answer does not fit the protocol."""

    code = "bad_answer"
    status = 502


class VectorFailure(EnvironmentFailure):
    """Some indices of a vector call failed.

    `failures` maps each failed index to its error; `results` holds what the others returned, in the form
    that the call would have returned, with failed indices left as they were before it.
    """

    code = "vector_failure"

    def __init__(self, failures: Mapping[int, AgentGymError], results: object = None) -> None:
        listing = "; ".join(f"index {index}: {error}" for index, error in sorted(failures.items()))
        super().__init__(f"{len(failures)} of the environments failed: {listing}")
        self.failures = dict(failures)
        self.results = results


def _family(root: type[AgentGymError]) -> Iterator[type[AgentGymError]]:
    yield root
    for child in root.__subclasses__():
        yield from _family(child)


def from_code(code: str, message: str, retry_after: float | None = None) -> AgentGymError:
    """The error that a server named by `code`; an unknown code becomes a plain `EnvironmentFailure`."""
    by_code = {error.code: error for error in _family(AgentGymError) if error is not VectorFailure}
    return by_code.get(code, EnvironmentFailure)(message, retry_after=retry_after)


def near_match(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or the empty string where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
