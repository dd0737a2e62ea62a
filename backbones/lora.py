"""Low-rank adaptation of backbones (LoRA, arXiv 2106.09685) by the ``peft`` library."""
from __future__ import annotations

from torch import nn

from colonnade.common.errors import UserError
from colonnade.weights.state_dicts import State

BASE = '.base_layer.'  # peft's name of an adapted layer
UPDATE = '.lora_'


def add_lora(backbone: nn.Module,
             channels: int,
             rank: int = 8,
             alpha: int | None = None,
             dropout: float = 0.) -> None:
    """Freeze a backbone, and add trained low-rank updates to the linear layers of its blocks.

    Layers that mix tokens or heads rather than channels stay as they are.

    Args:
        backbone: Backbone with ``blocks``; it is changed in place.
        channels: Width C.
        rank: Rank r of an update ``B A``, with A ``(r, in)`` and B ``(out, r)``.
        alpha: Numerator of the updates' factor ``alpha / r``. Defaults to ``2 r``.
        dropout: Probability that a channel is dropped before an update.

    Raises:
        ImportError: If ``peft`` is not installed.
        UserError: If a value is invalid.
    """
    if type(rank) is not int or rank < 1:
        raise UserError(f'lora.rank must be a positive integer, got {rank!r}')
    if not 0 <= dropout < 1:
        raise UserError(f'lora.dropout must be in [0, 1), got {dropout!r}')
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError(f'lora requires peft: pip install peft ({error})') from error
    names = [f'blocks.{name}' for name, layer in backbone.get_submodule('blocks').named_modules()
             if type(layer) is nn.Linear and channels in (layer.in_features, layer.out_features)
             ]  # yapf: disable
    inject_adapter_in_model(
        LoraConfig(
            r=rank,
            lora_alpha=2 * rank if alpha is None else alpha,
            lora_dropout=dropout,
            target_modules=names), backbone)


def merge_updates(state: State, rank: int = 8, alpha: int | None = None, **_: float) -> State:
    """Return a state dict without updates, which are added to the weights that they adapt.

    Args:
        state: Tensors of an adapted backbone, or of a model with one.
        rank: Rank of the updates.
        alpha: See :func:`add_lora`.
    """
    scale = (2 * rank if alpha is None else alpha) / rank
    merged = {}
    for name, value in state.items():
        if UPDATE in name:
            continue
        layer, base, rest = name.partition(BASE)
        if base and rest == 'weight':
            down, up = (state[f'{layer}{UPDATE}{part}.default.weight'] for part in 'AB')
            value = value + scale * (up @ down)
        merged[name.replace(BASE, '.')] = value
    return merged


def rename_adapted(module: nn.Module, state: State) -> State:
    """Rename tensors of a file without LoRA to those of adapted layers; updates start as they are.
    """
    own = module.state_dict()
    updates = {name: value for name, value in own.items() if UPDATE in name}
    if not updates or any(UPDATE in name for name in state):
        return state
    names = {name.replace(BASE, '.'): name for name in own if BASE in name}
    return {names.get(name, name): value for name, value in state.items()} | updates
