"""One optimizer step over packed rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer

from trainers.config import RLConfig
from trainers.critic import last_states
from trainers.errors import ExplodingGradient, NonFiniteUpdate
from trainers.learning.batch import Row
from trainers.learning.logprobs import reference_logprobs, token_logprobs
from trainers.learning.losses import (
    KL_ESTIMATORS,
    clip_fraction,
    dpo_loss,
    kl_k3,
    policy_loss,
    preference,
    sft_loss,
    value_loss,
)
from trainers.models import Policy


class RowLoss(Protocol):
    """A loss over the sampled tokens of a row."""

    @property
    def means(self) -> tuple[str, ...]:
        """Names of the terms."""
        ...

    def pulls(self, row: Row) -> bool:
        """Whether the row has any gradient at all."""
        ...

    def __call__(self, row: Row) -> dict[str, Tensor]:
        """The row's part of each mean over the update's tokens; `loss` is the one to be differentiated."""
        ...


def rl_update(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    *,
    accelerator: Accelerator,
    temperature: float,
    config: RLConfig,
    kl_coef: float,
) -> dict[str, float]:
    """One step down `policy_loss + kl_coef * KL - entropy_coef * entropy`, and down the critic's loss if there is one.

    Each is a mean over the tokens, by their weights, of all rows of all processes. If nothing pulls, that is, no
    advantage differs from 0, no other term has a weight and there is no critic, nothing is done at all: weights and
    optimizer stay as they are, and `skipped` is 1.

    Args:
        policy: what learns; with a KL in the loss it must have a frozen reference.
        optimizer: over `policy.trainable`, and over the critic's parameters as a group of their own.
        rows: this process's share; may be empty.
        accelerator: sums gradients over processes.
        temperature: that the tokens were sampled at.
        config: clipping, estimators and weights of the terms, and the largest norms of the gradient.
        kl_coef: weight of the KL against the reference, as it stands.

    Returns:
        loss, policy_loss, kl (against the reference, where the loss has it), approx_kl (against the policy
        that the ratio is taken to), entropy, clip_fraction, ratio and value_loss (with a critic), each a mean over
        tokens; grad_norm, and critic_grad_norm, before clipping; tokens; skipped.

    Raises:
        UnsoundUpdate: the loss or the gradient is not finite, or the gradient explodes; no step was made.
    """
    loss = _RLLoss(policy, config, temperature, kl_coef if config.kl_in == "loss" else 0.0)
    return _step(policy, optimizer, rows, loss, accelerator, config)


@dataclass(frozen=True)
class _RLLoss:
    """The terms of a row's loss."""

    policy: Policy
    config: RLConfig
    temperature: float
    kl_coef: float

    @property
    def means(self) -> tuple[str, ...]:
        always = ("loss", "policy_loss", "entropy", "clip_fraction", "ratio", "approx_kl")
        return (*always, *["kl"] * bool(self.kl_coef), *["value_loss"] * (self.policy.critic is not None))

    def pulls(self, row: Row) -> bool:
        everywhere = self.kl_coef or self.config.entropy_coef or self.policy.critic is not None
        return bool(everywhere or row.advantages.any())

    def __call__(self, row: Row) -> dict[str, Tensor]:
        config, policy = self.config, self.policy
        reference = reference_logprobs(policy, row, self.temperature) if self.kl_coef else None
        with last_states(policy.model) as states:
            logprobs, entropies = token_logprobs(
                policy.model, row, self.temperature, entropy_grad=bool(config.entropy_coef)
            )
        terms = _policy_terms(row, logprobs, config)
        terms["entropy"] = (row.weights * entropies).sum()
        terms["loss"] = terms["policy_loss"] - config.entropy_coef * terms["entropy"]
        if reference is not None:
            kl = KL_ESTIMATORS[config.kl_estimator](logprobs, reference)
            terms["kl"] = (row.weights * kl).sum()
            terms["loss"] = terms["loss"] + self.kl_coef * terms["kl"]
        if policy.critic is not None:
            terms["value_loss"] = value_loss(policy.critic(states[0].squeeze(0)), row.returns, row.weights)
            terms["loss"] = terms["loss"] + terms["value_loss"]
        return terms


def _policy_terms(row: Row, logprobs: Tensor, config: RLConfig) -> dict[str, Tensor]:
    """The clipped loss, and how far the policy has moved from the one that the ratio is taken to."""
    high = config.clip_range if config.clip_range_high is None else config.clip_range_high
    bounds = {"clip_low": config.clip_range, "clip_high": high, "dual_clip": config.dual_clip}
    loss = policy_loss(logprobs, row.logprobs, row.advantages, row.weights, **bounds)
    with torch.no_grad():
        clipped = clip_fraction(logprobs, row.logprobs, row.advantages, row.weights, **bounds)
        ratio = (row.weights * (logprobs - row.logprobs).exp()).sum()
        moved = (row.weights * kl_k3(row.logprobs, logprobs)).sum()
    return {"policy_loss": loss, "clip_fraction": clipped, "ratio": ratio, "approx_kl": moved}


def sft_update(
    policy: Policy, optimizer: Optimizer, rows: Sequence[Row], *, accelerator: Accelerator, config: RLConfig
) -> dict[str, float]:
    """One step of imitation: down the mean negative log-likelihood of all rows' sampled tokens.

    Of the configuration, only the largest norms of the gradient are used.

    Returns:
        loss; grad_norm before clipping; tokens; skipped.

    Raises:
        UnsoundUpdate: as for `rl_update`.
    """
    return _step(policy, optimizer, rows, _SFTLoss(policy), accelerator, config)


@dataclass(frozen=True)
class _SFTLoss:
    """Cross entropy."""

    policy: Policy
    means: tuple[str, ...] = ("loss",)

    def pulls(self, row: Row) -> bool:
        return True

    def __call__(self, row: Row) -> dict[str, Tensor]:
        logprobs, _ = token_logprobs(self.policy.model, row)
        return {"loss": sft_loss(logprobs, row.weights)}


def dpo_update(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    *,
    accelerator: Accelerator,
    config: RLConfig,
    beta: float,
) -> dict[str, float]:
    """One step down the mean of `dpo_loss` over the pairs of all processes.

    Args:
        policy: what learns, with its frozen reference.
        optimizer: over `policy.trainable`.
        rows: this process's share of the pairs, from `pack_pair`.
        accelerator: sums gradients over processes.
        config: only the largest norms of the gradient are used.
        beta: how strongly the policy is held to the reference.

    Returns:
        loss; margin, beta times `preference`; accuracy, the share of pairs where that is above 0; grad_norm before
        clipping; tokens; skipped.

    Raises:
        UnsoundUpdate: as for `rl_update`.
        PolicyError: the policy has no reference.
    """
    return _step(policy, optimizer, rows, _DPOLoss(policy, beta), accelerator, config)


@dataclass(frozen=True)
class _DPOLoss:
    """The loss of a pair, which is a row whose `advantages` tell its sides apart."""

    policy: Policy
    beta: float
    means: tuple[str, ...] = ("loss", "margin", "accuracy")

    def pulls(self, row: Row) -> bool:
        return True

    def __call__(self, row: Row) -> dict[str, Tensor]:
        reference = reference_logprobs(self.policy, row, 1.0)
        logprobs, _ = token_logprobs(self.policy.model, row)
        share = row.weights.sum()
        margin = self.beta * preference(logprobs, reference, row.advantages)
        return {"loss": share * dpo_loss(margin), "margin": share * margin, "accuracy": share * (margin > 0)}


def _step(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    row_loss: RowLoss,
    accelerator: Accelerator,
    config: RLConfig,
) -> dict[str, float]:
    """Backward row by row, one sum over the processes, one clipped step.

    The model is not wrapped for data parallelism: rows are ragged, a process may have none of them, and
    one sum per step is all the traffic there is.
    """
    weight = sum(float(row.weights.sum()) for row in rows)
    tokens = sum(len(row.target_ids) for row in rows)
    pulls = any(row_loss.pulls(row) for row in rows)
    shares = torch.tensor([weight, tokens, pulls], dtype=torch.float64, device=policy.device)
    weight, tokens, pulling = _sum(accelerator, shares).tolist()
    if not pulling:
        return {"tokens": tokens, "skipped": 1.0}
    policy.prepare_to_learn()
    optimizer.zero_grad()
    totals = _backward(rows, weight, row_loss, accelerator, policy.device)
    metrics = dict(zip(row_loss.means, totals.tolist(), strict=True))
    metrics |= _clip_gradients(optimizer, accelerator, config.grad_clip)
    try:
        _demand_sound(metrics, config.max_grad_norm)
        optimizer.step()
    finally:
        optimizer.zero_grad()
    return metrics | {"tokens": tokens, "skipped": 0.0}


def _backward(
    rows: Sequence[Row], weight: float, row_loss: RowLoss, accelerator: Accelerator, device: torch.device
) -> Tensor:
    """Adds up the rows' gradients; gives the means over all processes, in the order of `row_loss.means`."""
    totals = torch.zeros(len(row_loss.means), dtype=torch.float64, device=device)
    for row in rows:
        parts = row_loss(replace(row, weights=row.weights / weight).to(device))
        accelerator.backward(parts["loss"])
        totals += torch.stack([parts[name].detach().double() for name in row_loss.means])
    return _sum(accelerator, totals)


def _clip_gradients(optimizer: Optimizer, accelerator: Accelerator, grad_clip: float) -> dict[str, float]:
    """Sums the gradients over the processes and clips each group's; the norms before, those of the critic apart."""
    norms = {}
    for name, group in zip(("grad_norm", "critic_grad_norm"), optimizer.param_groups, strict=False):
        _sum_gradients(group["params"], accelerator)
        norms[name] = float(accelerator.clip_grad_norm_(group["params"], grad_clip))
    return norms


def _demand_sound(metrics: dict[str, float], max_grad_norm: float) -> None:
    if not all(map(math.isfinite, metrics.values())):
        raise NonFiniteUpdate(f"No step was made: {metrics}")
    if metrics["grad_norm"] > max_grad_norm:
        raise ExplodingGradient(
            f"No step was made: the gradient's norm is {metrics['grad_norm']:g}, above "
            f"rl.max_grad_norm = {max_grad_norm:g}"
        )


def _sum(accelerator: Accelerator, values: Tensor) -> Tensor:
    """Each value summed over the processes."""
    total: Tensor = accelerator.reduce(values, reduction="sum")
    return total


def _sum_gradients(parameters: Sequence[Tensor], accelerator: Accelerator) -> None:
    """Every gradient summed over the processes, in one piece."""
    if accelerator.num_processes == 1:
        return
    gradients = [_gradient(parameter) for parameter in parameters]
    summed = _sum(accelerator, torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, total in zip(gradients, summed.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
