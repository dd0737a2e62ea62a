"""Blocks of timm's vision transformers, with less reading and writing of memory."""
from __future__ import annotations

import torch
from timm.layers import DropPath, LayerScale
from timm.models.eva import EvaBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from ..kernels.fast_path import (LINEAR, MLP, NORM, Parts, add_branch, find_modified_sublayer,
                                 is_drop_path, is_fast_path_disabled, is_linear, is_plain)
from ..kernels.folding import fold_norm, fold_scale
from ..kernels.layers import add, feed_forward
from .attention import KINDS, SelfAttention
from .window_attention import Grid

ATTENTION: Parts = {
    '': lambda module: is_plain(module, SelfAttention),
    'qkv': lambda module: is_plain(module, *LINEAR),
    'gate': lambda module: module is None,
    'proj': is_linear,
}


class PlainBlock(nn.Module):
    """A pre-norm block of timm's, ``Block`` or ``EvaBlock``, with its parameters and their names.

    Attributes:
        index: Its place in the backbone; rotary positions may differ from block to block.
    """

    packable = ('attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')
    packable_and_read = ()

    def __init__(self, block: Block | EvaBlock, index: int) -> None:
        super().__init__()
        children = dict(block.named_children())
        for name, child in children.items():
            self.add_module(name, SelfAttention(child) if name == 'attn' else child)
        for name in ('ls1', 'ls2'):  # EVA's have none
            self.add_module(name, children.get(name))
        parameters = dict(block.named_parameters(recurse=False))
        for name in ('gamma_1', 'gamma_2'):  # LayerScale of EVA's
            self.register_parameter(name, parameters.get(name))
        self.index = index

    def forward(self, x: Tensor, grid: Grid, rope: Tensor | None = None) -> Tensor:
        """``(B, P + N, C)`` to ``(B, P + N, C)``; arguments as for :class:`.SelfAttention`."""
        attended = self.attn(self.norm1(x), grid, rope)
        fits, scale = layer_scale(self.ls1, self.gamma_1)
        if not fits:
            x = x + self.drop_path1(self.ls1(attended))
        elif self.attn.can_overwrite_output() and is_drop_path(self.drop_path1):
            x = add(x, self.drop_path1(attended), scale)
        else:
            x = add_branch(x, attended, scale, self.drop_path1)
        fits, scale = layer_scale(self.ls2, self.gamma_2)
        if not fits:
            return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return feed_forward(x, self.norm2, self.mlp, scale, self.drop_path2)

    def get_modified_layer(self) -> str | None:
        """The first layer that :meth:`fuse` cannot fold, by name, if there is one."""
        parts = {'norm1': NORM, 'attn': ATTENTION, 'norm2': NORM, 'mlp': MLP}
        if name := find_modified_sublayer(self, parts):
            return name
        scales = dict(ls1=(self.ls1, self.gamma_1), ls2=(self.ls2, self.gamma_2))
        return next((name for name, scale in scales.items() if not layer_scale(*scale)[0]), None)

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold what follows or precedes a linear layer into it, see :mod:`..kernels.folding`."""
        self.attn.join_biases()
        fold_norm(self.norm1, self.attn.qkv)
        fold_norm(self.norm2, self.mlp.fc1)
        for number, scale, gamma, layer in ((1, self.ls1, self.gamma_1, self.attn.proj),
                                            (2, self.ls2, self.gamma_2, self.mlp.fc2)):
            if isinstance(scale, LayerScale):
                fold_scale(scale, 'gamma', layer, dtype)
                if scale.gamma is None:
                    self.add_module(f'ls{number}', nn.Identity())
            elif gamma is not None:
                fold_scale(self, f'gamma_{number}', layer, dtype)


def layer_scale(layer: nn.Module | None, gamma: Tensor | None) -> tuple[bool, Tensor | None]:
    """Return whether LayerScale is a factor and nothing else, and the factor ``(C)`` or None.

    Args:
        layer: That of ``Block``, None in EVA's blocks.
        gamma: That of EVA's blocks.
    """
    if layer is None:
        return True, gamma
    if is_fast_path_disabled():
        return False, None
    if is_plain(layer, LayerScale):
        return True, layer.gamma
    return is_plain(layer, nn.Identity), None


def adapted(block: nn.Module, index: int, drop_path_rate: float) -> nn.Module:
    """A block of timm's as :class:`PlainBlock` if it can be, with one rate of stochastic depth."""
    for parent in list(block.modules()):
        for name, _ in parent.named_children():
            if name.startswith('drop_path'):
                drops = drop_path_rate > 0
                setattr(parent, name, DropPath(drop_path_rate) if drops else nn.Identity())
    if type(block) in (Block, EvaBlock) and type(block.attn) in KINDS:
        return PlainBlock(block, index)
    return block
