"""Whether Triton's kernels of attention can be used; the kernels are beside their trunks."""
from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

FORMS = ('plain', 'triton')
CAPABILITY = (8, 0)  # below, Triton has no products on tensor cores


@dataclass(frozen=True)
class Limits:
    """What kernels can do, and what they need."""
    num_heads: int
    head_width: int
    shared_kib: int  # memory that the threads of a program share


def check_gpu_attention(form: str, num_heads: int, head_width: int, limits: Limits) -> None:
    """Make sure that a form of attention for GPUs can be used here.

    Args:
        form: ``plain`` or ``triton``.
        num_heads: Heads of the trunk.
        head_width: Channels of a head.
        limits: Of the kernels.

    Raises:
        ValueError: If there is no such form, or what it needs is absent.
    """
    if form not in FORMS:
        raise ValueError(f'gpu_attention must be plain or triton, got {form!r}')
    if form == 'triton' and (missing := _missing(num_heads, head_width, limits)):
        raise ValueError(f"gpu_attention='triton' needs {missing}: take gpu_attention='plain'")


def _missing(num_heads: int, head_width: int, limits: Limits) -> str | None:
    if num_heads > limits.num_heads:
        return f'at most {limits.num_heads} heads, and there are {num_heads}'
    if head_width > limits.head_width:
        return f'heads of at most {limits.head_width} channels, and these have {head_width}'
    if find_spec('triton') is None:
        return 'the package triton, which is not installed'
    if not torch.cuda.is_available():
        return 'a GPU, and torch sees none'
    if torch.version.hip is not None:
        return 'a GPU of NVIDIA: others were not tried'
    gpu = torch.cuda.get_device_properties()
    if (gpu.major, gpu.minor) < CAPABILITY:
        return 'a GPU of compute capability {}.{}, and {} has {}.{}'.format(
            *CAPABILITY, gpu.name, gpu.major, gpu.minor)
    if gpu.shared_memory_per_block_optin < limits.shared_kib * 1024:
        return (f'{limits.shared_kib} KiB of shared memory, and {gpu.name} has '
                f'{gpu.shared_memory_per_block_optin // 1024}')
    return None
