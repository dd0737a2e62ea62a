"""Which of timm's models a state dict is of."""
from __future__ import annotations

import math
from functools import cache

import timm
import torch

from colonnade.common.errors import UserError
from colonnade.weights.state_dicts import Shapes, State

from ..kernels.without_memory import without_memory
from ..variants import Settings
from .architectures import SHOWN, known_models, look_up
from .layouts import with_layer_scale_modules

EVA_BIASES = ('.attn.q_bias', '.attn.v_bias')
#: begins of what tells models apart, beside their depth and the size of patches
TELLING = ('blocks.0.', 'cls_token', 'dist_token', 'reg_token', 'norm_pre.', 'patch_embed.')


def find_model(state: State, sizes: Settings) -> str:
    """The name of a model that a state dict under timm's names is of, with a head or without.

    Many models have the same tensors, and any of them is given: of the file's patch size if there
    is one.

    Args:
        state: Its tensors.
        sizes: Width, depth and patch size that they show.

    Raises:
        ValueError: If it is of none.
    """
    names = (*SHOWN, *sorted(known_models() - set(SHOWN)))
    without_biases = {key: value for key, value in state.items() if key not in zero_biases(state)}
    for form in (state, without_biases, with_layer_scale_modules(state)):
        shapes, norm = shapes_of(form), 'norm.weight' in form
        alike = [name for name in names
                 if shapes_of_model(name) == shapes and has_norm(name) >= norm]  # yapf: disable
        for name in sorted(alike, key=lambda name: patch_size_of(name) != sizes['patch_size']):
            if look_up(name).sizes['depth'] == sizes['depth']:
                return name
    raise UserError(
        'no model of timm has tensors of these shapes. If you know its arguments, load the file '
        'into PlainViT(dict(model=..., embed_dim=..., ...)), and save its state_dict()')


@cache
def block_of_model(name: str) -> State:
    """State dict of one of timm's models with a single block, without memory."""
    with without_memory():
        try:
            return timm.create_model(name, depth=1).state_dict()
        except AssertionError:  # Sapiens2 has numbers of heads for each block
            return timm.create_model(name).state_dict()


@cache
def shapes_of_model(name: str) -> Shapes:
    """:func:`shapes_of` one of timm's models."""
    return shapes_of(block_of_model(name))


def has_norm(name: str) -> bool:
    """Whether a model has a norm behind its last block."""
    return 'norm.weight' in block_of_model(name)


def patch_size_of(name: str) -> int:
    """Side of a model's patches."""
    return block_of_model(name)['patch_embed.proj.weight'].shape[-1]


def shapes_of(state: State) -> Shapes:
    """Shapes of the tensors that tell models apart; of positions, what is not of the grid."""
    shapes = {
        key: value.shape
        for key, value in state.items()
        if key.startswith(TELLING) and key != 'patch_embed.proj.weight'
    }
    shapes['embed_dim'] = state['patch_embed.proj.weight'].shape[:2]
    if 'rope.freqs' in state:
        shapes['rope.freqs'] = torch.Size()
    if 'pos_embed' in state:
        count = state['pos_embed'].shape[1]
        shapes['pos_embed'] = torch.Size([count - math.isqrt(count)**2])
    return shapes


def zero_biases(state: State) -> Shapes:
    """Shapes of :data:`EVA_BIASES` if they all are 0: most of timm's DINOv3 models lack them."""
    biases = {key: value for key, value in state.items() if key.endswith(EVA_BIASES)}
    if any(value.is_meta or value.any() for value in biases.values()):
        return {}
    return {key: value.shape for key, value in biases.items()}
