"""From the arguments of ``tools/train.py`` to a runner that is ready to train."""
from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.weights.files import trusting

from .batch_size import accumulate, batch_size, enable_auto_scale_lr
from .checks import check_config
from .data_sources import check_data
from .hooks import BatchSizeHook
from .launch import build_runner, check_metrics, load_config, sole_run
from .new_classes import NewClasses
from .runner import StrictRunner, compile_parts


def training_config(args: argparse.Namespace) -> Config:
    """The config that the command line asks for, checked as far as it can be without a model.

    Args:
        args: Of ``tools/train.py``.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If the config, the options and the data do not fit each other.
    """
    cfg = load_config(args)
    check_metrics(cfg, 'val_evaluator')
    check_data(cfg, ('train_dataloader', 'val_dataloader'))
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    set_start(cfg, args.resume, args.load_from, args.new_classes)
    if args.amp:
        set_amp(cfg)
    if args.fsdp and args.compile:
        raise ValueError('--compile does not go with --fsdp: leave one out')
    if args.fsdp:
        from .sharding import shard  # which registers a strategy of mmengine's private part
        shard(cfg)
    set_batch_size(cfg, args.auto_scale_lr, args.accumulate)
    return cfg


def set_start(cfg: Config, resume: str | None, load_from: str | None, new_classes: bool) -> None:
    """Say which weights training starts from.

    Raises:
        FileNotFoundError: If there is no such file.
        FileExistsError: As :func:`set_resume`.
        ValueError: If ``new_classes`` has no effect.
    """
    if load_from is not None:
        if '://' not in load_from and not Path(load_from).expanduser().is_file():
            raise FileNotFoundError(f'--load-from: no weights file {load_from}')
        cfg.load_from = load_from
    set_resume(cfg, resume)
    if new_classes and (cfg.resume or not cfg.load_from):
        raise ValueError('--new-classes needs --load-from FILE, a model to start from')


def set_resume(cfg: Config, resume: str | None) -> None:
    """Say where training starts, and keep it from overwriting checkpoints.

    Raises:
        FileNotFoundError: If the checkpoint to resume from does not exist.
        FileExistsError: If the work dir has checkpoints and nothing was said about them.
    """
    latest = Path(cfg.work_dir, 'last_checkpoint')  # written by mmengine's CheckpointHook
    if resume is None:
        if latest.exists() and not cfg.resume:
            raise FileExistsError(
                f'{cfg.work_dir} has checkpoints of an earlier run: go on from them with --resume, '
                'or name another --work-dir')
    elif resume == 'auto':
        cfg.resume, cfg.load_from = True, None
        if not latest.exists():
            print_log(
                f'--resume: no checkpoint in {cfg.work_dir} yet, training starts at iteration 0',
                level=logging.WARNING)
            cfg.resume = False
    else:
        if not Path(resume).is_file():
            raise FileNotFoundError(f'--resume: no checkpoint {resume}')
        cfg.resume, cfg.load_from = True, resume


def set_batch_size(cfg: Config, auto_scale_lr: bool, count: int | None) -> None:
    """Make up for a batch size that is not the config's; ``count`` 0 chooses itself.

    Raises:
        ValueError: If the config or the number of processes does not allow it.
    """
    if auto_scale_lr:
        enable_auto_scale_lr(cfg)
    elif count is not None:
        count = accumulate(cfg, count or None)
        print_log(f'--accumulate: a step of the optimizer every {count} iterations of '
                  f'{batch_size(cfg)} images; what the config counts in iterations is {count} '
                  'times as long')


def set_amp(cfg: Config) -> None:
    """Train in mixed precision with dynamic loss scaling.

    Raises:
        ValueError: If there is no GPU, or the config has an optimizer wrapper of its own kind.
    """
    if get_device() == 'cpu':
        raise ValueError('--amp needs a GPU and there is none here: leave it out')
    kind = cfg.optim_wrapper.get('type', 'OptimWrapper')
    if kind not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise ValueError(f'--amp needs optim_wrapper.type OptimWrapper, the config says {kind}')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')


@contextmanager
def prepared_runner(args: argparse.Namespace) -> Iterator[Runner]:
    """A runner that is ready to train; while open, no other trains in its work dir.

    Args:
        args: Of ``tools/train.py``.

    Raises:
        OSError: If a file or folder is missing, or cannot be written.
        ValueError: If the config, the options, the data and the weights do not fit each other.
    """
    cfg = training_config(args)
    Path(cfg.work_dir).mkdir(parents=True, exist_ok=True)
    with trusting(args.trust), sole_run(cfg):
        runner = build_runner(cfg)
        if args.new_classes:
            loader = runner if isinstance(runner, StrictRunner) else runner.strategy
            loader.adapt = NewClasses(cfg)
        if cfg.train_dataloader.get('batch_size'):
            accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
            runner.register_hook(BatchSizeHook(cfg.train_dataloader.batch_size, accumulated))
        if isinstance(runner, StrictRunner):
            runner.check_weights()
        if args.compile:
            compile_parts(runner.model)
        yield runner
