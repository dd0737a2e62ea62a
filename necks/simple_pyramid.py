"""ViTDet's simple feature pyramid, whose levels all come from the last feature map.

Shapes: ``B`` images, ``C`` channels, ``h, w`` the backbone's grid.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from mmcv.cnn import build_norm_layer
from mmengine.registry import MODELS
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError

from .pyramid import Pyramid, Stride, channels_last, resampling_layers, scale_stride

MODELS.register_module('LN2d', module=LayerNorm2d)


@MODELS.register_module()
class SimplePyramid(Pyramid):
    """Pyramid of levels from the last map, as in ViTDet (arXiv 2203.16527, section 3).

    Each level is a module, ``stride4`` ... ``stride32`` (``stride3_5`` for 3.5), that begins with:

    - finer by 4: transposed convolution to ``C / 2``, norm, GELU, transposed convolution to
      ``C / 4``;
    - finer by 2: transposed convolution to ``C / 2``;
    - same stride: nothing;
    - coarser by 2 or 4: max-pooling.

    Transposed convolutions have kernel 2 and stride 2. Then a 1 × 1 and a 3 × 3 convolution follow,
    without bias, each with a norm. Further levels are every other pixel of the level before.

    Args:
        in_channels: Width ``C`` of the input maps, a multiple of 4.
        stride: Stride of the input maps in pixels: the backbone's patch size.
        out_channels: Width of the levels.
        out_strides: Strides of the levels with layers, increasing, each within a factor 4 of
            ``stride``. Defaults to a quarter of ``stride``, half of it, itself and twice it.
        num_outs: Number of all levels; those after ``out_strides`` double the stride.
        norm_cfg: All norms. Defaults to a layer norm over the channels of each pixel,
            ``dict(type='LN2d', eps=1e-6)``.
        init_cfg: See :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If a level cannot be reached from ``stride``, ``num_outs`` is less than the
            number of ``out_strides``, or ``in_channels`` is not a multiple of 4.
    """

    def __init__(self,
                 in_channels: int,
                 stride: int,
                 out_channels: int = 256,
                 out_strides: Sequence[Stride] | None = None,
                 *,
                 num_outs: int = 5,
                 norm_cfg: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        if out_strides is None:
            out_strides = self.default_strides(stride)
        super().__init__(in_channels, stride, out_strides, init_cfg=init_cfg)
        if len(set(self.out_strides)) < len(self.out_strides):
            raise UserError(f'out_strides must increase, got {self.out_strides}')
        if num_outs < len(self.out_strides):
            raise UserError(f'num_outs must be at least {len(self.out_strides)}, the number of '
                            f'out_strides, got {num_outs}')
        if in_channels % 4:
            raise UserError(f'in_channels must be a multiple of 4, got {in_channels}')
        self.out_channels = out_channels
        self.num_outs = num_outs
        norm_cfg = norm_cfg or dict(type='LN2d', eps=1e-6)
        widths = (in_channels, in_channels // 2, in_channels // 4)
        for out_stride in self.out_strides:
            layers = resampling_layers(stride, out_stride, widths, norm_cfg)
            width = widths[sum(isinstance(layer, nn.ConvTranspose2d) for layer in layers)]
            layers += [
                conv_and_norm(width, out_channels, 1, norm_cfg),
                conv_and_norm(out_channels, out_channels, 3, norm_cfg)
            ]
            self.add_level(out_stride, layers)

    @staticmethod
    def default_strides(stride: int) -> list[Stride]:
        """Return the default ``out_strides``, ``[4, 8, 16, 32]`` for 16."""
        return scale_stride(stride, 1 / 4, 1 / 2, 1, 2)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the levels of the last map.

        Args:
            inputs: One or more maps ``(B, C, h, w)`` at ``stride``; only the last one is used.

        Returns:
            ``num_outs`` levels from fine to coarse. Those of ``out_strides`` are ``(B,
            out_channels, h * stride // out_stride, w * stride // out_stride)``, but at least one
            pixel high and wide. Further ones have half the height and width, rounded up.
        """
        x = channels_last(inputs[-1])  # once for all levels
        levels = [self.resample(x, out_stride) for out_stride in self.out_strides]
        while len(levels) < self.num_outs:
            levels.append(F.max_pool2d(levels[-1], kernel_size=1, stride=2))
        return tuple(levels)


def conv_and_norm(in_channels: int, out_channels: int, kernel_size: int,
                  norm_cfg: dict) -> nn.Module:
    """Build a convolution without bias that keeps the size, and its norm."""
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
    norm = build_norm_layer(norm_cfg, out_channels)[1]
    return nn.Sequential(OrderedDict(conv=conv, norm=norm))
