"""Graphs of two-stage detectors: proposals, then boxes and masks of RoIs, with NMS in between.

Shapes: ``K`` classes, ``A`` anchors per pixel, ``n`` RoIs, ``n_l`` of them on level ``l``.
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

from colonnade.models.cascade_roi_head import MeanScoreCascadeRoIHead

from .graphs import (DYNAMIC, MAP, ExportError, Graph, ImageSizeLimits, Size, build_image_graph,
                     build_maps_graph, get_nms_threshold, require_type)


class Proposals(nn.Module):
    """Feature pyramid of an image, with scores and deltas of its anchors."""

    def __init__(self, model: TwoStageDetector, num_maps: int) -> None:
        super().__init__()
        self.model, self.num_maps = model, num_maps

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return maps ``(1, C, h, w)``, scores ``(1, A, h, w)`` and deltas ``(1, 4 * A, h, w)``."""
        maps = self.model.extract_feat(image)
        logits, deltas = self.model.rpn_head(maps)
        return (*maps[:self.num_maps], *(each.sigmoid() for each in logits), *deltas)


class Regions(nn.Module):
    """RoI pooling; the boxes of each level are separate inputs."""

    def __init__(self, extractor: SingleRoIExtractor) -> None:
        super().__init__()
        self.layers = extractor.roi_layers

    def forward(self, *tensors: Tensor) -> Tensor:
        """Pool maps ``(1, C, h, w)`` in boxes ``(n_l, 4)`` to ``(n, C, rows, columns)``."""
        pooled, num = [], len(self.layers)
        for layer, level, boxes in zip(self.layers, tensors[:num], tensors[num:], strict=True):
            rois = torch.cat((boxes[:, :1] * 0, boxes), 1)  # image index 0
            pooled.append(
                roi_align(level, rois, layer.output_size, layer.spatial_scale, layer.sampling_ratio,
                          layer.aligned))
        return torch.cat(pooled)


class Boxes(nn.Module):
    """Class logits and box deltas of RoIs."""

    def __init__(self, extractor: SingleRoIExtractor, head: ConvFCBBoxHead) -> None:
        super().__init__()
        self.regions, self.head = Regions(extractor), head

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(n, K + 1)`` and deltas for the inputs of :class:`Regions`.

        Deltas are ``(n, 4 * K)``, or ``(n, 4)`` if they are class-agnostic.
        """
        return self.head(self.regions(*tensors))


class Masks(nn.Module):
    """Mask probabilities of RoIs, averaged over stages."""

    def __init__(self, extractors: Sequence[SingleRoIExtractor],
                 heads: Sequence[FCNMaskHead]) -> None:
        super().__init__()
        self.regions = nn.ModuleList(map(Regions, extractors))
        self.heads = nn.ModuleList(heads)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return masks ``(n, rows, columns)`` for the inputs of :class:`Regions` and labels."""
        labels = tensors[-1]
        masks = []
        for regions, head in zip(self.regions, self.heads, strict=True):
            logits = head(regions(*tensors[:-1]))  # (n, K, rows, columns)
            if not head.class_agnostic:
                index = labels[:, None, None, None].expand(-1, -1, *logits.shape[2:])
                logits = logits.gather(1, index)
            masks.append(logits[:, 0].sigmoid())
        return torch.stack(masks).mean(0)


def build_two_stage_graphs(model: TwoStageDetector,
                           limits: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """Return the graphs of a detector, and the postprocessing of the runtime.

    Args:
        model: Detector in evaluation mode, not fused.
        limits: Valid image sizes of its backbone.

    Raises:
        ExportError: If the runtime does not support a component.
    """
    roi_head, stages = model.roi_head, get_stages(model)
    extractor = stages[0][0]
    num_maps = len(extractor.featmap_strides)
    num_levels = len(model.rpn_head.anchor_generator.strides)
    outputs = [f'map{level}' for level in range(num_maps)]
    outputs += [f'{kind}{level}' for kind in ('scores', 'deltas') for level in range(num_levels)]
    graphs = [build_image_graph('proposals', Proposals(model, num_maps), limits, outputs)]
    for index, stage in enumerate(stages):
        graphs.append(build_roi_graph(f'regions{index}', Boxes(*stage), limits, extractor))
    test_cfg = roi_head.test_cfg
    postprocess: dict[str, Any] = dict(
        kind='two_stage',
        proposals=get_proposal_settings(model.rpn_head),
        levels=get_level_settings(extractor),
        stages=[dict(coder=get_coder_settings(head.bbox_coder)) for _, head in stages],
        boxes=dict(
            least_score=float(test_cfg.score_thr),
            max_per_image=int(test_cfg.max_per_img),
            overlap=get_nms_threshold(test_cfg.nms, 'model.test_cfg.rcnn'),
            mean_scores=isinstance(roi_head, MeanScoreCascadeRoIHead)))
    if roi_head.with_mask:
        masks = Masks(as_list(roi_head.mask_roi_extractor), as_list(roi_head.mask_head))
        graphs.append(build_roi_graph('masks', masks, limits, extractor, takes_labels=True))
        if test_cfg.mask_thr_binary < 0:
            raise ExportError('model.test_cfg.rcnn.mask_thr_binary must be at least 0, got '
                              f'{test_cfg.mask_thr_binary}: the runtime supports only binary masks')
        postprocess['masks'] = dict(threshold=float(test_cfg.mask_thr_binary))
    return graphs, postprocess


def as_list(part: nn.Module) -> list[nn.Module]:
    return list(part) if isinstance(part, nn.ModuleList) else [part]


def build_roi_graph(name: str,
                    module: nn.Module,
                    limits: ImageSizeLimits,
                    extractor: SingleRoIExtractor,
                    takes_labels: bool = False) -> Graph:
    """Return a graph that takes feature maps, boxes of each level and, for masks, labels."""
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
        ]  # the graph accepts boxes of any size on each level
        labels = [torch.zeros(2 * len(boxes), dtype=torch.int64)] * takes_labels
        return *maps, *boxes, *labels

    shapes = [MAP] * len(strides) + [{0: DYNAMIC}] * (len(strides) + takes_labels)
    inputs = [f'map{level}' for level in levels] + [f'boxes{level}' for level in levels]
    return build_maps_graph(name, module, limits, make_inputs, shapes,
                            inputs + ['labels'] * takes_labels,
                            ['masks'] if takes_labels else ['logits', 'deltas'])


def get_stages(model: TwoStageDetector) -> list[tuple[SingleRoIExtractor, ConvFCBBoxHead]]:
    """Return the extractor and box head of each stage.

    Raises:
        ExportError: If the runtime does not support a component.
    """
    rpn, roi_head = model.rpn_head, model.roi_head
    require_type(rpn, RPNHead)
    require_type(rpn.anchor_generator, AnchorGenerator)
    require_type(roi_head, StandardRoIHead, CascadeRoIHead, MeanScoreCascadeRoIHead)
    if not rpn.use_sigmoid_cls or roi_head.with_shared_head or not roi_head.with_bbox:
        raise ExportError('detectors with softmax in the RPN, with a shared head, or without boxes '
                          'cannot be exported')
    extractors, heads = as_list(roi_head.bbox_roi_extractor), as_list(roi_head.bbox_head)
    mask_extractors = mask_heads = []
    if roi_head.with_mask:
        mask_extractors = as_list(roi_head.mask_roi_extractor)
        mask_heads = as_list(roi_head.mask_head)
    for head in heads:
        require_type(head, ConvFCBBoxHead, Shared2FCBBoxHead, Shared4Conv1FCBBoxHead)
        if head.custom_activation or not (head.with_cls and head.with_reg):
            raise ExportError(f'{type(head).__name__} with {type(head.loss_cls).__name__}, or '
                              'without classes or boxes, cannot be exported')
    for head in mask_heads:
        require_type(head, FCNMaskHead)
    for part in (rpn, *heads):
        require_type(part.bbox_coder, DeltaXYWHBBoxCoder)
    for extractor in extractors + mask_extractors:
        require_type(extractor, SingleRoIExtractor)
        for layer in extractor.roi_layers:
            require_type(layer, RoIAlign)
            if layer.pool_mode != 'avg':
                raise ExportError(f'RoIAlign with pool_mode={layer.pool_mode!r} cannot be exported')
        if get_level_settings(extractor) != get_level_settings(extractors[0]):
            raise ExportError('RoI extractors with different levels for masks and boxes cannot be '
                              'exported')
    return list(zip(extractors, heads, strict=True))


def get_level_settings(extractor: SingleRoIExtractor) -> dict[str, Any]:
    """Return how boxes are assigned to levels."""
    return dict(finest_scale=extractor.finest_scale, num_levels=len(extractor.featmap_strides))


def get_coder_settings(coder: DeltaXYWHBBoxCoder) -> dict[str, Any]:
    """Return how deltas are decoded to boxes."""
    return dict(
        means=list(map(float, coder.means)),
        stds=list(map(float, coder.stds)),
        clip_border=bool(coder.clip_border),
        centre_limit=float(coder.ctr_clamp) if coder.add_ctr_clamp else None)


def get_proposal_settings(head: RPNHead) -> dict[str, Any]:
    """Return how outputs of the RPN are decoded to proposals."""
    generator, test_cfg = head.anchor_generator, head.test_cfg
    return dict(
        levels=[
            dict(stride=list(map(float, stride)), anchors=base.tolist())
            for stride, base in zip(generator.strides, generator.base_anchors, strict=True)
        ],
        coder=get_coder_settings(head.bbox_coder),
        nms_pre=int(test_cfg.get('nms_pre', -1)),
        min_size=float(test_cfg.get('min_bbox_size', -1)),
        max_per_image=int(test_cfg.max_per_img),
        overlap=get_nms_threshold(test_cfg.nms, 'model.test_cfg.rpn'))
