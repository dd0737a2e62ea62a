"""Pyramid whose levels come from a feature map each.

Shapes: ``B`` images, ``C`` channels, ``h, w`` the backbone's grid.
"""
from __future__ import annotations

from collections.abc import Sequence

from mmengine.registry import MODELS
from torch import Tensor

from colonnade.common.errors import UserError

from .pyramid import Pyramid, Stride, build_fpn, build_resampling_layers


@MODELS.register_module()
class ColumnarPyramid(Pyramid):
    """Pyramid of levels from one map each, as in the XCiT paper's dense predictors.

    Each level is a module, ``stride4`` ... ``stride32`` (``stride3_5`` for 3.5), of width
    ``in_channels``:

    - finer by 4: transposed convolution, norm, GELU, transposed convolution;
    - finer by 2: transposed convolution;
    - same stride: identity;
    - coarser by 2 or 4: max-pooling.

    Transposed convolutions have kernel 2 and stride 2.

    Args:
        in_channels: Width ``C`` of the input maps.
        stride: Stride of the input maps in pixels: the backbone's patch size.
        out_strides: Strides of the levels, not decreasing, each within a factor 4 of ``stride``:
            ``(3.5, 7, 14, 28)`` for patches of 14. Levels of equal stride share their layers.
        norm_cfg: Norm of the level finer by 4. Defaults to ``type='BN'``.
        fpn: Config of a neck on top, e.g. ``dict(type='FPN', out_channels=256, num_outs=5)``. Its
            ``in_channels`` are set; its ``out_channels`` default to ``in_channels``.
        init_cfg: See :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If a level cannot be reached from ``stride``.
    """

    def __init__(self,
                 in_channels: int,
                 stride: int,
                 out_strides: Sequence[Stride] = (4, 8, 16, 32),
                 *,
                 norm_cfg: dict | None = None,
                 fpn: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(in_channels, stride, out_strides, init_cfg=init_cfg)
        widths = (in_channels, in_channels, in_channels)
        for out_stride in dict.fromkeys(self.out_strides):
            self.add_level(
                out_stride,
                build_resampling_layers(stride, out_stride, widths, norm_cfg or dict(type='BN')))
        self.fpn = build_fpn(fpn, in_channels, len(self.out_strides), type(self).__name__)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Resample map i to stride ``out_strides[i]``.

        Args:
            inputs: Maps ``(B, C, h, w)`` at ``stride``, one per level, shallow to deep.

        Returns:
            Levels from fine to coarse, each ``(B, C, h * stride // out_stride, w * stride //
            out_stride)``, but at least one pixel high and wide; or the output of ``fpn``.
        """
        if len(inputs) != len(self.out_strides):
            raise UserError(f'ColumnarPyramid needs {len(self.out_strides)} feature maps for '
                            f'strides {self.out_strides}, got {len(inputs)}: check out_indices')
        levels = tuple(
            self.resample(x, out_stride)
            for out_stride, x in zip(self.out_strides, inputs, strict=True))
        return levels if self.fpn is None else tuple(self.fpn(levels))
