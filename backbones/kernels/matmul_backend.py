"""Choice of the library for float32 matmuls on this CPU: torch's BLAS or oneDNN.

torch's BLAS is MKL, which uses half of the vector width on CPUs that are not Intel's. oneDNN, to
which torch passes convolutions, uses all of it. On Intel CPUs the two differ little, and a busy
machine would choose at random, so it is always the BLAS there. Elsewhere the faster one is measured
once per process, in about 10 ms. Set ``COLONNADE_MATMUL`` to get the same bits on all machines.
"""
from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F

from colonnade.common.errors import UserError

VARIABLE = 'COLONNADE_MATMUL'
CHOICES = ('blas', 'onednn')
TOKENS, WIDTH = 1024, 384  # shape of the timed matmul
MIN_SPEEDUP = 1.15  # at smaller speedups, processes on one host could choose differently


def check_matmul_backend() -> None:
    """Raise a ValueError if ``COLONNADE_MATMUL`` is neither ``blas`` nor ``onednn``."""
    choice = os.environ.get(VARIABLE)
    if choice and choice not in CHOICES:
        raise UserError(f'{VARIABLE} must be {" or ".join(CHOICES)}, got {choice!r}')


@torch.compiler.assume_constant_result
def is_onednn_faster() -> bool:
    """Return True if oneDNN's convolutions are clearly faster than the BLAS."""
    return _should_use_onednn(os.environ.get(VARIABLE))


@cache
def _should_use_onednn(choice: str | None) -> bool:
    check_matmul_backend()
    if not torch.backends.mkldnn.is_available():
        return False
    return choice == 'onednn' if choice else not _is_intel() and _is_onednn_faster()


def _is_intel() -> bool:
    """Return True if Linux reports an Intel CPU."""
    try:
        return 'GenuineIntel' in Path('/proc/cpuinfo').read_text(encoding='utf-8')
    except OSError:
        return False


@torch.no_grad()
def _is_onednn_faster() -> bool:
    """Compare the best of some alternating rounds, which a busy machine disturbs least."""
    tokens, weight = torch.ones(1, TOKENS, WIDTH), torch.ones(WIDTH, WIDTH)
    image = tokens.view(1, 1, TOKENS, WIDTH).permute(0, 3, 1, 2)
    candidates = (lambda: F.linear(tokens, weight),
                  lambda: F.conv2d(image, weight[:, :, None, None]))  # yapf: disable
    best = [float('inf')] * 2
    with torch.autocast('cpu', enabled=False):
        for _ in range(6):
            for index, run in enumerate(candidates):
                started = time.perf_counter()
                run()
                best[index] = min(best[index], time.perf_counter() - started)
    return best[0] > MIN_SPEEDUP * best[1]
