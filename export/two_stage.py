"""Detectors of two stages as graphs with suppression between them: maps and proposals, regions,
masks.

Shapes: ``K`` classes, ``A`` anchors of a place, ``n`` regions, ``n_l`` those of level ``l``.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.ops import RoIAlign
from mmdet.models.dense_heads import RPNHead
from mmdet.models.detectors import TwoStageDetector
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.roi_heads.bbox_heads import (ConvFCBBoxHead, Shared2FCBBoxHead,
                                               Shared4Conv1FCBBoxHead)
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.models.task_modules.coders import DeltaXYWHBBoxCoder
from mmdet.models.task_modules.prior_generators import AnchorGenerator
from torch import Tensor, nn
from torchvision.ops import roi_align

from .detector_graphs import MAP, MOVING, image_graph, maps_graph, only, overlap_of
from .graphs import ExportError, Graph, ImageSizeLimits, Size


class Proposals(nn.Module):
    """From an image to its pyramid, and to scores and deltas of anchors."""

    def __init__(self, model: TwoStageDetector, num_maps: int) -> None:
        super().__init__()
        self.model, self.num_maps = model, num_maps

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Maps ``(1, C, h, w)``, scores ``(1, A, h, w)`` and deltas ``(1, 4 * A, h, w)``."""
        maps = self.model.extract_feat(image)
        logits, deltas = self.model.rpn_head(maps)
        return (*maps[:self.num_maps], *(each.sigmoid() for each in logits), *deltas)


class Regions(nn.Module):
    """Pooled regions of maps; the boxes of each level come by themselves."""

    def __init__(self, extractor: SingleRoIExtractor) -> None:
        super().__init__()
        self.layers = extractor.roi_layers

    def forward(self, *tensors: Tensor) -> Tensor:
        """Maps ``(1, C, h, w)``, then boxes ``(n_l, 4)``: ``(n, C, rows, columns)``, by level."""
        pooled, num = [], len(self.layers)
        for layer, level, found in zip(self.layers, tensors[:num], tensors[num:], strict=True):
            rois = torch.cat((found[:, :1] * 0, found), 1)  # of the first image
            pooled.append(
                roi_align(level, rois, layer.output_size, layer.spatial_scale, layer.sampling_ratio,
                          layer.aligned))
        return torch.cat(pooled)


class Boxes(nn.Module):
    """From regions to logits of classes and deltas of boxes."""

    def __init__(self, extractor: SingleRoIExtractor, head: ConvFCBBoxHead) -> None:
        super().__init__()
        self.regions, self.head = Regions(extractor), head

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Maps, then boxes, as of :class:`Regions`, to logits ``(n, K + 1)`` and deltas.

        Deltas are ``(n, 4 * K)`` or, if all classes share them, ``(n, 4)``.
        """
        return self.head(self.regions(*tensors))


class Masks(nn.Module):
    """From regions and their classes to probabilities of pixels, the mean over stages."""

    def __init__(self, extractors: Sequence[SingleRoIExtractor],
                 heads: Sequence[FCNMaskHead]) -> None:
        super().__init__()
        self.regions = nn.ModuleList(map(Regions, extractors))
        self.heads = nn.ModuleList(heads)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Maps and boxes, as of :class:`Regions`, and labels ``(n,)``: ``(n, rows, columns)``."""
        labels = tensors[-1]
        masks = []
        for regions, head in zip(self.regions, self.heads, strict=True):
            logits = head(regions(*tensors[:-1]))  # (n, K, rows, columns)
            if not head.class_agnostic:
                index = labels[:, None, None, None].expand(-1, -1, *logits.shape[2:])
                logits = logits.gather(1, index)
            masks.append(logits[:, 0].sigmoid())
        return torch.stack(masks).mean(0)


def two_stage_graphs(model: TwoStageDetector,
                     sides: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """The graphs of a detector, and what the runtime does between and behind them.

    Args:
        model: In evaluation mode, not fused.
        sides: Which heights and widths its backbone takes.

    Raises:
        ExportError: If it has a part that does what the runtime does not.
    """
    roi_head, stages = model.roi_head, stages_of(model)
    extractor = stages[0][0]
    num_maps = len(extractor.featmap_strides)
    module = Proposals(model, num_maps)
    graphs = [image_graph('proposals', module, sides, proposal_names(model, num_maps))]
    for index, stage in enumerate(stages):
        graphs.append(regions_graph(f'regions{index}', Boxes(*stage), sides, extractor))
    postprocess: dict[str, Any] = dict(
        kind='two_stage',
        proposals=proposal_settings(model.rpn_head),
        levels=level_settings(extractor),
        stages=[dict(coder=coder_settings(head.bbox_coder)) for _, head in stages],
        boxes=box_settings(roi_head.test_cfg))
    if roi_head.with_mask:
        masks = Masks(as_list(roi_head.mask_roi_extractor), as_list(roi_head.mask_head))
        graphs.append(regions_graph('masks', masks, sides, extractor, labelled=True))
        postprocess['masks'] = dict(threshold=threshold_of(roi_head.test_cfg))
    return graphs, postprocess


def as_list(part: nn.Module) -> list[nn.Module]:
    return list(part) if isinstance(part, nn.ModuleList) else [part]


def regions_graph(name: str,
                  module: nn.Module,
                  sides: ImageSizeLimits,
                  extractor: SingleRoIExtractor,
                  labelled: bool = False) -> Graph:
    """A graph of maps and of boxes by level, and of their labels if it gives masks."""
    strides, channels = extractor.featmap_strides, extractor.out_channels
    levels = range(len(strides))

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        _, height, width = size
        maps = [
            torch.randn(1, channels,
                        int(height // s) or 1,
                        int(width // s) or 1) for s in strides
        ]
        boxes = [
            torch.tensor([[0., 0., width, height], [1., 2., width / 2, height / 2]]) for _ in levels
        ]  # not of these levels, which any graph takes
        labels = [torch.zeros(2 * len(boxes), dtype=torch.int64)] * labelled
        return *maps, *boxes, *labels

    shapes = [MAP] * len(strides) + [{0: MOVING}] * (len(strides) + labelled)
    inputs = [f'map{level}' for level in levels] + [f'boxes{level}' for level in levels]
    return maps_graph(name, module, sides, make_inputs, shapes, inputs + ['labels'] * labelled,
                      ['masks'] if labelled else ['logits', 'deltas'])


def proposal_names(model: TwoStageDetector, num_maps: int) -> list[str]:
    """Of the outputs of :class:`Proposals`."""
    num = len(model.rpn_head.anchor_generator.strides)
    maps = [f'map{level}' for level in range(num_maps)]
    return maps + [f'{kind}{level}' for kind in ('scores', 'deltas') for level in range(num)]


def stages_of(model: TwoStageDetector) -> list[tuple[SingleRoIExtractor, ConvFCBBoxHead]]:
    """The extractor and box head of each stage.

    Raises:
        ExportError: If the runtime does not do what a part of the model does outside of graphs.
    """
    rpn, roi_head = model.rpn_head, model.roi_head
    only(rpn, RPNHead)
    only(rpn.anchor_generator, AnchorGenerator)
    only(roi_head, StandardRoIHead, CascadeRoIHead)
    if not rpn.use_sigmoid_cls or roi_head.with_shared_head or not roi_head.with_bbox:
        raise ExportError(
            'a detector with softmax in its RPN, with a shared head, or without boxes '
            'cannot be exported')
    extractors, heads = as_list(roi_head.bbox_roi_extractor), as_list(roi_head.bbox_head)
    mask_extractors = mask_heads = []
    if roi_head.with_mask:
        mask_extractors = as_list(roi_head.mask_roi_extractor)
        mask_heads = as_list(roi_head.mask_head)
    for head in heads:
        only(head, ConvFCBBoxHead, Shared2FCBBoxHead, Shared4Conv1FCBBoxHead)
        if head.custom_activation or not (head.with_cls and head.with_reg):
            raise ExportError(
                f'{type(head).__name__} of {type(head.loss_cls).__name__}, or without '
                'classes or boxes, cannot be exported')
    for head in mask_heads:
        only(head, FCNMaskHead)
    for part in (rpn, *heads):
        only(part.bbox_coder, DeltaXYWHBBoxCoder)
    check_extractors(extractors + mask_extractors)
    return list(zip(extractors, heads, strict=True))


def check_extractors(extractors: Sequence[SingleRoIExtractor]) -> None:
    """Raise a ExportError if a RoI extractor is not one that averages the same maps as the others.
    """
    for extractor in extractors:
        only(extractor, SingleRoIExtractor)
        for layer in extractor.roi_layers:
            only(layer, RoIAlign)
            if layer.pool_mode != 'avg':
                raise ExportError(f'RoIAlign with pool_mode={layer.pool_mode!r} cannot be exported')
        if level_settings(extractor) != level_settings(extractors[0]):
            raise ExportError('RoI extractors of other levels for masks than for boxes cannot be '
                              'exported')


def level_settings(extractor: SingleRoIExtractor) -> dict[str, Any]:
    """How boxes are assigned to maps."""
    return dict(finest_scale=extractor.finest_scale, num_levels=len(extractor.featmap_strides))


def coder_settings(coder: DeltaXYWHBBoxCoder) -> dict[str, Any]:
    """How deltas become boxes."""
    return dict(
        means=list(map(float, coder.means)),
        stds=list(map(float, coder.stds)),
        clip_border=bool(coder.clip_border),
        centre_limit=float(coder.ctr_clamp) if coder.add_ctr_clamp else None)


def proposal_settings(head: RPNHead) -> dict[str, Any]:
    """How the RPN's outputs become proposals."""
    generator, test_cfg = head.anchor_generator, head.test_cfg
    return dict(
        levels=[
            dict(stride=list(map(float, stride)), anchors=base.tolist())
            for stride, base in zip(generator.strides, generator.base_anchors, strict=True)
        ],
        coder=coder_settings(head.bbox_coder),
        nms_pre=int(test_cfg.get('nms_pre', -1)),
        min_size=float(test_cfg.get('min_bbox_size', -1)),
        max_per_image=int(test_cfg.max_per_img),
        overlap=overlap_of(test_cfg.nms, 'model.test_cfg.rpn'))


def box_settings(test_cfg: Any) -> dict[str, Any]:
    """Which boxes of the last stage are kept."""
    return dict(
        least_score=float(test_cfg.score_thr),
        max_per_image=int(test_cfg.max_per_img),
        overlap=overlap_of(test_cfg.nms, 'model.test_cfg.rcnn'))


def threshold_of(test_cfg: Any) -> float:
    """From which probability pixels belong to a mask.

    Raises:
        ExportError: If masks are not binary.
    """
    if test_cfg.mask_thr_binary < 0:
        raise ExportError('model.test_cfg.rcnn.mask_thr_binary must be at least 0, got '
                          f'{test_cfg.mask_thr_binary}: the runtime has binary masks')
    return float(test_cfg.mask_thr_binary)
