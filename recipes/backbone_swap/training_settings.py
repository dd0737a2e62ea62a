"""How a model with a transformer as its backbone is trained, where a config was for another."""
from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from colonnade.engine.optim.batch_size import scale_final_rates, get_schedulers

from .notes import Notes

#: rate and decay of our recipes, for 16 images a step
ADAMW = dict(mmdet=(1e-4, 0.05), mmseg=(6e-5, 0.01))
IMAGES = 16
HIGH_RATE = 1e-3  # beyond, AdamW seldom trains transformers


def new_training(cfg: dict[str, Any], names: Iterable[str], notes: Notes) -> dict[str, Any]:
    """Return optimizer, its groups of parameters and the schedule of its rate.

    Args:
        cfg: The whole config, not changed.
        names: Of the new model's parameters.
        notes: Takes the reasons, and what is not decided.

    Returns:
        What may differ: ``optim_wrapper`` and ``param_scheduler``, as far as the config has them,
        and ``auto_scale_lr`` if it has none.
    """
    new = {key: deepcopy(cfg[key]) for key in ('optim_wrapper', 'param_scheduler') if cfg.get(key)}
    wrapper = new.get('optim_wrapper')
    if not isinstance(wrapper, dict) or not isinstance(wrapper.get('optimizer'), dict):
        notes.leave('there is no optim_wrapper.optimizer: set AdamW yourself')
        return new
    set_constructor(wrapper, notes)
    drop_keys(wrapper, list(names), notes)
    kind, rate = wrapper['optimizer'].get('type'), wrapper['optimizer'].get('lr')
    if kind == 'SGD':
        set_adamw(wrapper, cfg, notes)
        if 'auto_scale_lr' not in cfg:
            new['auto_scale_lr'] = dict(enable=False, base_batch_size=IMAGES)
            notes.reason('auto_scale_lr', 'The images a step that the rate is for.')
        if rate and scale_final_rates(get_schedulers(new), wrapper['optimizer']['lr'] / rate):
            notes.reason('param_scheduler', 'eta_min keeps its proportion to the rate; all else is '
                         'as it was.')
    elif kind != 'AdamW':
        notes.leave(f'optim_wrapper.optimizer is {kind}: our recipes have AdamW')
    elif rate and rate > HIGH_RATE:
        notes.leave(f'AdamW keeps its rate of {rate:g}, which was chosen for another backbone: '
                    f'our recipes have {ADAMW[cfg["default_scope"]][0]:g}')
    return new


def set_adamw(wrapper: dict[str, Any], cfg: dict[str, Any], notes: Notes) -> None:
    """Replace SGD by AdamW; norms do not decay, and gradients are clipped as before."""
    rate, decay = ADAMW[cfg['default_scope']]
    batch = (cfg.get('auto_scale_lr') or {}).get('base_batch_size', IMAGES)
    if batch != IMAGES:
        rate *= batch / IMAGES
        notes.leave(f'the rate is scaled to {rate:g}, because they train with {batch} images a '
                    f'step and our recipes with {IMAGES}: lower it if training diverges')
    wrapper['optimizer'] = dict(type='AdamW', lr=rate, betas=(0.9, 0.999), weight_decay=decay)
    notes.reason(
        'optim_wrapper', 'AdamW instead of SGD, with which transformers train badly; '
        'rate and decay are those of our recipes. Norms do not decay.')
    groups = dict(wrapper.get('paramwise_cfg') or {})
    if groups.pop('bias_lr_mult', 1) != 1:
        notes.reason('optim_wrapper', 'bias_lr_mult is left out: AdamW scales steps itself.')
    if 'norm_decay_mult' not in groups:
        keys = groups.get('custom_keys') or {}
        groups['custom_keys'] = {'norm': dict(decay_mult=0.), **keys}
    wrapper['paramwise_cfg'] = groups
    if wrapper.get('clip_grad'):
        notes.reason(
            'optim_wrapper', 'clip_grad stays: with AdamW, too, it bounds single large '
            'gradients, and does nothing else.')


def set_constructor(wrapper: dict[str, Any], notes: Notes) -> None:
    """Replace a layer-wise decay that knows other backbones by Colonnade's."""
    constructor = wrapper.get('constructor')
    if constructor in (None, 'DefaultOptimWrapperConstructor'):
        return
    groups = wrapper.get('paramwise_cfg') or {}
    rate = groups.get('decay_rate', groups.get('layer_decay_rate'))
    if rate is None:
        notes.leave(
            f'optim_wrapper.constructor is {constructor}: it may know nothing of the backbone')
        return
    wrapper['constructor'] = 'LayerDecayConstructor'
    kept = {key: groups[key] for key in ('custom_keys', 'bypass_duplicate') if key in groups}
    wrapper['paramwise_cfg'] = dict(layer_decay_rate=rate, flat_decay_mult=0., **kept)
    notes.reason(
        'optim_wrapper', f'{constructor} does not know our backbones; LayerDecayConstructor '
        'does the same for them.')


def drop_keys(wrapper: dict[str, Any], names: list[str], notes: Notes) -> None:
    """Remove rules that match no parameter."""
    groups = wrapper.get('paramwise_cfg') or {}
    keys = groups.get('custom_keys') or {}
    idle = [key for key in keys if not any(key in name for name in names)]
    if idle:
        groups['custom_keys'] = {key: keys[key] for key in keys if key not in idle}
        notes.reason(
            'optim_wrapper', f'No parameter is called {" or ".join(idle)} now: these '
            'custom_keys are left out.')
