"""Vision transformers of simplified blocks (Simplifying Transformer Blocks, arXiv 2311.01906)."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.weights.formats import CheckpointFormat
from colonnade.weights.state_dicts import State

from ..position_embedding import LearnedPositions
from ..registry import register_backbone
from ..variants import Settings, Variants, count_blocks
from .blocks import BLOCKS, EPS, compute_initial_gains

COLUMNS = ('embed_dim', 'depth', 'num_heads')
SIZES = {  # patch 16 and 8; heads of tiny and small have 64 channels
    'nano_12':  (128, 12, 4),
    'tiny_12':  (192, 12, 3),
    'tiny_24':  (192, 24, 3),
    'small_12': (384, 12, 6),
    'small_24': (384, 24, 6),
}  # yapf: disable
STUDY = {  # patch 4, images of 32
    'study_96_8':   (96,   8, 4),
    'study_128_8':  (128,  8, 4),
    'study_128_12': (128, 12, 4),
}  # yapf: disable
DEFAULTS = dict(img_size=224, block='parallel', centring=False)
FORMATS = (CheckpointFormat('SimplifiedViT',
                            ('patch_embed.proj.weight', 'pos_embed', 'blocks.0.attn.qk.')), )


def build_rows() -> dict[str, Any]:
    """Return the columns of all variants by name."""
    rows = {
        f'{name}_p{patch_size}':
        dict(zip(COLUMNS, size, strict=True), patch_size=patch_size, **DEFAULTS)
        for name, size in SIZES.items()
        for patch_size in (16, 8)
    }
    study = {
        name: dict(zip(COLUMNS, size, strict=True), **DEFAULTS | dict(patch_size=4, img_size=32))
        for name, size in STUDY.items()
    }
    return rows | study


def check_block(settings: Settings) -> None:
    if settings['block'] not in BLOCKS:
        raise UserError(f'block must be one of {", ".join(BLOCKS)}, got {settings["block"]!r}')
    if settings['centring'] and settings['block'] == 'plain':
        raise UserError("centring has no effect with block='plain': remove it")


@register_backbone(*FORMATS)
class SimplifiedViT(LearnedPositions):
    """Vision transformer without class token, of simplified blocks or, to compare, plain ones.

    Simplified blocks have no value or output projections and no residual connection around
    attention. See :class:`.LearnedPositions` for padding and positions, and
    :class:`ColumnarBackbone` for further arguments.

    Args:
        arch: ``nano``, ``tiny`` or ``small``, followed by ``_12`` or ``_24`` (not ``nano``) and
            ``_p16`` or ``_p8``, as ``tiny_12_p16``. For images of 32, ``study_96_8``,
            ``study_128_8`` or ``study_128_12``, of patch 4. Or a dict with ``embed_dim``, ``depth``
            and ``num_heads``, and optionally ``patch_size`` (16), ``img_size`` (224), ``block`` and
            ``centring``.
        block: ``'parallel'`` (default): shaped attention and MLP in parallel, SAS-P.
            ``'sequential'``: one after the other, SAS. ``'plain'``: the pre-norm block of vision
            transformers.
        init: Gains of the identity and of attention before training. ``'dynamic'``: 1 / i and
            1 - 1 / i in block i = 1, 2, …. ``'inverse_dynamic'``: 1 - 1 / i and 1 / i. A pair of
            numbers: the same in all blocks, as (0.5, 0.5), (1, 0) or (0, 1).
        centring: Subtract ``gamma`` times the mean of all tokens from the output of attention, with
            a learned ``gamma`` per head. Defaults to False.
        img_size: Side of the square images whose grid of positions is kept. Defaults to the
            architecture's. Positions of another grid are resized to it when they are loaded.
    """

    variants = Variants(
        backbone='SimplifiedViT',
        rows=build_rows(),
        defaults=dict(patch_size=16, **DEFAULTS),
        shown_columns=('embed_dim', 'depth', 'patch_size', 'img_size', 'block', 'centring'),
        check=check_block)
    classifier_names = ('norm', 'head')

    def __init__(self,
                 arch: str | Mapping[str, Any] = 'tiny_12_p16',
                 *,
                 block: str | None = None,
                 init: str | Sequence[float] = 'dynamic',
                 centring: bool | None = None,
                 img_size: int | None = None,
                 **kwargs: Any) -> None:
        settings = self.variants.resolve(arch, block=block, centring=centring, img_size=img_size)
        gains = compute_initial_gains(init, settings['depth'])
        plain = settings['block'] == 'plain'
        if plain and init != 'dynamic':
            raise UserError("init has no effect with block='plain': remove it")
        super().__init__(settings, **kwargs)
        if not plain:
            for module, pair in zip(self.blocks, gains, strict=False):
                module.attn.init_gains(*pair)

    def _build(self, num_blocks: int, drop_path_rate: float,
               num_classes: int | None) -> VisionTransformer:
        return self._vision_transformer(
            self.settings['img_size'], num_blocks, num_classes or 0, drop_path=drop_path_rate)

    def build_timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        """Build timm's vision transformer with the same blocks."""
        return self._vision_transformer(img_size, self.depth, num_classes)

    def _vision_transformer(self, img_size: int | tuple[int, int], num_blocks: int,
                            num_classes: int, **options: Any) -> VisionTransformer:
        backbone = VisionTransformer(
            img_size=img_size,
            in_chans=self.in_channels,
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            depth=0,
            class_token=False,
            global_pool='avg',
            fc_norm=False,
            norm_layer=partial(nn.LayerNorm, eps=EPS),
            embed_layer=partial(PatchEmbed, strict_img_size=False),
            dynamic_img_pad=True,
            num_classes=num_classes)
        kind, num_heads = BLOCKS[self.settings['block']], self.settings['num_heads']
        if self.settings['centring']:
            options['centring'] = True
        backbone.blocks = nn.ModuleList(
            kind(self.embed_dim, num_heads, **options) for _ in range(num_blocks))
        backbone.init_weights(needs_reset=False)  # also of the blocks
        return backbone

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, Any]:
        """Infer width, depth, patch size, image size and type of block."""
        patch = state['patch_embed.proj.weight']
        if 'blocks.0.attn.v.weight' in state:
            block = 'plain'
        else:
            block = 'parallel' if 'blocks.0.norm.weight' in state else 'sequential'
        return dict(
            embed_dim=len(state['blocks.0.attn.qk.weight']) // 2,
            depth=count_blocks(state),
            patch_size=patch.shape[-1],
            img_size=patch.shape[-1] * math.isqrt(state['pos_embed'].shape[1]),
            block=block,
            centring='blocks.0.attn.gamma' in state)

    @classmethod
    def get_arguments_for(cls, state: State) -> dict[str, Any]:
        """Infer arguments; the number of heads of plain blocks, which no shape shows, is 1."""
        gains = state.get('blocks.0.attn.alpha')
        return dict(arch=dict(cls.infer_arch(state), num_heads=1 if gains is None else len(gains)))

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x)
