"""Reading configs of detectors and segmenters."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import time_ns
from typing import Protocol, TypeVar

from mmengine.config import Config
from mmengine.registry import METRICS, DefaultScope

from colonnade.common.console_logging import import_without_warnings
from colonnade.common.errors import (MissingFileError, UserCodeError, UserError, convert_errors,
                                     has_run_module)
from colonnade.common.options import LaunchOptions

from .config_types import check_types
from .dataset_paths import iter_evaluators, redirect_data_root
from .overrides import merge_options
from .registries import format_unknown_type, is_from_user_code

LIBRARIES = ('mmdet', 'mmseg')
SUFFIXES = ('.py', '.json', '.yaml', '.yml')
#: messages of registries for unknown types, and of Python for wrong arguments
WRONG_SETTING = (r'\S+ is not in the \S+ registry|cfg should be a dict|type must be a str|'
                 r'\S+__init__\(\) (got an unexpected|missing \d+ required)')


class HasConfig(Protocol):
    """Options with a config file."""
    config: Path


Options = TypeVar('Options', bound=HasConfig)
Result = TypeVar('Result')


def report_config_errors(function: Callable[[Options], Result]) -> Callable[[Options], Result]:
    """Make a function raise a UserCodeError that names the config if a value has a wrong type."""

    @wraps(function)
    def wrapped(options: Options) -> Result:
        try:
            return function(options)
        except (AttributeError, TypeError, KeyError, IndexError) as error:
            raise UserCodeError(f'{options.config} has a wrong or missing value: '
                                f'{type(error).__name__}: {error}') from error

    return wrapped


@report_config_errors
def load_config(options: LaunchOptions) -> Config:
    """Return the config of a run with its options applied.

    Raises:
        FileNotFoundError: If the config or the data root does not exist.
        ValueError: If the options do not match the config, or the work dir is a file.
    """
    cfg = read_config(options.config)
    check_types(cfg)
    for evaluator in iter_evaluators(cfg):  # a faster implementation of pycocotools
        if evaluator.get('type') == 'CocoMetric' and find_spec('faster_coco_eval') is not None:
            import_module('mmdet.evaluation')
            if METRICS.get('mmdet.FasterCocoMetric'):
                evaluator.type = 'FasterCocoMetric'
    if options.data_root is not None:
        redirect_data_root(cfg, options.data_root)
    if options.cfg_options is not None:
        merge_options(cfg, options.cfg_options)
        check_types(cfg)
    if options.work_dir is not None:
        cfg.work_dir = str(options.work_dir)
    elif 'work_dir' not in cfg:
        # Configs of different heads have the same file name.
        folder = options.config.resolve().parent.name
        cfg.work_dir = str(Path('work_dirs', folder, options.config.stem))
    if os.path.exists(cfg.work_dir) and not os.path.isdir(cfg.work_dir):
        raise UserError(f'--work-dir: {cfg.work_dir} is not a directory')
    cfg.launcher = options.launcher
    return cfg


def read_config(path: Path) -> Config:
    """Return the config in a file, and import the library that it is for.

    Raises:
        FileNotFoundError: If it, or one of its bases, does not exist.
        ValueError: If it is not a config of a detector or segmenter.
    """
    if not path.is_file():
        raise MissingFileError(f'no such config file: {path}')
    if path.suffix not in SUFFIXES:
        raise UserError(f'{path} is not a config: expected a {", ".join(SUFFIXES[:-1])} or '
                        f'{SUFFIXES[-1]} file')
    cfg = read_file(path)
    prepare_library(cfg, str(path))
    return cfg


def read_file(path: Path, *, import_modules: bool = True) -> Config:
    """Return the config in a file, which is a program.

    Args:
        path: Path of the file.
        import_modules: Whether to import the modules in its ``custom_imports``.

    Raises:
        UserCodeError: If its code, or a module that it imports, raises an error.
        UserError: If it cannot be read for another reason.
    """

    def convert(error: Exception) -> UserError:
        kind = UserCodeError if has_run_module(error) else UserError
        return kind(f'{path} cannot be read: {type(error).__name__}: {error}')

    with convert_errors(convert):
        return Config.fromfile(path, import_custom_modules=import_modules)


def prepare_library(cfg: Config, source: str) -> None:
    """Import mmdet or mmseg for a config, so that its types are registered.

    Raises:
        ValueError: If it is not a config of a detector or segmenter.
    """
    if cfg.get('default_scope') not in LIBRARIES or 'model' not in cfg:
        raise UserError(f'{source} is not a config of a detector or segmenter: it has no model, or '
                        f'no default_scope = {" or ".join(map(repr, LIBRARIES))}')
    import_without_warnings(f'{cfg.default_scope}.datasets')
    current = DefaultScope.get_current_instance()
    if current is None or current.scope_name != cfg.default_scope:  # init_default_scope would warn
        DefaultScope.get_instance(f'{cfg.default_scope}-{time_ns()}', scope_name=cfg.default_scope)


@contextmanager
def report_build_errors() -> Iterator[None]:
    """Context manager that reports parts of a config that cannot be built.

    Raises:
        UserCodeError: If an assertion of mmdet or mmseg fails.
        UserError: If a type is unknown, or a class does not have a setting.
    """
    try:
        yield
    except (TypeError, KeyError) as error:
        text = str(error.args[0]) if error.args else ''
        if not re.match(WRONG_SETTING, text) or is_from_user_code(error):
            raise
        name, separator, _ = text.partition(' is not in the ')
        reason = format_unknown_type(name) if separator else text
        raise UserError(f'a part of the config cannot be built: {reason}') from error
    except AssertionError as error:
        if not str(error):
            raise
        raise UserCodeError(f'a part of the config cannot be built: {error}') from error


def report_third_party_errors(text: str, *kept: type[Exception]) -> AbstractContextManager[None]:
    """Return a context manager that turns any error of third-party code into a UserCodeError.

    Args:
        text: Start of the message: what cannot be done.
        kept: Types of errors that are not converted.
    """
    return convert_errors(lambda error: UserCodeError(f'{text}: {type(error).__name__}: {error}'),
                          *kept)
