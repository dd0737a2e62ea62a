"""How files of plain vision transformers name their tensors.

timm's own functions rename the authors' names. They are given a stand-in for the model, so that
tensors keep their sizes; :meth:`.PlainViT.resized` resizes them.
"""
from __future__ import annotations

from types import SimpleNamespace

from timm.models import eva, vision_transformer

from colonnade.weights.layouts import Layout, rename
from colonnade.weights.state_dicts import State

PATCHES = ('patch_embed.proj.weight', 'conv1.weight', 'patch_embed.projection.weight')
#: begins of keys that tell timm's other trunks, which have some names in common
OTHER_TRUNKS = ('blocks.0.attn.proj_l.', 'blocks.0.norm1.alpha', 'blocks.0.attn.temperature',
                'blocks.0.attn.qk.')
MASKS = ('mask_token', 'decoder_', 'lm_head.')  # for pre-training alone


def stand_in(state: State) -> SimpleNamespace:
    """What timm's functions ask of a model, of the sizes that the file has."""
    weight = next(value for key, value in state.items() if key.endswith(PATCHES))
    return SimpleNamespace(
        patch_embed=SimpleNamespace(proj=SimpleNamespace(weight=weight)),
        pos_embed=None,
        head=None,
        get_parameter=lambda name: weight)


def remap_vit(state: State) -> State:
    """DINOv2's, CLIP's and others' names to those of timm's ``VisionTransformer``."""
    return vision_transformer.checkpoint_filter_fn(dict(state), stand_in(state))


def remap_eva(state: State) -> State:
    """DINOv3's, EVA's and others' names to those of timm's ``Eva``."""
    return eva.checkpoint_filter_fn(dict(state), stand_in(state))


def without_pretraining(state: State) -> State:
    """MAE's encoder, without the mask token and the decoder."""
    return {key: value for key, value in state.items() if not key.startswith(MASKS)}


def with_layer_scale_modules(state: State) -> State:
    """DeiT-III's ``gamma_1`` and ``gamma_2`` as timm's ``VisionTransformer`` names them."""
    return rename(state, ((r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'), ))


def remap_openclip(state: State) -> State:
    """timm's names of the image tower in OpenCLIP's."""
    return {
        key.removeprefix('visual.trunk.'): value
        for key, value in state.items() if key.startswith('visual.trunk.')
    }


LAYOUTS = (
    Layout('PlainViT, DINOv3', ('storage_tokens', 'blocks.0.attn.qkv.'), remap_eva),
    Layout('PlainViT, MAE with its decoder', ('patch_embed.proj.weight', 'decoder_embed.'),
           without_pretraining),
    Layout('PlainViT, DINOv2', ('mask_token', 'patch_embed.proj.weight', 'blocks.0.ls1.'),
           remap_vit),
    Layout('PlainViT, Perception Encoder',
           (('conv1.weight', 'visual.conv1.weight'), ('visual.attn_pool.', 'transformer.')),
           remap_eva, without=('visual.transformer.resblocks.0.attn.in_proj_bias', )),
    Layout('PlainViT, CLIP', ('visual.class_embedding', ), remap_vit),
    Layout('PlainViT, OpenCLIP', ('visual.trunk.patch_embed.', ), remap_openclip),
    Layout('PlainViT, EVA', ('patch_embed.proj.weight', ('blocks.0.mlp.w1.', 'blocks.0.mlp.w12.',
                                                         'blocks.0.attn.inner_attn_ln.')),
           remap_eva),
    Layout(
        'PlainViT, timm or ours',
        ('patch_embed.proj.weight', 'blocks.0.', ('cls_token', 'pos_embed')),
        without=(*OTHER_TRUNKS, 'mask_token')),
)  # yapf: disable
