"""From maps of one stride to a pyramid, each level from a map of its own.

Shapes: ``B`` images, ``C`` channels, ``h, w`` the backbone's grid.
"""
from __future__ import annotations

from collections.abc import Sequence

from mmengine.registry import MODELS
from torch import Tensor, nn

from colonnade.common.errors import UserError

from .pyramid import Pyramid, Stride, resampling_layers


@MODELS.register_module()
class ColumnarPyramid(Pyramid):
    """Resamples maps of one stride to one stride each, as the XCiT paper's dense predictors do.

    Each level is a module of its own name, ``stride4`` ... ``stride32`` (``stride3_5`` for 3.5):

    - finer by 4: transposed convolution, norm, GELU, transposed convolution;
    - finer by 2: transposed convolution;
    - the same stride: identity;
    - coarser by 2 or 4: max-pooling.

    Transposed convolutions have kernel 2 and stride 2. All levels keep ``in_channels``.

    Args:
        in_channels: Width ``C`` of the input maps.
        stride: Stride of the input maps in pixels: the backbone's patch size.
        out_strides: Strides of the output levels, not decreasing, each within a factor 4 of
            ``stride``: ``(3.5, 7, 14, 28)`` for patches of 14. Levels of equal stride share their
            layers.
        norm_cfg: The norm of the ×4 level; ``None`` is ``type='BN'``.
        fpn: Config of a neck on top, e.g. ``dict(type='FPN', out_channels=256, num_outs=5)``. Its
            ``in_channels`` are filled in; ``out_channels``, if not given, are ``in_channels``.
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
                resampling_layers(stride, out_stride, widths, norm_cfg or dict(type='BN')))
        self.fpn = None if fpn is None else self._build_fpn(fpn)

    def _build_fpn(self, fpn: dict) -> nn.Module:
        if 'in_channels' in fpn:
            raise UserError('fpn must not have in_channels: they follow from the in_channels of '
                            f'ColumnarPyramid, got {fpn["in_channels"]}')
        widths = [self.in_channels] * len(self.out_strides)
        return MODELS.build({'out_channels': self.in_channels, **fpn, 'in_channels': widths})

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Resample map i to stride ``out_strides[i]``.

        Args:
            inputs: As many maps ``(B, C, h, w)`` as ``out_strides``, all at ``stride``, shallow to
                deep.

        Returns:
            Levels from fine to coarse, each ``(B, C, h * stride // out_stride, w * stride //
            out_stride)``, but at least one pixel high and wide; or what ``fpn`` makes of them.

        Raises:
            ValueError: If the number of maps is not that of ``out_strides``.
        """
        if len(inputs) != len(self.out_strides):
            raise UserError(f'ColumnarPyramid needs {len(self.out_strides)} maps for strides '
                            f'{self.out_strides}, got {len(inputs)}: check out_indices')
        levels = tuple(
            self.resample(x, out_stride)
            for out_stride, x in zip(self.out_strides, inputs, strict=True))
        return levels if self.fpn is None else tuple(self.fpn(levels))
