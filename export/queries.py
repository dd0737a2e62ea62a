"""Graphs of query-based detectors: DINO with boxes; Mask2Former, EoMT and PMT with masks.

Shapes: ``B`` images, ``N`` pixels of all levels, ``Q`` queries, ``K`` classes.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmdet.models.dense_heads import DINOHead, Mask2FormerHead
from mmdet.models.detectors import DINO, Mask2Former
from mmdet.models.seg_heads import MaskFormerFusionHead
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from colonnade.heads.eomt_head import EoMTHead
from colonnade.heads.mask_queries import MaskQueryHead
from colonnade.heads.pmt_head import PMTHead

from .deformable import (compute_pixel_centers, compute_reference_points, flatten_maps,
                         split_levels, use_integer_sizes)
from .graphs import (ExportError, Graph, ImageSizeLimits, Size, build_image_graph, build_maps_graph,
                     require_type)


class Pixels(nn.Module):
    """Encoder of DINO, with the box that each pixel proposes."""

    def __init__(self, model: DINO) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Encode an image.

        Args:
            image: Image ``(1, 3, H, W)``.
            size: Height and width without padding, ``(2,)``, int64.

        Returns:
            Logits ``(1, N, K)``; boxes ``(1, N, 4)`` as center, width and height, relative to the
            size without padding; the memory ``(1, C, h, w)`` of each level; the padding mask
            ``(1, h, w)`` of each level, bool.
        """
        model, maps = self.model, self.model.extract_feat(image)
        sizes = [level.shape[2:] for level in maps]
        padded = [compute_padding_mask(image, size, level) for level in maps]
        positions = torch.cat([
            flatten_maps(model.positional_encoding(mask)) + level
            for mask, level in zip(padded, model.level_embed, strict=True)
        ], 1)
        shared = prepare_attention_inputs(model, padded)
        memory = torch.cat(list(map(flatten_maps, maps)), 1)
        points = compute_reference_points(sizes, shared['valid_ratios'])
        for layer in model.encoder.layers:
            memory = layer(memory, query_pos=positions, reference_points=points, **shared)
        logits, boxes = self._propose_boxes(memory, padded, shared['key_padding_mask'])
        return (logits, boxes, *split_levels(memory, sizes), *padded)

    def _propose_boxes(self, memory: Tensor, padded: list[Tensor],
                       mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits ``(1, N, K)`` and the box ``(1, N, 4)`` of each pixel."""
        model = self.model
        initial = compute_initial_boxes(padded)
        is_inside = ((initial > 0.01) & (initial < 0.99)).all(-1, keepdim=True)
        is_valid = is_inside & ~mask[..., None]
        states = model.memory_trans_norm(model.memory_trans_fc(memory.masked_fill(~is_valid, 0.)))
        last = model.decoder.num_layers
        boxes = model.bbox_head.reg_branches[last](states) + initial.logit().masked_fill(
            ~is_valid, torch.inf)
        return model.bbox_head.cls_branches[last](states), boxes.sigmoid()


class BoxQueries(nn.Module):
    """Decoder of DINO, from the best boxes of pixels to the predictions of queries."""

    def __init__(self, model: DINO) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``(1, Q, K)`` and boxes ``(1, Q, 4)``.

        Args:
            *tensors: Boxes ``(1, Q, 4)``, best first; memory and padding masks of :class:`Pixels`.
        """
        boxes, levels, model = tensors[0], tensors[1:], self.model
        memory, padded = levels[:len(levels) // 2], levels[len(levels) // 2:]
        states, references = model.decoder(
            query=model.query_embedding.weight[None],
            value=torch.cat(list(map(flatten_maps, memory)), 1),
            self_attn_mask=None,
            reference_points=boxes,
            reg_branches=model.bbox_head.reg_branches,
            **prepare_attention_inputs(model, padded))
        logits, boxes = model.bbox_head(states, references)
        return logits[-1].sigmoid(), boxes[-1]


def prepare_attention_inputs(model: DINO, padded: Sequence[Tensor]) -> dict[str, Any]:
    """Return common arguments of encoder and decoder for padding masks ``(1, h, w)``."""
    return dict(
        key_padding_mask=torch.cat([mask.flatten(1) for mask in padded], 1),
        spatial_shapes=[mask.shape[1:] for mask in padded],
        level_start_index=None,
        valid_ratios=torch.stack([model.get_valid_ratio(mask) for mask in padded], 1))


def compute_padding_mask(image: Tensor, size: Tensor, level: Tensor) -> Tensor:
    """Return which pixels of a level ``(1, C, h, w)`` are padding, ``(1, h, w)``, bool."""
    down = torch.arange(image.shape[2])[:, None] >= size[0]
    across = torch.arange(image.shape[3]) >= size[1]
    mask = (down | across).to(image.dtype)[None, None]
    return F.interpolate(mask, size=level.shape[2:])[0].bool()


def compute_initial_boxes(padded: list[Tensor]) -> Tensor:
    """Return a relative box at each pixel, larger for coarser levels, ``(1, N, 4)``."""
    boxes = []
    for level, (mask, grid) in enumerate(
            zip(padded, compute_pixel_centers([mask.shape[1:] for mask in padded]), strict=True)):
        extent = torch.stack([(~mask[0, 0]).sum(), (~mask[0, :, 0]).sum()])
        boxes.append(torch.cat((grid / extent, torch.full_like(grid, 0.05 * 2**level)), -1))
    return torch.cat(boxes, 1)


class MaskQueries(nn.Module):
    """Mask2Former, EoMT or PMT, from an image to the scores and masks of its queries."""

    def __init__(self, model: Mask2Former) -> None:
        super().__init__()
        self.model = use_integer_sizes(model)
        self.is_panoptic = is_panoptic(model)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``(1, Q, K)`` and mask logits ``(1, Q, h, w)`` of an image.

        Panoptic models also return the scores of queries without an object, ``(1, Q, K + 1)``.
        """
        logits, masks = self.model.panoptic_head(self.model.extract_feat(image), [])
        scores = logits[-1].softmax(-1)
        return scores if self.is_panoptic else scores[..., :-1], masks[-1]


def is_panoptic(model: Mask2Former) -> bool:
    """Return True if a model predicts segments; False if it predicts instances.

    A model that is configured for both predicts segments: ``panoptic_on``, which is True by
    default, takes precedence over ``instance_on``.
    """
    return bool(model.panoptic_fusion_head.test_cfg.get('panoptic_on', True))


def build_box_query_graphs(model: DINO,
                           limits: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """Return the graphs of DINO, and the postprocessing of the runtime.

    Raises:
        ExportError: If the runtime does not support a component.
    """
    require_type(model, DINO)
    require_type(model.bbox_head, DINOHead)
    if not model.bbox_head.loss_cls.use_sigmoid:
        raise ExportError('DINO with softmax cannot be exported')
    shared = use_integer_sizes(model)
    levels = range(model.num_feature_levels)
    names = [f'{kind}{level}' for kind in ('memory', 'padded') for level in levels]
    outputs = ['logits', 'proposed', *names]
    pixels = build_image_graph('pixels', Pixels(shared), limits, outputs, takes_size=True)

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        grids = [(size[1] // (8 * 2**level) or 1, size[2] // (8 * 2**level) or 1)
                 for level in levels]
        boxes = torch.rand(1, model.num_queries, 4) / 2 + 0.25
        return (boxes, *(torch.randn(1, model.embed_dims, *grid) for grid in grids),
                *(torch.zeros(1, *grid, dtype=torch.bool) for grid in grids))

    # Memory and padding mask of a level have the same dimensions.
    grids = [(Dim(f'height{level}', min=1), Dim(f'width{level}', min=1)) for level in levels]
    shapes = [{}, *({2: h, 3: w} for h, w in grids), *({1: h, 2: w} for h, w in grids)]
    queries = build_maps_graph('queries', BoxQueries(shared), limits, make_inputs, shapes,
                               ['proposed', *names], ['scores', 'boxes'])
    max_per_image = model.bbox_head.test_cfg.get('max_per_img', model.num_queries)
    return [pixels, queries], dict(
        kind='box_queries', num_queries=model.num_queries, max_per_image=int(max_per_image))


def build_mask_query_graphs(model: Mask2Former,
                            limits: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """Return the graph of Mask2Former, EoMT or PMT, and the postprocessing of the runtime.

    Raises:
        ExportError: If the runtime does not support a component.
    """
    require_type(model, Mask2Former)
    require_type(model.panoptic_head, Mask2FormerHead, EoMTHead, PMTHead)
    require_type(model.panoptic_fusion_head, MaskFormerFusionHead)
    head, fusion, test_cfg = (model.panoptic_head, model.panoptic_fusion_head,
                              model.panoptic_fusion_head.test_cfg)
    graph = build_image_graph('model', MaskQueries(model), limits, ['scores', 'masks'])
    shared = dict(
        num_things=int(fusion.num_things_classes),
        mask_stride=head.mask_stride if isinstance(head, MaskQueryHead) else None)
    if is_panoptic(model):
        return [graph], dict(
            kind='panoptic_queries',
            least_score=float(test_cfg.get('object_mask_thr', 0.8)),
            least_fraction=float(test_cfg.get('iou_thr', 0.8)),
            filter_low_score=bool(test_cfg.get('filter_low_score', False)),
            **shared)
    return [graph], dict(
        kind='mask_queries', max_per_image=int(test_cfg.get('max_per_image', 100)), **shared)
