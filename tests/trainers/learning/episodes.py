"""Episodes made by hand, or at random, for the tests of learning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from gym_agents.trajectory import Generation, Outcome, Trajectory, Turn
from trainers.config import PolicyConfig
from trainers.embedded import tiny_tokenizer
from trainers.learning.batch import Lesson, Row, Sample
from trainers.models import Policy, load_policy


def generation(context: Sequence[int], sampled: Sequence[int], **rest: Any) -> Generation:
    """A generation whose log-probabilities are -1 unless others are given."""
    rest.setdefault("logprobs", (-1.0,) * len(sampled))
    return Generation(tuple(context), tuple(sampled), **rest)


def trajectory(
    *turns: Sequence[Generation],
    outcome: Outcome = Outcome.SUCCESS,
    rewards: Sequence[float] = (1.0,),
    **rest: Any,
) -> Trajectory:
    """An episode of these turns; its score comes from the first unless other rewards are given."""
    played = tuple(
        Turn(
            "",
            "",
            reward=rewards[turn] if turn < len(rewards) else 0.0,
            score=1.0,
            valid=True,
            command="go",
            generations=tuple(parts),
        )
        for turn, parts in enumerate(turns)
    )
    return Trajectory(
        scenario="counting",
        task=None,
        item_id="counting_3",
        seed=0,
        options={},
        instruction="",
        turns=played,
        final_observation="",
        outcome=outcome,
        **{"score": 1.0, **rest},
    )


def random_episodes(
    seed: int, *, groups: int = 3, group_size: int = 4, vocabulary: int = 400
) -> list[Trajectory]:
    """Groups with prompts of 10 tokens, the first 3 common to all; one to three ragged turns, scores 0 or 1."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(3, vocabulary) for _ in range(count)]

    def turns(prompt: list[int]) -> list[list[Generation]]:
        contexts = [prompt, *(ids(draw.randint(1, 4)) for _ in range(draw.randint(0, 2)))]
        # about as likely as a random model of this vocabulary finds them, so that no ratio is clipped
        return [
            [generation(context, new, logprobs=(-6.2,) * len(new))]
            for context in contexts
            for new in [ids(draw.randint(1, 5))]
        ]

    instruction = ids(3)
    return [
        trajectory(*turns(prompt), group=group, member=member, score=float(draw.random() < 0.5))
        for group in range(groups)
        for prompt in [instruction + ids(7)]
        for member in range(group_size)
    ]


def tiny_policy(dtype: torch.dtype = torch.float32, *, lora_rank: int = 0) -> Policy:
    """The tiny model, all of it trained unless a rank is given."""
    policy = load_policy(PolicyConfig(model="tiny", lora_rank=lora_rank), torch.device("cpu"))
    policy.model.to(dtype)
    return policy


def gpt2_policy() -> Policy:
    """A small random model in float64, none of whose layers computes in float32 for itself."""
    config = GPT2Config(vocab_size=400, n_embd=32, n_layer=2, n_head=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return Policy(model.double(), tiny_tokenizer(), "gpt2")


def plain_logprobs(model: Any, sample: Sample, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of a sample's sampled tokens, from a forward pass over that sample alone [A]."""
    logits = model(torch.tensor([sample.ids])).logits[0] / temperature
    sampled = [place for place, acted in enumerate(sample.action_mask) if acted]
    return torch.stack([logits[place - 1].log_softmax(-1)[sample.ids[place]] for place in sampled])


def lessons(
    samples: Sequence[Sample], advantages: Sequence[torch.Tensor] | torch.Tensor | float = 0.0
) -> list[Lesson]:
    """What is to be learned from samples: one advantage for all, or those of each."""
    if isinstance(advantages, float):
        advantages = torch.full((len(samples),), advantages)
    return [Lesson(sample, advantage) for sample, advantage in zip(samples, advantages, strict=True)]


def by_sample(rows: Sequence[Row], values: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
    """Values over the sampled tokens of rows, sorted back to the samples that they are of."""
    which, flat = torch.cat([row.sample for row in rows]), torch.cat([*values])
    return [flat[which == index] for index in range(count)]
