"""Four chat templates, each with a habit that breaks naive appending."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from trainers.embedded import tiny_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMS = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")
EMPTY_THOUGHT = CHATML.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")
OWN_SYSTEM_PROMPT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful model.<|im_end|>\n{% endif %}"
) + CHATML

TEMPLATES = {
    "chatml": CHATML,
    "drops thoughts": DROPS_THOUGHTS,
    "trims": TRIMS,
    "empty thought": EMPTY_THOUGHT,
}


def tokenizer(template: str = CHATML) -> PreTrainedTokenizerBase:
    """The tiny tokenizer with a template; `<think>` and `</think>` are tokens, though not special ones."""
    made = tiny_tokenizer()
    made.add_tokens(["<think>", "</think>"])
    made.chat_template = template
    made.name_or_path = "some/model"
    return made
