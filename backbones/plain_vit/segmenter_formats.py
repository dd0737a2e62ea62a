"""Published weights of Segmenter, and of mmseg's own vision transformer, BEiT and MAE."""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from colonnade.weights.formats import CheckpointFormat, Rules, rename_keys
from colonnade.weights.state_dicts import State, add_prefix, strip_prefix

#: block of mmseg's VisionTransformer, also in the decoder of Segmenter -> block of timm
MMSEG_BLOCK: Rules = (
    (r'\.ln1\.', '.norm1.'),
    (r'\.ln2\.', '.norm2.'),
    (r'\.attn\.attn\.in_proj_(weight|bias)$', r'.attn.qkv.\1'),
    (r'\.attn\.attn\.out_proj\.', '.attn.proj.'),
    (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
    (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
)
TIMM_BLOCK: Rules = (
    (r'\.norm1\.', '.ln1.'),
    (r'\.norm2\.', '.ln2.'),
    (r'\.attn\.qkv\.(weight|bias)$', r'.attn.attn.in_proj_\1'),
    (r'\.attn\.proj\.', '.attn.attn.out_proj.'),
    (r'\.mlp\.fc1\.', '.ffn.layers.0.0.'),
    (r'\.mlp\.fc2\.', '.ffn.layers.1.'),
)
MMSEG: Rules = (
    (r'^layers\.', 'blocks.'),
    (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
    (r'^ln1\.', 'norm.'),
    *MMSEG_BLOCK,
)
BEIT: Rules = (
    (r'^layers\.', 'blocks.'),
    (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
    (r'\.ln([12])\.', r'.norm\1.'),
    (r'\.gamma_([12])$', r'.ls\1.gamma'),
    (r'\.relative_position_bias_table$', '.rel_pos_table'),
    (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
    (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
)
DECODER: Rules = (
    (r'^decoder\.blocks\.', 'decode_head.layers.'),
    (r'^decoder\.proj_dec\.', 'decode_head.dec_proj.'),
    (r'^decoder\.proj_(patch|classes)$', r'decode_head.\1_proj.weight'),
    (r'^decoder\.', 'decode_head.'),
    *TIMM_BLOCK,
)
TRANSPOSED = ('decoder.proj_patch', 'decoder.proj_classes')  # applied from the right


def rename_mmseg(state: State) -> State:
    """Rename tensors of mmseg's ``VisionTransformer``; in mmseg 1, patches have no bias."""
    state = rename_keys(state, MMSEG)
    weight = state.get('patch_embed.proj.weight')
    if weight is not None:
        state.setdefault('patch_embed.proj.bias', weight.new_zeros(len(weight)))
    return state


def rename_beit(state: State) -> State:
    """Rename tensors of mmseg's ``BEiT`` and ``MAE``; join biases, of which keys have none."""
    state = rename_keys(state, BEIT)
    for key in [key for key in state if key.endswith('.attn.q_bias')]:
        block, query = key.removesuffix('q_bias'), state.pop(key)
        biases = (query, torch.zeros_like(query), state.pop(f'{block}v_bias'))
        state[f'{block}qkv.bias'] = torch.cat(biases)
    return {key: value for key, value in state.items() if not key.endswith('position_index')}


def convert_mmseg(rename: Callable[[State], State], state: State) -> State:
    """Convert the keys of a backbone of mmseg, alone or in a segmenter."""
    own = strip_prefix(state, 'backbone.')
    if not own:
        return rename(state)
    others = {key: value for key, value in state.items() if not key.startswith('backbone.')}
    return add_prefix(rename(own), 'backbone.') | others


def infer_bias_tables(state: State, sizes: dict[str, int]) -> dict[str, Any]:
    """Infer the arguments of a backbone with tables of biases; empty if it has none.

    Args:
        state: Tensors of the backbone.
        sizes: Width, depth and patch size.
    """
    table = state.get('blocks.0.attn.rel_pos_table')
    if table is None:
        return {}
    arch: dict[str, Any] = dict(
        embed_dim=sizes['embed_dim'], depth=sizes['depth'], num_heads=table.shape[1])
    if 'blocks.0.ls1.gamma' in state:
        arch['init_values'] = 1.
    if 'pos_embed' not in state:
        arch['pos_embed'] = 'none'
    side = (math.isqrt(len(table)) + 1) // 2
    return dict(arch=arch, rel_pos_size=side, rel_pos_type='table')


def convert_segmenter(state: State) -> State:
    """Convert the keys of the authors' Segmenter to those of mmseg's head; drop the classifier."""
    own = strip_prefix(state, 'encoder.')
    backbone = {key: value for key, value in own.items() if not key.startswith('head')}
    decoder = {
        key: value.T if key in TRANSPOSED else value
        for key, value in state.items() if key.startswith('decoder.')
    }
    return add_prefix(backbone, 'backbone.') | rename_keys(decoder, DECODER)


SEGMENTER_FORMATS = (
    CheckpointFormat(
        'Segmenter, original', ('encoder.blocks.', 'decoder.cls_emb'),
        convert_segmenter,
        published_model=True,
        dropped='classifier'),
    CheckpointFormat(
        'PlainViT in a segmenter, mmseg', ('backbone.layers.0.attn.attn.in_proj_weight', ),
        partial(convert_mmseg, rename_mmseg),
        published_model=True),
    CheckpointFormat('PlainViT, mmseg', ('layers.0.attn.attn.in_proj_weight', ),
                     partial(convert_mmseg, rename_mmseg)),
    CheckpointFormat(
        'BEiT or MAE in a segmenter, mmseg',
        ('backbone.layers.0.attn.relative_position_bias_table', ),
        partial(convert_mmseg, rename_beit),
        published_model=True,
        dropped='relative position indices'),
    CheckpointFormat(
        'BEiT or MAE, mmseg', ('layers.0.attn.relative_position_bias_table', ),
        partial(convert_mmseg, rename_beit),
        dropped='relative position indices'),
)
