"""Minimal head, on which the tests of every tool run too."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmcv.cnn import ConvModule
from mmengine.registry import MODELS
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor


@MODELS.register_module(force=True)
class ToyHead(BaseDecodeHead):
    """Convolution of one feature map, and a classifier."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conv = ConvModule(self.in_channels, self.channels, 3, padding=1,
                               norm_cfg=self.norm_cfg)  # yapf: disable

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.cls_seg(self.conv(self._transform_inputs(inputs)))
