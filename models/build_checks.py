"""What only building tells: of models without memory, of a light one's step, of weights here."""
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
from colonnade.settings.backbone_config import backbone_of
from colonnade.settings.checks.pretrained_weights import PLACE
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import name_of
from colonnade.settings.reading import errors_of_others
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import plan_loading
from colonnade.weights.pretrained import pretrained_of
from colonnade.weights.state_dicts import WeightsError

from .meta_device import build_on_meta
from .trial_step import trial_fault


def building_problems(cfg: Config, *, step: bool) -> list[Finding]:
    """What is wrong with a model, its weights and the settings of its parameters.

    Args:
        cfg: Of a detector or segmenter, in which nothing else is wrong.
        step: Also take a step of training; see :func:`step_problem`.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), \
            warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='.*avg_non_ignore', category=UserWarning)
        return list(problems_when_built(cfg, step=step))


def problems_when_built(cfg: Config, *, step: bool) -> Iterator[Finding]:
    """As :func:`building_problems`, in the config's scope."""
    MMLogger.get_current_instance().setLevel(logging.ERROR)  # parts of models say what they are
    try:
        with errors_of_others('the model cannot be built'):
            model = build_on_meta(cfg.model)
    except UserCodeError as error:
        yield Finding('model-build', str(error).partition('\n')[0], ('model', ),
                      cause=error.__cause__)  # yapf: disable
        return
    yield from unmatched_keys(cfg, model)
    if backbone_of(cfg.model) is None:
        kind = name_of((cfg.model.get('backbone') or cfg.model).get('type'))
        yield Finding('not-checked', f'{kind} is of others: its width was not compared with those '
                      'of neck and heads, and no step is taken', ('model', ))  # yapf: disable
        return
    yield from weights_on_disk(cfg, model)
    if step:
        yield from step_problem(cfg)


def step_problem(cfg: Config) -> Iterator[Finding]:
    """Why a model cannot take a step of training, with a single block of its backbone_class."""
    if (fault := trial_fault(shrink_backbone(cfg), gradients=True)) is not None:
        yield Finding(
            'training-step',
            f'a step of training on two drawn images fails: {type(fault).__name__}: {fault}',
            ('model', ),
            cause=fault)


def unmatched_keys(cfg: Config, model: nn.Module) -> Iterator[Finding]:
    """Keys of learning rates and decays that match no parameter."""
    wrapper = cfg.get('optim_wrapper') or {}
    names = [name for name, _ in model.named_parameters()]
    for key in (wrapper.get('paramwise_cfg') or {}).get('custom_keys') or {}:
        if not any(key in name for name in names):
            place = f'optim_wrapper.paramwise_cfg.custom_keys.{key}'
            yield Finding('parameter-key', f'{place} matches no parameter of the model',
                          (place, 'model'), 'colonnade list_param_groups lists them')


def weights_on_disk(cfg: Config, model: nn.Module) -> Iterator[Finding]:
    """Weights that do not fit, as far as they are files on this machine."""
    init_cfg = cfg.model.backbone.get('init_cfg')
    own = (pretrained_of(init_cfg) or {}).get('checkpoint')
    for place, source, part in (('load_from', cfg.get('load_from'), model),
                                (PLACE, own, model.get_submodule('backbone'))):
        if not source or place == PLACE and cfg.get('load_from'):
            continue
        if '://' in str(source):
            yield Finding('not-checked', f'{place}: {source} was not fetched', (place, ))
        elif Path(source).exists():
            try:
                plan_loading(part, fetch(source), str(source))
            except (WeightsError, OSError) as error:
                yield Finding('weights-file', f'{place}: {error}', (place, 'model'))


def shrink_backbone(cfg: Config) -> Config:
    """A config whose backbone has a single block, tapped as often as the whole one."""
    light = deepcopy(cfg)
    backbone, backbone_class = light.model.backbone, backbone_of(cfg.model)
    assert backbone is not None
    taps = backbone.get('out_indices')
    backbone.update(
        arch={
            **backbone_class.variants.complete(backbone.arch), 'depth': 1
        },
        out_indices=[0] * (4 if taps is None else len(taps)),
        frozen_stages=-1,
        init_cfg=None)
    try:
        build_on_meta(backbone)
    except ValueError:  # of settings that count blocks
        return cfg
    return light
