"""Published weights of EoMT, and of DINOv3 in transformers: names as in timm."""
from __future__ import annotations

import re

import torch

from colonnade.weights.formats import CheckpointFormat, Rules, convert_keys, rename_keys
from colonnade.weights.state_dicts import State, WeightsError, add_prefix, strip_prefix

SEMANTIC_QUERIES = 100  # published segmenters have 100 queries, detectors 200
#: keys of how far the training was, of the normalization of images, and of the loss
UNUSED = ('attn_mask_probs', 'pixel_mean', 'pixel_std', 'empty_weight', 'mask_token', 'inv_freq')
ORIGINAL: Rules = (
    (r'\._orig_mod\b', ''),
    (r'^network\.encoder\.backbone\.', 'backbone.'),
    (r'^network\.', 'head.'),
)
TRANSFORMERS: Rules = (
    (r'^embeddings\.position_embeddings\.weight$', 'backbone.pos_embed'),
    (r'^embeddings\.', 'backbone.patch_embed.'),
    (r'^layers\.', 'backbone.blocks.'),
    (r'^(layernorm|norm)\.', 'backbone.norm.'),
    (r'^query\.', 'head.q.'),
    (r'^class_predictor\.', 'head.class_head.'),
    (r'^mask_head\.fc([123])\.', lambda match: f'head.mask_head.{2 * int(match[1]) - 2}.'),
    (r'^upscale_block\.block\.(\d+)\.', r'head.upscale.\1.'),
    (r'\.layernorm2d\.', '.norm.'),
)
DINOV3: Rules = (
    (r'^(model\.)?embeddings\.', 'backbone.patch_embed.'),
    (r'^(model\.)?layer\.', 'backbone.blocks.'),
    (r'^(model\.)?norm\.', 'backbone.norm.'),
)
BLOCKS: Rules = (
    (r'^backbone\.patch_embed\.cls_token$', 'backbone.cls_token'),
    (r'^backbone\.patch_embed\.register_tokens$', 'backbone.reg_token'),
    (r'^backbone\.patch_embed\.patch_embeddings\.(projection\.)?', 'backbone.patch_embed.proj.'),
    (r'\.attention\.([qkv])_proj\.', r'.attn.\1_proj.'),
    (r'\.attention\.(o|out)_proj\.', '.attn.proj.'),
    (r'\.mlp\.(up_proj|weights_in)\.', '.mlp.fc1.'),
    (r'\.mlp\.(down_proj|weights_out)\.', '.mlp.fc2.'),
)


def drop_unused(state: State) -> State:
    """Drop tensors that the network does not need."""
    return {key: value for key, value in state.items() if key.split('.')[-1] not in UNUSED}


def join_projections(state: State) -> State:
    """Join queries, keys and values as in timm; DINOv3 has no biases of keys."""
    joined = dict(state)
    for key in state:
        match = re.fullmatch(r'(backbone\.blocks\.\d+)\.attn\.q_proj\.weight', key)
        if not match:
            continue
        block, attention = match[1], f'{match[1]}.attn.'
        parts = {
            (name, kind): joined.pop(f'{attention}{name}_proj.{kind}', None)
            for name in 'qkv'
            for kind in ('weight', 'bias')
        }
        weights, biases = ([parts[name, kind] for name in 'qkv'] for kind in ('weight', 'bias'))
        if any(weight is None for weight in weights):
            raise WeightsError(f'keys or values of {block} are missing')
        joined[f'{attention}qkv.weight'] = torch.cat(weights)
        is_dinov3 = biases[1] is None
        if is_dinov3:
            named = {f'{attention}{name}_bias': parts[name, 'bias'] for name in 'qv'}
            joined |= {name: bias for name, bias in named.items() if bias is not None}
        else:
            joined[f'{attention}qkv.bias'] = torch.cat(biases)
        for number in (1, 2):
            scale = joined.pop(f'{block}.layer_scale{number}.lambda1', None)
            name = f'gamma_{number}' if is_dinov3 else f'ls{number}.gamma'
            if scale is not None:
                joined[f'{block}.{name}'] = scale
    return joined


def name_head(state: State) -> State:
    """Rename ``head`` as the head of a segmenter or of a detector, by the number of queries."""
    if 'head.q.weight' not in state:
        raise WeightsError('the queries are missing')
    is_semantic = len(state['head.q.weight']) <= SEMANTIC_QUERIES
    return rename_keys(state, ((r'^head\.', 'decode_head.' if is_semantic else 'panoptic_head.'), ))


def convert_original(state: State) -> State:
    """Convert the keys of the authors' files with DINOv2, to those of a full model."""
    return name_head(rename_keys(drop_unused(state), ORIGINAL))


def convert_transformers(state: State) -> State:
    """Convert the keys of transformers' ``eomt`` and ``eomt_dinov3`` to those of a full model."""
    state = join_projections(rename_keys(drop_unused(state), TRANSFORMERS + BLOCKS))
    if 'backbone.pos_embed' in state:
        state['backbone.pos_embed'] = state['backbone.pos_embed'].reshape(
            1, -1, state['backbone.pos_embed'].shape[-1])
    return name_head(state)


def convert_dinov3(state: State) -> State:
    """Convert the keys of transformers' ``DINOv3ViTModel`` to those of timm's ``Eva``."""
    named = join_projections(rename_keys(drop_unused(state), DINOV3 + BLOCKS))
    return strip_prefix(named, 'backbone.')


def convert_delta(state: State) -> State:
    """Raise a WeightsError that explains files with differences from DINOv3."""
    raise WeightsError(
        'its backbone is stored as differences from the DINOv3 weights: add them with colonnade '
        'convert-checkpoint IN OUT --base DINOV3, and use OUT')


def add_delta(base: State, delta: State) -> State:
    """Return the full model of a published EoMT with DINOv3.

    Args:
        base: Weights of DINOv3 in any known format: of Meta, transformers or timm.
        delta: Authors' file: differences from the backbone, and the head.

    Returns:
        Tensors under Colonnade's names, of a model whose ``arch`` ends in ``dinov3_qkvb``.

    Raises:
        WeightsError: If the files do not belong together.
    """
    own = name_head(join_projections(rename_keys(drop_unused(delta), ORIGINAL + BLOCKS)))
    named = add_prefix(convert_keys(base, 'the file')[1], 'backbone.')
    expected = {key: value.shape for key, value in own.items() if key.startswith('backbone.')}
    found = {key: value.shape for key, value in named.items()}
    if expected != found:
        keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        raise WeightsError('these are not the DINOv3 weights that the differences apply to: '
                           f'{len(keys)} tensors do not match, such as {keys[0]}')
    return own | {key: named[key] + own[key] for key in expected}


EOMT_FORMATS = (
    CheckpointFormat(
        'EoMT with DINOv3, original', ('network.encoder.backbone.patch_embed.patch_embeddings.', ),
        convert_delta,
        published_model=True,
        add_base=add_delta),
    CheckpointFormat(
        'EoMT with DINOv2, original', ('network.encoder.backbone.patch_embed.proj.', 'network.q.'),
        convert_original,
        published_model=True),
    CheckpointFormat(
        'EoMT, transformers', ('query.weight', 'layers.0.attention.', 'upscale_block.'),
        convert_transformers,
        published_model=True),
    CheckpointFormat('PlainViT, DINOv3, transformers',
                     (('embeddings.register_tokens', 'model.embeddings.register_tokens'),
                      ('layer.0.attention.', 'model.layer.0.attention.')), convert_dinov3),
)
