"""Which of timm's models a state dict is of."""
from __future__ import annotations

from functools import cache

import timm
import torch

from colonnade.weights.state_dicts import Shapes, State

from ..variants import Settings
from .architectures import SHOWN, known_models, look_up
from .layouts import with_layer_scale_modules

EVA_BIASES = ('.attn.q_bias', '.attn.v_bias')
#: what tells models apart, beside their sizes
TELLING = ('blocks.0.', 'cls_token', 'dist_token', 'reg_token', 'norm_pre.')


def find_model(state: State, sizes: Settings) -> str:
    """The name of the model that a state dict under timm's names is of, with a head or without.

    Args:
        state: Its tensors.
        sizes: Width, depth and patch size that they show.

    Raises:
        ValueError: If it is of none.
    """
    forms = [shapes_of(state), shapes_of(with_layer_scale_modules(state))]
    for name in (*SHOWN, *sorted(known_models() - set(SHOWN))):
        if shapes_of_model(name) in forms and look_up(name).sizes['depth'] == sizes['depth']:
            return name
    raise ValueError('no model of timm has tensors of these shapes, and a custom arch does not '
                     'follow from them')


@cache
def shapes_of_model(name: str) -> Shapes:
    """:func:`shapes_of` one of timm's models, of which the first block alone is built."""
    with torch.device('meta'):
        return shapes_of(timm.create_model(name, depth=1).state_dict())


def shapes_of(state: State) -> Shapes:
    """Of the tensors that tell models apart; biases of 0 are left out, as timm does of DINOv3."""
    shapes = {
        key: value.shape
        for key, value in state.items()
        if key.startswith(TELLING) and not (key.endswith(EVA_BIASES) and is_zero(value))
    }
    return shapes | {key: torch.Size() for key in ('pos_embed', 'rope.freqs') if key in state}


def is_zero(value: torch.Tensor) -> bool:
    """Whether a tensor of a file is 0; of a model without memory, it is not."""
    return not value.is_meta and not value.any()
