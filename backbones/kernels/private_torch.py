"""What this room uses of torch and timm that they keep private; nothing else in it does.

Read in torch 2.15 and timm 1.0.31. ``tests/test_private_torch.py`` asks whether each still is so.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from timm.layers import RotaryEmbeddingDinoV3
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

#: what oneDNN computes with weights in its own order; torch gives it to its compiler alone
PACKING = ('_reorder_linear_weight', '_linear_pointwise', '_reorder_convolution_weight',
           '_convolution_pointwise', '_convolution_pointwise_')
HAS_PACKING = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in PACKING)
if HAS_PACKING:  # looked up once
    pack_linear = torch.ops.mkldnn._reorder_linear_weight
    run_linear = torch.ops.mkldnn._linear_pointwise
    pack_convolution = torch.ops.mkldnn._reorder_convolution_weight
    run_convolution = torch.ops.mkldnn._convolution_pointwise
    run_convolution_in_place = torch.ops.mkldnn._convolution_pointwise_


def multiplies_by_onednn(dtype: torch.dtype) -> bool:
    """Return True if oneDNN has fast products of half precision on this CPU; nothing else says."""
    operators = torch.ops.mkldnn
    if dtype == torch.bfloat16:
        return operators._is_mkldnn_bf16_supported()
    return operators._is_mkldnn_fp16_supported()


def has_hooks(module: nn.Module) -> bool:
    """Return True if calling a module calls hooks; torch has no public question for it."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks)


def all_have_hooks() -> bool:
    """Return True if there are hooks on all modules."""
    return bool(all_modules._has_any_global_hook())


def is_transforming() -> bool:
    """Return True if a transform of ``torch.func`` is at work, which no public name tells."""
    return torch._C._are_functorch_transforms_active()


def parameters_of(module: nn.Module) -> Mapping[str, Tensor | None]:
    """Return registered parameters, None included; the public way takes ten times as long."""
    return module._parameters


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return the children; attributes take several times as long."""
    return module._modules


def rotary_positions_of_places(rope: RotaryEmbeddingDinoV3, places: Tensor) -> Iterable[Tensor]:
    """Return sines and cosines of places from -1 to 1, ``(N, 2)``; timm's public way makes floats.
    """
    return rope._get_pos_embed_from_coords(places)
