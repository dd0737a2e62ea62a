"""What pyramids share: levels named by their strides, and the layers from one stride to another.

Shapes: ``B`` images, ``C`` channels, ``h, w`` the backbone's grid.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.kernels.devices import should_use_cpu_forms
from colonnade.backbones.kernels.fast_path import is_plain, is_transformed
from colonnade.backbones.kernels.folding import FusedError
from colonnade.backbones.kernels.memory_format import map_order
from colonnade.common.errors import UserError
from colonnade.weights.loading import require_complete
from colonnade.weights.state_dicts import State

from .merging import flattened, simplified

Stride = int | float  # in pixels; a patch of 14 has levels of stride 3.5


class Pyramid(BaseModule):
    """Levels of several strides, made from maps of one stride.

    A subclass adds a module for each of ``out_strides`` by :meth:`add_level`.

    Attributes:
        fused: Whether :meth:`fuse` changed it.

    Args:
        in_channels: Width ``C`` of the input maps.
        stride: Stride of the input maps in pixels: the backbone's patch size.
        out_strides: Strides of the levels, from fine to coarse.
        init_cfg: See :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If the strides decrease.
    """
    fused: bool = False

    def __init__(self,
                 in_channels: int,
                 stride: int,
                 out_strides: Sequence[Stride],
                 *,
                 init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        self.in_channels = in_channels
        self.stride = stride
        self.out_strides = tuple(out_strides)
        if not self.out_strides or list(self.out_strides) != sorted(self.out_strides):
            raise UserError(f'out_strides must not decrease, got {self.out_strides}')
        self.register_load_state_dict_pre_hook(require_loadable)

    def add_level(self, out_stride: Stride, layers: Sequence[nn.Module]) -> None:
        """Add the level of a stride; a layer that is the only one stands for itself."""
        alone = layers[0] if layers else nn.Identity()
        self.add_module(level_name(out_stride), nn.Sequential(*layers) if layers[1:] else alone)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let torch.compile take levels of several layers that do not pool; arguments as for it.

        Pooling and most necks on top would be compiled anew for odd and even sizes.
        """
        for level in self.children():
            if isinstance(level, nn.Sequential) and not isinstance(level[0], MaxPool):
                level.compile(*args, **kwargs)

    def fuse(self, following: Mapping[Stride, nn.Conv2d] | None = None) -> set[Stride]:
        """Fold and merge the linear layers of each level, for evaluation alone.

        Levels stay the same to rounding. Parameters are changed and some are gone: load before, and
        don't save after.

        Args:
            following: A convolution that alone takes the level of a stride; it is merged into the
                level if that saves products.

        Returns:
            Strides of the levels that give what the convolution behind them gave.

        Raises:
            FusedError: If the pyramid is in training mode, or was fused before.
        """
        self.require_fusible()
        taken = set()
        for stride in set(self.out_strides):
            level = self.get_submodule(level_name(stride))
            if not is_plain(level, nn.Sequential, nn.ConvTranspose2d):
                continue
            behind = (following or {}).get(stride)
            layers = simplified([*flattened(level), *([] if behind is None else [behind])])
            if behind is not None and layers[-1] is behind:
                layers.pop()
            elif behind is not None:
                taken.add(stride)
            self.add_level(stride, layers)
        self.requires_grad_(False)
        self.fused = True
        return taken

    def require_fusible(self) -> None:
        """Raise what :meth:`fuse` raises."""
        if self.training or self.fused:
            raise FusedError(f'{type(self).__name__} cannot be fused ' +
                             ('again' if self.fused else 'in training mode: call eval() before'))

    def train(self, mode: bool = True) -> Pyramid:
        """As :meth:`torch.nn.Module.train`.

        Raises:
            FusedError: If a fused pyramid is to be trained.
        """
        if mode and self.fused:
            raise FusedError(f'a fused {type(self).__name__} cannot be trained: build it anew')
        return super().train(mode)

    def resample(self, x: Tensor, out_stride: Stride) -> Tensor:
        """One level; on a CPU computed in channels-last order, where oneDNN is fast."""
        level = self.get_submodule(level_name(out_stride))(channels_last(x))
        if level is x:  # others may write to either
            return x.clone(memory_format=map_order(x))
        return level.contiguous(memory_format=map_order(level))


def require_loadable(pyramid: Pyramid, state_dict: State, prefix: str, *_: Any) -> None:
    """A hook before loading: a pyramid is loaded whole, and not when it is fused."""
    if pyramid.fused:
        raise FusedError(f'a fused {type(pyramid).__name__} takes no weights: load, then fuse()')
    require_complete(pyramid, state_dict, prefix)


class MaxPool(nn.Module):
    """Max-pooling with ``kernel_size`` as stride; a smaller map gives one pixel, not an error."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to ``(B, C, h // kernel_size, w // kernel_size)``."""
        kernel = [self.kernel_size] * 2
        if not torch.compiler.is_exporting():  # whose images are large enough
            kernel = [min(self.kernel_size, size) for size in x.shape[-2:]]
        return F.max_pool2d(x, kernel, kernel)

    def extra_repr(self) -> str:
        return f'kernel_size={self.kernel_size}'


def channels_last(x: Tensor) -> Tensor:
    """``x``, on a CPU in channels-last order, unless a transform of ``torch.func`` forbids it.

    Raises:
        ValueError: If it is no map, but a pair of map and prefix tokens.
    """
    if not isinstance(x, Tensor):
        raise UserError(f'pyramids take maps, got a {type(x).__name__}: the backbone\'s '
                        'return_prefix_tokens must be False')
    if is_transformed() or not should_use_cpu_forms(x):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def level_name(out_stride: Stride) -> str:
    """The module of a level: ``stride4``, ``stride3_5``."""
    return f'stride{out_stride:g}'.replace('.', '_')


def strides_around(stride: int, *factors: float) -> list[Stride]:
    """``stride`` times each factor; whole numbers are ints."""
    return [int(s) if s == int(s) else s for s in (stride * factor for factor in factors)]


def resampling_layers(stride: int, out_stride: Stride, widths: tuple[int, int, int],
                      norm_cfg: dict) -> list[nn.Module]:
    """The layers that take maps from ``stride`` to ``out_stride``.

    Args:
        stride: Of the input.
        out_stride: Of the output, within a factor 4 of ``stride``.
        widths: Of the input, and behind the first and second transposed convolution.
        norm_cfg: The norm between two transposed convolutions.

    Raises:
        ValueError: If ``out_stride`` is not reached from ``stride``.
    """

    def upsample(step: int) -> nn.Module:
        return nn.ConvTranspose2d(widths[step], widths[step + 1], kernel_size=2, stride=2)

    if out_stride * 4 == stride:
        return [upsample(0), build_norm_layer(norm_cfg, widths[1])[1], nn.GELU(), upsample(1)]
    if out_stride * 2 == stride:
        return [upsample(0)]
    if out_stride == stride:
        return []
    if out_stride in (stride * 2, stride * 4):
        return [MaxPool(int(out_stride // stride))]
    reachable = strides_around(stride, 1 / 4, 1 / 2, 1, 2, 4)
    raise UserError(f'out_strides of maps at stride {stride} must be among {reachable}, '
                    f'got {out_stride}')
