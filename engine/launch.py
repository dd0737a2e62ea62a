"""From a config file and command-line options to a runner, for mmdet and mmseg configs alike."""
from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import time_ns
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import EVALUATOR, METRICS, RUNNERS, DefaultScope
from mmengine.runner import Runner
from mmengine.visualization import Visualizer

from colonnade.common.errors import MissingFileError, UserCodeError, UserError, file_errors

from .components import StrictRunner
from .config_files import read_file
from .config_kinds import check_kinds, reading_config
from .data_sources import evaluators, redirect_data_root
from .hooks import drop_absent_hooks
from .locking import locked
from .options import merge_options
from .processes import (VARIABLES, check_launcher, gather_by_messages, join_on_cpus,
                        on_several_machines)
from .registries import is_known, runs_user_code, unknown_type
from .trunk_config import settle_trunk

LIBRARIES = ('mmdet', 'mmseg')
PATIENCE = 1800  # seconds that processes wait for each other
CONFIGS = ('.py', '.json', '.yaml', '.yml')
#: what registries say of a type that they do not know, and Python of wrong arguments of one
WRONG_SETTING = (r'\S+ is not in the \S+ registry|cfg should be a dict|type must be a str|'
                 r'\S+__init__\(\) (got an unexpected|missing \d+ required)')


@dataclass
class LaunchOptions:
    """What every run is told.

    Attributes:
        config: A config file.
        cfg_options: Settings that override it, as in ``{'train_cfg.max_epochs': 12}``.
        work_dir: Folder for logs and checkpoints; ``work_dirs/FOLDER/CONFIG`` if not given.
        data_root: Where the data set lies, for all data sets and evaluators.
        launcher: What started the processes: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        trust: Run what is pickled in files of weights and annotations; only if you trust who made
            them.
        allow_outside: Read files that annotations name outside of the folders of their data set.
    """
    config: Path
    cfg_options: dict[str, Any] | None = None
    work_dir: str | Path | None = None
    data_root: str | Path | None = None
    launcher: str = 'none'
    trust: bool = False
    allow_outside: bool = False


@reading_config
def load_config(options: LaunchOptions) -> Config:
    """The config of a run with its options applied.

    Raises:
        FileNotFoundError: If the config or the data root does not exist.
        UserError: If the work dir is a file.
        ValueError: If the options don't fit the config or this machine.
    """
    cfg = read_config(options.config)
    check_kinds(cfg)
    use_faster_coco_eval(cfg)
    if options.data_root is not None:
        redirect_data_root(cfg, options.data_root)
    if options.cfg_options is not None:
        merge_options(cfg, options.cfg_options)
        check_kinds(cfg)
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


def prepare_library(cfg: Config, source: str) -> None:
    """Import mmdet or mmseg for a config, so that what it names is known.

    Raises:
        ValueError: If it is no config of a detector or segmenter.
    """
    if cfg.get('default_scope') not in LIBRARIES or 'model' not in cfg:
        raise UserError(f'{source} is no config of a detector or segmenter: it has no model, or '
                        f'no default_scope = {" or ".join(map(repr, LIBRARIES))}')
    import_quietly(f'{cfg.default_scope}.datasets')
    current = DefaultScope.get_current_instance()
    if current is None or current.scope_name != cfg.default_scope:  # init_default_scope would warn
        DefaultScope.get_instance(f'{cfg.default_scope}-{time_ns()}', scope_name=cfg.default_scope)


def import_quietly(name: str) -> None:
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
    """Raise a ValueError for metrics that mmengine's registry would not find, data once loaded.

    Args:
        cfg: Of a detector or segmenter.
        key: ``val_evaluator`` or ``test_evaluator``.
    """
    parts = [(METRICS, metric) for metric in evaluators(cfg, (key, ))]
    if isinstance(cfg.get(key), dict) and 'metrics' in cfg[key]:
        parts.append((EVALUATOR, cfg[key]))
    for known, part in parts:
        kind = part.get('type')
        with known.switch_scope_and_registry(part.get('_scope_')) as registry:
            if isinstance(kind, str) and not is_known(kind, registry):
                raise UserError(f'{key} cannot be built: {unknown_type(kind)}')


def build_runner(cfg: Config) -> Runner:
    """The runner that the config asks for, also for several processes without a GPU.

    Raises:
        ValueError: If several processes are to be started in a way that needs GPUs, or if a part of
            the config cannot be built.
    """
    check_launcher(cfg.launcher)
    set_timeout(cfg)
    if cfg.launcher != 'none' and get_device() == 'cpu':
        _use_gloo(cfg)
    if on_several_machines(cfg.launcher):
        gather_by_messages(cfg)
    drop_absent_hooks(cfg)
    settle_trunk(cfg.model)
    free_visualizer_name(cfg)
    with build_error():
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else StrictRunner.from_cfg(cfg)
    return runner


def set_timeout(cfg: Config) -> None:
    """Let processes wait for each other as long with GPUs as without, unless the config says else.

    torch's limit for NCCL is 10 minutes, which slow storage takes, and in which nobody could say
    which process hangs.

    Args:
        cfg: Changed in place.
    """
    if cfg.get('env_cfg') is None:
        cfg.env_cfg = ConfigDict()
    if cfg.env_cfg.get('dist_cfg') is None:
        cfg.env_cfg.dist_cfg = ConfigDict()
    cfg.env_cfg.dist_cfg.setdefault('timeout', PATIENCE)


def free_visualizer_name(cfg: Config) -> None:
    """Let mmengine name a run's visualizer, if the config's name is that of an earlier run.

    mmengine would hand out the visualizer of that run of this process, which writes to its folder.

    Args:
        cfg: Changed in place.
    """
    visualizer = cfg.get('visualizer')
    if isinstance(visualizer, dict) and \
            Visualizer.check_instance_created(visualizer.get('name', '')):
        del visualizer['name']


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


def explained(text: str) -> str:
    """What a registry says of a type that it does not know, with the one that was meant."""
    name, found, _ = text.partition(' is not in the ')
    return unknown_type(name) if found else text


@contextmanager
def sole_run(cfg: Config, *others: Path) -> Iterator[None]:
    """While open, no other run trains in this work dir; no file is left behind.

    Args:
        cfg: Of the run.
        *others: Folders that it also writes to.

    Raises:
        UserError: If another run does.
    """
    rank = VARIABLES.get(cfg.launcher, ('', ))[0]
    if int(os.environ.get(rank, 0)):  # the first process locks for all
        yield
        return
    with ExitStack() as stack:
        for folder in dict.fromkeys([Path(cfg.work_dir), *others]):
            with file_errors():
                folder.mkdir(parents=True, exist_ok=True)
            complaint = (f'another run is training in {folder}: wait for its end, or name another '
                         '--work-dir')
            if not stack.enter_context(locked(folder, complaint)):
                print_log(
                    f'the file system of {folder} has no locks: let no other run train there',
                    level=logging.WARNING)
        yield


def _use_gloo(cfg: Config) -> None:
    """Where mmengine takes a GPU for granted, say what holds for a CPU."""
    join_on_cpus(cfg.launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))
    cfg.merge_from_dict({
        'env_cfg.dist_cfg.backend': 'gloo',
        'model_wrapper_cfg': {
            'type': 'MMDistributedDataParallel',
            'device_ids': None,
            'broadcast_buffers': False,
            'find_unused_parameters': cfg.get('find_unused_parameters', False),
        },
    })
    cfg.sync_bn = None  # torch's SyncBatchNorm takes GPU tensors only
