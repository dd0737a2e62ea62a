"""Norms and LayerScale folded into adjacent linear layers, for evaluation.

The scale and shift of a LayerNorm or Affine can be part of the linear layer after it, and
LayerScale of the one before it. This does not hold before a convolution with zero padding (XCiT's
local patch interaction), where the shift would be wrong at the border. Nor does it hold for
ResMLP's cross-patch layer, which is linear in tokens and not in channels.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from timm.models.mlp_mixer import Affine
from torch import Tensor, nn

from colonnade.common.errors import UserError

from .fast_path import is_depthwise, is_linear
from .layers import can_hold_scale, scale_layer
from .packed import PackedDepthwise, PackedLinear, can_reorder


class FusedError(UserError):
    """Operation that needs an unfused module."""


@runtime_checkable
class FusibleBlock(Protocol):
    """Block whose norms and LayerScale can be folded.

    It may list layers to pack afterwards: in ``packable`` those that are only called, in
    ``packable_and_read`` linear ones whose weights are also read in float32.
    """

    def get_modified_layer(self) -> str | None:
        """Return the name of the first layer that :meth:`fuse` cannot fold, or None."""

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold norms and LayerScale into linear layers, for matmuls in ``dtype``."""


@torch.no_grad()
def fold_norm(norm: nn.LayerNorm | Affine, layer: nn.Linear) -> None:
    """Move scale and shift of ``norm`` into ``layer``, which follows it.

    They become one and zero, not None: without them, torch's LayerNorm takes three times as long
    on a CPU.
    """
    names = ('alpha', 'beta') if isinstance(norm, Affine) else ('weight', 'bias')
    scale, shift = (norm.get_parameter(name) for name in names)
    if layer.bias is None:
        layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
    layer.bias += layer.weight @ shift.flatten()
    layer.weight *= scale.flatten()
    scale.fill_(1)
    shift.zero_()


@torch.no_grad()
def fold_scale(block: nn.Module, name: str, layer: nn.Linear | nn.Conv2d,
               dtype: torch.dtype) -> None:
    """Move LayerScale ``block.name`` into ``layer``, and set it to None.

    Nothing changes if weights or matmuls are float16, which would lose it.
    """
    if not can_hold_scale(dtype) or not can_hold_scale(layer.weight.dtype):
        return
    weight, bias = scale_layer(block.get_parameter(name), layer)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    setattr(block, name, None)


def can_be_packed(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if weights are float32, and oneDNN can store them for matmuls in ``dtype``."""
    return weight.dtype == torch.float32 and can_reorder(weight, dtype)


class Fusible(nn.Module):
    """Backbone whose blocks and stem can be fused."""

    fused: bool = False
    fused_dtype: torch.dtype | None = None  # type of matmuls it was fused for
    blocks: nn.ModuleList

    def fuse(self, dtype: torch.dtype | None = None) -> Fusible:
        """Fold norms and LayerScale into linear layers, and pack these, for evaluation.

        Feature maps stay the same up to rounding error. Parameters change and some disappear, so
        load weights before, and do not save afterwards.

        Args:
            dtype: Autocast type that the backbone will run under. Defaults to float32. For float16,
                which would lose it, LayerScale is not folded.

        Raises:
            FusedError: If the backbone is in training mode, or layers are modified; nothing is
                changed then.
        """
        if self.fused:
            return self
        self.require_fusible()
        dtype = dtype or torch.float32
        self._fuse_stem(dtype)
        for block in self.blocks:
            block.fuse(dtype)
            _pack_layers(block, dtype)
        self.requires_grad_(False)
        self.fused, self.fused_dtype = True, dtype
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fusible:
        """Move or cast as torch does, unless float16 would lose the LayerScale in fused weights."""
        if self.fused and self.fused_dtype != torch.float16:
            if fn(torch.empty(0)).dtype == torch.float16:
                raise FusedError(
                    f'cannot cast a fused {type(self).__name__} to float16: cast it first, then '
                    'call fuse(torch.float16)')
        return super()._apply(fn, recurse)

    def require_exact_autocast(self, device_type: str) -> None:
        """Raise a FusedError under autocast to float16, which would lose the folded LayerScale."""
        if self.fused and self.fused_dtype != torch.float16 and \
                torch.is_autocast_enabled(device_type) and \
                torch.get_autocast_dtype(device_type) == torch.float16:
            raise FusedError(
                f'{type(self).__name__} is fused for {self.fused_dtype} but runs under autocast to '
                'torch.float16: call fuse(torch.float16), or use autocast to torch.bfloat16')

    def require_fusible(self) -> None:
        """Raise a FusedError if an unfused backbone cannot be fused."""
        if not any(isinstance(block, FusibleBlock) for block in self.blocks):
            raise FusedError(f'{type(self).__name__} cannot be fused: its blocks have no fuse()')
        if self.training:
            raise FusedError('fuse() is for evaluation: call eval() first')
        if layers := list(self._find_modified_layers()):
            raise FusedError(f'{type(self).__name__} cannot be fused, because some layers have '
                             'been replaced, have hooks, or contain unexpected tensors: '
                             f'{", ".join(layers)}')

    def reject_weights(self) -> None:
        """Raise a FusedError if the backbone is fused, so that its parameters are not a file's."""
        if self.fused:
            raise FusedError(f'a fused {type(self).__name__} cannot load weights: load them first, '
                             'then call fuse()')

    def _find_modified_layers(self) -> Iterator[str]:
        """Yield the path of the first modified layer of the stem and of each block."""
        if layer := self._find_modified_stem_layer():
            yield layer
        for name, block in self.blocks.named_children():
            if not isinstance(block, FusibleBlock):
                yield f'blocks.{name}'
            elif layer := block.get_modified_layer():
                yield f'blocks.{name}.{layer}'

    def _find_modified_stem_layer(self) -> str | None:
        """Return the path of the first layer that :meth:`_fuse_stem` cannot fold, or None."""

    def _fuse_stem(self, dtype: torch.dtype) -> None:
        """Fold and pack layers before the first block."""


def _pack_layers(block: nn.Module, dtype: torch.dtype) -> None:
    """Pack the layers that a block lists if they are on a CPU and in float32."""
    read: tuple[str, ...] = getattr(block, 'packable_and_read', ())
    for name in (*getattr(block, 'packable', ()), *read):
        layer = block.get_submodule(name)
        if not can_be_packed(layer.weight, dtype):
            continue
        keep = name in read and dtype == torch.float32
        if is_linear(layer):
            block.set_submodule(name, PackedLinear(layer.weight, layer.bias, dtype, keep=keep))
        elif is_depthwise(layer):
            block.set_submodule(name, PackedDepthwise(layer.weight, layer.bias, dtype))
