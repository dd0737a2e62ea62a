"""XCiT: Cross-Covariance Image Transformers (arXiv 2106.09681)."""
from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models.xcit import Xcit
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.weights.formats import CheckpointFormat, Rules, rename_keys
from colonnade.weights.state_dicts import State

from ..columnar import ColumnarBackbone
from ..kernels.custom_ops import as_tokens
from ..kernels.devices import should_use_cpu_forms
from ..registry import register_backbone
from ..variants import PublishedSize, Settings, Variants, count_blocks
from .layers import XCiTBlock
from .stem import FourierPositions, find_modified_stem_layer, fuse_stem, run_stem

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
# the paper's Table 1: millions of parameters, billions of multiply-adds at 224 by patch size
TABLE_1 = {
    'nano_12':   (3,    0.5,   2.1),
    'tiny_12':   (7,    1.2,   4.8),
    'tiny_24':   (12,   2.3,   9.2),
    'small_12':  (26,   4.8,  18.9),
    'small_24':  (48,   9.1,  36.0),
    'medium_24': (84,  16.2,  63.9),
    'large_24':  (189, 36.1, 142.2),
}  # yapf: disable


def convert_xcit_original(state: State) -> State:
    """Convert the authors' classifiers and DINO files, which join q, k and v of class attention."""
    remapped = {}
    for key, value in rename_keys(state, ((r'^pos_embeder\.', 'pos_embed.'), )).items():
        fused = re.fullmatch(r'(cls_attn_blocks\.\d+\.attn\.)qkv(\.\w+)', key)
        if fused and value.ndim and len(value) % 3 == 0:
            for name, part in zip('qkv', value.chunk(3), strict=True):
                remapped[f'{fused[1]}{name}{fused[2]}'] = part
        else:
            remapped[key] = value
    return remapped


def convert_xcit_mmpretrain(state: State) -> State:
    """Convert mmpretrain's classifiers."""
    return rename_keys(state, (
        (r'^backbone\.', ''),
        (r'^head\.fc\.', 'head.'),
        (r'^xca_layers\.', 'blocks.'),
        (r'^ca_layers\.', 'cls_attn_blocks.'),
        (r'^(patch_embed\.proj)\.(\d+)\.conv\.', lambda m: f'{m[1]}.{2 * int(m[2])}.0.'),
        (r'^(patch_embed\.proj)\.(\d+)\.bn\.', lambda m: f'{m[1]}.{2 * int(m[2])}.1.'),
        (r'^pos_embed\.token_projection\.conv\.', 'pos_embed.token_projection.'),
        (r'\.local_mp\.conv1\.bn\.', '.local_mp.bn.'),
        (r'\.local_mp\.(conv[12])\.conv\.', r'.local_mp.\1.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
    ))  # yapf: disable


def convert_xcit_dense(state: State) -> State:
    """Convert the authors' detectors and segmenters, whose backbone contains the pyramid."""
    patch_16 = any(key.startswith('backbone.fpn2.') for key in state)
    pyramid: Rules = ((r'^backbone\.fpn1\.0\.', 'neck.stride4.'), )
    if patch_16:
        pyramid = ((r'^backbone\.fpn1\.', 'neck.stride4.'), (r'^backbone\.fpn2\.0\.',
                                                             'neck.stride8.'))
    return rename_keys(state, (
        (r'^neck\.(lateral|fpn)_convs\.', r'neck.fpn.\1_convs.'),
        (r'^backbone\.pos_embeder\.', 'backbone.pos_embed.'),
        *pyramid,
    ))  # yapf: disable


FORMATS = (
    CheckpointFormat(
        'XCiT detector or segmenter, original', ('backbone.pos_embeder.', ),
        convert_xcit_dense,
        published_model=True),
    CheckpointFormat(
        'XCiT, original', ('pos_embeder.', 'blocks.'), convert_xcit_original, dropped='classifier'),
    CheckpointFormat(
        'XCiT, mmpretrain', ('backbone.xca_layers.', ),
        convert_xcit_mmpretrain,
        dropped='classifier'),
    CheckpointFormat('XCiT, mmpretrain', ('xca_layers.', ), convert_xcit_mmpretrain),
    CheckpointFormat(
        'XCiT, timm', ('pos_embed.token_projection.', 'blocks.', 'cls_attn_blocks.'),
        dropped='classifier'),
    CheckpointFormat('XCiT, Colonnade', ('pos_embed.token_projection.', 'blocks.')),
)


def init_linear(module: nn.Module) -> None:
    """Initialize a linear layer as timm's XCiT does."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def check_stem(settings: Settings) -> None:
    """Raise a ValueError if the stem cannot be built."""
    if settings['patch_size'] not in PATCH_SIZES:
        raise UserError(f'patch_size must be 8 or 16, got {settings["patch_size"]}')
    if settings['embed_dim'] % 8:
        raise UserError('embed_dim must be a multiple of 8 for the stem, got '
                        f'{settings["embed_dim"]}')


@register_backbone(*FORMATS)
class XCiT(ColumnarBackbone):
    """XCiT without its class-attention stage, from timm's modules.

    Any image of at least one patch will do. See :class:`ColumnarBackbone` for further arguments.

    Args:
        arch: One of ``{nano,tiny,small}_12_p{16,8}``, ``{tiny,small,medium,large}_24_p{16,8}``. Or
            a dict with ``embed_dim``, ``depth``, ``num_heads``, ``patch_size`` and optionally
            ``layer_scale_init_value`` (1.0) and ``tokens_norm`` (True), which only the classifier
            uses.
    """

    variants = Variants(
        backbone='XCiT',
        rows={
            f'{size}_p{patch_size}': dict(zip(COLUMNS, row, strict=True), patch_size=patch_size)
            for size, row in SIZES.items()
            for patch_size in PATCH_SIZES
        },
        defaults=dict(layer_scale_init_value=1.0, tokens_norm=True),
        check=check_stem)
    published_sizes = tuple(
        PublishedSize(f'{size}_p{patch_size}', 224, parameters, multiply_adds)
        for size, (parameters, *row) in TABLE_1.items()
        for patch_size, multiply_adds in zip(PATCH_SIZES, row, strict=True))
    class_attention_name = 'cls_attn_blocks'

    def __init__(self, arch: str | Mapping[str, Any] = 'small_12_p16', **kwargs: Any) -> None:
        super().__init__(arch, **kwargs)

    def _build(self, num_blocks: int, drop_path_rate: float, num_classes: int | None) -> Xcit:
        backbone = Xcit(
            depth=0,
            num_classes=num_classes or 0,
            cls_attn_layers=0 if num_classes is None else 2,
            **self._get_timm_arguments())
        backbone.pos_embed = FourierPositions(backbone.pos_embed)
        backbone.blocks.extend(
            XCiTBlock(
                self.embed_dim,
                qkv_bias=True,
                drop_path=drop_path_rate,
                norm_layer=partial(nn.LayerNorm, eps=1e-6),
                num_heads=self.settings['num_heads'],
                eta=self.settings['layer_scale_init_value']).apply(init_linear)
            for _ in range(num_blocks))
        return backbone

    def build_timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> Xcit:
        """Build timm's module of this architecture, for images of any size."""
        return Xcit(depth=self.depth, num_classes=num_classes, **self._get_timm_arguments())

    def _get_timm_arguments(self) -> dict[str, Any]:
        row = self.settings
        return dict(
            in_chans=self.in_channels,
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            num_heads=row['num_heads'],
            eta=row['layer_scale_init_value'],
            tokens_norm=row['tokens_norm'])

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Infer width, depth, heads and patch size."""
        stem = [key for key in state if re.fullmatch(r'patch_embed\.proj\.\d+\.0\.weight', key)]
        return dict(
            embed_dim=len(state['blocks.0.gamma1']),
            depth=count_blocks(state),
            num_heads=len(state['blocks.0.attn.temperature']),
            patch_size=2**len(stem))

    @staticmethod
    def attend_to_class(blocks: nn.ModuleList, cls_token: Tensor, x: Tensor) -> Tensor:
        x = torch.cat((cls_token, x), dim=1)
        for block in blocks:
            x = block(x)
        return x[:, :1]

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        fast = should_use_cpu_forms(img) and not torch.compiler.is_exporting()
        if fast and find_modified_stem_layer(self.patch_embed) is None:
            image = run_stem(self.patch_embed, img)
            x, grid = as_tokens(image), image.shape[-2:]  # (B, N, C)
        else:
            x, grid = self.patch_embed(img)
        if isinstance(self.pos_embed, FourierPositions) and self.pos_embed.is_unmodified():
            return x + self.pos_embed.embed_grid(grid), grid
        positions = self.pos_embed(1, *grid)  # (1, C, h, w)
        return x + positions.flatten(2).transpose(1, 2).contiguous(), grid

    def _find_modified_stem_layer(self) -> str | None:
        name = find_modified_stem_layer(self.patch_embed)
        return name if name is None else f'patch_embed.{name}'.rstrip('.')

    def _fuse_stem(self, dtype: torch.dtype) -> None:
        fuse_stem(self.patch_embed, dtype)

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x, *place)
