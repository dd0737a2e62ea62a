"""All that is folded and merged in a detector or segmenter, in order."""
from __future__ import annotations

import sys

import torch
from mmengine.logging import print_log
from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.kernels.devices import should_use_cpu_forms
from colonnade.backbones.kernels.fast_path import is_plain
from colonnade.backbones.kernels.memory_format import map_order
from colonnade.common.errors import UserError

from ..columnar_parts import parts_of_ours
from .batch_norms import fold_batch_norms
from .precision import cast_weights
from .pyramids import fuse_pyramids

MARK = 'fused_whole'  # attribute of models that fuse() changed


@torch.no_grad()
def fuse(model: nn.Module, dtype: torch.dtype | None = None) -> list[str]:
    """Fold and merge layers of a model, in place, for evaluation alone.

    Results stay the same to rounding. Parameters are changed and some are gone: load before, and
    don't save after. Maps between pyramid and heads may be others than before. Layers that are
    replaced or hooked are left alone, but for those of the backbone. What is faster on a CPU only is
    done there only: move the model to its device before.

    Args:
        model: A detector or segmenter with its weights, in evaluation mode.
        dtype: Of autocast, if it is to compute under it alone: weights are cast to it.

    Returns:
        A line for each thing that was done; none if the model is fused already. Parts that were
        fused by themselves stay as they are.

    Raises:
        ValueError: If the model has no backbone and no pyramid of ours, is in training mode, or has a
            backbone that cannot be fused. It is left as it was then.
    """
    parts = [part for part in parts_of_ours(model) if not part.fused]
    if not parts and getattr(model, MARK, False):
        return []
    if model.training:
        raise UserError('fuse() is for evaluation: call eval() before')
    for part in parts:
        part.require_fusible()
    lines, on_cpu = [], should_use_cpu_forms(next(model.parameters()))
    for part in parts:
        if isinstance(part, ColumnarBackbone):
            part.fuse(dtype)
            lines.append(f'{type(part).__name__}: norms and scales folded')
    if on_cpu and 'mmdet' in sys.modules:  # which every detector has imported
        from .region_heads import fuse_regions
        lines += fuse_regions(model)
    lines += [*fold_batch_norms(model), *fuse_pyramids(model)]
    if on_cpu and 'mmseg' in sys.modules:
        from .bottlenecks import merge_bottlenecks
        lines += merge_bottlenecks(model)
    if on_cpu:
        order_weights(model)
    if dtype is not None:
        lines += cast_weights(model, dtype)
    model.requires_grad_(False)
    setattr(model, MARK, True)
    return lines


def is_fused(model: nn.Module) -> bool:
    """Whether a model has backbones or pyramids of ours, and all of them are fused."""
    try:
        return all(part.fused for part in parts_of_ours(model))
    except ValueError:
        return False


def order_weights(model: nn.Module) -> None:
    """Keep the weights of convolutions in the order of maps, or each call would copy them."""
    others: set[nn.Module] = set()
    if 'mmdet' in sys.modules:
        from .region_heads import modules_in_default_order
        others = modules_in_default_order(model)
    for module in model.modules():
        if is_plain(module, nn.Conv2d) and module.kernel_size != (1, 1) and module not in others:
            module.to(memory_format=map_order(module.weight))


def maybe_fuse(model: nn.Module,
               wanted: bool | None,
               dtype: torch.dtype | None = None) -> list[str]:
    """Fuse a model if that is asked for; returns what :func:`fuse` does.

    Args:
        model: With its weights; it is set to evaluation mode.
        wanted: ``None`` fuses what can be fused, and logs why a model cannot be.
        dtype: As of :func:`fuse`.

    Raises:
        ValueError: If it is wanted, and the model cannot be fused.
    """
    if wanted is False:
        return []
    try:
        return fuse(model.eval(), dtype)
    except ValueError as error:
        if wanted:
            raise
        print_log(f'not fused: {error}', logger='current')
        return []
