"""Layouts: how published files name their tensors, and pure functions to our names.

Ours are timm's for a trunk; a whole model has the trunk below ``backbone.``, the pyramid below
``neck.`` and the heads of mmdet or mmseg as they are.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .files import State, WeightsError

Rules = tuple[tuple[str, str | Callable[[re.Match], str]], ...]


def rename(state: State, rules: Rules) -> State:
    """Apply every rule ``(pattern, replacement)`` to every key, in order."""
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if key in renamed:
            raise WeightsError(f'two keys of the file become {key}')
        renamed[key] = value
    return renamed


def remap_xcit_original(state: State) -> State:
    """The authors' classification and DINO files: names, and q, k, v of class attention apart."""
    remapped = {}
    for key, value in rename(state, ((r'^pos_embeder\.', 'pos_embed.'), )).items():
        fused = re.fullmatch(r'(cls_attn_blocks\.\d+\.attn\.)qkv(\.\w+)', key)
        if fused and value.ndim and len(value) % 3 == 0:
            for name, part in zip('qkv', value.chunk(3), strict=True):
                remapped[f'{fused[1]}{name}{fused[2]}'] = part
        else:
            remapped[key] = value
    return remapped


def remap_xcit_mmpretrain(state: State) -> State:
    """mmpretrain's XCiT, from a classifier's file."""
    return rename(state, (
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


def remap_xcit_dense(state: State) -> State:
    """The authors' detectors and segmenters, whose backbone holds the adapter."""
    patch_16 = any(key.startswith('backbone.fpn2.') for key in state)
    adapter: Rules = ((r'^backbone\.fpn1\.0\.', 'neck.stride4.'), )
    if patch_16:
        adapter = ((r'^backbone\.fpn1\.', 'neck.stride4.'), (r'^backbone\.fpn2\.0\.',
                                                             'neck.stride8.'))
    return rename(state, (
        (r'^neck\.(lateral|fpn)_convs\.', r'neck.fpn.\1_convs.'),
        (r'^backbone\.pos_embeder\.', 'backbone.pos_embed.'),
        *adapter,
    ))  # yapf: disable


def remap_resmlp_original(state: State) -> State:
    """The authors' ResMLP files, whose affine layers have vectors."""
    renamed = rename(state, (
        (r'^patch_embed\.', 'stem.'),
        (r'\.attn\.', '.linear_tokens.'),
        (r'\.mlp\.', '.mlp_channels.'),
        (r'\.gamma_([12])$', r'.ls\1'),
    ))  # yapf: disable
    return {
        key: value[None, None] if re.search(r'norm\d?\.(alpha|beta)$', key) else value
        for key, value in renamed.items()
    }


@dataclass(frozen=True)
class Layout:
    """How a family of files names its tensors."""
    name: str
    prefixes: tuple[str, ...]  # a file has keys that begin with each of them
    remap: Callable[[State], State] = dict  # to our names; pure

    def fits(self, state: State) -> bool:
        return all(any(key.startswith(prefix) for key in state) for prefix in self.prefixes)


LAYOUTS = (  # the first that fits
    Layout('XCiT detector or segmenter, original', ('backbone.pos_embeder.', ), remap_xcit_dense),
    Layout('XCiT, original', ('pos_embeder.', 'blocks.'), remap_xcit_original),
    Layout('XCiT, mmpretrain', ('backbone.xca_layers.', ), remap_xcit_mmpretrain),
    Layout('XCiT, mmpretrain', ('xca_layers.', ), remap_xcit_mmpretrain),
    Layout('XCiT, timm', ('pos_embed.token_projection.', 'blocks.', 'cls_attn_blocks.')),
    Layout('XCiT, ours', ('pos_embed.token_projection.', 'blocks.')),
    Layout('CaiT, original or timm', ('blocks.0.attn.proj_l.', 'blocks_token_only.')),
    Layout('CaiT, ours', ('blocks.0.attn.proj_l.', )),
    Layout('ResMLP, original', ('patch_embed.', 'blocks.0.norm1.alpha'), remap_resmlp_original),
    Layout('ResMLP, timm', ('stem.', 'blocks.0.linear_tokens.', 'norm.')),
    Layout('ResMLP, ours', ('stem.', 'blocks.0.linear_tokens.')),
    Layout('whole model, ours', ('backbone.', )),
)


def layout_of(state: State) -> Layout | None:
    """The layout that a state dict has, if it is a known one."""
    return next((layout for layout in LAYOUTS if layout.fits(state)), None)


def remap(state: State, source: str) -> tuple[Layout, State]:
    """The layout of a state dict, and its tensors under our names.

    Raises:
        WeightsError: If no layout fits.
    """
    if layout := layout_of(state):
        return layout, layout.remap(state)
    names = ', '.join(dict.fromkeys(layout.name for layout in LAYOUTS))
    raise WeightsError(f'{source} has none of the known layouts ({names}); its keys are like '
                       f'{", ".join(list(state)[:4])}')


def published_model(state: State) -> State:
    """The authors' detector or segmenter under our names; anything else as it is."""
    layout = layout_of(state)
    return layout.remap(state) if layout and layout.remap is remap_xcit_dense else state
