"""What a plain vision transformer asks before weights are loaded, and does behind."""
from __future__ import annotations

from typing import Any

import torch
from timm.models.eva import EvaAttention

from colonnade.weights.state_dicts import State, WeightsError

from ..columnar import ColumnarBackbone
from .attention import SelfAttention


def require_norm(backbone: ColumnarBackbone, state_dict: State, prefix: str, *_: Any) -> None:
    """A hook before loading: a model that was trained with the final norm is loaded with it.

    Raises:
        WeightsError: If the backbone has none, and the file of a whole model has it.
    """
    if prefix and not backbone.tap_norm and f'{prefix}norm.weight' in state_dict:
        raise WeightsError('the maps of this model were normalised: set '
                           f'model.{prefix}tap_norm=True')


def fill_buffers(backbone: ColumnarBackbone, _: Any) -> None:
    """A hook behind loading: compute what no file holds, for backbones that were built without memory.

    These are frequencies of rotary positions, and the keys' biases of EVA, which are 0.
    """
    device = next(backbone.parameters()).device
    for module in backbone.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta and not device.type == 'meta':
                setattr(module, name, torch.empty_like(buffer, device=device))
    if backbone.rope is not None:
        backbone.rope.init_non_persistent_buffers()
    for module in backbone.modules():
        if isinstance(module, (SelfAttention, EvaAttention)):
            module.init_non_persistent_buffers()
