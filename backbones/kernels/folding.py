"""Scales and shifts folded into the linear layers beside them, for evaluation.

What a LayerNorm or Affine multiplies and adds per channel can be done by the weights and bias of a
linear layer behind it, and LayerScale by those before it. Not so before a convolution that pads
with zeros (XCiT's local patch interaction): the shift would be wrong at the border. Nor beside
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
from .layers import can_hold_scale, scaled
from .packed import PackedDepthwise, PackedLinear, can_reorder


class FusedError(UserError):
    """What was asked for needs an unfused backbone."""


@runtime_checkable
class FusibleBlock(Protocol):
    """A block whose norms and LayerScale can be folded.

    Layers that it names are packed then: in ``packable`` those that are called alone, in
    ``packable_and_read`` linear ones whose weights are also read in float32.
    """

    def get_modified_layer(self) -> str | None:
        """The first layer that :meth:`fuse` cannot fold, by name, if there is one."""

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold what is beside linear layers into them, for products of ``dtype``."""


@torch.no_grad()
def fold_norm(norm: nn.LayerNorm | Affine, layer: nn.Linear) -> None:
    """Move the factors and summands of ``norm`` into ``layer``, which follows it."""
    names = ('alpha', 'beta') if isinstance(norm, Affine) else ('weight', 'bias')
    scale, shift = (norm.get_parameter(name).flatten() for name in names)
    if layer.bias is None:
        layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
    layer.bias += layer.weight @ shift
    layer.weight *= scale
    for name in names:
        setattr(norm, name, None)


@torch.no_grad()
def fold_scale(block: nn.Module, name: str, layer: nn.Linear | nn.Conv2d,
               dtype: torch.dtype) -> None:
    """Make ``layer`` multiply by LayerScale ``block.name``, which becomes None.

    Nothing changes if weights, or products of ``dtype``, are of float16, which would lose it.
    """
    if not can_hold_scale(dtype) or not can_hold_scale(layer.weight.dtype):
        return
    weight, bias = scaled(block.get_parameter(name), layer)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    setattr(block, name, None)


def pack_layers(block: nn.Module, dtype: torch.dtype) -> None:
    """Pack the layers that a block names where they are on a CPU and of float32."""
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


def can_be_packed(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether oneDNN can have weights in its order, for products of ``dtype``."""
    return weight.dtype == torch.float32 and can_reorder(weight, dtype)


class Fusible(nn.Module):
    """A backbone whose blocks and stem can be fused.

    Attributes:
        fused: Whether :meth:`fuse` changed it.
        fused_dtype: Precision of products that it was fused for.
    """

    fused: bool = False
    fused_dtype: torch.dtype | None = None
    blocks: nn.ModuleList

    def fuse(self, dtype: torch.dtype | None = None) -> Fusible:
        """Fold norms and LayerScale into the layers beside them, and pack these, for evaluation.

        The maps stay the same to rounding. Parameters are changed and some are gone: load before,
        and don't save after. On a CPU, weights are packed once for oneDNN, see :mod:`.packed`.

        Args:
            dtype: The precision of autocast that the backbone will run under; ``None`` is float32.
                With float16, which would lose it, LayerScale is not folded.

        Raises:
            FusedError: If the backbone is in training mode, or layers are not as they were built, see
                :mod:`.fast_path`; nothing is changed then.
        """
        if self.fused:
            return self
        self.require_fusible()
        self._fuse_stem(dtype or torch.float32)
        for block in self.blocks:
            block.fuse(dtype or torch.float32)
            pack_layers(block, dtype or torch.float32)
        self.requires_grad_(False)
        self.fused, self.fused_dtype = True, dtype or torch.float32
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fusible:
        """Move or cast as torch does; float16 would lose the LayerScale in fused weights.

        Raises:
            FusedError: If a backbone that is fused for another precision is cast to float16.
        """
        if self.fused and self.fused_dtype != torch.float16:
            if fn(torch.empty(0)).dtype == torch.float16:
                raise FusedError(
                    f'cannot cast a fused {type(self).__name__} to float16: cast it before, then '
                    'call fuse(torch.float16)')
        return super()._apply(fn, recurse)

    def require_exact_autocast(self, device_type: str) -> None:
        """Raise a FusedError under autocast to float16, which would lose the folded LayerScale."""
        if self.fused and self.fused_dtype != torch.float16 and \
                torch.is_autocast_enabled(device_type) and \
                torch.get_autocast_dtype(device_type) == torch.float16:
            raise FusedError(
                f'{type(self).__name__} is fused for {self.fused_dtype} and runs under autocast to '
                'torch.float16: call fuse(torch.float16), or use autocast to torch.bfloat16')

    def require_fusible(self) -> None:
        """Raise what :meth:`fuse` raises of a backbone that is not fused yet."""
        if not any(isinstance(block, FusibleBlock) for block in self.blocks):
            raise FusedError(f'{type(self).__name__} cannot be fused: its blocks have no fuse()')
        if self.training:
            raise FusedError('fuse() is for evaluation: call eval() before')
        if touched := list(self._touched_layers()):
            raise FusedError(
                f'{type(self).__name__} cannot be fused with layers that are replaced, '
                f'hooked or of other tensors: {", ".join(touched)}')

    def _touched_layers(self) -> Iterator[str]:
        """The first in the stem and in each block, by name."""
        if layer := self._touched_in_stem():
            yield layer
        for name, block in self.blocks.named_children():
            if not isinstance(block, FusibleBlock):
                yield f'blocks.{name}'
            elif layer := block.get_modified_layer():
                yield f'blocks.{name}.{layer}'

    def _touched_in_stem(self) -> str | None:
        """The first layer that :meth:`_fuse_stem` cannot fold, by name, if there is one."""

    def _fuse_stem(self, dtype: torch.dtype) -> None:
        """Fold and pack what can be before the first block."""


def reject_weights(backbone: Fusible) -> None:
    """Raise a FusedError if the backbone is fused: its parameters are no longer those of files."""
    if backbone.fused:
        raise FusedError(f'a fused {type(backbone).__name__} takes no weights: load, then fuse()')
