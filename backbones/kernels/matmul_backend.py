"""Which library multiplies matrices of float32 faster on this processor: torch's BLAS or oneDNN.

torch's BLAS is MKL, which leaves the wider half of some makers' vector units unused. oneDNN, to
which torch gives convolutions, uses what the processor has. On Intel's processors the two differ
little, and a busy machine would choose now this, now that: there it is always the BLAS. On others
the faster is measured once in a process, in some 10 ms. To give the same bits on all machines, set
``COLONNADE_MATMUL``.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.common.errors import UserError

VARIABLE = 'COLONNADE_MATMUL'
CHOICES = ('blas', 'onednn')
TOKENS, WIDTH = 1024, 384  # of the product that is timed
MIN_SPEEDUP = 1.15  # times as fast; below, processes of one machine could differ in their choice


def check_matmul_backend() -> None:
    """Raise a ValueError if ``COLONNADE_MATMUL`` is neither ``blas`` nor ``onednn``."""
    asked = os.environ.get(VARIABLE)
    if asked and asked not in CHOICES:
        raise UserError(f'{VARIABLE} must be {" or ".join(CHOICES)}, got {asked!r}')


@torch.compiler.assume_constant_result
def onednn_is_faster() -> bool:
    """Whether oneDNN's convolutions are clearly faster than the BLAS; BLAS without oneDNN.

    Raises:
        ValueError: If ``COLONNADE_MATMUL`` is neither ``blas`` nor ``onednn``.
    """
    return _chosen(os.environ.get(VARIABLE))


@cache
def _chosen(asked: str | None) -> bool:
    check_matmul_backend()
    if not torch.backends.mkldnn.is_available():
        return False
    return asked == 'onednn' if asked else not _is_of_intel() and _measured()


def _is_of_intel() -> bool:
    """Whether Linux says so of the processor."""
    try:
        return 'GenuineIntel' in Path('/proc/cpuinfo').read_text(encoding='utf-8')
    except OSError:
        return False


@torch.no_grad()
def _measured() -> bool:
    """By the best of some rounds in turns, which a busy machine disturbs least."""
    tokens, weight = torch.ones(1, TOKENS, WIDTH), torch.ones(WIDTH, WIDTH)
    image = tokens.view(1, 1, TOKENS, WIDTH).permute(0, 3, 1, 2)
    contestants: tuple[Callable[[], Tensor], ...] = (
        lambda: F.linear(tokens, weight),
        lambda: F.conv2d(image, weight[:, :, None, None]),
    )
    best = [float('inf')] * 2
    with torch.autocast('cpu', enabled=False):
        for _ in range(6):
            for index, contestant in enumerate(contestants):
                started = time.perf_counter()
                contestant()
                best[index] = min(best[index], time.perf_counter() - started)
    return best[0] > MIN_SPEEDUP * best[1]
