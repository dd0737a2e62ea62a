"""Linear classifier of each token, which evaluates frozen features."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmcv.cnn import build_norm_layer
from mmengine.registry import MODELS
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor

from .head_files import DINOV2_HEAD, DINOV3_HEAD, load_pretrained_head


@MODELS.register_module()
class LinearHead(BaseDecodeHead):
    """Batch norm and a 1 × 1 convolution, as in DINOv2's linear evaluation of segmentation.

    See DINOv2 (arXiv 2304.07193), section 7.4. There is no activation and no dropout. Several maps
    are concatenated with ``input_transform='resize_concat'``. ``init_cfg`` of ``type='Pretrained'``
    loads the authors' heads of DINOv2 and DINOv3, strictly; the backbone has files of its own.

    Args:
        in_channels: Width of the map, or of each map.
        norm_cfg: Norm. Defaults to ``type='BN'``.
        **kwargs: Arguments of mmseg's ``BaseDecodeHead``, such as ``num_classes``. ``channels``
            follow from ``in_channels``.
    """

    def __init__(self,
                 in_channels: int | Sequence[int],
                 *,
                 norm_cfg: dict | None = None,
                 **kwargs: Any) -> None:
        width = in_channels if isinstance(in_channels, int) else sum(in_channels)
        norm_cfg = norm_cfg or dict(type='BN')
        super().__init__(in_channels, width, norm_cfg=norm_cfg, dropout_ratio=0., **kwargs)
        self.norm = build_norm_layer(norm_cfg, width)[1]

    def init_weights(self) -> None:
        """Load the published head of ``init_cfg``, or initialize as mmseg does.

        Raises:
            FileNotFoundError: If the file does not exist.
            WeightsError: If the file cannot be fetched or read, or does not fit.
        """
        if not load_pretrained_head(self, DINOV2_HEAD, DINOV3_HEAD):
            super().init_weights()

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Map feature maps ``(B, C, h, w)`` of ``in_index`` to logits ``(B, K, h, w)``."""
        return self.cls_seg(self.norm(self._transform_inputs(inputs)))
