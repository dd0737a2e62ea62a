"""XCiT: Cross-Covariance Image Transformers (arXiv 2106.09681)."""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.registry import MODELS
from timm.models.xcit import Xcit
from torch import Tensor, nn

from .checkpoint_files import State
from .columnar import ColumnarBackbone

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
        return Xcit(
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            depth=num_blocks,
            num_heads=self.settings['num_heads'],
            eta=self.settings['layer_scale_init_value'],
            tokens_norm=self.settings['tokens_norm'],
            drop_path_rate=drop_path_rate,
            num_classes=num_classes or 0,
            cls_attn_layers=0 if num_classes is None else 2)

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

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = self.patch_embed(img)  # (B, N, C)
        positions = self.pos_embed(1, *grid)  # (1, C, h, w)
        return x + positions.flatten(2).transpose(1, 2), grid

    def _run_block(self, block: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return block(x, *grid)
