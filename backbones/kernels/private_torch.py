"""Private names of torch and timm that this room uses; no other module of it uses any.

Read in torch 2.15 and timm 1.0.31; ``tests/test_kernels.py`` checks that they still exist.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from timm.layers import RotaryEmbeddingDinoV3
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

#: oneDNN's operators for packed weights, which torch provides for its compiler only
PACKING = ('_reorder_linear_weight', '_linear_pointwise', '_reorder_convolution_weight',
           '_convolution_pointwise', '_convolution_pointwise_')
HAS_PACKING = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in PACKING)
if HAS_PACKING:  # resolved once, not in every call
    pack_linear = torch.ops.mkldnn._reorder_linear_weight
    run_linear = torch.ops.mkldnn._linear_pointwise
    pack_convolution = torch.ops.mkldnn._reorder_convolution_weight
    run_convolution = torch.ops.mkldnn._convolution_pointwise
    run_convolution_in_place = torch.ops.mkldnn._convolution_pointwise_


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


def embed_coordinates(rope: RotaryEmbeddingDinoV3, coordinates: Tensor) -> Iterable[Tensor]:
    """Return sines and cosines of coordinates ``(N, 2)`` in [-1, 1], which may be symbolic."""
    return rope._get_pos_embed_from_coords(coordinates)
