"""CaiT: Going deeper with Image Transformers (arXiv 2103.17239)."""
from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.cait import Cait, LayerScaleBlock
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.weights.formats import CheckpointFormat
from colonnade.weights.state_dicts import State

from ..kernels.fast_path import (MLP, NORM, add_branch, find_modified_sublayer, is_drop_path,
                                 is_exact_type)
from ..kernels.folding import fold_norm, fold_scale
from ..kernels.layers import add, feed_forward
from ..position_embedding import LearnedPositions
from ..registry import register_backbone
from ..variants import PublishedSize, Variants, count_blocks
from .talking_heads import TALKING_HEADS, BoundedTalkingHeadAttn

COLUMNS = ('embed_dim', 'depth', 'num_heads', 'drop_path_rate', 'layer_scale_init_value',
           'img_size')
SIZES = {  # the paper's Tables 3 and 4; heads have 48 channels; img_size is the published weights'
    'xxs24': (192, 24,  4, 0.05, 1e-5, 384),
    'xxs36': (192, 36,  4, 0.10, 1e-5, 384),
    'xs24':  (288, 24,  6, 0.05, 1e-5, 384),
    'xs36':  (288, 36,  6, 0.10, 1e-6, 384),
    's24':   (384, 24,  8, 0.10, 1e-5, 384),
    's36':   (384, 36,  8, 0.20, 1e-6, 384),
    's48':   (384, 48,  8, 0.30, 1e-6, 384),
    'm24':   (768, 24, 16, 0.20, 1e-5, 384),
    'm36':   (768, 36, 16, 0.30, 1e-6, 384),
    'm48':   (768, 48, 16, 0.40, 1e-6, 448),
    'xxs24_224': (192, 24,  4, 0.05, 1e-5, 224),
    'xxs36_224': (192, 36,  4, 0.10, 1e-5, 224),
    's24_224':   (384, 24,  8, 0.10, 1e-5, 224),
}  # yapf: disable
# the paper's Table 3: millions of parameters, billions of multiply-adds at 224 and at 384
TABLE_3 = {
    'xxs24': (12.0,   2.5,   9.5),
    'xxs36': (17.3,   3.8,  14.2),
    'xs24':  (26.6,   5.4,  19.3),
    'xs36':  (38.6,   8.1,  28.8),
    's24':   (46.9,   9.4,  32.2),
    's36':   (68.2,  13.9,  48.0),
    's48':   (89.5,  18.6,  63.8),
    'm24':   (185.9, 36.0, 116.1),
    'm36':   (270.9, 53.7, 173.3),
}  # yapf: disable

FORMATS = (
    CheckpointFormat(
        'CaiT, original or timm', ('blocks.0.attn.proj_l.', 'blocks_token_only.'),
        dropped='classifier'),
    CheckpointFormat('CaiT, Colonnade', ('blocks.0.attn.proj_l.', )),
)


class CaiTBlock(LayerScaleBlock):
    """timm's block with less memory traffic."""

    packable = ('attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on tokens ``(B, N, C)``."""
        attended = self.attn(self.norm1(x))
        if is_exact_type(self.attn, BoundedTalkingHeadAttn) and is_drop_path(self.drop_path):
            x = add(x, self.drop_path(attended), self.gamma_1)
        else:
            x = add_branch(x, attended, self.gamma_1, self.drop_path)
        return feed_forward(x, self.norm2, self.mlp, self.gamma_2, self.drop_path)

    def get_modified_layer(self) -> str | None:
        """Return the path of the first layer that :meth:`fuse` cannot fold, or None."""
        return find_modified_sublayer(self, {
            'norm1': NORM,
            'attn': TALKING_HEADS,
            'norm2': NORM,
            'mlp': MLP
        })

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold norms and LayerScale into linear layers, see :mod:`..kernels.folding`."""
        fold_norm(self.norm1, self.attn.qkv)
        fold_norm(self.norm2, self.mlp.fc1)
        fold_scale(self, 'gamma_1', self.attn.proj, dtype)
        fold_scale(self, 'gamma_2', self.mlp.fc2, dtype)


@register_backbone(*FORMATS)
class CaiT(LearnedPositions):
    """CaiT without its class-attention stage, from timm's modules.

    See :class:`.LearnedPositions` for padding and positions, and :class:`ColumnarBackbone` for
    further arguments.

    Args:
        arch: ``xxs24``, ``xxs36``, ``xs24``, ``xs36``, ``s24``, ``s36``, ``s48``, ``m24``, ``m36``
            or ``m48``. For the weights published for images of 224: ``xxs24_224``, ``xxs36_224`` or
            ``s24_224``. Or a dict with ``embed_dim``, ``depth`` and ``num_heads``, and optionally
            ``patch_size`` (16), ``drop_path_rate`` (0), ``layer_scale_init_value`` (1e-5) and
            ``img_size`` (224).
        img_size: Side of the square images whose grid of positions is kept. Weights of another grid
            are resized to it when they are loaded, with a warning. Defaults to the architecture's:
            384, for m48 448, or the one in its name.
        attn_block_size: Number of queries whose attention maps exist at a time. Defaults to as many
            as ``attn_budget`` allows. The result is the same.
        attn_budget: See :class:`~.talking_heads.BoundedTalkingHeadAttn`.
    """

    variants = Variants(
        backbone='CaiT',
        rows={
            size: dict(zip(COLUMNS, row, strict=True), patch_size=16)
            for size, row in SIZES.items()
        },
        defaults=dict(patch_size=16, drop_path_rate=0., layer_scale_init_value=1e-5, img_size=224),
        shown_columns=('embed_dim', 'depth', 'num_heads', 'patch_size', 'img_size'))
    published_sizes = tuple(
        PublishedSize(arch, img_size, parameters, multiply_adds)
        for arch, (parameters, *row) in TABLE_3.items()
        for img_size, multiply_adds in zip((224, 384), row, strict=True))
    classifier_names = ('cls_token', 'blocks_token_only', 'norm', 'head')
    class_attention_name = 'blocks_token_only'

    def __init__(self,
                 arch: str | Mapping[str, Any] = 's24',
                 *,
                 img_size: int | None = None,
                 attn_block_size: int | None = None,
                 attn_budget: float | None = None,
                 **kwargs: Any) -> None:
        for name, value in dict(attn_block_size=attn_block_size, attn_budget=attn_budget).items():
            if value is not None and value <= 0:
                raise UserError(f'{name} must be positive, got {value}')
        if attn_block_size and attn_budget:
            raise UserError('attn_budget has no effect with attn_block_size: remove one of them')
        super().__init__(self.variants.resolve(arch, img_size=img_size), **kwargs)
        for block in self.blocks:
            block.attn.block_size, block.attn.budget = attn_block_size, attn_budget

    def _build(self, num_blocks: int, drop_path_rate: float, num_classes: int | None) -> Cait:
        return Cait(
            img_size=self.settings['img_size'],
            depth=num_blocks,
            drop_path_rate=drop_path_rate,
            patch_layer=partial(PatchEmbed, strict_img_size=False, dynamic_img_pad=True),
            block_layers=CaiTBlock,
            attn_block=BoundedTalkingHeadAttn,
            num_classes=num_classes or 0,
            depth_token_only=0 if num_classes is None else 2,
            **self._get_timm_arguments())

    def build_timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> Cait:
        """Build timm's module of this architecture."""
        return Cait(
            img_size=img_size,
            depth=self.depth,
            num_classes=num_classes,
            **self._get_timm_arguments())

    def _get_timm_arguments(self) -> dict[str, Any]:
        return dict(
            in_chans=self.in_channels,
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            num_heads=self.settings['num_heads'],
            init_values=self.settings['layer_scale_init_value'])

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Infer width, depth, heads, patch size and image size."""
        patch_size = state['patch_embed.proj.weight'].shape[-1]
        return dict(
            embed_dim=len(state['blocks.0.gamma_1']),
            depth=count_blocks(state),
            num_heads=len(state['blocks.0.attn.proj_l.weight']),
            patch_size=patch_size,
            img_size=patch_size * math.isqrt(state['pos_embed'].shape[1]))

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x)

    @staticmethod
    def attend_to_class(blocks: nn.ModuleList, cls_token: Tensor, x: Tensor) -> Tensor:
        for block in blocks:
            cls_token = block(x, cls_token)
        return cls_token
