"""Detectors of queries as graphs: DINO with boxes, Mask2Former with masks.

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

from .deformable import centres, maps_of, reference_points, tokens_of, with_sizes_as_numbers
from .detector_graphs import image_graph, maps_graph, only
from .graphs import ExportError, Graph, ImageSizeLimits, Size


class Pixels(nn.Module):
    """From an image to DINO's memory, and to the box that each pixel proposes."""

    def __init__(self, model: DINO) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Boxes are centre, width and height, as shares of what is not padded.

        Args:
            image: ``(1, 3, H, W)``.
            size: Height and width of what is not padded, ``(2,)``, int64.

        Returns:
            Logits ``(1, N, K)``, boxes ``(1, N, 4)``, and of each level the memory
            ``(1, C, h, w)``, then of each which pixels are padded, ``(1, h, w)``, bool.
        """
        model, maps = self.model, self.model.extract_feat(image)
        sizes = [level.shape[2:] for level in maps]
        padded = [padding(image, size, level) for level in maps]
        positions = torch.cat([
            tokens_of(model.positional_encoding(mask)) + level
            for mask, level in zip(padded, model.level_embed, strict=True)
        ], 1)
        shared = prepare_attention_inputs(model, padded)
        memory = torch.cat(list(map(tokens_of, maps)), 1)
        places = reference_points(sizes, shared['valid_ratios'])
        for layer in model.encoder.layers:
            memory = layer(memory, query_pos=positions, reference_points=places, **shared)
        parts = memory.split([h * w for h, w in sizes], 1)
        levels = [maps_of(part, each) for part, each in zip(parts, sizes, strict=True)]
        return (*self.proposals(memory, padded, shared['key_padding_mask']), *levels, *padded)

    def proposals(self, memory: Tensor, padded: list[Tensor],
                  mask: Tensor) -> tuple[Tensor, Tensor]:
        """The logits ``(1, N, K)`` and the box ``(1, N, 4)`` of each pixel."""
        model = self.model
        proposed = proposed_boxes(padded)
        inside = ((proposed > 0.01) & (proposed < 0.99)).all(-1, keepdim=True)
        used = inside & ~mask[..., None]
        chosen = model.memory_trans_norm(model.memory_trans_fc(memory.masked_fill(~used, 0.)))
        last = model.decoder.num_layers
        start = proposed.logit().masked_fill(~used, torch.inf)
        boxes = model.bbox_head.reg_branches[last](chosen) + start
        return model.bbox_head.cls_branches[last](chosen), boxes.sigmoid()


class BoxQueries(nn.Module):
    """From the best boxes of pixels to the scores and boxes of DINO's queries."""

    def __init__(self, model: DINO) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes ``(1, Q, 4)``, the best first, memory and padding of levels, see :class:`Pixels`.

        Returns:
            Scores ``(1, Q, K)`` and boxes ``(1, Q, 4)``.
        """
        boxes, levels, model = tensors[0], tensors[1:], self.model
        memory, padded = levels[:len(levels) // 2], levels[len(levels) // 2:]
        states, references = model.decoder(
            query=model.query_embedding.weight[None],
            value=torch.cat(list(map(tokens_of, memory)), 1),
            self_attn_mask=None,
            reference_points=boxes,
            reg_branches=model.bbox_head.reg_branches,
            **prepare_attention_inputs(model, padded))
        logits, found = model.bbox_head(states, references)
        return logits[-1].sigmoid(), found[-1]


def prepare_attention_inputs(model: DINO, padded: Sequence[Tensor]) -> dict[str, Any]:
    """What all layers of encoder and decoder take, by the padding ``(1, h, w)`` of each level."""
    return dict(
        key_padding_mask=torch.cat([mask.flatten(1) for mask in padded], 1),
        spatial_shapes=[mask.shape[1:] for mask in padded],
        level_start_index=None,
        valid_ratios=torch.stack([model.get_valid_ratio(mask) for mask in padded], 1))


def padding(image: Tensor, size: Tensor, level: Tensor) -> Tensor:
    """Which pixels of a level ``(1, C, h, w)`` are padded, ``(1, h, w)``, bool."""
    down = torch.arange(image.shape[2])[:, None] >= size[0]
    across = torch.arange(image.shape[3]) >= size[1]
    mask = (down | across).to(image.dtype)[None, None]
    return F.interpolate(mask, size=level.shape[2:])[0].bool()


def proposed_boxes(padded: list[Tensor]) -> Tensor:
    """A box at each pixel, larger for coarser levels, ``(1, N, 4)``, as shares of the image."""
    found = []
    for level, (mask, grid) in enumerate(
            zip(padded, centres([mask.shape[1:] for mask in padded]), strict=True)):
        extent = torch.stack([(~mask[0, 0]).sum(), (~mask[0, :, 0]).sum()])
        found.append(torch.cat((grid / extent, torch.full_like(grid, 0.05 * 2**level)), -1))
    return torch.cat(found, 1)


class MaskQueries(nn.Module):
    """From an image to the scores and masks of Mask2Former's queries."""

    def __init__(self, model: Mask2Former) -> None:
        super().__init__()
        self.model = with_sizes_as_numbers(model)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Image ``(1, 3, H, W)`` to scores ``(1, Q, K)`` and logits of masks ``(1, Q, h, w)``."""
        logits, masks = self.model.panoptic_head(self.model.extract_feat(image), [])
        return logits[-1].softmax(-1)[..., :-1], masks[-1]


def box_query_graphs(model: DINO, sides: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """The graph of DINO, and what the runtime does behind it.

    Raises:
        ExportError: If it has a part that does what the runtime does not.
    """
    only(model, DINO)
    only(model.bbox_head, DINOHead)
    if not model.bbox_head.loss_cls.use_sigmoid:
        raise ExportError('DINO with softmax cannot be exported')
    shared = with_sizes_as_numbers(model)
    levels = range(model.num_feature_levels)
    names = [f'{kind}{level}' for kind in ('memory', 'padded') for level in levels]
    outputs = ['logits', 'proposed', *names]
    pixels = image_graph('pixels', Pixels(shared), sides, outputs, sized=True)

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        grids = [(size[1] // (8 * 2**level) or 1, size[2] // (8 * 2**level) or 1)
                 for level in levels]
        boxes = torch.rand(1, model.num_queries, 4) / 2 + 0.25
        return (boxes, *(torch.randn(1, model.embed_dims, *grid) for grid in grids),
                *(torch.zeros(1, *grid, dtype=torch.bool) for grid in grids))

    # memory and padding of a level share their dimensions
    grids = [(Dim(f'height{level}', min=1), Dim(f'width{level}', min=1)) for level in levels]
    shapes = [{}, *({2: h, 3: w} for h, w in grids), *({1: h, 2: w} for h, w in grids)]
    queries = maps_graph('queries', BoxQueries(shared), sides, make_inputs, shapes,
                         ['proposed', *names], ['scores', 'boxes'])
    most = model.bbox_head.test_cfg.get('max_per_img', model.num_queries)
    return [pixels, queries], dict(
        kind='box_queries', num_queries=model.num_queries, max_per_image=int(most))


def mask_query_graphs(model: Mask2Former,
                      sides: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """The graph of Mask2Former, and what the runtime does behind it.

    Raises:
        ExportError: If it has a part that does what the runtime does not.
    """
    only(model, Mask2Former)
    only(model.panoptic_head, Mask2FormerHead)
    only(model.panoptic_fusion_head, MaskFormerFusionHead)
    fusion = model.panoptic_fusion_head
    graph = image_graph('model', MaskQueries(model), sides, ['scores', 'masks'])
    return [graph], dict(
        kind='mask_queries',
        max_per_image=int(fusion.test_cfg.get('max_per_image', 100)),
        num_things=int(fusion.num_things_classes))
