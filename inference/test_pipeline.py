"""The test pipeline of a config, for images that are decoded already."""
from __future__ import annotations

from copy import deepcopy
from typing import Any

from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from colonnade.common.errors import UserError
from colonnade.settings.pipeline_steps import kind_of_step, loads_annotations


def pipeline_for_arrays(cfg: Config) -> Compose:
    """The test pipeline of a config, for images that are decoded already.

    Raises:
        ValueError: As :func:`steps_for_arrays`.
    """
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return Compose(steps_for_arrays(cfg))


def steps_for_arrays(cfg: Config) -> list[dict[str, Any]]:
    """The steps of that pipeline.

    Raises:
        ValueError: If the config has none, or it loads no image in colour.
    """
    steps = steps_of(cfg)
    loads = [step for step in steps if kind_of_step(step) == 'LoadImageFromFile']
    if not loads:
        raise UserError('the config has no test pipeline that begins with LoadImageFromFile')
    if (colours := loads[0].get('color_type', 'color')) != 'color':
        raise UserError(f'the config loads images with color_type {colours!r}: only color can be '
                        'predicted')
    settings = {key: loads[0][key] for key in ('to_float32', ) if key in loads[0]}
    settings['type'] = f'{cfg.default_scope}.LoadImageFromNDArray'
    return [settings if step is loads[0] else step for step in steps
            if not loads_annotations(step)]  # yapf: disable


def steps_of(cfg: Config) -> list[dict[str, Any]]:
    """The test pipeline of a config; without one, that of validation; empty without both."""
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
    if isinstance(loader, list):  # several data sets, tested one after the other
        loader = loader[0]
    dataset = loader.get('dataset') or {}
    while 'pipeline' not in dataset and {'dataset', 'datasets'} & dataset.keys():  # wrapped
        dataset = dataset.get('dataset') or dataset['datasets'][0]
    return deepcopy(dataset.get('pipeline') or cfg.get('test_pipeline') or [])
