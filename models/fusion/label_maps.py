"""Label maps computed from a head's logits, without logits for every pixel of the image.

mmseg resizes the logits of all classes twice, to the size of the network's input and of the image,
before it takes the maximum. For 150 classes, this takes half the time of a small model. Both are
linear, so here they are one matmul for rows and one for columns. A few rows of the image are
computed at a time, so that their logits stay in the cache.

Shapes: ``K`` classes, ``h, w`` the head's map, ``H, W`` the image.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.structures import PixelData
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import encoder_decoder
from mmseg.structures import SegDataSample
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.kernels.devices import should_use_cpu_forms

BLOCK = 2**20  # logits computed at a time


class EncoderDecoder(encoder_decoder.EncoderDecoder):
    """mmseg's segmenter that outputs only label maps; its name stays, since users see it."""

    def encode_decode(self, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Compute logits ``(B, K, h, w)`` of images, in the head's size if possible."""
        # Images without samples, and windows, have a torch.Size.
        is_bare = isinstance(batch_img_metas[0]['img_shape'], torch.Size)
        if is_bare or _should_keep_logits(self, inputs, batch_img_metas):
            return super().encode_decode(inputs, batch_img_metas)
        return self.decode_head.forward(self.extract_feat(inputs))

    def postprocess_result(self,
                           seg_logits: Tensor,
                           data_samples: list[SegDataSample] | None = None) -> list[SegDataSample]:
        """Add label maps to the samples, without logits."""
        metas = [sample.metainfo for sample in data_samples or ()]
        if not data_samples or _should_keep_logits(self, seg_logits, metas):
            return super().postprocess_result(seg_logits, data_samples)
        for logits, meta, sample in zip(seg_logits, metas, data_samples, strict=True):
            left, right, top, bottom = meta.get('img_padding_size',
                                                meta.get('padding_size', [0] * 4))
            size, align = meta['ori_shape'], self.align_corners
            height, width = _get_input_size(metas[0])
            rows = build_resizing_matrix(logits.shape[1], height, top, height - bottom, size[0],
                                         align)
            columns = build_resizing_matrix(logits.shape[2], width, left, width - right, size[1],
                                            align)
            sample.pred_sem_seg = PixelData(data=find_largest(logits, rows, columns))
        return data_samples


def fuse_label_maps(model: nn.Module) -> list[str]:
    """Make a segmenter output only label maps, without ``seg_logits``, in place.

    Logits are kept for augmented images, which ``--tta`` merges, and for images that are segmented
    in windows, whose logits have the size of the input anyway. Segmenters and heads with custom
    post-processing are not changed. Returns a line if the model was changed.
    """
    if type(model) is not encoder_decoder.EncoderDecoder or model.out_channels < 2:
        return []
    head = model.decode_head
    if not isinstance(head, BaseDecodeHead) or any(
            is_replaced(part, base, name)
            for part, base, names in ((head, BaseDecodeHead, ('predict', 'predict_by_feat')),
                                      (model, encoder_decoder.EncoderDecoder,
                                       ('encode_decode', 'postprocess_result'))) for name in names):
        return []
    model.__class__ = EncoderDecoder  # there is no parent module to replace it in
    return ['label maps are computed from the logits of the head, some rows at a time']


def can_skip_full_resolution(model: nn.Module) -> bool:
    """Return True if a model computes no logits for every pixel."""
    return (isinstance(model, EncoderDecoder) and is_segmented_at_once(model)
            and should_use_cpu_forms(next(model.parameters())))


def is_segmented_at_once(model: encoder_decoder.EncoderDecoder) -> bool:
    """Return True if images are segmented at once and not in windows."""
    return model.test_cfg.get('mode', 'whole') == 'whole'


def is_replaced(module: nn.Module, base: type, method: str) -> bool:
    """Return True if a module overrides a method of a base class."""
    return method in vars(module) or getattr(type(module), method) is not getattr(base, method)


def _should_keep_logits(model: EncoderDecoder, x: Tensor, metas: Sequence[dict[str, Any]]) -> bool:
    """Return True if logits are computed as in mmseg; those of flipped images are merged later."""
    return (not should_use_cpu_forms(x) or not is_segmented_at_once(model)
            or any('flip' in meta for meta in metas))


def _get_input_size(meta: dict[str, Any]) -> tuple[int, int]:
    """Return height and width of the network's input, as mmseg does for the first of a batch."""
    size = meta['img_shape'] if isinstance(meta['img_shape'], torch.Size) else meta.get(
        'pad_shape', meta['img_shape'])
    return tuple(size[:2])


def build_resizing_matrix(before: int, whole: int, start: int, end: int, after: int,
                          align_corners: bool) -> Tensor | None:
    """Build the matrix that resizes a line to ``whole``, crops and resizes it; None is identity.

    The matrix is ``(after, before)``; the crop is from ``start`` to ``end``.
    """
    if start == 0 and before == whole == end == after:
        return None
    line = torch.eye(before)[None]
    for size, part in ((whole, slice(start, end)), (after, slice(None))):
        if line.shape[2] != size:
            line = F.interpolate(line, size, mode='linear', align_corners=align_corners)
        line = line[..., part]
    return line[0].T.contiguous()


def find_largest(logits: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Return the class of the largest of logits ``(K, h, w)`` at each pixel, ``(1, H, W)``.

    The matrices ``rows`` ``(H, h)`` and ``columns`` ``(W, w)`` resize the logits; None is identity.
    """
    classes = len(logits)
    height = logits.shape[1] if rows is None else len(rows)
    with torch.autocast('cpu', enabled=False):
        wide = logits.permute(1, 2, 0).float()
        wide = wide if columns is None else columns @ wide  # (h, W, K)
        width = wide.shape[1]
        labels = torch.empty(1, height, width, dtype=torch.int64)
        step = max(BLOCK // (width * classes), 1)
        for start in range(0, height, step):
            part = slice(start, start + step)
            block = wide[part] if rows is None else _enlarge(wide, rows[part])
            labels[0, part] = block.max(2)[1]
    return labels


def _enlarge(wide: Tensor, weights: Tensor) -> Tensor:
    """Compute rows ``(n, W, K)`` of the image from those of the map, by weights ``(n, h)``."""
    used = weights.any(0).nonzero()[:, 0]
    first, last = int(used[0]), int(used[-1]) + 1
    return (weights[:, first:last] @ wide[first:last].flatten(1)).view(-1, *wide.shape[1:])
