"""Label maps straight from a head's logits, without logits for every pixel of the image.

mmseg enlarges the logits of all classes twice, to the size of the network's input and of the image.
Then it takes the largest at each pixel: for 150 classes half of a small model's time. Both
enlargements are linear in rows and in columns, so here they are one product each. A few rows of the
image are made at a time, so that their logits stay in the processor's cache.

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

BLOCK = 2**20  # logits at a time


class EncoderDecoder(encoder_decoder.EncoderDecoder):
    """mmseg's segmenter that makes label maps alone; users see its name, which stays."""

    def encode_decode(self, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Images ``(B, 3, H, W)`` to logits ``(B, K, h, w)``, of the head's size if possible."""
        # images without samples, and windows, have a torch.Size
        is_bare = isinstance(batch_img_metas[0]['img_shape'], torch.Size)
        if is_bare or keeps_logits(self, inputs, batch_img_metas):
            return super().encode_decode(inputs, batch_img_metas)
        return self.decode_head.forward(self.extract_feat(inputs))

    def postprocess_result(self,
                           seg_logits: Tensor,
                           data_samples: list[SegDataSample] | None = None) -> list[SegDataSample]:
        """As mmseg's, without logits in the samples."""
        metas = [sample.metainfo for sample in data_samples or ()]
        if not data_samples or keeps_logits(self, seg_logits, metas):
            return super().postprocess_result(seg_logits, data_samples)
        for logits, meta, sample in zip(seg_logits, metas, data_samples, strict=True):
            left, right, top, bottom = meta.get('img_padding_size',
                                                meta.get('padding_size', [0] * 4))
            whole, size, align = input_size(metas[0]), meta['ori_shape'], self.align_corners
            rows = resizing(logits.shape[1], whole[0], top, whole[0] - bottom, size[0], align)
            columns = resizing(logits.shape[2], whole[1], left, whole[1] - right, size[1], align)
            sample.pred_sem_seg = PixelData(data=largest(logits, rows, columns))
        return data_samples


def fuse_label_maps(model: nn.Module) -> list[str]:
    """Make a segmenter give label maps alone: its samples have no ``seg_logits`` then.

    For callers that read ``pred_sem_seg`` only. Samples of augmented images, which ``--tta``
    merges, keep their logits, as do those that are segmented in windows: their logits have the
    size of the input already. Segmenters and heads with a post-processing of their own stay as they
    are.

    Args:
        model: Of mmdet or mmseg; changed in place.

    Returns:
        A line if it was changed.
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
    model.__class__ = EncoderDecoder  # a model has no parent in which it could be replaced
    return ['label maps are made of the logits of the head, some rows at a time']


def can_skip_full_resolution(model: nn.Module) -> bool:
    """Return True if a model makes no logits for every pixel, see :func:`fuse_label_maps`."""
    return (isinstance(model, EncoderDecoder) and is_whole(model)
            and should_use_cpu_forms(next(model.parameters())))


def is_whole(model: encoder_decoder.EncoderDecoder) -> bool:
    """Return True if images are segmented at once and not in windows."""
    return model.test_cfg.get('mode', 'whole') == 'whole'


def is_replaced(module: nn.Module, base: type, method: str) -> bool:
    """Return True if a module has another method than the class that defines it."""
    return method in vars(module) or getattr(type(module), method) is not getattr(base, method)


def keeps_logits(model: EncoderDecoder, x: Tensor, metas: Sequence[dict[str, Any]]) -> bool:
    """Return True if logits are made as mmseg does; those of flipped images are merged later."""
    return (not should_use_cpu_forms(x) or not is_whole(model)
            or any('flip' in meta for meta in metas))


def input_size(meta: dict[str, Any]) -> tuple[int, int]:
    """Height and width of what the network saw, as mmseg takes it from the first of a batch."""
    whole = meta['img_shape'] if isinstance(meta['img_shape'], torch.Size) else meta.get(
        'pad_shape', meta['img_shape'])
    return tuple(whole[:2])


def resizing(before: int, whole: int, start: int, end: int, after: int,
             align_corners: bool) -> Tensor | None:
    """A line resized to ``whole`` values, of which those from ``start`` to ``end`` to ``after``.

    Returns:
        The matrix that does both, ``(after, before)``; None if the line stays as it is.
    """
    if start == 0 and before == whole == end == after:
        return None
    line = torch.eye(before)[None]
    for size, part in ((whole, slice(start, end)), (after, slice(None))):
        if line.shape[2] != size:
            line = F.interpolate(line, size, mode='linear', align_corners=align_corners)
        line = line[..., part]
    return line[0].T.contiguous()


def largest(logits: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """The class of the largest logit at each pixel.

    Args:
        logits: ``(K, h, w)``.
        rows: ``(H, h)``, from rows of the map to those of the image; None leaves them as they are.
        columns: ``(W, w)``, as ``rows``. All in float32, also under autocast.

    Returns:
        ``(1, H, W)``, int64.
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
            block = wide[part] if rows is None else enlarged(wide, rows[part])
            labels[0, part] = block.max(2)[1]
    return labels


def enlarged(wide: Tensor, weights: Tensor) -> Tensor:
    """Rows ``(n, W, K)`` of the image, from those of the map and their weights ``(n, h)``."""
    used = weights.any(0).nonzero()[:, 0]
    first, last = int(used[0]), int(used[-1]) + 1
    return (weights[:, first:last] @ wide[first:last].flatten(1)).view(-1, *wide.shape[1:])
