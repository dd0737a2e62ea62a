"""Hardware of a benchmark: processor, instruction sets, and matmul speed."""
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
#: environment variables that affect speed; the first four imitate other processors
VARIABLES = ('ATEN_CPU_CAPABILITY', 'ONEDNN_MAX_CPU_ISA', 'DNNL_MAX_CPU_ISA',
             'MKL_ENABLE_INSTRUCTIONS', 'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')


def describe_machine(device: str) -> Iterator[str]:
    """Yield lines about a ``'cpu'`` or ``'cuda'`` device, its instruction sets and torch."""
    if device != 'cpu':
        yield f'{torch.cuda.get_device_name()}, torch {torch.__version__}'
        return
    path = Path('/proc/cpuinfo')
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    processor = names[0] if names else platform.processor() or platform.machine()
    # torch reports these whatever the libraries are limited to.
    supported = vars(torch.cpu)
    has = [name.upper() for name in INSTRUCTION_SETS
           if supported.get(f'_is_{name}_supported', bool)()]  # yapf: disable
    yield f'{processor} with {", ".join(has) or "none of the wider instruction sets"}'
    half = 'has' if uses_onednn(torch.bfloat16) else 'lacks'
    yield (f'torch {torch.__version__} uses {torch.backends.cpu.get_cpu_capability()}; its oneDNN '
           f'{half} fast bfloat16 matmuls')
    if variables := [f'{name}={os.environ[name]}' for name in VARIABLES if name in os.environ]:
        yield f'set: {" ".join(variables)}'


def measure_matmul_speed(device: str, dtype: torch.dtype, threads: int) -> float:
    """Return the GFLOP/s of the fastest matmul, with two operations per multiply-add.

    On a CPU, it is the fastest of MKL's matmul, oneDNN's convolution, and oneDNN's linear layer
    with packed weights.
    """
    torch.set_num_threads(threads)
    side = 2048 if device == 'cpu' else 8192
    best = 0.
    with torch.no_grad():
        for multiply in list_matmuls(side, device, dtype):
            for _ in range(5):  # The first one warms up.
                started = time.perf_counter()
                multiply()
                if device != 'cpu':
                    torch.cuda.synchronize()
                best = max(best, 2 * side**3 / (time.perf_counter() - started) / 1e9)
    return best


def list_matmuls(side: int, device: str, dtype: torch.dtype) -> Iterator[Callable[[], object]]:
    """Yield functions that multiply two square matrices of ``side`` rows."""
    x, weight = torch.randn(2, side, side, device=device).to(dtype)
    if device != 'cpu' or uses_onednn(dtype):  # Without oneDNN, it would take minutes.
        yield partial(torch.matmul, x, weight)
    if device != 'cpu':
        return
    image = x.view(1, 1, side, side).permute(0, 3, 1, 2)  # channels-last, like feature maps
    yield partial(F.conv2d, image, weight[:, :, None, None])
    if uses_onednn(dtype):
        packed = private_torch.pack_linear(weight, side)
        yield partial(private_torch.run_linear, x, packed, None, 'none', [], '')


def uses_onednn(dtype: torch.dtype) -> bool:
    """Return True if oneDNN computes matmuls of this type on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return not explain_missing_bfloat16()
    return dtype == torch.float32 or private_torch.has_fast_matmuls(dtype)
