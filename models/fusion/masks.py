"""mmdet's mask head for evaluation: logits of the predicted class only, and fast pasting.

Shapes: ``n`` objects, ``C`` channels, ``K`` classes, ``h, w`` a predicted mask, ``H, W`` the image.
"""
from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.kernels.devices import should_use_cpu_forms

from ..cascade_roi_head import MeanScoreCascadeRoIHead

BLOCK = 16  # objects upsampled at a time
#: predicted classes ``(n,)`` of the objects whose masks this thread computes, if they are known
PREDICTED_CLASSES: ContextVar[Tensor | None] = ContextVar('PREDICTED_CLASSES', default=None)


class PastingMaskHead(FCNMaskHead):
    """Mask head that resamples each mask in the region of its box, by two small matmuls."""

    def _predict_by_feat_single(self,
                                mask_preds: Tensor,
                                bboxes: Tensor,
                                labels: Tensor,
                                img_meta: dict[str, Any],
                                rcnn_test_cfg: Any,
                                rescale: bool = False,
                                activate_map: bool = False) -> Tensor:
        """Compute masks ``(n, H, W)`` of logits ``(n, K, h, w)``; rescales ``bboxes`` in place."""
        if not should_use_cpu_forms(bboxes):
            return super()._predict_by_feat_single(mask_preds, bboxes, labels, img_meta,
                                                   rcnn_test_cfg, rescale, activate_map)
        masks = torch.as_tensor(mask_preds)
        classes = torch.zeros_like(labels) if masks.shape[1] == 1 else labels
        masks = masks[torch.arange(len(masks)), classes].float()
        masks = masks if activate_map else masks.sigmoid()
        scale_x, scale_y = img_meta['scale_factor']
        height, width = img_meta['ori_shape'][:2]
        if rescale:
            bboxes /= bboxes.new_tensor([scale_x, scale_y, scale_x, scale_y])
        else:
            height, width = int(round(height * scale_y)), int(round(width * scale_x))
        with torch.autocast('cpu', enabled=False):
            return paste(masks, bboxes.float(), (height, width), rcnn_test_cfg.mask_thr_binary)


class ClassMaskHead(PastingMaskHead):
    """Mask head that computes only logits of :data:`PREDICTED_CLASSES` while they are set."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits ``(n, 1, 2 * h, 2 * w)`` of RoIs ``(n, C, h, w)``, or all K of them."""
        labels = PREDICTED_CLASSES.get()
        if labels is None:
            return super().forward(x)
        for conv in self.convs:
            x = conv(x)
        return compute_class_logits(x, labels, self.upsample, self.conv_logits)


class PredictedClassMasks:
    """Mixin of RoI heads that pass the predicted classes to their mask heads on a CPU."""

    def predict_mask(self, x: tuple[Tensor, ...], batch_img_metas: list[dict],
                     results_list: list[InstanceData], *args: Any, **kwargs: Any) -> list:
        """Predict masks of the predicted classes, as mmdet."""
        labels = torch.cat([results.labels for results in results_list])
        token = PREDICTED_CLASSES.set(labels if should_use_cpu_forms(labels) else None)
        try:
            return super().predict_mask(  # type: ignore[misc]
                x, batch_img_metas, results_list, *args, **kwargs)
        finally:
            PREDICTED_CLASSES.reset(token)


class ClassMaskRoIHead(PredictedClassMasks, StandardRoIHead):
    """RoI head whose mask head is a :class:`ClassMaskHead`."""


class ClassMaskCascadeRoIHead(PredictedClassMasks, CascadeRoIHead):
    """Cascade whose mask heads are :class:`ClassMaskHead`."""


class ClassMaskMeanScoreCascadeRoIHead(PredictedClassMasks, MeanScoreCascadeRoIHead):
    """Cascade with detectron2's scores whose mask heads are :class:`ClassMaskHead`."""


def compute_class_logits(features: Tensor, labels: Tensor, upsampler: nn.ConvTranspose2d,
                         predictor: nn.Conv2d) -> Tensor:
    """Compute logits ``(n, 1, s * h, s * w)`` of the classes ``labels`` of objects.

    The upsampler's kernel is as large as its stride ``s``, so each pixel comes from one pixel. With
    the 1 × 1 predictor after it and a ReLU, it is two linear layers.
    """
    (height, width), step = features.shape[2:], upsampler.stride[0]
    weight = upsampler.weight.permute(2, 3, 1, 0).flatten(0, 2)[..., None, None].to(features.dtype)
    bias = upsampler.bias.repeat(step * step).to(features.dtype)
    last = predictor.weight[labels].flatten(1)[..., None].to(features.dtype)  # (n, C, 1)
    pixels = [features.new_empty(0, height * width * step * step, 1)]
    for part, weights in zip(features.split(BLOCK), last.split(BLOCK), strict=True):
        hidden = F.conv2d(part, weight, bias).relu_()  # (BLOCK, s * s * C, h, w)
        hidden = hidden.permute(0, 2, 3, 1).unflatten(3, (-1, len(last[0]))).flatten(1, 3)
        pixels.append(hidden @ weights)
    logits = torch.cat(pixels).view(-1, height, width, step, step).transpose(2, 3)
    logits = logits.reshape(-1, 1, step * height, step * width)
    return logits + predictor.bias[labels].view(-1, 1, 1, 1).to(logits.dtype)


def paste(masks: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float) -> Tensor:
    """Paste masks ``(n, h, w)`` of boxes ``(n, 4)`` into images, as mmdet's ``grid_sample`` does.

    Probabilities of at least ``threshold`` are True. With a threshold below 0, the result is uint8,
    255 times the probability.
    """
    limit = torch.tensor(size).flip(0)
    low = (boxes[:, :2].floor() - 1).clamp_min(0).long().minimum(limit)
    high = (boxes[:, 2:].ceil() + 1).clamp_min(0).long().minimum(limit).maximum(low)
    columns, rows = (compute_resampling_weights(boxes[:, axis], boxes[:, axis + 2], low[:, axis],
                                                high[:, axis], num)
                     for axis, num in ((0, masks.shape[2]), (1, masks.shape[1])))
    out = torch.zeros(len(masks), *size, dtype=torch.bool if threshold >= 0 else torch.uint8)
    for image, mask, down, across, (left, top), (right, bottom) in zip(
            out, masks, rows, columns, low.tolist(), high.tolist(), strict=True):
        pasted = down @ mask @ across.T
        image[top:bottom, left:right] = pasted >= threshold if threshold >= 0 else pasted * 255
    return out


def compute_resampling_weights(low: Tensor, high: Tensor, start: Tensor, stop: Tensor,
                               num: int) -> tuple[Tensor, ...]:
    """Return weights ``(stop - start, num)`` of bilinear interpolation along an axis, per mask.

    The ``num`` values of a mask are between the edges ``low`` and ``high`` in pixels.
    """
    counts = stop - start
    index = torch.repeat_interleave(counts)
    pixel = torch.arange(len(index)) - (counts.cumsum(0) - counts - start)[index]
    at = (pixel + 0.5 - low[index]) / (high - low)[index] * num - 0.5
    at = torch.where(at.isinf(), (num - 1) / 2, at)  # a box without width, as in mmdet
    weights = (1 - (at[:, None] - torch.arange(num)).abs()).clamp_min_(0)
    return weights.split(counts.tolist())
