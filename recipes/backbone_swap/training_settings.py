"""Optimizer settings for a model whose backbone became a transformer."""
from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from colonnade.engine.optim.batch_size import get_schedulers, scale_final_rates

from .config_changes import Notes

#: learning rate and weight decay of Colonnade's recipes, for a batch of BATCH_SIZE images
ADAMW = dict(mmdet=(1e-4, 0.05), mmseg=(6e-5, 0.01))
BATCH_SIZE = 16
HIGH_RATE = 1e-3  # AdamW seldom trains transformers with a higher learning rate


def adapt_training(cfg: dict[str, Any], names: Iterable[str], notes: Notes) -> dict[str, Any]:
    """Return the optimizer, its parameter groups and the learning rate schedule.

    Args:
        cfg: Full config, not modified.
        names: Parameter names of the new model.
        notes: Notes, to which reasons and open questions are added.

    Returns:
        ``optim_wrapper`` and ``param_scheduler``, if the config has them, and ``auto_scale_lr`` if
        it does not.
    """
    new = {key: deepcopy(cfg[key]) for key in ('optim_wrapper', 'param_scheduler') if cfg.get(key)}
    wrapper = new.get('optim_wrapper')
    if not isinstance(wrapper, dict) or not isinstance(wrapper.get('optimizer'), dict):
        notes.open_questions.append('the config has no optim_wrapper.optimizer: set AdamW yourself')
        return new
    _set_constructor(wrapper, notes)
    groups = wrapper.get('paramwise_cfg') or {}
    keys = groups.get('custom_keys') or {}
    names = list(names)
    if idle := [key for key in keys if not any(key in name for name in names)]:
        groups['custom_keys'] = {key: keys[key] for key in keys if key not in idle}
        notes.reasons['optim_wrapper'].append(
            f'No parameter name contains {" or ".join(idle)}: these '
            'custom_keys are removed.')
    kind, rate = wrapper['optimizer'].get('type'), wrapper['optimizer'].get('lr')
    if kind == 'SGD':
        _set_adamw(wrapper, cfg, notes)
        if 'auto_scale_lr' not in cfg:
            new['auto_scale_lr'] = dict(enable=False, base_batch_size=BATCH_SIZE)
            notes.reasons['auto_scale_lr'].append('The batch size that the learning rate is for.')
        if rate and scale_final_rates(get_schedulers(new), wrapper['optimizer']['lr'] / rate):
            notes.reasons['param_scheduler'].append('eta_min is scaled with the learning rate.')
    elif kind != 'AdamW':
        notes.open_questions.append(
            f"optim_wrapper.optimizer is {kind}: Colonnade's recipes use AdamW")
    elif rate and rate > HIGH_RATE:
        notes.open_questions.append(
            f'AdamW keeps its learning rate {rate:g}, chosen for another backbone: '
            f"Colonnade's recipes use {ADAMW[cfg['default_scope']][0]:g}")
    return new


def _set_adamw(wrapper: dict[str, Any], cfg: dict[str, Any], notes: Notes) -> None:
    """Replace SGD by AdamW without decay of norms."""
    rate, decay = ADAMW[cfg['default_scope']]
    batch_size = (cfg.get('auto_scale_lr') or {}).get('base_batch_size', BATCH_SIZE)
    if batch_size != BATCH_SIZE:
        rate *= batch_size / BATCH_SIZE
        notes.open_questions.append(
            f'the learning rate is scaled to {rate:g}, for {batch_size} images a step instead of '
            f'{BATCH_SIZE}: lower it if training diverges')
    wrapper['optimizer'] = dict(
        type='AdamW', lr=rate, betas=(0.9, 0.999), weight_decay=decay, fused=True)
    notes.reasons['optim_wrapper'].append(
        'AdamW replaces SGD, which trains transformers badly. Learning rate and '
        "weight decay are those of Colonnade's recipes. Norms do not decay.")
    groups = dict(wrapper.get('paramwise_cfg') or {})
    if groups.pop('bias_lr_mult', 1) != 1:
        notes.reasons['optim_wrapper'].append('bias_lr_mult is removed: AdamW scales steps itself.')
    if 'norm_decay_mult' not in groups:
        keys = groups.get('custom_keys') or {}
        groups['custom_keys'] = {'norm': dict(decay_mult=0.), **keys}
    wrapper['paramwise_cfg'] = groups


def _set_constructor(wrapper: dict[str, Any], notes: Notes) -> None:
    """Replace a layer-wise LR decay for other backbones by Colonnade's."""
    constructor = wrapper.get('constructor')
    if constructor in (None, 'DefaultOptimWrapperConstructor'):
        return
    groups = wrapper.get('paramwise_cfg') or {}
    rate = groups.get('decay_rate', groups.get('layer_decay_rate'))
    if rate is None:
        notes.open_questions.append(
            f'optim_wrapper.constructor is {constructor}, which may not support the backbone')
        return
    wrapper['constructor'] = 'LayerDecayConstructor'
    others = {key: groups[key] for key in ('custom_keys', 'bypass_duplicate') if key in groups}
    wrapper['paramwise_cfg'] = dict(layer_decay_rate=rate, flat_decay_mult=0., **others)
    notes.reasons['optim_wrapper'].append(f"{constructor} does not support Colonnade's backbones; "
                                          'LayerDecayConstructor does the same for them.')
