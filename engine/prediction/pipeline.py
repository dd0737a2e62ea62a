"""The test pipeline of a config, for images that are decoded already."""
from __future__ import annotations

from copy import deepcopy
from typing import Any

from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope


def pipeline_for_arrays(cfg: Config) -> Compose:
    """The test pipeline of a config, for images that are decoded already.

    Raises:
        ValueError: If the config has none, or it loads no image.
    """
    dataset = (cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}).get('dataset')
    while dataset and 'pipeline' not in dataset and 'dataset' in dataset:  # wrapped
        dataset = dataset.dataset
    steps = deepcopy((dataset or {}).get('pipeline') or cfg.get('test_pipeline') or [])
    loads = [step for step in steps if kind_of_step(step) == 'LoadImageFromFile']
    if not loads:
        raise ValueError('the config has no test pipeline that begins with LoadImageFromFile')
    library = cfg.default_scope
    settings = {key: loads[0][key] for key in ('to_float32', ) if key in loads[0]}
    settings['type'] = f'{library}.LoadImageFromNDArray'
    kept = [settings if step is loads[0] else step for step in steps
            if 'LoadAnnotations' not in kind_of_step(step)]  # yapf: disable
    with DefaultScope.overwrite_default_scope(library):
        return Compose(kept)


def kind_of_step(step: dict[str, Any]) -> str:
    """The name of a step of a pipeline, without its library."""
    kind = step['type']
    return (kind if isinstance(kind, str) else kind.__name__).rpartition('.')[2]
