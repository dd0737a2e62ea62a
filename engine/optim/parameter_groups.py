"""Learning rate and weight decay of every parameter of a config."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper

from colonnade.models.building import build_on_meta
from colonnade.settings.overrides import merge_options
from colonnade.settings.reading import read_config

from ..runner.log_filters import QuietFilter

Groups = dict[tuple[float, float], list[str]]  # learning rate and weight decay -> parameter names


def find_parameter_groups(config: Path, options: dict[str, Any]) -> tuple[Groups, list[str]]:
    """Return parameters by learning rate and weight decay, and those that are not trained."""
    MMLogger.get_current_instance().addFilter(QuietFilter())
    cfg = read_config(config)
    merge_options(cfg, options)
    model = build_on_meta(cfg.model)
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper':  # needs a GPU, and has the same groups
        cfg.optim_wrapper = dict(cfg.optim_wrapper, type='OptimWrapper')
        for option in ('loss_scale', 'dtype'):
            cfg.optim_wrapper.pop(option, None)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups: Groups = {}
    for group in optimizer.param_groups:
        key = (group['lr'], group['weight_decay'])
        members = [names[id(p)] for p in group['params'] if p.requires_grad]
        if members:
            groups.setdefault(key, []).extend(members)
    trained = {name for members in groups.values() for name in members}
    return groups, [name for name in names.values() if name not in trained]
