"""The layout of a conversation with a model whose tokenizer stays behind an API: one id for each character.

The ids are below 0, so that none of them can be taken for a token of a model that could be trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Ids = tuple[int, ...]
Message = dict[str, str]

_SYSTEM, _USER, _ASSISTANT, _END = (-2 - 0x10FFFF - number for number in range(4))
_ROLES = {_SYSTEM: "system", _USER: "user", _ASSISTANT: "assistant"}


class CharacterLayout:
    """Messages as ids, and ids as messages.

    Attributes:
        stop_ids: holds the one id that ends a reply.

    Args:
        instruction_in: which message carries the scenario's instruction: the system's, or the first user's.
    """

    stop_ids = frozenset({_END})

    def __init__(self, instruction_in: Literal["user", "system"] = "user") -> None:
        self._joint = (_USER,) if instruction_in == "system" else _ids("\n\n")
        self._first = _SYSTEM if instruction_in == "system" else _USER

    def opening(self, instruction: str, observation: str) -> Ids:
        """Ids up to where the first reply begins."""
        return (self._first, *_ids(instruction), *self._joint, *_ids(observation), _ASSISTANT)

    def following(self, observation: str, *, ended: bool) -> Ids:
        """Ids from where a reply stopped to where the next one begins; a message ends where the next one begins."""
        return (_USER, *_ids(observation), _ASSISTANT)

    def reply(self, text: str, *, ended: bool) -> Ids:
        """Ids of what a model said, and of its end where it came to one."""
        return (*_ids(text), *(_END,) * ended)

    def decode(self, sampled_ids: Sequence[int]) -> str:
        """The text of a reply, without its end."""
        return "".join(chr(-1 - id) for id in sampled_ids if id != _END)

    def messages(self, ids: Sequence[int]) -> list[Message]:
        """The messages of a conversation, up to the reply that is to come.

        >>> layout = CharacterLayout()
        >>> layout.messages((*layout.opening("Count.", "1"), *layout.reply("2", ended=True)))
        [{'role': 'user', 'content': 'Count.\\n\\n1'}, {'role': 'assistant', 'content': '2'}]
        """
        starts = [at for at, id in enumerate(ids) if id in _ROLES]
        parts = [ids[start:end] for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
        written = parts[:-1] if ids[-1] == _ASSISTANT else parts
        return [{"role": _ROLES[part[0]], "content": self.decode(part[1:])} for part in written]


def _ids(text: str) -> Ids:
    return tuple(-1 - ord(character) for character in text)
