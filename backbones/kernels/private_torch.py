"""Private names of torch that this room uses; no other module of it uses any.

Read in torch 2.15; ``tests/test_kernels.py`` checks that they still exist.
"""
from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

#: oneDNN's operators for packed weights, which torch provides for its compiler only
PACKING = ('_reorder_linear_weight', '_linear_pointwise', '_reorder_convolution_weight',
           '_convolution_pointwise', '_convolution_pointwise_')
HAS_PACKING = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in PACKING)
if HAS_PACKING:  # resolved once, not in every call
    (pack_linear, run_linear, pack_convolution, run_convolution,
     run_convolution_in_place) = attrgetter(*PACKING)(
         torch.ops.mkldnn)


def has_fast_matmuls(dtype: torch.dtype) -> bool:
    """Return True if oneDNN has fast matmuls in a type of 16 bits on this CPU."""
    operators = torch.ops.mkldnn
    if dtype == torch.bfloat16:
        return operators._is_mkldnn_bf16_supported()
    return operators._is_mkldnn_fp16_supported()


def has_hooks(module: nn.Module) -> bool:
    """Return True if calling a module calls hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks)


def has_global_hooks() -> bool:
    """Return True if there are hooks on all modules."""
    return bool(all_modules._has_any_global_hook())


def is_transforming() -> bool:
    """Return True if a ``torch.func`` transform is active."""
    return torch._C._are_functorch_transforms_active()


def get_parameters(module: nn.Module) -> Mapping[str, Tensor | None]:
    """Return registered parameters, None included; the public way takes ten times as long."""
    return module._parameters


def get_children(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return the children; attributes take several times as long."""
    return module._modules
