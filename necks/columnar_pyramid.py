"""From maps of one stride to a pyramid.

Shapes: ``B`` images, ``C`` channels, ``h, w`` the trunk's grid.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.kernels.untouched import is_transformed
from colonnade.weights.loading import require_complete


@MODELS.register_module()
class ColumnarPyramid(BaseModule):
    """Resamples maps of one stride to one stride each, as the XCiT paper's dense predictors do.

    Each level is a module of its own name, ``stride4`` ... ``stride32``:

    - finer by 4: transposed convolution, norm, GELU, transposed convolution;
    - finer by 2: transposed convolution;
    - the same stride: identity;
    - coarser by 2 or 4: max-pooling.

    Transposed convolutions have kernel 2 and stride 2. All levels keep ``in_channels``.

    Args:
        in_channels: Width ``C`` of the input maps.
        stride: Stride of the input maps in pixels: the trunk's patch size.
        out_strides: Strides of the output levels, increasing, each within a factor 4 of ``stride``.
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
                 out_strides: Sequence[int] = (4, 8, 16, 32),
                 *,
                 norm_cfg: dict | None = None,
                 fpn: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        self.in_channels = in_channels
        self.stride = stride
        self.out_strides = tuple(out_strides)
        if not self.out_strides or list(self.out_strides) != sorted(set(self.out_strides)):
            raise ValueError(f'out_strides must increase, got {self.out_strides}')
        for out_stride in self.out_strides:
            level = build_level(in_channels, stride, out_stride, norm_cfg or dict(type='BN'))
            self.add_module(f'stride{out_stride}', level)
        self.fpn = None if fpn is None else self._build_fpn(fpn)
        self.register_load_state_dict_pre_hook(require_complete)

    def _build_fpn(self, fpn: dict) -> nn.Module:
        if 'in_channels' in fpn:
            raise ValueError('fpn must not have in_channels: they follow from the in_channels of '
                             f'ColumnarPyramid, got {fpn["in_channels"]}')
        widths = [self.in_channels] * len(self.out_strides)
        return MODELS.build({'out_channels': self.in_channels, **fpn, 'in_channels': widths})

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let torch.compile take the levels of several layers; arguments as for it.

        Pooling and most necks on top would be compiled anew for odd and even sizes.
        """
        for level in self.children():
            if isinstance(level, nn.Sequential):
                level.compile(*args, **kwargs)

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
            raise ValueError(f'ColumnarPyramid needs {len(self.out_strides)} maps for strides '
                             f'{self.out_strides}, got {len(inputs)}: check out_indices')
        levels = tuple(
            self._resample(x, out_stride)
            for out_stride, x in zip(self.out_strides, inputs, strict=True))
        return levels if self.fpn is None else tuple(self.fpn(levels))

    def _resample(self, x: Tensor, out_stride: int) -> Tensor:
        """One level; computed in channels-last order, where oneDNN is fast, given in the default.

        mmcv's compiled RoIAlign silently reads images in any other order wrongly.
        """
        level = self.get_submodule(f'stride{out_stride}')
        if not is_transformed():
            x = x.contiguous(memory_format=torch.channels_last)
        return level(x).contiguous()


class MaxPool(nn.Module):
    """Max-pooling with ``kernel_size`` as stride; a smaller map gives one pixel, not an error."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to ``(B, C, h // kernel_size, w // kernel_size)``."""
        kernel = [min(self.kernel_size, size) for size in x.shape[-2:]]
        return F.max_pool2d(x, kernel, kernel)

    def extra_repr(self) -> str:
        return f'kernel_size={self.kernel_size}'


def build_level(channels: int, stride: int, out_stride: int, norm_cfg: dict) -> nn.Module:
    """The module that takes maps from ``stride`` to ``out_stride``."""

    def upsample() -> nn.Module:
        return nn.ConvTranspose2d(channels, channels, kernel_size=2, stride=2)

    if out_stride * 4 == stride:
        norm = build_norm_layer(norm_cfg, channels)[1]
        return nn.Sequential(upsample(), norm, nn.GELU(), upsample())
    if out_stride * 2 == stride:
        return upsample()
    if out_stride == stride:
        return nn.Identity()
    if out_stride in (stride * 2, stride * 4):
        return MaxPool(out_stride // stride)
    reachable = [stride // 4, stride // 2, stride, stride * 2, stride * 4]
    raise ValueError(f'out_strides of maps at stride {stride} must be among {reachable}, '
                     f'got {out_stride}')
