"""mmdet's mask head for evaluation: logits of the wanted class alone, and masks pasted fast.

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

BLOCK = 16  # objects that are upsampled at a time
#: the classes ``(n,)`` of the objects whose masks this thread predicts, if they are known
WANTED: ContextVar[Tensor | None] = ContextVar('WANTED', default=None)


class PastingMaskHead(FCNMaskHead):
    """A mask head that resamples each mask on the region of its box, as two small products."""

    def _predict_by_feat_single(self,
                                mask_preds: Tensor,
                                bboxes: Tensor,
                                labels: Tensor,
                                img_meta: dict[str, Any],
                                rcnn_test_cfg: Any,
                                rescale: bool = False,
                                activate_map: bool = False) -> Tensor:
        """Masks ``(n, H, W)`` from logits ``(n, K, h, w)``; as mmdet's, it rescales ``bboxes``."""
        if not should_use_cpu_forms(bboxes):
            return super()._predict_by_feat_single(mask_preds, bboxes, labels, img_meta,
                                                   rcnn_test_cfg, rescale, activate_map)
        masks = torch.as_tensor(mask_preds)
        classes = torch.zeros_like(labels) if masks.shape[1] == 1 else labels
        masks = masks[torch.arange(len(masks)), classes].float()
        masks = masks if activate_map else masks.sigmoid()
        wide, high = img_meta['scale_factor']
        height, width = img_meta['ori_shape'][:2]
        if rescale:
            bboxes /= bboxes.new_tensor([wide, high, wide, high])
        else:
            height, width = (int(round(side * by)) for side, by in ((height, high), (width, wide)))
        with torch.autocast('cpu', enabled=False):
            return paste(masks, bboxes.float(), (height, width), rcnn_test_cfg.mask_thr_binary)


class WantedMaskHead(PastingMaskHead):
    """A mask head that computes logits of the predicted classes alone while :data:`WANTED` is set.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Regions ``(n, C, h, w)`` to logits ``(n, 1, 2 * h, 2 * w)``; of all K classes if not."""
        labels = WANTED.get()
        if labels is None:
            return super().forward(x)
        for conv in self.convs:
            x = conv(x)
        return wanted_logits(x, labels, self.upsample, self.conv_logits)


class PredictedClassMasks:
    """What lets RoI heads on a CPU tell their mask heads the predicted classes."""

    def predict_mask(self, x: tuple[Tensor, ...], batch_img_metas: list[dict],
                     results_list: list[InstanceData], *args: Any, **kwargs: Any) -> list:
        """As mmdet's."""
        labels = torch.cat([found.labels for found in results_list])
        token = WANTED.set(labels if should_use_cpu_forms(labels) else None)
        try:
            return super().predict_mask(  # type: ignore[misc]
                x, batch_img_metas, results_list, *args, **kwargs)
        finally:
            WANTED.reset(token)


class WantedStandardRoIHead(PredictedClassMasks, StandardRoIHead):
    """mmdet's RoI head whose mask head is a :class:`WantedMaskHead`."""


class WantedCascadeRoIHead(PredictedClassMasks, CascadeRoIHead):
    """mmdet's cascade whose mask heads are :class:`WantedMaskHead`."""


def wanted_logits(features: Tensor, labels: Tensor, upsampler: nn.ConvTranspose2d,
                  predictor: nn.Conv2d) -> Tensor:
    """Logits of one class of each object, of those that a mask head computes for all classes.

    Each pixel of a transposed convolution without overlap comes from one pixel: with the layer of
    logits behind it, it is two linear layers.

    Args:
        features: ``(n, C, h, w)``.
        labels: ``(n,)``.
        upsampler: Of kernels as large as the stride ``s``, with a bias.
        predictor: Behind it and a ReLU, of 1 × 1, with a bias.

    Returns:
        ``(n, 1, s * h, s * w)``.
    """
    (height, width), step = features.shape[2:], upsampler.stride[0]
    weight = upsampler.weight.permute(2, 3, 1, 0).flatten(0, 2)[..., None, None].to(features.dtype)
    bias = upsampler.bias.repeat(step * step).to(features.dtype)
    last = predictor.weight[labels].flatten(1)[..., None].to(features.dtype)  # (n, C, 1)
    found = [features.new_empty(0, height * width * step * step, 1)]
    for part, wanted in zip(features.split(BLOCK), last.split(BLOCK), strict=True):
        hidden = F.conv2d(part, weight, bias).relu_()  # (BLOCK, s * s * C, h, w)
        pixels = hidden.permute(0, 2, 3, 1).unflatten(3, (-1, len(last[0]))).flatten(1, 3)
        found.append(pixels @ wanted)
    logits = torch.cat(found).view(-1, height, width, step, step).transpose(2, 3)
    logits = logits.reshape(-1, 1, step * height, step * width)
    return logits + predictor.bias[labels].view(-1, 1, 1, 1).to(logits.dtype)


def paste(masks: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float) -> Tensor:
    """Masks of boxes in an image, by bilinear interpolation as of mmdet's ``grid_sample``.

    Args:
        masks: Probabilities ``(n, h, w)``, float32.
        boxes: Left, top, right, bottom in pixels, ``(n, 4)``, float32.
        size: Height and width of the image.
        threshold: From which probability a pixel belongs to the object. Below 0, masks are not
            binary: they hold 255 times the probability.

    Returns:
        ``(n, height, width)``, bool; uint8 if they are not binary.
    """
    limit = torch.tensor(size).flip(0)
    low = (boxes[:, :2].floor() - 1).clamp_min(0).long().minimum(limit)
    high = (boxes[:, 2:].ceil() + 1).clamp_min(0).long().minimum(limit).maximum(low)
    columns, rows = (resampling(boxes[:, axis], boxes[:, axis + 2], low[:, axis], high[:, axis],
                                num) for axis, num in ((0, masks.shape[2]), (1, masks.shape[1])))
    out = torch.zeros(len(masks), *size, dtype=torch.bool if threshold >= 0 else torch.uint8)
    for image, mask, down, across, (left, top), (right, bottom) in zip(
            out, masks, rows, columns, low.tolist(), high.tolist(), strict=True):
        found = down @ mask @ across.T
        image[top:bottom, left:right] = found >= threshold if threshold >= 0 else found * 255
    return out


def resampling(low: Tensor, high: Tensor, start: Tensor, stop: Tensor,
               num: int) -> tuple[Tensor, ...]:
    """Weights of bilinear interpolation along one axis.

    Args:
        low: Where masks begin in pixels, ``(n,)``.
        high: Where they end.
        start: The first pixel that is wanted of each.
        stop: That behind the last.
        num: Of values of a mask along the axis.

    Returns:
        For each mask, ``(stop - start, num)``.
    """
    counts = stop - start
    index = torch.repeat_interleave(counts)
    pixel = torch.arange(len(index)) - (counts.cumsum(0) - counts - start)[index]
    at = (pixel + 0.5 - low[index]) / (high - low)[index] * num - 0.5
    at = torch.where(at.isinf(), (num - 1) / 2, at)  # of a box without width, as mmdet
    weights = (1 - (at[:, None] - torch.arange(num)).abs()).clamp_min_(0)
    return weights.split(counts.tolist())
