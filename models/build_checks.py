"""Checks that build the model: its parameters, a training step, and local weights files."""
from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope
from torch import nn

from colonnade.common.errors import UserCodeError
from colonnade.settings.backbone_config import get_backbone_class
from colonnade.settings.checks.pretrained_weights import PLACE
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import get_type_name
from colonnade.settings.reading import report_third_party_errors
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import plan_loading
from colonnade.weights.pretrained import get_pretrained
from colonnade.weights.state_dicts import WeightsError

from .building import build_on_meta
from .trial_step import find_trial_error


def check_model(cfg: Config, *, step: bool) -> list[Finding]:
    """Return findings about a model, its weights and the settings of its parameters."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), \
            warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='.*avg_non_ignore', category=UserWarning)
        return list(_iter_findings(cfg, step=step))


def _iter_findings(cfg: Config, *, step: bool) -> Iterator[Finding]:
    MMLogger.get_current_instance().setLevel(logging.ERROR)  # building logs a lot
    try:
        with report_third_party_errors('the model cannot be built'):
            model = build_on_meta(cfg.model)
    except UserCodeError as error:
        yield Finding('model-build', str(error).partition('\n')[0], ('model', ),
                      cause=error.__cause__)  # yapf: disable
        return
    yield from _find_unmatched_keys(cfg, model)
    if get_backbone_class(cfg.model) is None:
        kind = get_type_name((cfg.model.get('backbone') or cfg.model).get('type'))
        yield Finding('not-checked', f'{kind} is third-party: its width was not checked against '
                      'neck and heads, and no training step was run', ('model', ))  # yapf: disable
        return
    yield from _check_local_weights(cfg, model)
    if step:
        failure = find_trial_error(shrink_backbone(cfg), gradients=True)
        if failure is not None:
            yield Finding(
                'training-step',
                f'a training step on synthetic images failed: {type(failure).__name__}: {failure}',
                ('model', ),
                cause=failure)


def _find_unmatched_keys(cfg: Config, model: nn.Module) -> Iterator[Finding]:
    """Yield keys of learning rates and decays that match no parameter."""
    wrapper = cfg.get('optim_wrapper') or {}
    names = [name for name, _ in model.named_parameters()]
    for key in (wrapper.get('paramwise_cfg') or {}).get('custom_keys') or {}:
        if not any(key in name for name in names):
            place = f'optim_wrapper.paramwise_cfg.custom_keys.{key}'
            yield Finding('parameter-key', f'{place} matches no parameter of the model',
                          (place, 'model'), 'colonnade list-param-groups lists them')


def _check_local_weights(cfg: Config, model: nn.Module) -> Iterator[Finding]:
    """Yield local weights files that do not fit."""
    init_cfg = cfg.model.backbone.get('init_cfg')
    own = (get_pretrained(init_cfg) or {}).get('checkpoint')
    for place, source, part in (('load_from', cfg.get('load_from'), model),
                                (PLACE, own, model.get_submodule('backbone'))):
        if not source or place == PLACE and cfg.get('load_from'):
            continue
        if '://' in str(source):
            yield Finding('not-checked', f'{place}: {source} was not downloaded', (place, ))
        elif Path(source).exists():
            try:
                plan_loading(part, fetch(source), str(source))
            except (WeightsError, OSError) as error:
                yield Finding('weights-file', f'{place}: {error}', (place, 'model'))


def shrink_backbone(cfg: Config) -> Config:
    """Return a config whose backbone has one block, with as many feature maps."""
    light = deepcopy(cfg)
    backbone, backbone_class = light.model.backbone, get_backbone_class(cfg.model)
    assert backbone_class is not None
    indices = backbone.get('out_indices')
    backbone.update(
        arch={
            **backbone_class.variants.complete(backbone.arch), 'depth': 1
        },
        out_indices=[0] * (4 if indices is None else len(indices)),
        frozen_stages=-1,
        init_cfg=None)
    try:
        build_on_meta(backbone)
    except ValueError:  # settings that refer to other blocks
        return cfg
    return light
