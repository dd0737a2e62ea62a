"""Whole segmenters as one graph each: from a normalised image to logits of the head's size.

The runtime enlarges logits as mmseg does. Auxiliary heads are of training, and left out.

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

from colonnade.inference import Model
from colonnade.models.fusion.label_maps import is_replaced, is_segmented_at_once
from colonnade.models.replacement import copy_with_subclasses

from .exporter import ExportOptions, Plan
from .features import sides_of
from .graphs import ExportError, Graph, images_of
from .preprocessing import preprocess_of


class Segmenter(nn.Module):
    """From images to what the head says of them."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = for_any_size(model)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Images ``(B, 3, H, W)`` to logits ``(B, K, h, w)``.

        Of Mask2Former, and of one image: scores of classes ``(1, Q, K + 1)``, and logits of masks
        ``(1, Q, h, w)``.
        """
        maps = self.model.extract_feat(image)
        if isinstance(self.model.decode_head, Mask2FormerHead):
            scores, masks = self.model.decode_head(maps, [])
            return scores[-1], masks[-1]
        return self.model.decode_head(maps)


class PoolOfAnySize(nn.AdaptiveAvgPool2d):
    """torch's, whose regions follow sizes that a graph does not know yet."""

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to ``(B, C, *output_size)``, by one product for each side."""
        size = self.output_size
        height, width = (size, size) if isinstance(size, int) else size
        rows, columns = means(height, x.shape[2]), means(width, x.shape[3])
        return rows.to(x.dtype) @ x @ columns.to(x.dtype).mT


def means(number: int, length: int) -> Tensor:
    """The mean of each of some regions of a line, ``(number, length)``; see ``AdaptiveAvgPool``."""
    index = torch.arange(number)[:, None]
    start, end = index * length // number, ((index + 1) * length + number - 1) // number
    place = torch.arange(length)
    return ((place >= start) & (place < end)) / (end - start)


class UpsampleOfAnySize(Upsample):
    """mmseg's, which by a whole factor does not round sizes."""

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to ``(B, C, factor * h, factor * w)``."""
        if self.size or not float(self.scale_factor).is_integer():
            return super().forward(x)
        factor = int(self.scale_factor)
        size = [side * factor for side in x.shape[2:]]
        return resize(x, size, None, self.mode, self.align_corners, warning=False)


def for_any_size(model: EncoderDecoder) -> nn.Module:
    """Return a copy of a model, with the same tensors, in whose graph all sizes are symbolic."""
    if isinstance(model.decode_head, Mask2FormerHead):
        from .deformable import with_sizes_as_numbers  # brings mmcv's operators
        return with_sizes_as_numbers(model)
    return copy_with_subclasses(model, {
        nn.AdaptiveAvgPool2d: PoolOfAnySize,
        Upsample: UpsampleOfAnySize
    })


def plan(model: Model, cfg: Config, options: ExportOptions) -> Plan:
    """The graph of a segmenter.

    Raises:
        ExportError: If it cannot be exported; says why.
    """
    module = model.module
    require_plain(module)
    sides = sides_of(module)
    dims, sizes = sides.dims(), sides.sizes()
    outputs: tuple[str, ...] = ('logits', )
    if isinstance(module.decode_head, Mask2FormerHead):  # whose masked attention fixes the batch
        del dims[0]
        sizes, outputs = tuple(size for size in sizes if size[0] == 1), ('scores', 'masks')
    graph = Graph('model',
                  Segmenter(module).eval(), images_of, (dims, ), ('image', ), outputs, sizes)
    return Plan('segmentation', (graph, ), preprocess_of(model, sides), postprocess_of(module))


def postprocess_of(module: EncoderDecoder) -> dict[str, Any]:
    """What ``model.json`` says of making labels; the runtime's ``Segmentation`` reads it."""
    head, windows = module.decode_head, None
    if not is_segmented_at_once(module):
        windows = dict(size=list(module.test_cfg.crop_size), stride=list(module.test_cfg.stride))
    return dict(
        kind='queries' if isinstance(head, Mask2FormerHead) else 'logits',
        align_corners=bool(module.align_corners),
        threshold=float(head.threshold) if module.out_channels == 1 else None,
        windows=windows)


def require_plain(module: nn.Module) -> None:
    """Raise an ExportError for a segmenter or head that does what the runtime does not."""
    if type(module) is not EncoderDecoder:
        raise ExportError(f'{type(module).__name__} cannot be exported: the runtime has '
                          'EncoderDecoder')
    head = module.decode_head
    if isinstance(head, Mask2FormerHead):
        return
    if not isinstance(head, BaseDecodeHead):
        raise ExportError(f'decode_head {type(head).__name__} cannot be exported: it is no '
                          "BaseDecodeHead of mmseg's")
    for name in ('predict', 'predict_by_feat'):
        if is_replaced(head, BaseDecodeHead, name):
            raise ExportError(f'decode_head {type(head).__name__} cannot be exported: it has a '
                              f'{name} of its own, which the runtime does not have')
