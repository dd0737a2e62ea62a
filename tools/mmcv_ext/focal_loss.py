"""Focal losses with the formulas of mmcv's kernels.

Shapes: ``n`` predictions of ``C`` classes ``(n, C)``.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .common import promote

TINY = torch.finfo(torch.float32).tiny  # mmcv clamps logarithms to this


def sigmoid_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Write the focal loss (arXiv 1708.02002) of logits to ``output``.

    Args:
        input: Logits ``(n, C)``.
        target: Classes ``(n,)``; any other number is the background.
        weight: Class weights ``(C,)``; empty for none.
        output: Losses ``(n, C)``.
        gamma: Exponent.
        alpha: Weight of the target class.
    """
    p, q, log_p, log_q = compute_probabilities(input)
    loss = torch.where(
        build_target_mask(target, input), -alpha * q**gamma * log_p, (alpha - 1) * p**gamma * log_q)
    output.copy_(loss * get_target_weights(weight, target)[:, None])


def sigmoid_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor,
                                *, gamma: float, alpha: float) -> None:
    """Write the gradient of the sum of :func:`sigmoid_focal_loss_forward`."""
    p, q, log_p, log_q = compute_probabilities(input)
    grad = torch.where(
        build_target_mask(target, input), alpha * q**gamma * (gamma * p * log_p - q),
        (1 - alpha) * p**gamma * (p - gamma * q * log_q))
    grad_input.copy_(grad * get_target_weights(weight, target)[:, None])


def compute_probabilities(logits: Tensor) -> list[Tensor]:
    """Return p, 1 - p and their logarithms, each ``(n, C)``."""
    both = (promote(logits), -promote(logits))
    logarithms = [F.logsigmoid(x).clamp_min(math.log(TINY)) for x in both]
    return [*map(torch.sigmoid, both), *logarithms]


def softmax_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Write the focal loss of probabilities to ``output``.

    Args:
        input: Softmax of the logits ``(n, C)``.
        target: Classes ``(n,)``; negative ones have no loss.
        weight: Class weights ``(C,)``; empty for none.
        output: Losses ``(n,)``.
        gamma: Exponent.
        alpha: Weight of the loss.
    """
    p = select_target(input, target)
    loss = -alpha * (1 - p)**gamma * p.clamp_min(TINY).log() * get_target_weights(weight, target)
    output.copy_(loss.masked_fill(target < 0, 0))


def softmax_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, *, gamma: float, alpha: float) -> None:
    """Write the gradient of :func:`softmax_focal_loss_forward` for the logits."""
    p = select_target(input, target)
    rest = (1 - p).clamp_min(TINY)  # keeps negative powers finite
    grad = gamma * rest**(gamma - 1) * p * p.clamp_min(TINY).log() - rest**gamma
    grad = (alpha * grad * get_target_weights(weight, target)).masked_fill(target < 0, 0)
    grad_input.copy_(grad[:, None] * (build_target_mask(target, input).float() - promote(input)))


def select_target(probability: Tensor, target: Tensor) -> Tensor:
    """Return the probability ``(n,)`` of the target class; arbitrary if there is none."""
    return promote(probability).gather(1, target.clamp_min(0)[:, None])[:, 0]


def build_target_mask(target: Tensor, logits: Tensor) -> Tensor:
    """Return a mask ``(n, C)`` of the target classes."""
    return target[:, None] == torch.arange(logits.shape[1], device=logits.device)


def get_target_weights(weight: Tensor, target: Tensor) -> Tensor:
    """Return the weights ``(n,)`` of the target classes; 1 for the background."""
    if not len(weight):
        return torch.ones_like(target, dtype=torch.float32)
    is_known = (target >= 0) & (target < len(weight))
    weights = promote(weight)[target.clamp(0, len(weight) - 1)]
    return torch.where(is_known, weights, torch.ones_like(weights))
