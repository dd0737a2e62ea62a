"""ResMLP: Feedforward networks for image classification (arXiv 2105.03404)."""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.weights.formats import CheckpointFormat, rename_keys
from colonnade.weights.state_dicts import State

from ..columnar import ColumnarBackbone
from ..kernels.fast_path import MLP, NORM, add_branch, find_modified_sublayer, is_drop_path
from ..kernels.folding import fold_norm, fold_scale
from ..kernels.layers import add, feed_forward
from ..kernels.resampling import Grid, Resampling
from ..registry import register_backbone
from ..variants import Variants, count_blocks
from .token_mixing import mix_resampled, mix_windows

COLUMNS = ('embed_dim', 'depth', 'patch_size', 'layer_scale_init_value')
SIZES = {  # the paper's Table 1; the last column from the authors' code
    's12': (384, 12, 16, 0.1),
    's24': (384, 24, 16, 1e-5),
    's36': (384, 36, 16, 1e-6),
    'b24': (768, 24,  8, 1e-6),
}  # yapf: disable
TOKEN_MIXING = ('resample', 'window')


def convert_resmlp_original(state: State) -> State:
    """Convert the authors' files, whose affine layers have vectors."""
    renamed = rename_keys(state, (
        (r'^patch_embed\.', 'stem.'),
        (r'\.attn\.', '.linear_tokens.'),
        (r'\.mlp\.', '.mlp_channels.'),
        (r'\.gamma_([12])$', r'.ls\1'),
    ))  # yapf: disable
    return {
        key: value[None, None] if re.search(r'norm\d?\.(alpha|beta)$', key) else value
        for key, value in renamed.items()
    }


FORMATS = (
    CheckpointFormat('ResMLP, original', ('patch_embed.', 'blocks.0.norm1.alpha'),
                     convert_resmlp_original),
    CheckpointFormat(
        'ResMLP, timm', ('stem.', 'blocks.0.linear_tokens.', 'norm.'), dropped='classifier'),
    CheckpointFormat('ResMLP, Colonnade', ('stem.', 'blocks.0.linear_tokens.')),
)


class ResMLPBlock(ResBlock):
    """timm's ResMLP block, with the same parameters, for any grid of tokens."""
    norm2: nn.Module
    native: Grid = (14, 14)  # grid of the mixing matrix
    token_mixing: str = 'resample'
    shifted: bool = False  # windows, if there are any

    packable = ('mlp_channels.fc1', 'mlp_channels.fc2')

    def forward(self,
                x: Tensor,
                grid: Grid,
                down: Resampling | None = None,
                up: Resampling | None = None) -> Tensor:
        """Run the block on tokens ``(B, N, C)``.

        Args:
            x: Tokens.
            grid: Rows and columns of the tokens.
            down: Resampling to the native grid. Defaults to computing it if it is needed.
            up: Resampling back.
        """
        mixed = self._mix(self.norm1(x), grid, down, up)
        if is_drop_path(self.drop_path):
            x = add(x, self.drop_path(mixed), self.ls1)
        else:
            x = add_branch(x, mixed, self.ls1, self.drop_path)
        return feed_forward(x, self.norm2, self.mlp_channels, self.ls2, self.drop_path)

    def get_modified_layer(self) -> str | None:
        """Return the path of the first layer that :meth:`fuse` cannot fold, or None."""
        return find_modified_sublayer(self, {'norm2': NORM, 'mlp_channels': MLP})

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold norm and LayerScale of the MLP into it, see :mod:`..kernels.folding`."""
        fold_norm(self.norm2, self.mlp_channels.fc1)
        self.norm2 = nn.Identity()
        fold_scale(self, 'ls2', self.mlp_channels.fc2, dtype)

    def _mix(self, x: Tensor, grid: Grid, down: Resampling | None, up: Resampling | None) -> Tensor:
        layer, native = self.linear_tokens, self.native
        if not torch.compiler.is_exporting() and grid == native:
            return layer(x.transpose(1, 2)).transpose(1, 2)
        if self.token_mixing == 'window':
            return mix_windows(x, layer, grid, native, shifted=self.shifted)
        return mix_resampled(x, layer, down or Resampling.between(grid, native, x), up
                             or Resampling.between(native, grid, x))


@register_backbone(*FORMATS)
class ResMLP(ColumnarBackbone):
    """ResMLP without its final Affine and head, from timm's modules.

    Images are padded with zeros at the bottom and right to whole patches. See
    :class:`ColumnarBackbone` for further arguments.

    Args:
        arch: ``s12``, ``s24``, ``s36`` or ``b24``, or a dict with ``embed_dim``, ``depth`` and
            optionally ``patch_size`` (16), ``layer_scale_init_value`` (1e-5) and ``img_size``
            (224).
        img_size: Side of the square images whose grid the matrices of the cross-patch layers fit.
            Defaults to 224, as published.
        token_mixing: Behavior of these layers on other grids. ``'resample'``: tokens are resampled
            to their grid, mixed, and resampled back (:func:`~.token_mixing.mix_resampled`).
            ``'window'``: windows of their grid are mixed separately, shifted by half a window in
            every other block (:func:`~.token_mixing.mix_windows`).
    """

    variants = Variants(
        backbone='ResMLP',
        rows={
            size: dict(zip(COLUMNS, row, strict=True), img_size=224)
            for size, row in SIZES.items()
        },
        defaults=dict(patch_size=16, layer_scale_init_value=1e-5, img_size=224),
        shown_columns=('embed_dim', 'depth', 'patch_size', 'img_size'))
    stem_names = ('stem', )
    classifier_names = ('norm', 'head')

    def __init__(self,
                 arch: str | Mapping[str, Any] = 's24',
                 *,
                 img_size: int | None = None,
                 token_mixing: str = 'resample',
                 **kwargs: Any) -> None:
        if token_mixing not in TOKEN_MIXING:
            raise UserError(
                f'token_mixing must be {" or ".join(TOKEN_MIXING)}, got {token_mixing!r}')
        super().__init__(self.variants.resolve(arch, img_size=img_size), **kwargs)
        for index, block in enumerate(self.blocks):
            block.native = self.stem.grid_size
            block.token_mixing, block.shifted = token_mixing, index % 2 == 1

    def _build(self, num_blocks: int, drop_path_rate: float, num_classes: int | None) -> MlpMixer:
        backbone = MlpMixer(
            img_size=self.settings['img_size'],
            num_blocks=num_blocks,
            drop_path_rate=drop_path_rate,
            num_classes=num_classes or 0,
            **self._get_timm_arguments(ResMLPBlock))
        backbone.stem.strict_img_size, backbone.stem.dynamic_img_pad = False, True
        return backbone

    def build_timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> MlpMixer:
        """Build timm's module of this architecture."""
        return MlpMixer(
            img_size=img_size,
            num_blocks=self.depth,
            num_classes=num_classes,
            **self._get_timm_arguments(ResBlock))

    def _get_timm_arguments(self, block: Callable[..., nn.Module]) -> dict[str, Any]:
        return dict(
            in_chans=self.in_channels,
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            mlp_ratio=4,
            block_layer=partial(block, init_values=self.settings['layer_scale_init_value']),
            norm_layer=Affine)

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Infer width, depth, patch size and image size."""
        patch_size = state['stem.proj.weight'].shape[-1]
        return dict(
            embed_dim=state['stem.proj.weight'].shape[0],
            depth=count_blocks(state),
            patch_size=patch_size,
            img_size=patch_size * math.isqrt(len(state['blocks.0.linear_tokens.bias'])))

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        x, grid = self.stem(img), self._get_grid(img)  # (B, N, C)
        native = self.stem.grid_size
        # The matrices are computed once for all blocks.
        windows = all(block.token_mixing == 'window' for block in self.blocks)
        if windows or (not torch.compiler.is_exporting() and grid == native):
            return x, grid
        return x, (*grid, Resampling.between(grid, native, x), Resampling.between(native, grid, x))

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x, place[:2], *place[2:])
