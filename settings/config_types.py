"""Values of a config that are of another kind than what reads them takes."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from colonnade.common.errors import UserError

from .dataset_paths import DATALOADERS
from .registries import find_class, is_users

DICT, DICTS, LIST, TEXT, TEXTS = ('a dict of settings', 'a dict of settings, or a list of them',
                                  'a list', 'text', 'text or a list of it')
KINDS: dict[str, tuple[type, ...]] = {
    DICT: (dict, ),
    DICTS: (dict, list, tuple),
    LIST: (list, tuple),
    TEXT: (str, Path),
    TEXTS: (str, Path, list, tuple),
}
#: settings of the libraries' data sets, also of those that wrap others
DATASET = dict(pipeline=LIST, ann_file=TEXT, data_root=TEXT, data_prefix=DICT, metainfo=DICT,
               dataset=DICT, datasets=LIST)  # yapf: disable
#: what the values of a section must be; other keys are the business of those who read them
SECTIONS = {
    '': {
        **dict.fromkeys(('model', 'optim_wrapper', 'default_hooks', 'env_cfg', 'auto_scale_lr',
                         'train_dataloader', 'val_dataloader', 'test_dataloader', 'train_cfg',
                         'val_cfg', 'test_cfg'), DICT),
        **dict.fromkeys(('val_evaluator', 'test_evaluator', 'param_scheduler'), DICTS),
        'custom_hooks': LIST,
        'work_dir': TEXT,
    },
    'model': {
        **dict.fromkeys(('backbone', 'data_preprocessor', 'train_cfg', 'test_cfg'), DICT),
        **dict.fromkeys(('neck', 'decode_head', 'auxiliary_head'), DICTS),
    },
    'optim_wrapper': dict(optimizer=DICT),
}  # yapf: disable
#: sections that are lists of settings, if they are lists
OF_DICTS = ('val_evaluator', 'test_evaluator', 'param_scheduler', 'custom_hooks', 'pipeline')


def kind_problems(cfg: Config) -> list[str]:
    """Sections that have no settings, such as a model that is text."""
    found: list[str] = []
    for path, kinds in SECTIONS.items():
        section = cfg.get(path) if path else cfg
        if isinstance(section, (dict, Config)):
            found += problems_of(section, path, kinds)
    for key in DATALOADERS:
        if isinstance(loader := cfg.get(key), dict):
            found += problems_of_dataset(loader.get('dataset'), f'{key}.dataset')
    return found


def problems_of_dataset(dataset: Any, name: str) -> Iterator[str]:
    """The wrong values of a library's data set, and of those that it wraps; a user's take any."""
    if not isinstance(dataset, dict):
        yield f'{name} must be {DICT}, got {dataset!r:.80}'
        return
    kind = find_class(dataset.get('type'), DATASETS)
    if kind is None or is_users(kind):
        return
    yield from problems_of(dataset, name, DATASET)
    if isinstance(metainfo := dataset.get('metainfo'), dict):
        yield from problems_of(metainfo, f'{name}.metainfo', dict(classes=TEXTS))
    if isinstance(wrapped := dataset.get('dataset'), dict):
        yield from problems_of_dataset(wrapped, f'{name}.dataset')
    if isinstance(parts := dataset.get('datasets'), (list, tuple)):
        for index, part in enumerate(parts):
            yield from problems_of_dataset(part, f'{name}.datasets[{index}]')


def problems_of(section: dict[str, Any] | Config, path: str, kinds: dict[str,
                                                                         str]) -> Iterator[str]:
    """The wrong values of a section."""
    for key, kind in kinds.items():
        value = section.get(key)
        where = f'{path}.{key}' if path else key
        if value is not None and not isinstance(value, KINDS[kind]):
            yield f'{where} must be {kind}, got {value!r:.80}'
        elif key in OF_DICTS and isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, (str, int, float, list, type(None))):
                    yield f'{where}[{index}] must be a dict of settings, got {item!r:.80}'


def check_types(cfg: Config) -> None:
    """Raise a ValueError for sections that have no settings, see :func:`kind_problems`."""
    if problems := kind_problems(cfg):
        raise UserError('the config cannot be read:\n' + '\n'.join(f'  {p}' for p in problems))
