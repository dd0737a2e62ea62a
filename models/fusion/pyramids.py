"""Pyramids with their layers merged, and with the lateral convolutions of FPN or UperNet."""
from __future__ import annotations

from collections.abc import Iterator

from mmcv.cnn import ConvModule
from torch import nn

from colonnade.backbones.kernels.fast_path import is_exact_type, is_hooked
from colonnade.necks import ColumnarPyramid, Pyramid

#: by name: neither library is imported for the other's models
FPNS = ('mmdet.models.necks.fpn.FPN', 'mmseg.models.necks.fpn.FPN')
UPER_HEAD = 'mmseg.models.decode_heads.uper_head.UPerHead'
SEGMENTER = 'mmseg.models.segmentors.encoder_decoder.EncoderDecoder'


def fuse_pyramids(model: nn.Module) -> list[str]:
    """Fuse the pyramids of a model, together with the lateral convolutions behind their levels."""
    lines = []
    for pyramid in [part for part in model.modules() if isinstance(part, Pyramid)]:
        if pyramid.fused:
            continue
        laterals = {}
        if is_exact_type(pyramid, ColumnarPyramid):
            for index, lateral in laterals_behind(pyramid, model):
                stride = pyramid.out_strides[index]
                if pyramid.out_strides.count(stride) == 1 and begins_with_its_conv(lateral):
                    laterals[stride] = lateral
        taken = pyramid.fuse({stride: lateral.conv for stride, lateral in laterals.items()})
        for stride in taken:
            laterals[stride].conv = nn.Identity()
        with_laterals = ', '.join(f'{stride:g}' for stride in sorted(taken))
        lines.append(f'{type(pyramid).__name__}: layers merged' +
                     (f', at stride {with_laterals} with the lateral ones' if taken else ''))
    return lines


def begins_with_its_conv(lateral: nn.Module) -> bool:
    """Whether a level goes into its convolution, and nothing else sees either."""
    return (is_exact_type(lateral, ConvModule) and lateral.order[0] == 'conv'
            and not lateral.with_explicit_padding
            and lateral.efficient_conv_bn_eval_forward is None)


def laterals_behind(pyramid: ColumnarPyramid, model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """The lateral convolutions that alone take levels, with the levels' indices.

    Of models of other classes it is not known what else takes levels.
    """
    children = dict(model.named_children())
    neck, head = children.get('neck'), children.get('decode_head')
    if pyramid.fpn is not None:
        if class_name(pyramid.fpn) in FPNS and not is_hooked(pyramid.fpn):
            yield from laterals_of_fpn(pyramid.fpn)
    elif neck is pyramid and head is not None and class_name(model) == SEGMENTER:
        if class_name(head) == UPER_HEAD and not is_hooked(head):
            yield from laterals_of_uper_head(head, children.get('auxiliary_head'))


def laterals_of_fpn(fpn: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Those of FPN; one that makes further levels of an input takes it twice."""
    twice = fpn.backbone_end_level - 1 if fpn.add_extra_convs == 'on_input' else None
    for index, lateral in enumerate(fpn.lateral_convs, fpn.start_level):
        if index != twice:
            yield index, lateral


def laterals_of_uper_head(head: nn.Module, auxiliary: nn.Module | None) -> Iterator[tuple]:
    """Those of UperNet, but for levels that other heads take too."""
    others = auxiliary if isinstance(auxiliary, nn.ModuleList) else filter(None, [auxiliary])
    read = list(head.in_index)
    for other in others:
        read += [other.in_index] if isinstance(other.in_index, int) else list(other.in_index)
    for index, lateral in zip(head.in_index, head.lateral_convs, strict=False):
        if read.count(index) == 1:
            yield index, lateral


def class_name(module: nn.Module) -> str:
    """Of its class, with that of the Python module."""
    return f'{type(module).__module__}.{type(module).__qualname__}'
