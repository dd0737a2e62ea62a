"""Types of config values: sections that readers expect to be dicts, lists or strings."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from colonnade.common.errors import UserError

from .dataset_paths import DATALOADERS
from .registries import find_class, is_custom_class

DICT, DICTS, LIST, STRING, STRINGS = ('a dict of settings', 'a dict of settings or a list of dicts',
                                      'a list', 'a string', 'a string or a list of strings')
TYPES: dict[str, tuple[type, ...]] = {
    DICT: (dict, ),
    DICTS: (dict, list, tuple),
    LIST: (list, tuple),
    STRING: (str, Path),
    STRINGS: (str, Path, list, tuple),
}
#: settings of dataset classes of mmdet and mmseg, also of wrappers
DATASET = dict(pipeline=LIST, ann_file=STRING, data_root=STRING, data_prefix=DICT, metainfo=DICT,
               dataset=DICT, datasets=LIST)  # yapf: disable
#: section -> key -> expected type; other keys are checked by the code that reads them
SECTIONS = {
    '': {
        **dict.fromkeys(('model', 'optim_wrapper', 'default_hooks', 'env_cfg', 'auto_scale_lr',
                         'train_dataloader', 'val_dataloader', 'test_dataloader', 'train_cfg',
                         'val_cfg', 'test_cfg'), DICT),
        **dict.fromkeys(('val_evaluator', 'test_evaluator', 'param_scheduler'), DICTS),
        **dict.fromkeys(('custom_hooks', 'accepted_findings'), LIST),
        'work_dir': STRING,
    },
    'model': {
        **dict.fromkeys(('backbone', 'data_preprocessor', 'train_cfg', 'test_cfg'), DICT),
        **dict.fromkeys(('neck', 'decode_head', 'auxiliary_head'), DICTS),
    },
    'optim_wrapper': dict(optimizer=DICT),
}  # yapf: disable
#: keys whose values, if they are lists, are lists of dicts
DICT_LISTS = ('val_evaluator', 'test_evaluator', 'param_scheduler', 'custom_hooks', 'pipeline')


def find_type_errors(cfg: Config) -> list[str]:
    """Return a message for each section of the wrong type, such as a model that is a string."""
    problems: list[str] = []
    for path, types in SECTIONS.items():
        section = cfg.get(path) if path else cfg
        if isinstance(section, (dict, Config)):
            problems += _check_section(section, path, types)
    for key in DATALOADERS:
        if isinstance(loader := cfg.get(key), dict):
            problems += _check_dataset(loader.get('dataset'), f'{key}.dataset')
    return problems


def _check_dataset(dataset: Any, name: str) -> Iterator[str]:
    """Check a dataset and those that it wraps; custom dataset classes accept any values."""
    if not isinstance(dataset, dict):
        yield f'{name} must be {DICT}, got {dataset!r:.80}'
        return
    cls = find_class(dataset.get('type'), DATASETS)
    if cls is None or is_custom_class(cls):
        return
    yield from _check_section(dataset, name, DATASET)
    if isinstance(metainfo := dataset.get('metainfo'), dict):
        yield from _check_section(metainfo, f'{name}.metainfo', dict(classes=STRINGS))
    if isinstance(wrapped := dataset.get('dataset'), dict):
        yield from _check_dataset(wrapped, f'{name}.dataset')
    if isinstance(datasets := dataset.get('datasets'), (list, tuple)):
        for index, each in enumerate(datasets):
            yield from _check_dataset(each, f'{name}.datasets[{index}]')


def _check_section(section: dict[str, Any] | Config, path: str, types: dict[str,
                                                                            str]) -> Iterator[str]:
    for key, expected in types.items():
        value = section.get(key)
        name = f'{path}.{key}' if path else key
        if value is not None and not isinstance(value, TYPES[expected]):
            yield f'{name} must be {expected}, got {value!r:.80}'
        elif key in DICT_LISTS and isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, (str, int, float, list, type(None))):
                    yield f'{name}[{index}] must be {DICT}, got {item!r:.80}'


def check_types(cfg: Config) -> None:
    """Raise a ValueError that lists the sections of the wrong type."""
    if problems := find_type_errors(cfg):
        raise UserError('the config cannot be read:\n' + '\n'.join(f'  {p}' for p in problems))
