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
    """Return a copy in float64."""
    return copy.deepcopy(module).double()


def deviation(found: Tensor, exact: Tensor, scale: float | None = None) -> float:
    """Return the maximum error relative to the maximum of ``exact`` or to ``scale``."""
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
    """Check that ``found`` is as exact as ``plain``.

    Args:
        found: Tested result.
        plain: Result of the plain implementation in the same precision.
        exact: Result of the plain implementation in float64.
        scale: Scale of relative errors. Defaults to the maximum of ``exact``.
        factor: Allowed error as a multiple of that of ``plain``.
        floor: Allowed additional error in eps; a thousand for gradients of weights, which are sums
            over all tokens.
        name: Name in messages.
    """
    eps = torch.finfo(found.dtype).eps
    allowed = factor * deviation(plain, exact, scale) + floor * eps
    error = deviation(found, exact, scale)
    assert error <= allowed, f'{name} is off by {error:.2g}, and {allowed:.2g} are allowed'


def check_all_rounding(found: Iterable[Tensor], plain: Iterable[Tensor],
                       exact: Iterable[Tensor]) -> None:
    """Check each tensor by :func:`check_rounding`, relative to 1e-3 of the largest at least."""
    rows = list(zip(found, plain, exact, strict=True))
    largest = [row[2].abs().max().item() for row in rows]
    for index, (row, scale) in enumerate(zip(rows, largest, strict=True)):
        check_rounding(*row, scale=max(scale, 1e-3 * max(largest)), name=str(index))
