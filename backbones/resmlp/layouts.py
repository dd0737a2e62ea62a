"""How files of ResMLP name their tensors."""
from __future__ import annotations

import re

from colonnade.weights.layouts import Layout, rename
from colonnade.weights.state_dicts import State


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


LAYOUTS = (
    Layout('ResMLP, original', ('patch_embed.', 'blocks.0.norm1.alpha'), remap_resmlp_original),
    Layout('ResMLP, timm', ('stem.', 'blocks.0.linear_tokens.', 'norm.')),
    Layout('ResMLP, ours', ('stem.', 'blocks.0.linear_tokens.')),
)
