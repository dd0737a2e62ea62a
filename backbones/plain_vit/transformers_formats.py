"""Published weights of plain vision transformers in the format of the library transformers."""
from __future__ import annotations

from colonnade.weights.formats import CheckpointFormat, Rules, rename_keys
from colonnade.weights.state_dicts import State, strip_prefix

from .eomt_formats import BLOCKS, drop_unused, join_projections

PREFIXES = ('', 'vit.', 'deit.', 'dinov2.', 'dinov2_with_registers.')  # of models with a head
NAMES: Rules = (
    (r'^(vit|deit|dinov2|dinov2_with_registers)\.', ''),
    (r'^embeddings\.position_embeddings$', 'backbone.pos_embed'),
    (r'^embeddings\.distillation_token$', 'backbone.dist_token'),
    (r'^embeddings\.', 'backbone.patch_embed.'),
    (r'^encoder\.layer\.', 'backbone.blocks.'),
    (r'^layernorm\.', 'backbone.norm.'),
    (r'^(cls_)?classifier\.', 'backbone.head.'),
    (r'^distillation_classifier\.', 'backbone.head_dist.'),
    (r'\.attention\.attention\.(q|k|v)(uery|ey|alue)\.', r'.attn.\1_proj.'),
    (r'\.attention\.output\.dense\.', '.attn.proj.'),
    (r'\.layernorm_before\.', '.norm1.'),
    (r'\.layernorm_after\.', '.norm2.'),
    (r'\.intermediate\.dense\.', '.mlp.fc1.'),
    (r'\.output\.dense\.', '.mlp.fc2.'),
)


def convert_transformers(state: State) -> State:
    """Convert the keys of transformers' ``ViT``, ``DeiT`` and ``Dinov2`` models to timm's.

    The pooling layer, which only ``ViTModel`` has, is dropped. With registers, timm adds the
    position of the class token to the token.
    """
    state = {key: value for key, value in state.items() if 'pooler.' not in key}
    named = join_projections(rename_keys(drop_unused(state), NAMES + BLOCKS))
    own = strip_prefix(named, 'backbone.')
    if 'reg_token' in own and {'cls_token', 'pos_embed'} <= own.keys():
        position, own['pos_embed'] = own['pos_embed'][:, :1], own['pos_embed'][:, 1:]
        own['cls_token'] = own['cls_token'] + position
    return own


TRANSFORMERS_FORMATS = (CheckpointFormat(
    'PlainViT, transformers',
    tuple(
        tuple(f'{prefix}{name}' for prefix in PREFIXES)
        for name in ('embeddings.patch_embeddings.projection.',
                     'encoder.layer.0.attention.attention.query.')),
    convert_transformers,
    dropped='mask token, classifier, pooling'), )
