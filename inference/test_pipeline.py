"""The test pipeline of a config for decoded images."""
from __future__ import annotations

from copy import deepcopy
from typing import Any

from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from colonnade.common.errors import UserError
from colonnade.settings.pipeline_steps import get_step_type, is_loading_annotations


def build_array_pipeline(cfg: Config) -> Compose:
    """Build the test pipeline of a config for decoded images, see :func:`get_array_steps`."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return Compose(get_array_steps(cfg))


def get_array_steps(cfg: Config) -> list[dict[str, Any]]:
    """Return the steps of the test pipeline, or of the validation pipeline, for decoded images."""
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
    if isinstance(loader, list):  # several datasets, tested one after the other
        loader = loader[0]
    dataset = loader.get('dataset') or {}
    while 'pipeline' not in dataset and {'dataset', 'datasets'} & dataset.keys():  # a wrapper
        dataset = dataset.get('dataset') or dataset['datasets'][0]
    steps = deepcopy(dataset.get('pipeline') or cfg.get('test_pipeline') or [])
    load = next((step for step in steps if get_step_type(step) == 'LoadImageFromFile'), None)
    if load is None:
        raise UserError('the config has no test pipeline that begins with LoadImageFromFile')
    if (color_type := load.get('color_type', 'color')) != 'color':
        raise UserError(
            f'LoadImageFromFile has color_type {color_type!r} in the config: prediction '
            "supports only 'color'")
    settings = {key: load[key] for key in ('to_float32', ) if key in load}
    settings['type'] = f'{cfg.default_scope}.LoadImageFromNDArray'
    return [settings if step is load else step for step in steps
            if not is_loading_annotations(step)]  # yapf: disable
