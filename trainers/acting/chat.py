"""THE token layout of a conversation: what stands around observations and replies, and where a reply ends.

The layout is read from the tokenizer's chat template once, by rendering marked messages, and is fixed from
then on. A conversation only ever grows: what was fed and sampled stays as it was, also where the template
itself would write an old turn anew (dropping its thoughts, trimming its spaces). Whether a reply is sampled
(RL) or given (SFT), the same ids stand around it.

The texts of scenario, world and demonstrations are encoded as plain text: a control token that is spelt out
in them becomes the characters it is spelt with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase

from trainers.errors import PolicyError

Ids = tuple[int, ...]
Messages = list[dict[str, str]]

_INSTRUCTION, _OBSERVATION, _REPLY, _NEXT = "mark-instruction", "mark-first", "mark-reply", "mark-next"


class ChatLayout:
    """The layout of one tokenizer's template.

    With the instruction in the `user` message, a template that writes a system prompt of its own where none is
    given is handed an empty one, if that makes the conversation shorter.

    Attributes:
        stop_ids: a reply ends with the first sampled id of this set.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        instruction_in: which message carries the scenario's instruction: the system's, or the first user's.

    Raises:
        PolicyError: naming the model, if its template cannot be extended turn by turn.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, instruction_in: Literal["user", "system"] = "user"
    ) -> None:
        template = _Template(tokenizer)
        self._tokenizer = tokenizer
        self._plain = _plain_tokenizer(tokenizer, template.control)
        opening = template.opening_with_system() if instruction_in == "system" else template.opening()
        self._head, self._tail = template.ids(opening[0]), template.ids(opening[-1])
        self._joint = template.ids(opening[1]) if instruction_in == "system" else self._text("\n\n")
        self._after_cut, self._next_tail = map(template.ids, template.between())
        end = template.end_of_reply(self._after_cut)
        self._end_id, self._after_end = self._after_cut[end], self._after_cut[end + 1 :]
        self.stop_ids = frozenset({self._end_id, tokenizer.eos_token_id} - {None})

    def opening(self, instruction: str, observation: str) -> Ids:
        """Ids up to where the first reply begins."""
        return (
            *self._head,
            *self._text(instruction),
            *self._joint,
            *self._text(observation),
            *self._tail,
        )

    def following(self, observation: str, *, ended: bool) -> Ids:
        """Ids from where a reply stopped to where the next one begins.

        Args:
            observation: what the world said to the reply.
            ended: whether the end of the reply was sampled; where the token limit cut it, the end is put in.
        """
        glue = self._after_end if ended else self._after_cut
        return (*glue, *self._text(observation), *self._next_tail)

    def supervised(self, reply: str) -> Ids:
        """Ids of a given reply, its end included: what a policy that gives this reply would have sampled."""
        return (*self._text(reply), self._end_id)

    def decode(self, sampled_ids: Sequence[int]) -> str:
        """The text of a reply, without its end.

        A control token in the middle of it stays visible, and bytes that are no UTF-8 become U+FFFD.
        """
        ids = list(sampled_ids)
        if ids and ids[-1] in self.stop_ids:
            del ids[-1]
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _text(self, text: str) -> Ids:
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)


class _Template:
    """A chat template, taken apart by rendering marked messages."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise PolicyError(f"The tokenizer of {self._name} has no chat template.")
        self.control = {
            token.content: id
            for id, token in tokenizer.added_tokens_decoder.items()
            if token.special or not token.content.isspace()  # some tokenizers add runs of spaces
        }
        """Tokens that mean more than their characters, by how they are spelt."""

    def ids(self, glue: str) -> Ids:
        """Ids of the template's own text."""
        return tuple(self._tokenizer.encode(glue, add_special_tokens=False))

    def opening(self) -> list[str]:
        """What stands before and after the first user message, without a system message of the template's own."""
        user = {"role": "user", "content": _OBSERVATION}
        variants = [self._parts([user], _OBSERVATION)]
        try:
            variants.append(self._parts([{"role": "system", "content": ""}, user], _OBSERVATION))
        except PolicyError:  # a template without a system role
            return variants[0]
        return min(variants, key=lambda parts: len(self.ids(parts[0])))

    def opening_with_system(self) -> list[str]:
        """What stands before, between and after the system's and the first user message."""
        messages = [
            {"role": "system", "content": _INSTRUCTION},
            {"role": "user", "content": _OBSERVATION},
        ]
        return self._parts(messages, _INSTRUCTION, _OBSERVATION)

    def between(self) -> list[str]:
        """What stands between a reply and the next observation, and after that."""
        messages = [
            {"role": "user", "content": _OBSERVATION},
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": _NEXT},
        ]
        return self._parts(messages, _OBSERVATION, _REPLY, _NEXT)[2:]

    def end_of_reply(self, glue: Ids) -> int:
        """Where the end of a reply stands in the ids that follow it."""
        control = set(self.control.values())
        at = next((at for at, id in enumerate(glue) if id in control), None)
        if at is None:
            raise PolicyError(
                f"The chat template of {self._name} marks no end of a reply by a control token."
            )
        return at

    def _parts(self, messages: Messages, *marks: str) -> list[str]:
        """The rendered messages, with the generation prompt, split at the marks."""
        try:
            rest = str(
                self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        except (TemplateError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise PolicyError(
                f"The chat template of {self._name} refuses messages of {roles}: {error}"
            ) from error
        parts = []
        for mark in marks:
            before, found, after = rest.partition(mark)
            if not found or mark in after:
                raise PolicyError(
                    f"The chat template of {self._name} cannot be extended turn by turn: of {len(messages)} "
                    f"messages it does not render each once, in their order."
                )
            parts.append(before)
            rest = after
        return [*parts, rest]


def _plain_tokenizer(tokenizer: PreTrainedTokenizerBase, control: dict[str, int]) -> Tokenizer:
    """A copy of the tokenizer to which no control token means more than its characters."""
    if not tokenizer.is_fast:
        raise PolicyError(
            f"{tokenizer.name_or_path} has no fast tokenizer, so that texts could be taken for control tokens."
        )
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    plain.add_special_tokens([AddedToken(spelling, special=True, normalized=False) for spelling in control])
    plain.encode_special_tokens = True
    taken = [
        spelling
        for spelling, id in control.items()
        if id in plain.encode(spelling, add_special_tokens=False).ids
    ]
    if taken:
        raise PolicyError(
            f"The tokenizer of {tokenizer.name_or_path} cannot spell out {', '.join(taken)} as plain text."
        )
    return plain
