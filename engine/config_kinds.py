"""Values of a config that are of another kind than what reads them takes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mmengine.config import Config

from .options import TOP


class HasConfig(Protocol):
    """Options of a run.

    Attributes:
        config: A config file.
    """
    config: Path


Named = TypeVar('Named', bound=HasConfig)
Answer = TypeVar('Answer')
#: keys of a config, and of what is in it, whose values have settings
DICTS = ('model', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'dataset', 'train_cfg',
         'val_cfg', 'test_cfg', 'default_hooks', 'optim_wrapper', 'optimizer', 'env_cfg',
         'backbone', 'data_preprocessor', 'metainfo', 'data_prefix', 'auto_scale_lr')
DICTS_OR_LISTS = ('val_evaluator', 'test_evaluator', 'param_scheduler', 'decode_head', 'neck',
                  'auxiliary_head')
LISTS = ('pipeline', 'custom_hooks')
TEXTS = ('ann_file', 'data_root', 'work_dir')
#: sections that are lists of settings, if they are lists
OF_DICTS = ('val_evaluator', 'test_evaluator', 'param_scheduler', *LISTS)


def check_kinds(cfg: Config) -> None:
    """Raise a ValueError for a section that has no settings, such as a model that is text.

    Args:
        cfg: Of which nothing is built.
    """
    read = {key: value for key, value in cfg._cfg_dict.items() if key in TOP}  # no variables
    problems = list(problems_below(read, ''))
    if problems:
        raise ValueError('the config cannot be read:\n' + '\n'.join(f'  {p}' for p in problems))


def problems_below(section: dict[str, Any], path: str) -> Iterator[str]:
    """The wrong values of a dict and of those in it."""
    for key, value in section.items():
        where = f'{path}.{key}' if path else str(key)
        if value is None:
            continue
        if key in DICTS and not isinstance(value, dict):
            yield f'{where} must be a dict of settings, got {value!r:.80}'
        elif key in DICTS_OR_LISTS and not isinstance(value, (dict, list, tuple)):
            yield f'{where} must be a dict of settings, or a list of them, got {value!r:.80}'
        elif key in LISTS and not isinstance(value, (list, tuple)):
            yield f'{where} must be a list, got {value!r:.80}'
        elif key in TEXTS and not isinstance(value, str):
            yield f'{where} must be text, got {value!r:.80}'
        elif isinstance(value, dict):
            yield from problems_below(value, where)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from problems_below(item, f'{where}[{index}]')
                elif key in OF_DICTS and isinstance(item, (str, int, float, list, type(None))):
                    yield f'{where}[{index}] must be a dict of settings, got {item!r:.80}'


def reading_config(function: Callable[[Named], Answer]) -> Callable[[Named], Answer]:
    """Let a function raise a ValueError that names the config where a value is of no use.

    Args:
        function: Takes options that have a config.
    """

    @wraps(function)
    def wrapped(options: Named) -> Answer:
        try:
            return function(options)
        except (AttributeError, TypeError, KeyError, IndexError) as error:
            raise ValueError(f'{options.config} has a value that cannot be used, or lacks one: '
                             f'{type(error).__name__}: {error}') from error

    return wrapped
