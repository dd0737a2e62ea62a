"""How files of XCiT name their tensors."""
from __future__ import annotations

import re

from colonnade.weights.layouts import Layout, Rules, rename
from colonnade.weights.state_dicts import State


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


LAYOUTS = (
    Layout(
        'XCiT detector or segmenter, original', ('backbone.pos_embeder.', ),
        remap_xcit_dense,
        published_model=True),
    Layout('XCiT, original', ('pos_embeder.', 'blocks.'), remap_xcit_original),
    Layout('XCiT, mmpretrain', ('backbone.xca_layers.', ), remap_xcit_mmpretrain),
    Layout('XCiT, mmpretrain', ('xca_layers.', ), remap_xcit_mmpretrain),
    Layout('XCiT, timm', ('pos_embed.token_projection.', 'blocks.', 'cls_attn_blocks.')),
    Layout('XCiT, ours', ('pos_embed.token_projection.', 'blocks.')),
)
