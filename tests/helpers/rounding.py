"""Bounds in units of what rounding allows, which hold on every processor.

The same sums in another order differ by some eps of their terms, and how many depends on the
processor's vector width and on the library that computes them. So a result is compared with
float64, and may be some times as far from it as the plain way to compute it on the same machine.
"""
from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar('Module', bound=nn.Module)


def doubled(module: Module) -> Module:
    """A copy in float64."""
    return copy.deepcopy(module).double()


def deviation(found: Tensor, exact: Tensor, scale: float | None = None) -> float:
    """In the maximum norm, relative to the largest value of ``exact`` or to ``scale``."""
    if scale is None:
        scale = exact.double().abs().max().item()
    return (found.double() - exact.double()).abs().max().item() / scale


def check_rounding(found: Tensor,
                   plain: Tensor,
                   exact: Tensor,
                   *,
                   scale: float | None = None,
                   factor: float = 4.,
                   floor: float = 16.,
                   name: str = '') -> None:
    """``found`` is as good as ``plain``, two ways to compute ``exact``.

    Args:
        found: What is tested.
        plain: What the plain way gives in the same precision.
        exact: What it gives in float64.
        scale: What errors are relative to; the largest value of ``exact`` if not given.
        factor: How many times as large as that of ``plain`` the error of ``found`` may be.
        floor: How many eps it may be beyond that: some for results of few sums in a row, a thousand
            for gradients of weights, which are sums over all tokens.
        name: For the message.
    """
    eps = torch.finfo(found.dtype).eps
    allowed = factor * deviation(plain, exact, scale) + floor * eps
    error = deviation(found, exact, scale)
    assert error <= allowed, f'{name} is off by {error:.2g}, and {allowed:.2g} are allowed'


def check_all_rounding(found: Iterable[Tensor], plain: Iterable[Tensor],
                       exact: Iterable[Tensor]) -> None:
    """As :func:`check_rounding`, one by one; relative to a thousandth of the largest at least.

    Some gradients are 0 but for rounding.
    """
    rows = list(zip(found, plain, exact, strict=True))
    largest = [row[2].abs().max().item() for row in rows]
    for index, (row, scale) in enumerate(zip(rows, largest, strict=True)):
        check_rounding(*row, scale=max(scale, 1e-3 * max(largest)), name=str(index))
