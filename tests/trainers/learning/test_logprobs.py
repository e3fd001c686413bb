"""Log-probabilities of packed rows equal those of plain forward passes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from tests.trainers.learning.episodes import (
    by_sample,
    generation,
    gpt2_policy,
    lessons,
    plain_logprobs,
    random_episodes,
    tiny_policy,
    trajectory,
)
from trainers.learning.batch import collect_samples, pack
from trainers.learning.logprobs import token_logprobs
from trainers.learning.losses import sft_loss


def small(config: type, **sizes: int) -> Any:
    torch.manual_seed(0)
    settings = config(vocab_size=400, num_hidden_layers=2, num_attention_heads=4, **sizes)
    return AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa").double().eval()


MODELS = {
    "llama": lambda: tiny_policy(torch.float64).model,
    "llama with an adapter": lambda: tiny_policy(torch.float64, lora_rank=4).model,
    "qwen2": lambda: small(Qwen2Config, hidden_size=32, intermediate_size=64, num_key_value_heads=2),
    "qwen3": lambda: small(
        Qwen3Config, hidden_size=32, intermediate_size=64, num_key_value_heads=2, head_dim=8
    ),
    "gpt2": lambda: gpt2_policy().model,
}


@pytest.mark.parametrize("name", MODELS)
def test_packed_rows_score_as_plain_forward_passes(name: str) -> None:
    model = MODELS[name]()
    collected, _ = collect_samples(random_episodes(2))
    expected = [plain_logprobs(model, sample, 0.7) for sample in collected]
    for budget in (1, 40, 10_000):
        rows = pack(lessons(collected), budget)
        scored = by_sample(rows, [token_logprobs(model, row, 0.7)[0] for row in rows], len(collected))
        for got, wanted in zip(scored, expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-10, rtol=0)


def test_in_float32_they_agree_to_a_ten_thousandth() -> None:
    model = tiny_policy().model
    collected, _ = collect_samples(random_episodes(3))
    (row,) = pack(lessons(collected), 10_000)
    scored = by_sample([row], [token_logprobs(model, row)[0]], len(collected))
    for got, sample in zip(scored, collected, strict=True):
        torch.testing.assert_close(got, plain_logprobs(model, sample), atol=1e-4, rtol=0)


class GivenLogits(nn.Module):
    """A model whose logits are its parameters."""

    dtype = torch.float32

    def __init__(self, length: int, vocabulary: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(1, length, vocabulary))

    def forward(self, logits_to_keep: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits[:, logits_to_keep])


def test_logits_that_predict_no_sampled_token_have_no_gradient() -> None:
    """mll-lab-nu/RAGEN #71, #59: gradients came from the observations."""
    episode = trajectory([generation([1, 2, 5], [6, 2])], [generation([2, 7], [2])])
    collected, _ = collect_samples([episode])
    (row,) = pack(lessons(collected, 1.0), 100)
    model = GivenLogits(len(row.ids), 10)
    logprobs, _ = token_logprobs(model, row)
    sft_loss(logprobs, row.weights).backward()
    assert model.logits.grad is not None
    touched = model.logits.grad[0].abs().sum(-1) > 0
    # tokens:                 1      2      5     6     2      2      7
    assert touched.tolist() == [False, False, True, True, False, False, True]


def test_entropy_of_even_logits_is_the_logarithm_of_their_number() -> None:
    collected, _ = collect_samples([trajectory([generation([1], [6, 2])])])
    (row,) = pack(lessons(collected, 1.0), 100)
    logprobs, entropy = token_logprobs(GivenLogits(len(row.ids), 10), row)
    assert entropy.tolist() == pytest.approx([math.log(10)] * 2)
    assert logprobs.tolist() == pytest.approx([-math.log(10)] * 2)
    assert not entropy.requires_grad
