"""What is measured on: processor, instruction sets, and how fast products of matrices are."""
from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

from colonnade.backbones.kernels import private_torch
from colonnade.models.half_precision import explain_missing_bfloat16

INSTRUCTION_SETS = ('avx2', 'avx512', 'vnni', 'avx512_bf16', 'amx_tile', 'amx_fp16')
#: with these a user imitates another processor; they are read when torch is loaded
LIMITS = ('ATEN_CPU_CAPABILITY', 'ONEDNN_MAX_CPU_ISA', 'DNNL_MAX_CPU_ISA',
          'MKL_ENABLE_INSTRUCTIONS')
WAITING = ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')


def processor() -> str:
    """The name of the CPU, as Linux has it."""
    path = Path('/proc/cpuinfo')
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.processor() or platform.machine()


def described(device: str) -> Iterator[str]:
    """Lines: the device, what it can do, and what torch and its libraries use of that.

    Args:
        device: ``'cpu'`` or ``'cuda'``.
    """
    if device != 'cpu':
        yield f'{torch.cuda.get_device_name()}, torch {torch.__version__}'
        return
    has = [name.upper() for name in INSTRUCTION_SETS if has_instructions(name)]
    yield f'{processor()} with {", ".join(has) or "none of the wider instruction sets"}'
    half = 'has' if computed_by_onednn(torch.bfloat16) else 'lacks'
    yield (f'torch {torch.__version__} uses {torch.backends.cpu.get_cpu_capability()}; its oneDNN '
           f'{half} fast products of bfloat16')
    given = [f'{name}={os.environ[name]}' for name in LIMITS + WAITING if name in os.environ]
    if given:
        yield f'set: {" ".join(given)}'


def has_instructions(name: str) -> bool:
    """Whether the CPU has an instruction set, whatever the libraries are told to use."""
    supported: Callable[[], bool] | None = getattr(torch.cpu, f'_is_{name}_supported', None)
    return supported is not None and supported()


def product_limit(device: str, dtype: torch.dtype, threads: int) -> float:
    """GFLOP/s of the fastest product of matrices on this machine, two operations each.

    On a CPU it is the best of what torch's libraries offer: MKL's product, oneDNN's convolution,
    and oneDNN's linear layer with packed weights.

    Args:
        device: ``'cpu'`` or ``'cuda'``.
        dtype: Of the matrices.
        threads: Of the CPU.
    """
    torch.set_num_threads(threads)
    side = 2048 if device == 'cpu' else 8192
    best = 0.
    with torch.no_grad():
        for product in ways_to_multiply(side, device, dtype):
            for _ in range(5):  # the first warms up
                started = time.perf_counter()
                product()
                if device != 'cpu':
                    torch.cuda.synchronize()
                best = max(best, 2 * side**3 / (time.perf_counter() - started) / 1e9)
    return best


def ways_to_multiply(side: int, device: str, dtype: torch.dtype) -> Iterator[Callable[[], object]]:
    """Ways to multiply two square matrices.

    Args:
        side: Rows and columns.
        device: ``'cpu'`` or ``'cuda'``.
        dtype: Of the matrices.
    """
    x, weight = torch.randn(2, side, side, device=device).to(dtype)
    if device != 'cpu' or computed_by_onednn(dtype):  # else it would take minutes
        yield partial(torch.matmul, x, weight)
    if device != 'cpu':
        return
    image = x.view(1, 1, side, side).permute(0, 3, 1, 2)  # channels-last, as our maps are
    yield partial(F.conv2d, image, weight[:, :, None, None])
    if computed_by_onednn(dtype):
        packed = private_torch.pack_linear(weight, side)
        yield partial(private_torch.run_linear, x, packed, None, 'none', [], '')


def computed_by_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes products of this type on this CPU, as it is told to use it."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return not explain_missing_bfloat16()
    return dtype == torch.float32 or private_torch.has_fast_matmuls(dtype)
