"""Checkpoint formats of plain vision transformers: names, identification of models, sizes.

timm's functions rename the authors' names. They get a stand-in for the model, so that tensors keep
their sizes; they are resized afterwards.
"""
from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import timm
import torch
from mmengine.logging import print_log
from timm.layers import PatchEmbed, resample_abs_pos_embed, resample_patch_embed
from timm.models import eva, vision_transformer
from torch import Tensor

from colonnade.common.errors import UserError
from colonnade.weights.formats import CheckpointFormat, rename_keys
from colonnade.weights.state_dicts import Shapes, State, WeightsError, strip_prefix

from ..kernels.devices import on_meta_device
from ..variants import Settings
from .architectures import SHOWN, list_known_models, look_up

#: key prefixes of other backbones, which share some names
OTHER_BACKBONES = ('blocks.0.attn.proj_l.', 'blocks.0.norm1.alpha', 'blocks.0.attn.temperature',
                   'blocks.0.attn.qk.')
PRETRAINING = ('mask_token', 'decoder_')  # key prefixes of MAE that only pre-training uses
EVA_BIASES = ('.attn.q_bias', '.attn.v_bias')
#: key prefixes that distinguish models, in addition to their depth and patch size
DISTINCTIVE = ('blocks.0.', 'cls_token', 'dist_token', 'reg_token', 'norm_pre.', 'patch_embed.')
#: RADIO models whose positions timm resamples with aligned corners
ALIGNED_CORNERS = ('vit_base_patch16_radio_v3', 'vit_huge_patch16_radio_v3')


class AnySize:
    """Size that equals every other."""
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


#: attributes of a model that timm's functions read: nothing is resized, and no parameter is missing
STAND_IN = SimpleNamespace(
    patch_embed=SimpleNamespace(proj=SimpleNamespace(
        weight=SimpleNamespace(shape=tuple(AnySize() for _ in range(4))))),
    pos_embed=None,
    head=None,
    get_parameter=lambda name: None)  # yapf: disable


def _rename_by(function: Callable, state: State) -> State:
    """Rename by one of timm's functions, or raise a WeightsError if a tensor does not fit it."""
    try:
        return function(dict(state), STAND_IN)
    except KeyError as error:
        raise WeightsError(f'{error.args[0]} is missing') from error
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(f'a tensor has an unexpected shape: {error}') from error


def convert_vit(state: State) -> State:
    """Convert names of DINOv2, CLIP and others to those of timm's ``VisionTransformer``."""
    return _rename_by(vision_transformer.checkpoint_filter_fn, state)


def convert_eva(state: State) -> State:
    """Convert names of EVA, Perception Encoder and others to those of timm's ``Eva``."""
    return _rename_by(eva.checkpoint_filter_fn, state)


def convert_dinov3(state: State) -> State:
    """Convert names of DINOv3 to those of timm's ``Eva``."""
    for key, bias in state.items():
        if key.endswith('.attn.qkv.bias') and f'{key}_mask' not in state and bias.ndim == 1:
            if not bias.is_meta and bias.chunk(3)[1].any():
                raise WeightsError(f'{key} has key biases, which timm\'s models do not have')
    return convert_eva(state)


def get_part(key: str) -> str:
    """Return the child of a backbone, or the block, that a tensor belongs to."""
    parts = key.split('.')
    return '.'.join(parts[:1 + (parts[0] == 'blocks')])


def drop_pretraining(state: State) -> State:
    """Drop the mask token and the decoder of MAE."""
    return {key: value for key, value in state.items() if not key.startswith(PRETRAINING)}


def drop_class_token(state: State) -> State:
    """Drop the class token and its position, which is the first."""
    if 'cls_token' not in state:
        return state
    state = {key: value for key, value in state.items() if key != 'cls_token'}
    positions = state.get('pos_embed')
    if positions is not None and math.isqrt(positions.shape[1] - 1)**2 == positions.shape[1] - 1:
        state['pos_embed'] = positions[:, 1:]
    return state


def rename_layer_scale(state: State) -> State:
    """Rename DeiT-III's ``gamma_1`` and ``gamma_2`` as in timm's ``VisionTransformer``."""
    return rename_keys(state, ((r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'), ))


def convert_openclip(state: State) -> State:
    """Strip the prefix of timm's names in OpenCLIP's image tower."""
    return strip_prefix(state, 'visual.trunk.')


DROPPED = {  # name of a format -> tensors that are not loaded
    'DINOv3': 'mask token, bias masks, all-zero biases, local_cls_norm',
    'Sapiens2': 'mask token',
    'MAE with its decoder': 'mask token, decoder',
    'DINOv2': 'mask token',
    'TIPSv2': 'mask token, text tower',
    'CLIP': 'text tower, pooling, projection',
    'Perception Encoder': 'text tower, pooling, projection',
    'OpenCLIP': 'text tower',
    'EVA-CLIP': 'text tower, rotary tables',
    'EVA': 'mask token, rotary tables',
    'BEiT-3': 'mask token, text tower',
    'RADIO': 'adaptors',
    'timm or Colonnade': 'classifier',
}
FORMATS = tuple(
    CheckpointFormat(f'PlainViT, {name}', prefixes, convert, without=without[0] if without else (),
                     dropped=DROPPED.get(name, ''))
    for name, prefixes, convert, *without in (
        ('DINOv3', ('storage_tokens', 'blocks.0.attn.qkv.'), convert_dinov3),
        ('Sapiens2', ('storage_tokens', 'blocks.0.attn.wq.'), convert_eva),
        ('MAE with its decoder', ('patch_embed.proj.weight', 'decoder_embed.'), drop_pretraining),
        ('DINOv2', ('mask_token', 'patch_embed.proj.weight', 'blocks.0.ls1.'), convert_vit),
        ('TIPSv2', ('vision_encoder.mask_token', ), convert_vit),
        ('CLIP', ('visual.conv1.weight', 'visual.class_embedding'), convert_vit,
         ('visual.attn_pool.', 'visual.transformer.resblocks.0.ls_')),
        ('Perception Encoder', ('visual.conv1.weight', 'visual.transformer.'), convert_eva),
        ('Perception Encoder', ('conv1.weight', 'transformer.resblocks.0.'), convert_eva,
         ('visual.', )),
        ('OpenCLIP', ('visual.trunk.patch_embed.', ), convert_openclip),
        ('EVA-CLIP', ('visual.patch_embed.', 'visual.pos_embed'), convert_eva),
        ('EVA', ('patch_embed.proj.weight',
                 ('blocks.0.mlp.w1.', 'blocks.0.mlp.w12.', 'blocks.0.attn.inner_attn_ln.')),
         convert_eva),
        ('EVA', ('patch_embed.proj.weight', 'mask_token', 'blocks.0.attn.q_bias'), convert_eva),
        ('BEiT-3', ('beit3.vision_embed.', 'beit3.encoder.'), convert_vit),
        ('AIMv2', ('preprocessor.patchifier.', 'trunk.blocks.0.'), convert_vit),
        ('RADIO', ('radio_model.model.patch_generator.', ), convert_vit),
        ('timm or Colonnade',
         ('patch_embed.proj.weight', 'blocks.0.', ('cls_token', 'reg_token', 'pos_embed')), dict,
         (*OTHER_BACKBONES, 'mask_token')),
    ))  # yapf: disable


def find_model(state: State, sizes: Settings) -> str:
    """Return the name of the model whose tensors a state dict under timm's names has.

    If many models have the same tensors, it is any of them, with the file's patch size if possible.
    """
    names = (*SHOWN, *sorted(list_known_models() - set(SHOWN)))
    without_biases = {
        key: value
        for key, value in state.items() if key not in find_zero_biases(state)
    }
    for variant in (state, without_biases, rename_layer_scale(state)):
        shapes, norm = _get_shapes(variant), 'norm.weight' in variant
        matches = [name for name in names if _get_model_shapes(name) == shapes
                   and ('norm.weight' in _build_state(name)) >= norm]  # yapf: disable
        matches.sort(key=lambda name: _build_state(name)['patch_embed.proj.weight'].shape[-1] !=
                     sizes['patch_size'])
        for name in matches:
            if look_up(name).sizes['depth'] == sizes['depth']:
                return name
    raise UserError(
        'no timm model has tensors of these shapes. If you know the arguments, load the file into '
        'PlainViT(dict(model=..., embed_dim=..., ...)), and save its state_dict()')


def find_arch(state: State, sizes: Settings) -> str | Settings:
    """Return the name of a model as :func:`find_model` does, or that of one without class token.
    """
    try:
        return find_model(state, sizes)
    except UserError:
        positions = state.get('pos_embed')
        if 'cls_token' in state or positions is None:
            raise
        token = positions[:, :1]
        padded = state | dict(cls_token=token, pos_embed=torch.cat((token, positions), dim=1))
        return dict(model=find_model(padded, sizes), class_token=False)


@cache
def _build_state(name: str) -> State:
    """Return the state dict of a timm model with one block, on the meta device."""
    with on_meta_device():
        try:
            return timm.create_model(name, depth=1).state_dict()
        except AssertionError:  # Sapiens2 lists the heads of each block
            return timm.create_model(name).state_dict()


@cache
def _get_model_shapes(name: str) -> Shapes:
    """Return the :func:`_get_shapes` of a timm model."""
    return _get_shapes(_build_state(name))


def _get_shapes(state: State) -> Shapes:
    """Return shapes that distinguish models, with the number of positions outside of the grid."""
    shapes = {
        key: value.shape
        for key, value in state.items()
        if key.startswith(DISTINCTIVE) and key != 'patch_embed.proj.weight'
    }
    shapes['embed_dim'] = state['patch_embed.proj.weight'].shape[:2]
    if 'rope.freqs' in state:
        shapes['rope.freqs'] = torch.Size()
    if 'pos_embed' in state:
        count = state['pos_embed'].shape[1]
        shapes['pos_embed'] = torch.Size([count - math.isqrt(count)**2])
    return shapes


def find_zero_biases(state: State) -> Shapes:
    """Return the shapes of EVA's biases if they are 0: most of timm's DINOv3 models lack them."""
    biases = {key: value for key, value in state.items() if key.endswith(EVA_BIASES)}
    if any(value.is_meta or value.any() for value in biases.values()):
        return {}
    return {key: value.shape for key, value in biases.items()}


def _get_resampling_options(model: str) -> dict[str, Any]:
    """Return the options by which timm resamples patches and positions of a model."""
    bilinear = 'flexi' in model or 'radio' in model
    return dict(interpolation='bilinear', antialias=False) if bilinear else {}


def resize_patches(state: State, own: Tensor, model: str) -> State:
    """Resize the patches of a file of another size than ``own`` ``(C, 3, p, p)``."""
    key = 'patch_embed.proj.weight'
    weight = state.get(key)
    if weight is None or weight.ndim != 4 or weight.shape == own.shape:
        return {}
    if weight.shape[:2] != own.shape[:2]:
        return {}
    return {
        key: resample_patch_embed(weight, list(own.shape[2:]), **_get_resampling_options(model))
    }


def resize_positions(state: State, own: Tensor, patches: PatchEmbed, model: str) -> State:
    """Resize the positions of a file of another square grid, and log a warning."""
    positions, grid = state.get('pos_embed'), patches.grid_size
    if positions is None or positions.ndim != 3 or positions.shape == own.shape:
        return {}
    prefix = own.shape[1] - math.prod(grid)
    count = max(positions.shape[1] - prefix, 0)
    side = math.isqrt(count)
    if side**2 != count or positions.shape[2] != own.shape[2]:
        return {}
    print_log(
        f'pos_embed is resized from {side} x {side} tokens to {grid[0]} x {grid[1]}, and then '
        f'again for each image. To keep it unchanged, set img_size={side * patches.patch_size[0]}',
        logger='current',
        level=logging.WARNING)
    resampled = resample_abs_pos_embed(
        positions,
        list(grid), [side, side],
        num_prefix_tokens=prefix,
        align_corners=model in ALIGNED_CORNERS or None,
        **_get_resampling_options(model))
    return dict(pos_embed=resampled)


def cut_frequencies(state: State, num_blocks: int) -> State:
    """Cut the learned rotary frequencies ``(2, blocks, ...)`` of a file with more blocks."""
    frequencies = state.get('rope.freqs')
    if frequencies is None or frequencies.ndim < 2 or frequencies.shape[1] <= num_blocks:
        return {}
    return {'rope.freqs': frequencies[:, :num_blocks]}
