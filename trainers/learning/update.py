"""One optimizer step over packed rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer

from trainers.errors import NonFiniteUpdate
from trainers.learning.batch import Row
from trainers.learning.logprobs import token_logprobs
from trainers.learning.losses import clip_fraction, kl_k3, policy_loss, sft_loss
from trainers.models import Policy

RowLoss = Callable[[Row], dict[str, Tensor]]
"""A row's part of each mean over the update's tokens; `loss` is the one to be differentiated."""


def rl_update(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    *,
    accelerator: Accelerator,
    temperature: float,
    clip_range: float,
    kl_coef: float,
    entropy_coef: float,
    grad_clip: float,
) -> dict[str, float]:
    """One step down `policy_loss + kl_coef * KL - entropy_coef * entropy`, a mean over the update's tokens.

    The mean is over all rows of all processes. If no advantage differs from 0 and neither other term has a
    weight, nothing is done at all: weights and optimizer stay as they are, and `skipped` is 1.

    Args:
        policy: what learns; with `kl_coef` it must have a frozen reference.
        optimizer: over `policy.trainable`.
        rows: this process's share; may be empty.
        accelerator: sums gradients over processes.
        temperature: that the tokens were sampled at.
        clip_range: PPO's epsilon.
        kl_coef: weight of the KL against the reference.
        entropy_coef: weight of the entropy bonus.
        grad_clip: largest norm of the gradient.

    Returns:
        loss, policy_loss, kl (against the reference, where it has a weight), approx_kl (against the policy
        that sampled), entropy, clip_fraction, ratio, each a mean over tokens; grad_norm before clipping;
        tokens; skipped.

    Raises:
        NonFiniteUpdate: the loss or the gradient is not finite; no step was made.
    """

    means = ("loss", "policy_loss", "entropy", "clip_fraction", "ratio", "approx_kl", *["kl"] * bool(kl_coef))

    def loss(row: Row) -> dict[str, Tensor]:
        reference = _reference_logprobs(policy, row, temperature) if kl_coef else None
        logprobs, entropies = token_logprobs(policy.model, row, temperature, entropy_grad=bool(entropy_coef))
        terms = _policy_terms(row, logprobs, clip_range)
        terms["entropy"] = (row.weights * entropies).sum()
        terms["loss"] = terms["policy_loss"] - entropy_coef * terms["entropy"]
        if reference is not None:
            terms["kl"] = (row.weights * kl_k3(logprobs, reference)).sum()
            terms["loss"] = terms["loss"] + kl_coef * terms["kl"]
        return terms

    pulls = bool(kl_coef or entropy_coef) or any(bool(row.advantages.any()) for row in rows)
    return _step(policy, optimizer, rows, loss, means, accelerator, grad_clip, pulls=pulls)


def _policy_terms(row: Row, logprobs: Tensor, clip_range: float) -> dict[str, Tensor]:
    """The clipped loss, and how far the policy has moved from the one that sampled."""
    loss = policy_loss(logprobs, row.logprobs, row.advantages, row.weights, clip_range=clip_range)
    with torch.no_grad():
        clipped = clip_fraction(logprobs, row.logprobs, row.advantages, row.weights, clip_range=clip_range)
        ratio = (row.weights * (logprobs - row.logprobs).exp()).sum()
        moved = (row.weights * kl_k3(row.logprobs, logprobs)).sum()
    return {"policy_loss": loss, "clip_fraction": clipped, "ratio": ratio, "approx_kl": moved}


def _reference_logprobs(policy: Policy, row: Row, temperature: float) -> Tensor:
    with policy.reference() as model:
        return token_logprobs(model, row, temperature)[0]


def sft_update(
    policy: Policy, optimizer: Optimizer, rows: Sequence[Row], *, accelerator: Accelerator, grad_clip: float
) -> dict[str, float]:
    """One step of imitation: down the mean negative log-likelihood of all rows' sampled tokens.

    Returns:
        loss; grad_norm before clipping; tokens; skipped.

    Raises:
        NonFiniteUpdate: as for `rl_update`.
    """

    def loss(row: Row) -> dict[str, Tensor]:
        logprobs, _ = token_logprobs(policy.model, row)
        return {"loss": sft_loss(logprobs, row.weights)}

    return _step(policy, optimizer, rows, loss, ("loss",), accelerator, grad_clip, pulls=bool(rows))


def _step(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    row_loss: RowLoss,
    means: Sequence[str],
    accelerator: Accelerator,
    grad_clip: float,
    *,
    pulls: bool,
) -> dict[str, float]:
    """Backward row by row, one sum over the processes, one clipped step.

    The model is not wrapped for data parallelism: rows are ragged, a process may have none of them, and
    one sum per step is all the traffic there is.
    """
    weight = sum(float(row.weights.sum()) for row in rows)
    tokens = sum(len(row.target_ids) for row in rows)
    shares = torch.tensor([weight, tokens, pulls], dtype=torch.float32, device=policy.device)
    weight, tokens, pulling = _sum(accelerator, shares).tolist()
    if not pulling:
        return {"tokens": tokens, "skipped": 1.0}
    policy.prepare_to_learn()
    optimizer.zero_grad()
    totals = torch.zeros(len(means), device=policy.device)
    for row in rows:
        parts = row_loss(replace(row, weights=row.weights / weight).to(policy.device))
        accelerator.backward(parts["loss"])
        totals += torch.stack([parts[name].detach() for name in means])
    _sum_gradients(policy, accelerator)
    metrics = dict(zip(means, _sum(accelerator, totals).tolist(), strict=True))
    metrics["grad_norm"] = float(accelerator.clip_grad_norm_([*policy.trainable.values()], grad_clip))
    if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
        optimizer.zero_grad()
        raise NonFiniteUpdate(f"No step was made: {metrics}")
    optimizer.step()
    optimizer.zero_grad()
    return metrics | {"tokens": tokens, "skipped": 0.0}


def _sum(accelerator: Accelerator, values: Tensor) -> Tensor:
    """Each value summed over the processes."""
    total: Tensor = accelerator.reduce(values, reduction="sum")
    return total


def _sum_gradients(policy: Policy, accelerator: Accelerator) -> None:
    """Every gradient summed over the processes, in one piece."""
    if accelerator.num_processes == 1:
        return
    gradients = [_gradient(parameter) for parameter in policy.trainable.values()]
    summed = _sum(accelerator, torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, total in zip(gradients, summed.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
