"""XCiT: Cross-Covariance Image Transformers (arXiv 2106.09681)."""
from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from mmengine.registry import MODELS
from timm.models.xcit import LPI, XCA, XCABlock, Xcit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from colonnade.weights.files import State

from ..columnar import ColumnarBackbone
from ..kernels.folding import fold_norm, fold_scale
from ..kernels.layers import (add, depthwise_convolution, feed_forward, gelu, scaled,
                              stores_gradients)
from ..kernels.norms import RunningStatsKept, normalise, repeats_alone
from ..kernels.operators import as_image, as_tokens
from ..kernels.untouched import (MLP, NORM, Parts, add_branch, first_touched, first_touched_below,
                                 is_depthwise, is_drop_path, is_gelu, is_hooked, is_idle, is_linear,
                                 is_plain)
from .cross_covariance import AttentionWeights, cross_covariance_attention
from .stem import first_touched_in_stem, fuse_stem, run_stem

COLUMNS = ('embed_dim', 'depth', 'num_heads', 'layer_scale_init_value', 'tokens_norm')
SIZES = {  # the paper's Table 1; the last two columns from the authors' code
    'nano_12':   (128, 12,  4, 1.0,  False),
    'tiny_12':   (192, 12,  4, 1.0,  True),
    'tiny_24':   (192, 24,  4, 1e-5, True),
    'small_12':  (384, 12,  8, 1.0,  True),
    'small_24':  (384, 24,  8, 1e-5, True),
    'medium_24': (512, 24,  8, 1e-5, True),
    'large_24':  (768, 24, 16, 1e-5, True),
}  # yapf: disable
PATCH_SIZES = (16, 8)

XCA_PARTS: Parts = {
    '': lambda module: is_plain(module, XCA),
    'qkv': is_linear,
    'attn_drop': is_idle,
    'proj': is_linear,
    'proj_drop': is_idle,
}
LPI_PARTS: Parts = {
    '': lambda module: is_plain(module, LPI),
    'conv1': is_depthwise,
    'act': is_gelu,
    'bn': lambda module: not is_hooked(module),
    'conv2': is_depthwise,
}


class XCiTBlock(XCABlock):
    """timm's block, with less reading and writing of memory; tokens are in channels-last order.

    LayerScale is folded into the weights of the layer before it, where it costs next to nothing and
    leaves nothing to store for gradients. Layers that are not as they were built are called, see
    :mod:`.kernels.untouched`.
    """

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Tokens ``(B, N, C)`` of a ``height`` by ``width`` grid."""
        if first_touched(self.attn, XCA_PARTS) is None and is_drop_path(self.drop_path1):
            x = add(x, self.drop_path1(self._attend(self.norm1(x))))
        else:
            x = add_branch(x, self.attn(self.norm1(x)), self.gamma1, self.drop_path1)
        if first_touched(self.local_mp, LPI_PARTS) is None and is_drop_path(self.drop_path3):
            x = add(x, self.drop_path3(self._interact(self.norm3(x), height)))
        else:
            y = self.local_mp(self.norm3(x), height, width)
            x = add_branch(x, y, self.gamma3, self.drop_path3)
        return feed_forward(x, self.norm2, self.mlp, self.gamma2, self.drop_path2)

    def _activate(self, y: Tensor) -> Tensor:
        """GELU and norm of local patch interaction; for gradients the input alone is stored.

        Not where the norm is synchronised: to run it again, the processes would have to meet again.
        """
        norm, image = self.local_mp.bn, as_image(y)
        if not stores_gradients(y):
            return as_tokens(normalise(norm, gelu(image)))
        if not repeats_alone(norm):
            return as_tokens(norm(F.gelu(image)))
        return as_tokens(
            checkpoint(
                lambda x: norm(F.gelu(x)),
                image,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: (nullcontext(), RunningStatsKept(norm))))

    def touched_layer(self) -> str | None:
        """The first layer that :meth:`fuse` cannot fold, by name, if there is one."""
        return first_touched_below(self, {
            'norm1': NORM,
            'attn': XCA_PARTS,
            'local_mp': LPI_PARTS,
            'norm2': NORM,
            'mlp': MLP,
        })

    def fuse(self) -> None:
        """Fold what follows or precedes a linear layer into it, see :mod:`.kernels.folding`."""
        fold_norm(self.norm1, self.attn.qkv)
        fold_norm(self.norm2, self.mlp.fc1)
        fold_scale(self, 'gamma1', self.attn.proj)
        fold_scale(self, 'gamma2', self.mlp.fc2)
        fold_scale(self, 'gamma3', self.local_mp.conv2)

    def _attend(self, y: Tensor) -> Tensor:
        """Cross-covariance attention and the first LayerScale."""
        qkv, proj = self.attn.qkv, scaled(self.gamma1, self.attn.proj)
        return cross_covariance_attention(
            y, AttentionWeights(qkv.weight, qkv.bias, self.attn.temperature, *proj))

    def _interact(self, y: Tensor, height: int) -> Tensor:
        """Local patch interaction (section 3.3) and the third LayerScale."""
        layers = self.local_mp
        y = depthwise_convolution(y, layers.conv1.weight, layers.conv1.bias, height)
        return depthwise_convolution(self._activate(y), *scaled(self.gamma3, layers.conv2), height)


def copied_input(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A hook for layers whose input is a view, which inductor cannot store for gradients."""
    return (inputs[0].contiguous(), )


@MODELS.register_module()
class XCiT(ColumnarBackbone):
    """XCiT's trunk without its class-attention stage, wrapping timm's modules.

    Its convolutional stem gives a ``ceil`` grid and its positions are Fourier features of the grid,
    so any image of at least one patch will do. See :class:`ColumnarBackbone` for the arguments.
    ``arch`` is one of ``{nano,tiny,small}_12_p{16,8}``, ``{tiny,small,medium,large}_24_p{16,8}``,
    or a dict with ``embed_dim``, ``depth``, ``num_heads``, ``patch_size`` and optionally
    ``layer_scale_init_value`` (default 1.0) and ``tokens_norm`` (default True: class attention,
    which is no part of the trunk, normalises all its tokens).
    """

    arch_settings = {
        f'{size}_p{patch_size}': dict(zip(COLUMNS, row, strict=True), patch_size=patch_size)
        for size, row in SIZES.items()
        for patch_size in PATCH_SIZES
    }
    arch_defaults = dict(layer_scale_init_value=1.0, tokens_norm=True)
    class_attention_name = 'cls_attn_blocks'

    def __init__(self, arch: str | Mapping[str, Any] = 'small_12_p16', **kwargs: Any) -> None:
        super().__init__(arch, **kwargs)

    def _build(self,
               num_blocks: int,
               *,
               drop_path_rate: float = 0.,
               num_classes: int | None = None) -> Xcit:
        common = dict(
            num_heads=self.settings['num_heads'], eta=self.settings['layer_scale_init_value'])
        trunk = Xcit(
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            depth=0,
            tokens_norm=self.settings['tokens_norm'],
            num_classes=num_classes or 0,
            cls_attn_layers=0 if num_classes is None else 2,
            **common)
        trunk.pos_embed.token_projection.register_forward_pre_hook(copied_input)
        trunk.blocks.extend(
            XCiTBlock(
                self.embed_dim,
                qkv_bias=True,
                drop_path=drop_path_rate,
                norm_layer=partial(nn.LayerNorm, eps=1e-6),
                **common).apply(trunk._init_weights) for _ in range(num_blocks))
        return trunk

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Raise a ValueError for an architecture that cannot be built."""
        super().check_settings(settings)
        if settings['patch_size'] not in PATCH_SIZES:
            raise ValueError(f'patch_size must be 8 or 16, got {settings["patch_size"]}')
        if settings['embed_dim'] % 8:
            raise ValueError('embed_dim must be a multiple of 8 for the stem, got '
                             f'{settings["embed_dim"]}')

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Width, depth, heads and patch size that a state dict under timm's names shows."""
        stem = [key for key in state if re.fullmatch(r'patch_embed\.proj\.\d+\.0\.weight', key)]
        blocks = {key.split('.')[1] for key in state if key.startswith('blocks.')}
        return dict(
            embed_dim=len(state['blocks.0.gamma1']),
            depth=len(blocks),
            num_heads=len(state['blocks.0.attn.temperature']),
            patch_size=2**len(stem))

    @staticmethod
    def attend_to_class(blocks: nn.ModuleList, cls_token: Tensor, x: Tensor) -> Tensor:
        x = torch.cat((cls_token, x), dim=1)
        for block in blocks:
            x = block(x)
        return x[:, :1]

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        if first_touched_in_stem(self.patch_embed) is None:
            image = run_stem(self.patch_embed, img)
            x, grid = as_tokens(image), image.shape[-2:]  # (B, N, C)
        else:
            x, grid = self.patch_embed(img)
        return self._embed_positions(grid) + x, grid

    def _embed_positions(self, grid: tuple[int, int]) -> Tensor:
        """``(1, N, C)``."""
        return self.pos_embed(1, *grid).flatten(2).transpose(1, 2).contiguous()

    def _touched_in_stem(self) -> str | None:
        name = first_touched_in_stem(self.patch_embed)
        return name if name is None else f'patch_embed.{name}'.rstrip('.')

    def _fuse_stem(self) -> None:
        fuse_stem(self.patch_embed)

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x, *place)
