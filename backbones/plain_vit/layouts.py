"""How files of plain vision transformers name their tensors.

timm's own functions rename the authors' names. They are given a stand-in for the model, so that
tensors keep their sizes; :mod:`.resizing` resizes them.
"""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from timm.models import eva, vision_transformer

from colonnade.weights.layouts import Layout, rename
from colonnade.weights.state_dicts import State, WeightsError, without_prefix

#: begins of keys that tell timm's other backbones, which have some names in common
OTHER_BACKBONES = ('blocks.0.attn.proj_l.', 'blocks.0.norm1.alpha', 'blocks.0.attn.temperature',
                   'blocks.0.attn.qk.')
MASKS = ('mask_token', 'decoder_')  # MAE's, for pre-training alone


class AnySize:
    """A size that equals every other."""
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


#: what timm's functions ask of a model; nothing is resized for it, and it has all parameters
STAND_IN = SimpleNamespace(
    patch_embed=SimpleNamespace(proj=SimpleNamespace(
        weight=SimpleNamespace(shape=tuple(AnySize() for _ in range(4))))),
    pos_embed=None,
    head=None,
    get_parameter=lambda name: None)  # yapf: disable


def renamed_by(function: Callable, state: State) -> State:
    """What one of timm's functions makes of a state dict.

    Raises:
        WeightsError: If the function fails for lack of a tensor, or for the shape of one.
    """
    try:
        return function(dict(state), STAND_IN)
    except KeyError as error:
        raise WeightsError(f'it lacks {error.args[0]}') from error
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(f'a tensor has an unknown shape: {error}') from error


def remap_vit(state: State) -> State:
    """DINOv2's, CLIP's and others' names to those of timm's ``VisionTransformer``."""
    return renamed_by(vision_transformer.checkpoint_filter_fn, state)


def remap_eva(state: State) -> State:
    """EVA's, Perception Encoder's and others' names to those of timm's ``Eva``."""
    return renamed_by(eva.checkpoint_filter_fn, state)


def remap_dinov3(state: State) -> State:
    """DINOv3's names to those of timm's ``Eva``, whose keys have no biases: DINOv3 masks them.

    Raises:
        WeightsError: If there are such biases without a mask.
    """
    for key, bias in state.items():
        if key.endswith('.attn.qkv.bias') and f'{key}_mask' not in state and bias.ndim == 1:
            if not bias.is_meta and bias.chunk(3)[1].any():
                raise WeightsError(f'{key} has biases of keys, which timm\'s models do not have')
    return remap_eva(state)


def part_of(key: str) -> str:
    """The child of a backbone, or the block, that a tensor belongs to."""
    parts = key.split('.')
    return '.'.join(parts[:1 + (parts[0] == 'blocks')])


def without_pretraining(state: State) -> State:
    """MAE's encoder, without the mask token and the decoder."""
    return {key: value for key, value in state.items() if not key.startswith(MASKS)}


def with_layer_scale_modules(state: State) -> State:
    """DeiT-III's ``gamma_1`` and ``gamma_2`` as timm's ``VisionTransformer`` names them."""
    return rename(state, ((r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'), ))


def remap_openclip(state: State) -> State:
    """timm's names of the image tower in OpenCLIP's."""
    return without_prefix(state, 'visual.trunk.')


LAYOUTS = (
    Layout('PlainViT, DINOv3', ('storage_tokens', 'blocks.0.attn.qkv.'), remap_dinov3),
    Layout('PlainViT, Sapiens2', ('storage_tokens', 'blocks.0.attn.wq.'), remap_eva),
    Layout('PlainViT, MAE with its decoder', ('patch_embed.proj.weight', 'decoder_embed.'),
           without_pretraining),
    Layout('PlainViT, DINOv2', ('mask_token', 'patch_embed.proj.weight', 'blocks.0.ls1.'),
           remap_vit),
    Layout('PlainViT, TIPSv2', ('vision_encoder.mask_token', ), remap_vit),
    Layout('PlainViT, CLIP', ('visual.conv1.weight', 'visual.class_embedding'), remap_vit,
           without=('visual.attn_pool.', 'visual.transformer.resblocks.0.ls_')),
    Layout('PlainViT, Perception Encoder', ('visual.conv1.weight', 'visual.transformer.'),
           remap_eva),
    Layout('PlainViT, Perception Encoder', ('conv1.weight', 'transformer.resblocks.0.'),
           remap_eva, without=('visual.', )),
    Layout('PlainViT, OpenCLIP', ('visual.trunk.patch_embed.', ), remap_openclip),
    Layout('PlainViT, EVA-CLIP', ('visual.patch_embed.', 'visual.pos_embed'), remap_eva),
    Layout('PlainViT, EVA', ('patch_embed.proj.weight', ('blocks.0.mlp.w1.', 'blocks.0.mlp.w12.',
                                                         'blocks.0.attn.inner_attn_ln.')),
           remap_eva),
    Layout('PlainViT, EVA', ('patch_embed.proj.weight', 'mask_token', 'blocks.0.attn.q_bias'),
           remap_eva),
    Layout('PlainViT, BEiT-3', ('beit3.vision_embed.', 'beit3.encoder.'), remap_vit),
    Layout('PlainViT, AIMv2', ('preprocessor.patchifier.', 'trunk.blocks.0.'), remap_vit),
    Layout('PlainViT, RADIO', ('radio_model.model.patch_generator.', ), remap_vit),
    Layout(
        'PlainViT, timm or ours',
        ('patch_embed.proj.weight', 'blocks.0.', ('cls_token', 'reg_token', 'pos_embed')),
        without=(*OTHER_BACKBONES, 'mask_token')),
)  # yapf: disable
