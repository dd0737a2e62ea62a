"""Scales and shifts folded into the linear layers beside them, for evaluation.

What a LayerNorm or Affine multiplies and adds per channel can be done by the weights and bias of a
linear layer behind it, and LayerScale by those before it. Not so before a convolution that pads
with zeros (XCiT's local patch interaction): the shift would be wrong at the border. Nor beside
ResMLP's cross-patch layer, which is linear in tokens and not in channels.
"""
from __future__ import annotations

import torch
from timm.models.mlp_mixer import Affine
from torch import nn

from .kernels import scaled


class FusedError(RuntimeError):
    """A fused trunk is to do what only an unfused one can."""


@torch.no_grad()
def fold_norm(norm: nn.LayerNorm | Affine, layer: nn.Linear) -> None:
    """Let ``layer`` do what ``norm`` before it does per channel, and ``norm`` no longer."""
    names = ('alpha', 'beta') if isinstance(norm, Affine) else ('weight', 'bias')
    scale, shift = (getattr(norm, name).flatten() for name in names)
    if layer.bias is None:
        layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
    layer.bias += layer.weight @ shift
    layer.weight *= scale
    for name in names:
        setattr(norm, name, None)


@torch.no_grad()
def fold_scale(block: nn.Module, name: str, layer: nn.Linear | nn.Conv2d) -> None:
    """Let ``layer`` multiply by LayerScale ``block.name``, which becomes None."""
    weight, bias = scaled(getattr(block, name), layer)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    setattr(block, name, None)


def refuse_weights(module: nn.Module, *_: object) -> None:
    """A hook before loading.

    Raises:
        FusedError: Always.
    """
    raise FusedError(f'a fused {type(module).__name__} takes no weights: load, then fuse()')
