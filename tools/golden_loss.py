"""The policy loss, its metrics and the optimizer for the golden files, in torch.

Written straight from the formulas and the order of training that the project documents, one
response and one plain tensor expression at a time, with gradients from autograd: no coefficients,
no packing, no shared prefix. tools/make_golden.py feeds it; it knows neither models nor files.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

CLAMP = 20.0


@dataclass
class Loss:
    """The fields of `loss` and `advantage` of a run config; None means that the kind decides."""

    kind: str = "GRPO"
    clip_low: float = 0.2
    clip_high: float | None = None
    dual_clip: float = 0.0
    kl_estimator: str = "K3"
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    aggregation: str | None = None
    temperature: float = 1.0
    max_response_length: int | None = None
    mask_truncated: bool = False
    normalization: str | None = None
    epsilon: float = 1e-6

    def resolved_clip_high(self) -> float:
        return self.clip_high or (0.28 if self.kind == "DAPO" else 0.2)

    def resolved_aggregation(self) -> str:
        by_kind = {
            "GRPO": "SEQUENCE_MEAN_TOKEN_MEAN",
            "DAPO": "TOKEN_MEAN",
            "DR_GRPO": "SEQUENCE_MEAN_TOKEN_SUM_NORM",
            "SFT": "TOKEN_MEAN",
        }
        return self.aggregation or by_kind[self.kind]

    def resolved_normalization(self) -> str:
        return self.normalization or ("NONE" if self.kind == "DR_GRPO" else "STD")


@dataclass
class Optimizer:
    """The fields of `optimizer` of a run config."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    schedule: str = "CONSTANT"
    warmup_steps: int = 0
    total_steps: int | None = None


@dataclass
class Response:
    """One response as the loss sees it. `mask` already has mask_truncated applied."""

    mask: list[int]
    reward: float | None
    old: list[float | None] | None
    ref: list[float | None] | None
    advantages: list[float | None] | None
    truncated: bool
    logprobs: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    entropies: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def learning(self) -> list[int]:
        return [t for t, m in enumerate(self.mask) if m == 1]


def chosen(values: list[float | None], at: list[int]) -> torch.Tensor:
    """The entries that enter the loss; the others (null, garbage) are never looked at."""
    return torch.tensor([values[t] for t in at], dtype=torch.float64)


def group_advantages(group: list[Response], loss: Loss) -> list[float]:
    """One advantage per response; 0 for all where the rewards do not differ."""
    rewards = [response.reward for response in group]
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    if loss.resolved_normalization() == "NONE":
        return [reward - mean for reward in rewards]
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (std + loss.epsilon) for reward in rewards]


def token_weights(groups: list[list[Response]], loss: Loss) -> list[list[float]]:
    """The weight of every learning token of a response, per group and response."""
    counts = [[len(response.learning()) for response in group] for group in groups]
    tokens = sum(sum(row) for row in counts)
    sequences = sum(1 for row in counts for n in row if n > 0)
    aggregation = loss.resolved_aggregation()

    def weight(n: int) -> float:
        if n == 0:
            return 0.0
        if aggregation == "TOKEN_MEAN":
            return 1.0 / tokens
        if aggregation == "SEQUENCE_MEAN_TOKEN_MEAN":
            return 1.0 / (sequences * n)
        assert aggregation == "SEQUENCE_MEAN_TOKEN_SUM_NORM" and loss.max_response_length
        return 1.0 / (sequences * loss.max_response_length)

    return [[weight(n) for n in row] for row in counts]


def policy_terms(
    logprob: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, loss: Loss
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """policy_t, the ratio, and whether clipping makes the policy's gradient zero."""
    distance = logprob - old
    ratio = torch.exp(torch.clamp(distance, -CLAMP, CLAMP))
    low, high = 1.0 - loss.clip_low, 1.0 + loss.resolved_clip_high()
    when_good = -advantage * torch.clamp(ratio, max=high)
    when_bad = -advantage * torch.clamp(ratio, min=low)
    beyond = torch.where(advantage >= 0, ratio > high, ratio < low)
    if loss.dual_clip > 0:
        when_bad = torch.minimum(when_bad, -advantage * loss.dual_clip)
        beyond = beyond | ((advantage < 0) & (ratio > loss.dual_clip))
    clipped = (beyond | (distance.abs() > CLAMP)) & (advantage != 0)
    return torch.where(advantage >= 0, when_good, when_bad), ratio, clipped


def kl_terms(logprob: torch.Tensor, ref: torch.Tensor, estimator: str) -> torch.Tensor:
    distance = ref - logprob
    if estimator == "K1":
        return -distance
    if estimator == "K2":
        return distance**2 / 2
    clamped = torch.clamp(distance, -CLAMP, CLAMP)
    return torch.exp(clamped) - clamped - 1


def loss_and_metrics(
    groups: list[list[Response]], loss: Loss
) -> tuple[torch.Tensor, dict[str, float | int]]:
    """The scalar to differentiate, and a step's metrics by their names in metrics.jsonl."""
    supervised = loss.kind == "SFT"
    every = [response for group in groups for response in group]
    shares: list[list[float]] = []
    zero_std_groups = 0
    for group in groups:
        if supervised or group[0].advantages is not None:
            shares.append([0.0] * len(group))
            continue
        shares.append(group_advantages(group, loss))
        zero_std_groups += all(a == 0.0 for a in shares[-1])

    total = torch.zeros((), dtype=torch.float64)
    policy_total = torch.zeros((), dtype=torch.float64)
    seen: dict[str, list[torch.Tensor]] = {"kl": [], "entropy": [], "ratio": [], "clipped": []}
    advantage_sizes: list[float] = []
    weights = token_weights(groups, loss)
    for group, group_weights, group_shares in zip(groups, weights, shares, strict=True):
        for response, weight, share in zip(group, group_weights, group_shares, strict=True):
            at = response.learning()
            if response.advantages is not None:
                advantage = chosen(response.advantages, at)
            else:
                advantage = torch.full((len(at),), share, dtype=torch.float64)
            given = response.advantages is not None
            advantage_sizes.append(float(advantage.abs().mean()) if given else abs(share))
            if not at:
                continue
            logprob, entropy = response.logprobs[at], response.entropies[at]
            if supervised:
                policy = -logprob
            else:
                old = chosen(response.old, at) if response.old is not None else logprob.detach()
                policy, ratio, clipped = policy_terms(logprob, old, advantage, loss)
                seen["ratio"].append(ratio.detach())
                seen["clipped"].append(clipped)
            terms = policy - loss.entropy_coef * entropy
            if response.ref is not None:
                estimator = loss.kl_estimator if loss.kl_coef > 0 else "K3"
                kl = kl_terms(logprob, chosen(response.ref, at), estimator)
                terms = terms + loss.kl_coef * kl
                seen["kl"].append(kl.detach())
            total = total + weight * terms.sum()
            policy_total = policy_total + weight * policy.sum().detach()
            seen["entropy"].append(entropy.detach())

    metrics: dict[str, Any] = {
        "loss": float(total.detach()),
        "policy_loss": float(policy_total),
        "entropy": float(torch.cat(seen["entropy"]).mean()),
        "loss_tokens": sum(len(response.learning()) for response in every),
        "groups": len(groups),
        "responses": len(every),
        "response_length_mean": sum(len(r.mask) for r in every) / len(every),
        "truncated_fraction": sum(r.truncated for r in every) / len(every),
    }
    if seen["kl"]:
        metrics["kl"] = float(torch.cat(seen["kl"]).mean())
    if not supervised:
        ratio = torch.cat(seen["ratio"])
        rewards = torch.tensor([r.reward for r in every], dtype=torch.float64)
        metrics |= {
            "ratio_mean": float(ratio.mean()),
            "ratio_max": float(ratio.max()),
            "clip_fraction": float(torch.cat(seen["clipped"]).double().mean()),
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std(unbiased=True)),
            "zero_std_groups": zero_std_groups,
            "advantage_abs_mean": sum(advantage_sizes) / len(advantage_sizes),
        }
    return total, metrics


def learning_rate(optimizer: Optimizer, update: int, total_steps: int) -> float:
    """The rate of applied update 1, 2, ..."""
    if update <= optimizer.warmup_steps:
        return optimizer.learning_rate * update / optimizer.warmup_steps
    if optimizer.schedule == "CONSTANT":
        return optimizer.learning_rate
    progress = (update - optimizer.warmup_steps) / (total_steps - optimizer.warmup_steps)
    progress = min(max(progress, 0.0), 1.0)
    if optimizer.schedule == "LINEAR":
        return optimizer.learning_rate * (1.0 - progress)
    return optimizer.learning_rate * (1.0 + math.cos(math.pi * progress)) / 2.0


def make_adamw(model: torch.nn.Module, optimizer: Optimizer) -> torch.optim.AdamW:
    """PyTorch's AdamW; decay acts on matrices only. Tied weights appear once in parameters()."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": optimizer.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=optimizer.learning_rate,
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.epsilon,
        foreach=False,
    )


def clip_gradients(model: torch.nn.Module, max_norm: float) -> float:
    """Scales the gradients where their global norm exceeds max_norm; returns the norm before."""
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
    if max_norm > 0 and norm > max_norm:
        for parameter in model.parameters():
            parameter.grad *= max_norm / (norm + 1e-6)
    return norm
