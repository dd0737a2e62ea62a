"""mmdet's post-processing of query masks, a few masks at a time instead of all at image size.

Shapes: ``Q`` queries, ``K`` classes, ``h, w`` the network's input, ``H, W`` the image.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from mmdet.models.detectors import Mask2Former
from mmdet.models.seg_heads import MaskFormerFusionHead
from mmdet.structures import INSTANCE_OFFSET, SampleList
from mmdet.structures.mask import mask2bbox
from mmengine.structures import InstanceData, PixelData
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.kernels.fast_path import is_exact_type

from ..replacement import copy_as, replace_modules

CHUNK = 2**24  # pixels resized at a time
LINE = 'query masks are resized a few at a time'


class ChunkedFusionHead(MaskFormerFusionHead):
    """Fusion head whose memory does not grow with the number of queries times the image size."""

    def predict(self,
                mask_cls_results: Tensor,
                mask_pred_results: Tensor,
                batch_data_samples: SampleList,
                rescale: bool = False,
                **kwargs: Any) -> list[dict]:
        """Predict segments or instances, as mmdet.

        Args:
            mask_cls_results: Class logits ``(B, Q, K + 1)``.
            mask_pred_results: Mask logits ``(B, Q, h, w)``.
            batch_data_samples: Sizes of the images.
            rescale: Resize masks to the original images.
        """
        results = []
        for logits, masks, sample in zip(
                mask_cls_results, mask_pred_results, batch_data_samples, strict=True):
            height, width = sample.metainfo['img_shape'][:2]
            masks = masks[:, :height, :width]
            size = tuple(sample.metainfo['ori_shape'][:2]) if rescale else (height, width)
            result: dict[str, InstanceData | PixelData] = {}
            if self.test_cfg.get('panoptic_on', True):
                result['pan_results'] = self._predict_segments(logits, masks, size)
            if self.test_cfg.get('instance_on', False):
                result['ins_results'] = self._predict_instances(logits, masks, size)
            results.append(result)
        return results

    def _predict_segments(self, logits: Tensor, masks: Tensor, size: tuple[int, int]) -> PixelData:
        """Return the class and instance of each pixel, as ``panoptic_postprocess``."""
        scores, labels = logits.softmax(-1).max(-1)
        keep = labels.ne(self.num_classes) & (scores > self.test_cfg.get('object_mask_thr', 0.8))
        scores, labels, masks = scores[keep], labels[keep], masks[keep]
        best = scores.new_full(size, -1)
        winner = torch.full(size, len(labels), device=scores.device)
        inside = torch.zeros_like(winner, dtype=torch.bool)
        original_areas = [labels.new_zeros(0)]
        for start, chunk in resize_in_chunks(masks, size):
            chunk = chunk.sigmoid()
            original_areas.append((chunk >= 0.5).flatten(1).sum(1))
            value, index = (scores[start:start + len(chunk), None, None] * chunk).max(0)
            is_better = value > best
            best = torch.where(is_better, value, best)
            winner = torch.where(is_better, index + start, winner)
            covered = chunk.gather(0, index[None])[0] >= 0.5
            inside = torch.where(is_better, covered, inside)
        areas = winner.flatten().bincount(minlength=len(labels))[:len(labels)]
        segments = self._number_segments(labels, areas, torch.cat(original_areas))
        panoptic = segments[winner]
        if self.test_cfg.get('filter_low_score', False):
            panoptic[~inside] = self.num_classes
        return PixelData(sem_seg=panoptic[None])

    def _number_segments(self, labels: Tensor, areas: Tensor, original_areas: Tensor) -> Tensor:
        """Return the value of each query's pixels, ``(Q + 1,)``, int32; the last means none."""
        threshold, num = self.test_cfg.get('iou_thr', 0.8), 0
        values = []
        for label, area, original in torch.stack([labels, areas, original_areas], 1).tolist():
            is_kept = area > 0 and original > 0 and area / original >= threshold
            is_thing = label < self.num_things_classes
            num += is_kept and is_thing
            values.append((label +
                           num * INSTANCE_OFFSET * is_thing) if is_kept else self.num_classes)
        return torch.tensor([*values, self.num_classes], dtype=torch.int32, device=labels.device)

    def _predict_instances(self, logits: Tensor, masks: Tensor, size: tuple[int,
                                                                            int]) -> InstanceData:
        """Return boxes, scores, labels and masks ``(n, H, W)``, as ``instance_postprocess``."""
        scores, index = logits.softmax(-1)[:, :-1].flatten().topk(
            self.test_cfg.get('max_per_image', 100), sorted=False)
        labels, queries = index % self.num_classes, index // self.num_classes
        is_thing = labels < self.num_things_classes
        scores, labels, queries = scores[is_thing], labels[is_thing], queries[is_thing]
        binary = torch.zeros(len(queries), *size, dtype=torch.bool, device=masks.device)
        certainty = torch.zeros(len(queries), device=masks.device)
        for start, chunk in resize_in_chunks(masks, size, queries):
            part = slice(start, start + len(chunk))
            binary[part] = chunk > 0
            inside = binary[part].float()
            certainty[part] = (chunk.sigmoid() * inside).flatten(1).sum(1) / (
                inside.flatten(1).sum(1) + 1e-6)
        return InstanceData(
            bboxes=mask2bbox(binary), labels=labels, scores=scores * certainty, masks=binary)


def resize_in_chunks(masks: Tensor,
                     size: tuple[int, int],
                     queries: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of the first mask of a chunk, and the masks ``(n, H, W)``.

    Args:
        masks: Masks ``(Q, h, w)``.
        size: Height and width to resize to.
        queries: Indices of the masks to resize. Defaults to all.
    """
    queries = torch.arange(len(masks), device=masks.device) if queries is None else queries
    step = max(1, CHUNK // (size[0] * size[1]))
    for start, chunk in zip(range(0, len(queries), step), queries.split(step), strict=False):
        part = masks[chunk]
        if part.shape[1:] != size:
            part = F.interpolate(part[:, None], size=size, mode='bilinear', align_corners=False)
            part = part[:, 0]
        yield start, part


def resize_masks_in_chunks(model: nn.Module) -> list[str]:
    """Make Mask2Former, EoMT or PMT resize query masks in chunks, for evaluation."""
    heads = {module.panoptic_fusion_head for module in model.modules()
             if isinstance(module, Mask2Former)
             and is_exact_type(module.panoptic_fusion_head, MaskFormerFusionHead)}  # yapf: disable
    replace_modules(model, {head: copy_as(ChunkedFusionHead, head) for head in heads})
    return [LINE] if heads else []
