"""Focal losses, by the formulas of mmcv's kernels.

Shapes: ``n`` predictions of ``C`` classes ``(n, C)``.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .common import widened

TINY = torch.finfo(torch.float32).tiny  # mmcv takes no logarithm of less


def sigmoid_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Focal loss (arXiv 1708.02002) of ``(n, C)`` logits to ``output``.

    Args:
        input: ``(n, C)``.
        target: Classes ``(n,)``; any other number is the background.
        weight: Of classes, ``(C,)``; empty for none.
        output: ``(n, C)``.
        gamma: Exponent.
        alpha: Weight of the right class.
    """
    p, q, log_p, log_q = probabilities(input)
    loss = torch.where(
        is_class(target, input), -alpha * q**gamma * log_p, (alpha - 1) * p**gamma * log_q)
    output.copy_(loss * class_weights(weight, target)[:, None])


def sigmoid_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor,
                                *, gamma: float, alpha: float) -> None:
    """The gradient of the sum of :func:`sigmoid_focal_loss_forward`, to ``grad_input``."""
    p, q, log_p, log_q = probabilities(input)
    grad = torch.where(
        is_class(target, input), alpha * q**gamma * (gamma * p * log_p - q),
        (1 - alpha) * p**gamma * (p - gamma * q * log_q))
    grad_input.copy_(grad * class_weights(weight, target)[:, None])


def probabilities(logits: Tensor) -> list[Tensor]:
    """Of yes and of no, and their logarithms, each ``(n, C)``."""
    both = (widened(logits), -widened(logits))
    logarithms = [F.logsigmoid(x).clamp_min(math.log(TINY)) for x in both]
    return [*map(torch.sigmoid, both), *logarithms]


def softmax_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Focal loss ``(n,)`` of probabilities ``(n, C)``, to ``output``.

    Args:
        input: The softmax of the logits, ``(n, C)``.
        target: Classes ``(n,)``; those below zero have no loss.
        weight: Of classes, ``(C,)``; empty for none.
        output: ``(n,)``.
        gamma: Exponent.
        alpha: Weight of the loss.
    """
    p = of_class(input, target)
    loss = -alpha * (1 - p)**gamma * p.clamp_min(TINY).log() * class_weights(weight, target)
    output.copy_(loss.masked_fill(target < 0, 0))


def softmax_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, *, gamma: float, alpha: float) -> None:
    """The gradient of :func:`softmax_focal_loss_forward` by the logits, to ``grad_input``."""
    p = of_class(input, target)
    rest = (1 - p).clamp_min(TINY)  # finite to powers below zero, too
    grad = gamma * rest**(gamma - 1) * p * p.clamp_min(TINY).log() - rest**gamma
    grad = (alpha * grad * class_weights(weight, target)).masked_fill(target < 0, 0)
    grad_input.copy_(grad[:, None] * (is_class(target, input).float() - widened(input)))


def of_class(probability: Tensor, target: Tensor) -> Tensor:
    """The probability ``(n,)`` of the right class, of ``(n, C)``; any if there is none."""
    return widened(probability).gather(1, target.clamp_min(0)[:, None])[:, 0]


def is_class(target: Tensor, logits: Tensor) -> Tensor:
    """Which of the classes of ``(n, C)`` are the right ones."""
    return target[:, None] == torch.arange(logits.shape[1], device=logits.device)


def class_weights(weight: Tensor, target: Tensor) -> Tensor:
    """Those ``(n,)`` of the right classes: 1 for the background, or if ``weight`` is empty."""
    if not len(weight):
        return torch.ones_like(target, dtype=torch.float32)
    known = (target >= 0) & (target < len(weight))
    chosen = widened(weight)[target.clamp(0, len(weight) - 1)]
    return torch.where(known, chosen, torch.ones_like(chosen))
