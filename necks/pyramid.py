"""Base class of pyramids, their resampling layers, and the merging of these for evaluation.

Shapes: ``B`` images, ``C`` channels, ``h, w`` the backbone's grid.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from colonnade.backbones.kernels.devices import should_use_cpu_forms
from colonnade.backbones.kernels.fast_path import is_exact_type, is_transformed
from colonnade.backbones.kernels.folding import FusedError
from colonnade.backbones.kernels.memory_format import get_map_order
from colonnade.backbones.kernels.norms import is_fixed
from colonnade.common.errors import UserError
from colonnade.weights.loading import require_complete
from colonnade.weights.state_dicts import State

Stride = int | float  # in pixels; a patch of 14 has levels of stride 3.5


class Pyramid(BaseModule):
    """Neck that computes levels of several strides from maps of one stride.

    A subclass adds a module for each of ``out_strides`` by :meth:`add_level`.

    Attributes:
        fused: True after :meth:`fuse`.

    Args:
        in_channels: Width ``C`` of the input maps.
        stride: Stride of the input maps in pixels: the backbone's patch size.
        out_strides: Strides of the levels, from fine to coarse.
        init_cfg: See :class:`mmengine.model.BaseModule`.
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
        self.register_load_state_dict_pre_hook(_check_loadable)

    def add_level(self, out_stride: Stride, layers: Sequence[nn.Module]) -> None:
        """Add the level of a stride; a single layer is not wrapped in a sequence."""
        single = layers[0] if layers else nn.Identity()
        self.add_module(
            get_level_name(out_stride),
            nn.Sequential(*layers) if layers[1:] else single)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile levels of several layers without pooling; arguments as for torch.compile.

        Pooling and most necks on top would be recompiled for odd and even sizes.
        """
        for level in self.children():
            if isinstance(level, nn.Sequential) and not isinstance(level[0], MaxPool):
                level.compile(*args, **kwargs)

    def fuse(self, following: Mapping[Stride, nn.Conv2d] | None = None) -> set[Stride]:
        """Fold and merge the linear layers of each level, for evaluation.

        Levels stay the same up to rounding error. Parameters change and some disappear, so load
        weights before, and do not save afterwards.

        Args:
            following: Convolutions that are the only consumer of a level, by its stride. They are
                merged into the level if that saves multiply-adds.

        Returns:
            Strides of the levels that include the convolution.

        Raises:
            FusedError: If the pyramid is in training mode, or already fused.
        """
        self.require_fusible()
        merged = set()
        for stride in set(self.out_strides):
            level = self.get_submodule(get_level_name(stride))
            if not is_exact_type(level, nn.Sequential, nn.ConvTranspose2d):
                continue
            conv = (following or {}).get(stride)
            layers = merge_layers([*flatten(level), *([] if conv is None else [conv])])
            if conv is not None and layers[-1] is conv:
                layers.pop()
            elif conv is not None:
                merged.add(stride)
            self.add_level(stride, layers)
        self.requires_grad_(False)
        self.fused = True
        return merged

    def require_fusible(self) -> None:
        """Raise a FusedError if the pyramid is in training mode, or already fused."""
        if self.training or self.fused:
            raise FusedError(f'{type(self).__name__} cannot be fused ' +
                             ('again' if self.fused else 'in training mode: call eval() first'))

    def train(self, mode: bool = True) -> Pyramid:
        """Set the mode, or raise a FusedError if a fused pyramid is set to training."""
        if mode and self.fused:
            raise FusedError(f'a fused {type(self).__name__} cannot be trained: build it again')
        return super().train(mode)

    def resample(self, x: Tensor, out_stride: Stride) -> Tensor:
        """Compute a level; in channels last on a CPU, where oneDNN is fast."""
        level = self.get_submodule(get_level_name(out_stride))(to_channels_last(x))
        if level is x:  # consumers may write to either
            return x.clone(memory_format=get_map_order(x))
        return level.contiguous(memory_format=get_map_order(level))


def _check_loadable(pyramid: Pyramid, state_dict: State, prefix: str, *_: Any) -> None:
    """Check before loading that a pyramid is not fused, and the state dict complete."""
    if pyramid.fused:
        raise FusedError(f'a fused {type(pyramid).__name__} cannot load weights: load them first, '
                         'then call fuse()')
    require_complete(pyramid, state_dict, prefix)


def build_fpn(fpn: dict | None, in_channels: int, num_levels: int, owner: str) -> nn.Module | None:
    """Build a neck on top of levels of one width, or return None.

    Args:
        fpn: Config of the neck; its ``out_channels`` default to ``in_channels``.
        in_channels: Width of the levels.
        num_levels: Number of levels.
        owner: Class name for messages.

    Raises:
        ValueError: If the config sets ``in_channels``.
    """
    if fpn is None:
        return None
    if 'in_channels' in fpn:
        raise UserError(f'fpn must not set in_channels, got {fpn["in_channels"]}: it is taken from '
                        f'{owner}')
    widths = [in_channels] * num_levels
    return MODELS.build({'out_channels': in_channels, **fpn, 'in_channels': widths})


class MaxPool(nn.Module):
    """Max-pooling with ``kernel_size`` as stride; a smaller map becomes one pixel."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size

    def forward(self, x: Tensor) -> Tensor:
        kernel = [self.kernel_size] * 2
        if not torch.compiler.is_exporting():  # exported graphs need large enough images
            kernel = [min(self.kernel_size, size) for size in x.shape[-2:]]
        return F.max_pool2d(x, kernel, kernel)

    def extra_repr(self) -> str:
        return f'kernel_size={self.kernel_size}'


def to_channels_last(x: Tensor) -> Tensor:
    """Convert a map to channels last on a CPU, unless a ``torch.func`` transform is active."""
    if not isinstance(x, Tensor):
        raise UserError(f'pyramids need feature maps, got a {type(x).__name__}: set '
                        'return_prefix_tokens=False in the backbone')
    if is_transformed() or not should_use_cpu_forms(x):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def get_level_name(out_stride: Stride) -> str:
    """Return the name of a level: ``stride4``, ``stride3_5``."""
    return f'stride{out_stride:g}'.replace('.', '_')


def scale_stride(stride: int, *factors: float) -> list[Stride]:
    """Return ``stride`` times each factor, integers as int."""
    return [int(s) if s == int(s) else s for s in (stride * factor for factor in factors)]


def build_resampling_layers(stride: int, out_stride: Stride, widths: tuple[int, int, int],
                            norm_cfg: dict) -> list[nn.Module]:
    """Return the layers that resample maps from ``stride`` to ``out_stride``.

    Args:
        stride: Stride of the input.
        out_stride: Stride of the output, within a factor 4 of ``stride``.
        widths: Widths of the input and after the first and second transposed convolution.
        norm_cfg: Norm between two transposed convolutions.
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
    reachable = scale_stride(stride, 1 / 4, 1 / 2, 1, 2, 4)
    raise UserError(f'out_strides for maps of stride {stride} must be among {reachable}, '
                    f'got {out_stride}')


def merge_layers(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """Merge consecutive linear layers, for evaluation; the given layers keep their parameters.

    Batch norms are folded into the convolution before them. A 1 x 1 convolution is merged into the
    transposed convolution before it. Layers that are hooked or of other classes stay.
    """
    merged: list[nn.Module] = []
    for layer in layers:
        last = merged[-1] if merged else nn.Identity()
        if is_fixed(layer) and can_absorb_norm(last):
            merged[-1] = fuse_conv_bn_eval(last, layer, type(last) is nn.ConvTranspose2d)
        elif is_cheaper_merged(last, layer):
            merged[-1] = merge_pointwise(last, layer)
        else:
            merged.append(layer)
    return merged


def can_absorb_norm(layer: nn.Module) -> bool:
    """Return True if a batch norm after a layer can be folded into it."""
    return is_exact_type(
        layer, nn.Conv2d) or is_exact_type(layer, nn.ConvTranspose2d) and layer.groups == 1


def flatten(layer: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested sequences, without identities."""
    if is_exact_type(layer, nn.Sequential):
        for child in layer:
            yield from flatten(child)
    elif not is_exact_type(layer, nn.Identity):
        yield layer


def is_cheaper_merged(first: nn.Module, second: nn.Module) -> bool:
    """Return True if two layers can be merged, and need fewer multiply-adds then."""
    if not (is_exact_type(first, nn.ConvTranspose2d) and first.groups == 1
            and is_pointwise(second)):
        return False
    between, out = second.in_channels, second.out_channels
    reach = first.kernel_size[0] * first.kernel_size[1] / (first.stride[0] * first.stride[1])
    return first.in_channels * out * reach < between * (first.in_channels * reach + out)


def is_pointwise(layer: nn.Module) -> bool:
    """Return True if a layer is a 1 x 1 convolution of all channels."""
    return (is_exact_type(layer, nn.Conv2d) and layer.kernel_size == layer.stride == (1, 1)
            and layer.padding == (0, 0) and layer.groups == 1)


@torch.no_grad()
def merge_pointwise(first: nn.ConvTranspose2d, second: nn.Conv2d) -> nn.ConvTranspose2d:
    """Merge a 1 x 1 convolution into the transposed convolution before it."""
    matrix = second.weight[:, :, 0, 0]  # (out, between)
    layer = nn.ConvTranspose2d(
        first.in_channels,
        second.out_channels,
        first.kernel_size,
        first.stride,
        first.padding,
        first.output_padding,
        dilation=first.dilation,
        device=matrix.device,
        dtype=matrix.dtype)
    layer.weight.copy_(torch.einsum('cmhw,dm->cdhw', first.weight, matrix))
    shift = layer.bias.new_zeros(len(matrix)) if first.bias is None else matrix @ first.bias
    layer.bias.copy_(shift if second.bias is None else shift + second.bias)
    return layer.eval()
