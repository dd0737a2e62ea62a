"""Export of segmenters: one graph from normalized images to logits at the resolution of the head.

The runtime upsamples logits as mmseg does. Auxiliary heads are omitted.

Shapes: ``B`` images, ``K`` classes, ``Q`` queries, ``h, w`` the head's map.
"""
from __future__ import annotations

from typing import Any

import torch
from mmengine.config import Config
from mmseg.models.decode_heads import Mask2FormerHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import EncoderDecoder
from mmseg.models.utils import Upsample, resize
from torch import Tensor, nn

from colonnade.heads.mask_queries import MaskQueryHead
from colonnade.inference import Model
from colonnade.models.fusion.label_maps import is_replaced, is_segmented_at_once
from colonnade.models.replacement import copy_with_subclasses

from .exporter import ExportOptions, ExportPlan
from .features import get_size_limits
from .graphs import ExportError, Graph
from .preprocessing import build_preprocess


class Segmenter(nn.Module):
    """Segmenter without upsampling of the logits."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = make_sizes_dynamic(model)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits ``(B, K, h, w)`` of images.

        Heads of queries return class scores ``(1, Q, K + 1)`` and mask logits ``(1, Q, h, w)``.
        """
        maps = self.model.extract_feat(image)
        if isinstance(self.model.decode_head, Mask2FormerHead):
            scores, masks = self.model.decode_head(maps, [])
            return scores[-1], masks[-1]
        return self.model.decode_head(maps)


class DynamicPool(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling for sizes that are unknown when the graph is traced."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool ``(B, C, h, w)`` to ``(B, C, *output_size)``, with one matmul per axis."""
        size = self.output_size
        height, width = (size, size) if isinstance(size, int) else size
        rows, columns = (build_pooling_matrix(number, length)
                         for number, length in zip((height, width), x.shape[2:], strict=True))
        return rows.to(x.dtype) @ x @ columns.to(x.dtype).mT


def build_pooling_matrix(number: int, length: int) -> Tensor:
    """Return the matrix ``(number, length)`` of adaptive average pooling along one axis."""
    index = torch.arange(number)[:, None]
    start, end = index * length // number, ((index + 1) * length + number - 1) // number
    position = torch.arange(length)
    return ((position >= start) & (position < end)) / (end - start)


class DynamicUpsample(Upsample):
    """mmseg's Upsample, without rounding of sizes for integer factors."""

    def forward(self, x: Tensor) -> Tensor:
        """Upsample ``(B, C, h, w)`` to ``(B, C, factor * h, factor * w)``."""
        if self.size or not float(self.scale_factor).is_integer():
            return super().forward(x)
        factor = int(self.scale_factor)
        size = [side * factor for side in x.shape[2:]]
        return resize(x, size, None, self.mode, self.align_corners, warning=False)


def make_sizes_dynamic(model: EncoderDecoder) -> nn.Module:
    """Return a copy of a model, with shared tensors, whose graph has only symbolic sizes."""
    if isinstance(model.decode_head, Mask2FormerHead):
        from .deformable import use_integer_sizes  # imports mmcv's operators
        return use_integer_sizes(model)
    return copy_with_subclasses(model, {
        nn.AdaptiveAvgPool2d: DynamicPool,
        Upsample: DynamicUpsample
    })


def build_plan(model: Model, cfg: Config, options: ExportOptions) -> ExportPlan:
    """Return the graph of a segmenter.

    Raises:
        ExportError: If it cannot be exported.
    """
    module = model.module
    check_exportable(module)
    limits = get_size_limits(module)
    dims, sizes = limits.get_dims(), limits.list_sizes()
    outputs: tuple[str, ...] = ('logits', )
    if isinstance(module.decode_head, Mask2FormerHead):  # its masked attention fixes the batch size
        del dims[0]
        sizes, outputs = limits.list_sizes(batch_sizes=(1, )), ('scores', 'masks')
    graph = Graph('model',
                  Segmenter(module).eval(), limits.make_images, (dims, ), ('image', ), outputs,
                  sizes)
    return ExportPlan('segmentation', (graph, ), build_preprocess(model, limits),
                      build_postprocess(module))


def build_postprocess(module: EncoderDecoder) -> dict[str, Any]:
    """Return ``postprocess`` of ``model.json``, which the runtime's ``Segmentation`` reads."""
    head, windows = module.decode_head, None
    if not is_segmented_at_once(module):
        windows = dict(size=list(module.test_cfg.crop_size), stride=list(module.test_cfg.stride))
    return dict(
        kind='queries' if isinstance(head, Mask2FormerHead) else 'logits',
        align_corners=bool(module.align_corners),
        threshold=float(head.threshold) if module.out_channels == 1 else None,
        windows=windows,
        mask_stride=head.mask_stride if isinstance(head, MaskQueryHead) else None)


def check_exportable(module: nn.Module) -> None:
    """Raise an ExportError if the runtime does not support a segmenter or its head."""
    if type(module) is not EncoderDecoder:
        raise ExportError(f'{type(module).__name__} cannot be exported: the runtime supports only '
                          'EncoderDecoder')
    head = module.decode_head
    if isinstance(head, Mask2FormerHead):
        return
    if not isinstance(head, BaseDecodeHead):
        raise ExportError(f'decode_head {type(head).__name__} cannot be exported: expected '
                          "a subclass of mmseg's BaseDecodeHead")
    for name in ('predict', 'predict_by_feat'):
        if is_replaced(head, BaseDecodeHead, name):
            raise ExportError(f'decode_head {type(head).__name__} cannot be exported: the runtime '
                              f'does not support its custom {name}')
