"""Semantic segmentation by masks and classes of queries."""
from __future__ import annotations

from typing import Any

import torch
from mmseg.models.decode_heads import Mask2FormerHead
from torch import Tensor

from .mask_queries import MaskQueryHead


class SemanticMaskQueryHead(MaskQueryHead, Mask2FormerHead):
    """:class:`.MaskQueryHead` for mmseg: each class of an image is one object.

    Args:
        in_channels: Width C of queries and patches.
        num_classes: Number of classes K.
        ignore_index: Label of pixels without a class.
        align_corners: How logits are resized to the original image.
        **kwargs: Arguments of :class:`.MaskQueryHead`.
    """

    def __init__(self,
                 in_channels: int,
                 *,
                 num_classes: int,
                 ignore_index: int = 255,
                 align_corners: bool = False,
                 **kwargs: Any) -> None:
        super().__init__(in_channels, num_things_classes=num_classes, num_stuff_classes=0, **kwargs)
        self.out_channels = num_classes
        self.ignore_index = ignore_index
        self.align_corners = align_corners

    def predict(  # type: ignore[override]  # mmseg's heads return scores, mmdet's queries
            self, x: Any, batch_img_metas: list[dict], test_cfg: Any) -> Tensor:
        """Compute scores ``(B, K, H, W)`` of the classes (Mask2Former, section 3.4)."""
        meta = batch_img_metas[0]
        size = meta['img_shape']
        if not isinstance(size, torch.Size):  # which mmseg sets for windows and single images
            size = meta.get('pad_shape', size)
        classes, masks = self(x, batch_img_metas)
        masks = self.resize_masks(masks[-1], size[:2]).sigmoid()
        return torch.einsum('bqc,bqhw->bchw', classes[-1].softmax(-1)[..., :-1], masks)
