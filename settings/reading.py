"""Configs read and overridden, of detectors and segmenters alike."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import time_ns
from typing import Protocol, TypeVar

from mmengine.config import Config
from mmengine.registry import EVALUATOR, METRICS, DefaultScope

from colonnade.common.errors import MissingFileError, UserCodeError, UserError, has_run_module
from colonnade.common.options import LaunchOptions

from .config_types import check_types
from .dataset_paths import evaluators, redirect_data_root
from .overrides import merge_options
from .registries import is_known, runs_user_code, unknown_type

LIBRARIES = ('mmdet', 'mmseg')
CONFIGS = ('.py', '.json', '.yaml', '.yml')
#: what registries say of a type that they do not know, and Python of wrong arguments of one
WRONG_SETTING = (r'\S+ is not in the \S+ registry|cfg should be a dict|type must be a str|'
                 r'\S+__init__\(\) (got an unexpected|missing \d+ required)')


class HasConfig(Protocol):
    """Options of a run.

    Attributes:
        config: A config file.
    """
    config: Path


Named = TypeVar('Named', bound=HasConfig)
Answer = TypeVar('Answer')


def reading_config(function: Callable[[Named], Answer]) -> Callable[[Named], Answer]:
    """Make a function raise a UserCodeError that names the config where a value is of no use."""

    @wraps(function)
    def wrapped(options: Named) -> Answer:
        try:
            return function(options)
        except (AttributeError, TypeError, KeyError, IndexError) as error:
            raise UserCodeError(f'{options.config} has a value that cannot be used, or lacks one: '
                                f'{type(error).__name__}: {error}') from error

    return wrapped


@reading_config
def load_config(options: LaunchOptions) -> Config:
    """The config of a run with its options applied.

    Raises:
        FileNotFoundError: If the config or the data root does not exist.
        UserError: If the work dir is a file.
        ValueError: If the options don't fit the config or this machine.
    """
    cfg = read_config(options.config)
    check_types(cfg)
    use_faster_coco_eval(cfg)
    if options.data_root is not None:
        redirect_data_root(cfg, options.data_root)
    if options.cfg_options is not None:
        merge_options(cfg, options.cfg_options)
        check_types(cfg)
    if options.work_dir is not None:
        cfg.work_dir = str(options.work_dir)
    elif 'work_dir' not in cfg:
        # leaves of several heads have the same name, hence the folder too
        folder = options.config.resolve().parent.name
        cfg.work_dir = str(Path('work_dirs', folder, options.config.stem))
    if os.path.exists(cfg.work_dir) and not os.path.isdir(cfg.work_dir):
        raise UserError(f'--work-dir: {cfg.work_dir} is no folder')
    cfg.launcher = options.launcher
    return cfg


def read_config(path: Path) -> Config:
    """A config file, with its library ready to be looked into.

    Raises:
        FileNotFoundError: If it, or one that it inherits from, does not exist.
        ValueError: If it is no config of a detector or segmenter.
    """
    if not path.is_file():
        raise MissingFileError(f'no config file {path}')
    if path.suffix not in CONFIGS:
        raise UserError(f'{path} is no config: configs end in {", ".join(CONFIGS)}')
    cfg = read_file(path)
    prepare_library(cfg, str(path))
    return cfg


def read_file(path: Path, *, import_modules: bool = True) -> Config:
    """Return the config in a file, which is a program.

    Args:
        path: Path of the file.
        import_modules: Whether to import what its ``custom_imports`` name.

    Raises:
        UserCodeError: If its code, or a module that it imports, raises an error.
        UserError: If it cannot be read for another reason.
    """
    try:
        return Config.fromfile(path, import_custom_modules=import_modules)
    except Exception as error:  # of any code in the file
        kind = UserCodeError if has_run_module(error) else UserError
        raise kind(f'{path} cannot be read: {type(error).__name__}: {error}') from error


def prepare_library(cfg: Config, source: str) -> None:
    """Import mmdet or mmseg for a config, so that what it names is known.

    Raises:
        ValueError: If it is no config of a detector or segmenter.
    """
    if cfg.get('default_scope') not in LIBRARIES or 'model' not in cfg:
        raise UserError(f'{source} is no config of a detector or segmenter: it has no model, or '
                        f'no default_scope = {" or ".join(map(repr, LIBRARIES))}')
    import_without_warnings(f'{cfg.default_scope}.datasets')
    current = DefaultScope.get_current_instance()
    if current is None or current.scope_name != cfg.default_scope:  # init_default_scope would warn
        DefaultScope.get_instance(f'{cfg.default_scope}-{time_ns()}', scope_name=cfg.default_scope)


def import_without_warnings(name: str) -> None:
    """Import a module without its remarks on a package that nobody needs."""
    printed = StringIO()
    with redirect_stdout(printed):
        import_module(name)
    for line in printed.getvalue().splitlines():
        if not line.startswith('Could not import OneDL'):
            print(line)


def use_faster_coco_eval(cfg: Config) -> None:
    """Let faster-coco-eval compute what pycocotools would, where it is installed."""
    for evaluator in evaluators(cfg):
        if evaluator.get('type') == 'CocoMetric' and find_spec('faster_coco_eval') is not None:
            import_module('mmdet.evaluation')
            if METRICS.get('mmdet.FasterCocoMetric'):
                evaluator.type = 'FasterCocoMetric'


def check_metrics(cfg: Config, key: str) -> None:
    """Raise a ValueError for metrics that mmengine's registry would not find, data once loaded."""
    parts = [(METRICS, metric) for metric in evaluators(cfg, (key, ))]
    if isinstance(cfg.get(key), dict) and 'metrics' in cfg[key]:
        parts.append((EVALUATOR, cfg[key]))
    for known, part in parts:
        kind = part.get('type')
        with known.switch_scope_and_registry(part.get('_scope_')) as registry:
            if isinstance(kind, str) and not is_known(kind, registry):
                raise UserError(f'{key} cannot be built: {unknown_type(kind)}')


@contextmanager
def build_error() -> Iterator[None]:
    """Context manager that says which part of a config cannot be built.

    Raises:
        UserCodeError: If an assertion fails, which is how mmdet and mmseg say what does not fit.
        UserError: If a registry does not know a type, or a class has no such setting.
    """
    try:
        yield
    except (TypeError, KeyError) as error:
        text = str(error.args[0]) if error.args else ''
        if not re.match(WRONG_SETTING, text) or runs_user_code(error):
            raise
        raise UserError(f'a part of the config cannot be built: {explained(text)}') from error
    except AssertionError as error:
        if not str(error):
            raise
        raise UserCodeError(f'a part of the config cannot be built: {error}') from error


@contextmanager
def errors_of_others(text: str) -> Iterator[None]:
    """Context manager that makes a UserCodeError of any error of a third-party class.

    Args:
        text: What cannot be done then, for the message.
    """
    try:
        yield
    except Exception as error:  # third-party classes raise anything
        raise UserCodeError(f'{text}: {type(error).__name__}: {error}') from error


def explained(text: str) -> str:
    """What a registry says of a type that it does not know, with the one that was meant."""
    name, found, _ = text.partition(' is not in the ')
    return unknown_type(name) if found else text
