"""From a config file and command-line options to a runner, for mmdet and mmseg configs alike."""
from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.device import get_device
from mmengine.fileio import join_path
from mmengine.registry import METRICS, RUNNERS
from mmengine.runner import Runner
from mmengine.utils import is_abs
from torch import distributed

from .config_scopes import read_config
from .runner import StrictRunner

DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
EVALUATORS = ('val_evaluator', 'test_evaluator')


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that every tool with a runner has."""
    parser.add_argument('config', type=Path, help='config file of mmdet or mmseg')
    parser.add_argument(
        '--work-dir', type=Path, help='folder for logs and checkpoints (work_dirs/HEAD/CONFIG)')
    parser.add_argument(
        '--data-root', type=Path, help='where the data set lies, for all data sets and evaluators')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='settings that override the config, e.g. train_cfg.max_epochs=12')
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='what started the processes: pytorch for torchrun')
    parser.add_argument(
        '--trust',
        action='store_true',
        help='run what is pickled in weight files; only if you trust who made them')


def load_config(args: argparse.Namespace) -> Config:
    """The config of ``args.config`` with the options of :func:`add_launch_arguments` applied.

    Raises:
        FileNotFoundError: If the config or the data root does not exist.
        ValueError: If the options don't fit the config or this machine.
    """
    if not args.config.is_file():
        raise FileNotFoundError(f'no config file {args.config}')
    cfg = read_config(args.config)
    use_faster_coco_eval(cfg)
    if args.data_root is not None:
        redirect_data_root(cfg, args.data_root)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    if args.work_dir is not None:
        cfg.work_dir = str(args.work_dir)
    elif 'work_dir' not in cfg:
        # leaves of several heads have the same name, hence the folder too
        cfg.work_dir = str(Path('work_dirs', args.config.resolve().parent.name, args.config.stem))
    cfg.launcher = args.launcher
    if args.trust:
        trust_weights(cfg)
    return cfg


def trust_weights(cfg: Config) -> None:
    """Let checkpoints and pretrained weights of ``cfg`` run what is pickled in them."""
    cfg.trust_weights = True
    init_cfgs = cfg.model.get('backbone', {}).get('init_cfg') or []
    for init_cfg in init_cfgs if isinstance(init_cfgs, list) else [init_cfgs]:
        if init_cfg.get('type') == 'Pretrained':
            init_cfg.trust = True


def evaluators(cfg: Config) -> Iterator[ConfigDict]:
    """The metrics of validation and test."""
    for key in EVALUATORS:
        found = cfg.get(key) or []
        yield from found if isinstance(found, list) else [found]


def use_faster_coco_eval(cfg: Config) -> None:
    """Let faster-coco-eval compute what pycocotools would, where it is installed."""
    for evaluator in evaluators(cfg):
        if evaluator.type == 'CocoMetric' and find_spec('faster_coco_eval') is not None:
            import_module('mmdet.evaluation')
            if METRICS.get('mmdet.FasterCocoMetric'):
                evaluator.type = 'FasterCocoMetric'


def redirect_data_root(cfg: Config, data_root: Path) -> None:
    """Let every data set and evaluator of ``cfg`` read below ``data_root``.

    Raises:
        FileNotFoundError: If ``data_root`` is no folder.
        ValueError: If no data set of the config has a ``data_root``.
    """
    if not data_root.is_dir():
        raise FileNotFoundError(f'--data-root {data_root} is no folder')
    datasets = [dataset for _, dataset in find_datasets(cfg)]
    old_roots = {dataset.data_root for dataset in datasets}
    if not old_roots:
        raise ValueError('--data-root has no effect: no data set of the config has a data_root')
    new_root = str(data_root)
    for dataset in datasets:
        dataset.data_root = new_root
    for key in EVALUATORS:
        if cfg.get(key):
            cfg[key] = _moved(cfg[key], old_roots, new_root)


def _moved(value: Any, old_roots: set[str], new_root: str) -> Any:
    """``value`` with each path below one of ``old_roots`` moved to ``new_root``."""
    if isinstance(value, dict):
        return ConfigDict({key: _moved(item, old_roots, new_root) for key, item in value.items()})
    if isinstance(value, list):
        return [_moved(item, old_roots, new_root) for item in value]
    if isinstance(value, str):
        for old_root in old_roots:
            if Path(value).is_relative_to(old_root):
                return join_path(new_root, str(Path(value).relative_to(old_root)))
    return value


def find_datasets(cfg: Config,
                  dataloaders: tuple[str, ...] = DATALOADERS) -> Iterator[tuple[str, ConfigDict]]:
    """All data sets with a ``data_root`` in the dataloaders, wrapped ones too, with their names."""
    for key in dataloaders:
        yield from _datasets_below(key, cfg.get(key))


def _datasets_below(name: str, value: Any) -> Iterator[tuple[str, ConfigDict]]:
    if isinstance(value, dict):
        if 'data_root' in value:
            yield name, value
        for key, item in value.items():
            yield from _datasets_below(f'{name}.{key}', item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _datasets_below(f'{name}[{index}]', item)


def check_data(cfg: Config, dataloaders: tuple[str, ...]) -> None:
    """Raise a FileNotFoundError that lists all annotation files and folders that are missing."""
    missing = []
    for name, dataset in find_datasets(cfg, dataloaders):
        paths = [dataset.get('ann_file'), *dataset.get('data_prefix', {}).values()]
        for path in filter(None, paths):
            path = path if is_abs(path) else join_path(dataset.data_root, path)
            if '://' not in path and not os.path.exists(path):
                missing.append(f'  {path} ({name})')
    if missing:
        raise FileNotFoundError('the config reads what does not exist:\n' + '\n'.join(missing) +
                                '\n--data-root DIR says where your copy of the data set lies')


def build_runner(cfg: Config) -> Runner:
    """The runner that the config asks for, also for several processes without a GPU.

    Raises:
        ValueError: If several processes are to be started in a way that needs GPUs.
    """
    if cfg.launcher != 'none' and get_device() == 'cpu':
        _use_gloo(cfg)
    return RUNNERS.build(cfg) if 'runner_type' in cfg else StrictRunner.from_cfg(cfg)


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
        },
    })
    cfg.sync_bn = None  # torch's SyncBatchNorm takes GPU tensors only


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` to ``path``, which is never there in part."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, which is never there in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f'.{path.name}.{os.getpid()}')
    scratch.write_text(text)
    scratch.replace(path)
