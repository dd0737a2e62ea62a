"""Fusion of detectors and segmenters for evaluation."""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import torch
from mmcv.cnn import ConvModule
from mmcv.cnn.bricks import wrappers
from mmengine.logging import print_log
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.kernels.devices import should_use_cpu_forms
from colonnade.backbones.kernels.fast_path import is_exact_type, is_hooked
from colonnade.backbones.kernels.memory_format import get_map_order
from colonnade.backbones.kernels.norms import is_fixed
from colonnade.common.errors import UserError
from colonnade.necks import ColumnarPyramid, Pyramid

from ..replacement import can_replace_conv

MARK = 'fused_whole'  # attribute of fused models
#: classes by name, so that neither library is imported for the other's models
FPNS = ('mmdet.models.necks.fpn.FPN', 'mmseg.models.necks.fpn.FPN')
UPER_HEAD = 'mmseg.models.decode_heads.uper_head.UPerHead'
SEGMENTER = 'mmseg.models.segmentors.encoder_decoder.EncoderDecoder'
#: layers that autocast computes in half precision; mmcv's wrap torch's
CASTABLE = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, wrappers.Linear, wrappers.Conv2d,
            wrappers.ConvTranspose2d)


def find_columnar_modules(model: nn.Module) -> list[ColumnarBackbone | Pyramid]:
    """Return the columnar backbones and pyramids of a model."""
    modules = [m for m in model.modules() if isinstance(m, (ColumnarBackbone, Pyramid))]
    if not modules:
        raise UserError('the model has neither a Colonnade backbone nor a Colonnade pyramid')
    return modules


@torch.no_grad()
def fuse(model: nn.Module, dtype: torch.dtype | None = None) -> list[str]:
    """Fold and merge layers of a model in place, for evaluation.

    Results stay the same up to rounding error, but maps between pyramid and heads may change.
    Parameters change and some disappear, so load weights before, and do not save afterwards.
    Replaced or hooked layers stay, except in the backbone, where they are an error. Move the model
    to its device before, since some fusions are for CPUs only.

    Args:
        model: Detector or segmenter with its weights, in evaluation mode.
        dtype: Autocast type if the model only runs under it; weights are cast to it.

    Returns:
        A line for each fusion; none if the model is already fused.

    Raises:
        ValueError: If the model has no columnar backbone or pyramid, is in training mode, or has a
            backbone that cannot be fused. It is not changed then.
    """
    parts = [part for part in find_columnar_modules(model) if not part.fused]
    if not parts and getattr(model, MARK, False):
        return []
    if model.training:
        raise UserError('fuse() is for evaluation: call eval() first')
    for part in parts:
        part.require_fusible()
    lines, on_cpu = [], should_use_cpu_forms(next(model.parameters()))
    for part in parts:
        if isinstance(part, ColumnarBackbone):
            part.fuse(dtype)
            lines.append(f'{type(part).__name__}: norms and scales folded')
    if 'mmdet' in sys.modules:  # every detector has imported it
        from .query_masks import resize_masks_in_chunks
        lines += resize_masks_in_chunks(model)
        if on_cpu:
            from .region_heads import fuse_regions
            lines += fuse_regions(model)
    lines += [*_fold_batch_norms(model), *_fuse_pyramids(model)]
    if on_cpu and 'mmseg' in sys.modules:
        from .bottlenecks import merge_bottlenecks
        lines += merge_bottlenecks(model)
    if on_cpu:
        _reorder_weights(model)
    if dtype is not None:
        lines += cast_weights(model, dtype)
    model.requires_grad_(False)
    setattr(model, MARK, True)
    return lines


def is_fused(model: nn.Module) -> bool:
    """Return True if a model has columnar backbones or pyramids, and all of them are fused."""
    try:
        return all(part.fused for part in find_columnar_modules(model))
    except ValueError:
        return False


def maybe_fuse(model: nn.Module,
               should_fuse: bool | None,
               dtype: torch.dtype | None = None) -> list[str]:
    """Set a model to evaluation mode and :func:`fuse` it.

    Args:
        model: Model with its weights.
        should_fuse: None logs why a model cannot be fused, instead of an error.
        dtype: See :func:`fuse`.

    Raises:
        ValueError: If ``should_fuse`` is True, and the model cannot be fused.
    """
    if should_fuse is False:
        return []
    try:
        return fuse(model.eval(), dtype)
    except ValueError as error:
        if should_fuse:
            raise
        print_log(f'not fused: {error}', logger='current')
        return []


def _reorder_weights(model: nn.Module) -> None:
    """Store weights of convolutions in the memory format of maps, or each call would copy them."""
    others: set[nn.Module] = set()
    if 'mmdet' in sys.modules:
        from .region_heads import find_modules_in_default_order
        others = find_modules_in_default_order(model)
    for module in model.modules():
        if is_exact_type(module,
                         nn.Conv2d) and module.kernel_size != (1, 1) and module not in others:
            module.to(memory_format=get_map_order(module.weight))


def cast_weights(model: nn.Module, dtype: torch.dtype) -> list[str]:
    """Cast weights of linear layers and convolutions once, which autocast does in every call.

    Columnar backbones, whose kernels read the weights, stay in float32. So do layers that are
    replaced or hooked, or share a parameter.
    """

    def get_parameters(module: nn.Module) -> list[nn.Parameter]:
        named = module.named_parameters(recurse=False, remove_duplicate=False)
        return [parameter for _, parameter in named]

    skipped = {id(m) for backbone in model.modules() if isinstance(backbone, ColumnarBackbone)
               for m in backbone.modules()}  # yapf: disable
    owners = Counter(id(parameter) for module in model.modules()
                     for parameter in get_parameters(module))  # yapf: disable
    layers = [
        module for module in model.modules()
        if id(module) not in skipped and is_exact_type(module, *CASTABLE) and all(
            parameter.dtype == torch.float32 and owners[id(parameter)] == 1
            for parameter in get_parameters(module))
    ]
    for layer in layers:
        layer.to(dtype)
    if not layers:
        return []
    name = str(dtype).removeprefix('torch.')
    return [f'weights of {len(layers)} layers outside the backbone are {name}']


def _fold_batch_norms(model: nn.Module) -> list[str]:
    """Fold the batch norms of mmcv's ``ConvModule``, and let ReLU overwrite its input.

    Each gets its own convolution: RTMDet's head shares them between levels, but not the norms.
    """
    count = 0
    for module in model.modules():
        if not is_exact_type(module, ConvModule):
            continue
        has_conv = is_exact_type(module.conv, nn.Conv2d)
        if (has_conv and module.order == ('conv', 'norm', 'act') and module.with_norm
                and is_fixed(module.norm) and not module.conv.training):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.add_module(module.norm_name, nn.Identity())
            module.efficient_conv_bn_eval_forward = None
            count += 1
        is_private = module.norm is None or is_exact_type(module.norm, nn.Identity)
        if (has_conv and module.order[-2:] == ('norm', 'act') and is_private
                and module.with_activation and is_exact_type(module.activate, nn.ReLU)):
            module.activate.inplace = True
    return [f'{count} batch norms folded into convolutions'] if count else []


def _fuse_pyramids(model: nn.Module) -> list[str]:
    """Fuse the pyramids of a model, together with the lateral convolutions after their levels."""
    lines = []
    for pyramid in [part for part in model.modules() if isinstance(part, Pyramid)]:
        if pyramid.fused:
            continue
        laterals = {}
        if is_exact_type(pyramid, ColumnarPyramid):
            for index, lateral in _find_laterals(pyramid, model):
                stride = pyramid.out_strides[index]
                if pyramid.out_strides.count(stride) == 1 and can_replace_conv(lateral):
                    laterals[stride] = lateral
        merged = pyramid.fuse({stride: lateral.conv for stride, lateral in laterals.items()})
        for stride in merged:
            laterals[stride].conv = nn.Identity()
        strides = ', '.join(f'{stride:g}' for stride in sorted(merged))
        lines.append(f'{type(pyramid).__name__}: layers merged' +
                     (f', at stride {strides} with the lateral ones' if merged else ''))
    return lines


def _find_laterals(pyramid: ColumnarPyramid, model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Yield indices of levels, and the lateral convolutions that are their only consumers.

    The consumers of levels are known for some classes only.
    """
    children = dict(model.named_children())
    neck, head = children.get('neck'), children.get('decode_head')
    fpn = pyramid.fpn
    if fpn is not None:
        if _get_class_name(fpn) in FPNS and not is_hooked(fpn):
            # The input of further levels is used twice.
            twice = fpn.backbone_end_level - 1 if fpn.add_extra_convs == 'on_input' else None
            for index, lateral in enumerate(fpn.lateral_convs, fpn.start_level):
                if index != twice:
                    yield index, lateral
    elif neck is pyramid and head is not None and _get_class_name(model) == SEGMENTER:
        if _get_class_name(head) == UPER_HEAD and not is_hooked(head):
            others = children.get('auxiliary_head')
            used = list(head.in_index)
            for other in others if isinstance(others, nn.ModuleList) else filter(None, [others]):
                used += [other.in_index] if isinstance(other.in_index, int) else other.in_index
            for index, lateral in zip(head.in_index, head.lateral_convs, strict=False):
                if used.count(index) == 1:
                    yield index, lateral


def _get_class_name(module: nn.Module) -> str:
    return f'{type(module).__module__}.{type(module).__qualname__}'
