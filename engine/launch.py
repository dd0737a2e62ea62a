"""From a config file and command-line options to a runner, for mmdet and mmseg configs alike."""
from __future__ import annotations

import argparse
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import METRICS, RUNNERS, init_default_scope
from mmengine.runner import Runner
from torch import distributed

from .checks import settle_trunk, warn_of_normalisation
from .data_sources import evaluators, redirect_data_root
from .hooks import drop_absent_hooks
from .options import merge_options
from .registries import known_types
from .runner import StrictRunner

LIBRARIES = ('mmdet', 'mmseg')
#: what registries say of a type that they do not know, and Python of wrong arguments of one
WRONG_SETTING = (r'\S+ is not in the \S+ registry|cfg should be a dict|type must be a str|'
                 r'\S+__init__\(\) (got an unexpected|missing \d+ required)')
#: where a launcher says which process this one is
RANK = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}


def load_config(args: argparse.Namespace) -> Config:
    """The config of ``args.config`` with the options of the command line applied.

    Args:
        args: Of :func:`colonnade.tools.command_line.add_launch_arguments`.

    Raises:
        FileNotFoundError: If the config or the data root does not exist.
        ValueError: If the options don't fit the config or this machine.
    """
    cfg = read_config(args.config)
    use_faster_coco_eval(cfg)
    if args.data_root is not None:
        redirect_data_root(cfg, args.data_root)
    if args.cfg_options is not None:
        merge_options(cfg, args.cfg_options)
    if args.work_dir is not None:
        cfg.work_dir = str(args.work_dir)
    elif 'work_dir' not in cfg:
        # leaves of several heads have the same name, hence the folder too
        cfg.work_dir = str(Path('work_dirs', args.config.resolve().parent.name, args.config.stem))
    cfg.launcher = args.launcher
    return cfg


def read_config(path: Path) -> Config:
    """A config file, with its library ready to be looked into.

    Raises:
        FileNotFoundError: If it, or one that it inherits from, does not exist.
        ValueError: If it is no config of a detector or segmenter.
    """
    if not path.is_file():
        raise FileNotFoundError(f'no config file {path}')
    try:
        cfg = Config.fromfile(path)
    except (SyntaxError, NameError, TypeError, KeyError, AttributeError, ImportError, OSError,
            ValueError) as error:
        raise ValueError(f'{path} cannot be read: {type(error).__name__}: {error}') from error
    if cfg.get('default_scope') not in LIBRARIES or 'model' not in cfg:
        raise ValueError(f'{path} is no config of a detector or segmenter: it has no model, or no '
                         f'default_scope = {" or ".join(map(repr, LIBRARIES))}')
    import_quietly(f'{cfg.default_scope}.datasets')
    init_default_scope(cfg.default_scope)
    return cfg


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
        if evaluator.type == 'CocoMetric' and find_spec('faster_coco_eval') is not None:
            import_module('mmdet.evaluation')
            if METRICS.get('mmdet.FasterCocoMetric'):
                evaluator.type = 'FasterCocoMetric'


def check_metrics(cfg: Config, key: str) -> None:
    """Raise a ValueError for metrics that mmengine's registry would not find, data once loaded.

    Args:
        cfg: Of a detector or segmenter.
        key: ``val_evaluator`` or ``test_evaluator``.
    """
    for evaluator in evaluators(cfg, (key, )):
        kind = evaluator.get('type')
        with METRICS.switch_scope_and_registry(evaluator.get('_scope_')) as registry:
            if isinstance(kind, str) and registry.get(kind) is None:
                raise ValueError(f'{key} cannot be built: {unknown_type(kind)}')


def build_runner(cfg: Config) -> Runner:
    """The runner that the config asks for, also for several processes without a GPU.

    Raises:
        ValueError: If several processes are to be started in a way that needs GPUs, or if a part of
            the config cannot be built.
    """
    if cfg.launcher != 'none' and get_device() == 'cpu':
        _use_gloo(cfg)
    drop_absent_hooks(cfg)
    if (cfg.get('strategy') or {}).get('type') == 'ShardedStrategy':  # a config that a run dumped
        import_module('colonnade.engine.sharding')
    settle_trunk(cfg.model)
    try:
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else StrictRunner.from_cfg(cfg)
    except (TypeError, KeyError) as error:
        text = str(error.args[0]) if error.args else ''
        if not re.match(WRONG_SETTING, text):
            raise
        raise ValueError(f'a part of the config cannot be built: {explained(text)}') from error
    warn_of_normalisation(cfg.model)
    return runner


def explained(text: str) -> str:
    """What a registry says of a type that it does not know, with the one that was meant."""
    name, found, _ = text.partition(' is not in the ')
    return unknown_type(name) if found else text


def unknown_type(name: str) -> str:
    """That a type is not known, and the one that was meant."""
    types = {known.lower(): known for known in known_types()}
    near = [types[low] for low in get_close_matches(name.lower(), types, n=3, cutoff=0.7)]
    meant = f'; did you mean {" or ".join(near)}?' if near else ''
    return f'the type {name} is not known{meant}'


@contextmanager
def sole_run(cfg: Config) -> Iterator[None]:
    """While open, no other run trains in this work dir; no file is left behind.

    Raises:
        FileExistsError: If another run does.
    """
    if int(os.environ.get(RANK.get(cfg.launcher, ''), 0)):  # the first process locks for all
        yield
        return
    folder = os.open(cfg.work_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f'another run is training in {cfg.work_dir}: wait for its end, '
                                  'or name another --work-dir') from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(folder)


def _use_gloo(cfg: Config) -> None:
    """Where mmengine takes a GPU for granted, say what holds for a CPU."""
    if cfg.launcher != 'pytorch':
        raise ValueError(f'--launcher {cfg.launcher} needs GPUs and there is none here: '
                         'start CPU processes with torchrun and --launcher pytorch')
    if not distributed.is_initialized():
        distributed.init_process_group('gloo')
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
