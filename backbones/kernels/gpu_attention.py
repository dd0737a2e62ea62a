"""Whether Triton's kernels of attention can be used; only modules that import Triton need it."""
from __future__ import annotations

from importlib.util import find_spec

import torch

GPU_ATTENTION = ('plain', 'triton')
MAX_HEAD_WIDTH = 128  # a head's map must fit into a GPU's shared memory
CAPABILITY = (8, 0)  # below, Triton has no products on tensor cores


def check_gpu_attention(name: str, head_width: int) -> str:
    """The name of a form of attention for GPUs, if it can be used here.

    Args:
        name: ``plain`` or ``triton``.
        head_width: Channels of a head.

    Raises:
        ValueError: If there is no such form, or what it needs is absent.
    """
    if name not in GPU_ATTENTION:
        raise ValueError(f'gpu_attention must be plain or triton, got {name!r}')
    if name == 'triton' and (missing := _missing(head_width)):
        raise ValueError(f"gpu_attention='triton' needs {missing}: leave gpu_attention out")
    return name


def _missing(head_width: int) -> str | None:
    if head_width > MAX_HEAD_WIDTH:
        return f'heads of at most {MAX_HEAD_WIDTH} channels, and these have {head_width}'
    if find_spec('triton') is None:
        return 'the package triton, which is not installed'
    if not torch.cuda.is_available():
        return 'a GPU, and torch sees none'
    if torch.version.hip is None and (found := torch.cuda.get_device_capability()) < CAPABILITY:
        return 'a GPU of compute capability {}.{}, and this one has {}.{}'.format(
            *CAPABILITY, *found)
    return None
