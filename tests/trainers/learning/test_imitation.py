"""SFT: the tokens that are trained, by position, against the loss that transformers computes from labels."""

from __future__ import annotations

import math

import pytest
import torch
from accelerate import Accelerator

from tests.trainers.learning.episodes import generation, gpt2_policy, trajectory
from trainers.acting.replay import withheld
from trainers.config import RLConfig
from trainers.learning.batch import Lesson, pack, samples
from trainers.learning.losses import sft_loss
from trainers.learning.update import sft_update

END = 2
TURNS = [([5, END, 6], [20, END]), ([END, 7], [21, 22, END]), ([8], [23])]


def test_the_loss_of_five_tokens_by_hand() -> None:
    """Probabilities 1/2, 1/4 | 1/8 | 1, 1/2: the mean of 1, 2, 3, 0 and 1 bits is 1.4 bits, which is 0.970406."""
    logprobs = torch.tensor([0.5, 0.25, 0.125, 1.0, 0.5], dtype=torch.float64).log().requires_grad_()
    loss = sft_loss(logprobs, torch.full((5,), 0.2, dtype=torch.float64))
    loss.backward()
    assert loss.item() == pytest.approx(1.4 * math.log(2))
    assert loss.item() == pytest.approx(0.970406, abs=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.2] * 5)


@pytest.mark.parametrize("trained", [(True, True, True), (True, False, True)])
def test_loss_and_gradient_are_those_of_labels_on_the_replies_alone(trained: tuple[bool, ...]) -> None:
    """mll-lab-nu/RAGEN #71, huggingface/trl PR 6357, NVIDIA-NeMo/Megatron-Bridge PR 4660: the wrong tokens trained.

    The end of a reply is also in the prompt and in an observation; the labels are written by position. The last
    reply was cut, and no end is trained there. With `False` the second reply is context.
    """
    episode = trajectory(*([generation(context, said)] for context, said in TURNS))
    [sample] = samples(withheld(episode, trained))
    ids = [5, END, 6, 20, END, END, 7, 21, 22, END, 8, 23]
    labels = [-100, -100, -100, 20, END, -100, -100, 21, 22, END, -100, 23]
    if not trained[1]:
        labels[7:10] = [-100] * 3
    policy = gpt2_policy()
    expected = policy.model(torch.tensor([ids]), labels=torch.tensor([labels])).loss
    gradient = torch.cat(
        [part.flatten() for part in torch.autograd.grad(expected, [*policy.trainable.values()])]
    )
    before = torch.cat([weights.detach().flatten() for weights in policy.trainable.values()])
    figures = sft_update(
        policy,
        torch.optim.SGD(policy.trainable.values(), lr=1.0),
        pack([Lesson(sample)], 100),
        accelerator=Accelerator(cpu=True),
        config=RLConfig(grad_clip=1e9),
    )
    after = torch.cat([weights.detach().flatten() for weights in policy.trainable.values()])
    assert figures["tokens"] == sum(label != -100 for label in labels)
    assert figures["loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert float((before - after - gradient).norm() / gradient.norm()) < 1e-6
