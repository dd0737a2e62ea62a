"""Train a detector of mmdet or a segmenter of mmseg.

    python tools/train.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data-root data/coco
"""
from __future__ import annotations

import argparse
import logging
import sys
from contextlib import ExitStack
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.engine.batch_size import accumulate, batch_size, enable_auto_scale_lr
from colonnade.engine.checks import check_config
from colonnade.engine.data_sources import check_data
from colonnade.engine.hooks import BatchSizeHook
from colonnade.engine.launch import add_launch_arguments, build_runner, load_config, sole_run
from colonnade.engine.new_classes import NewClasses
from colonnade.engine.runner import StrictRunner, compile_parts
from colonnade.engine.sharding import shard
from colonnade.weights.files import trusting
from colonnade.weights.state_dicts import WeightsError


def parse_args() -> argparse.Namespace:
    """The command line, and as ``cfg`` the config that it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_launch_arguments(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from this checkpoint, or from the latest in the work dir')
    start.add_argument(
        '--load-from',
        metavar='CHECKPOINT',
        help='start from this whole model: a file, a URL or a published detector or segmenter')
    parser.add_argument('--amp', action='store_true', help='mixed precision (needs a GPU)')
    parser.add_argument('--compile', action='store_true', help='torch.compile trunk and pyramid')
    parser.add_argument(
        '--fsdp',
        action='store_true',
        help='share out parameters, gradients and optimizer states over the processes')
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by the batch size over the config's")
    batch.add_argument(
        '--accumulate',
        nargs='?',
        const=0,
        type=int,
        metavar='N',
        help="sum the gradients of N iterations per step, or of as many as make up the config's "
        'batch size')
    parser.add_argument(
        '--new-classes',
        action='store_true',
        help='with --load-from: the file is of other classes; layers that depend on them start '
        'untrained, but for classes that both have by name')
    args = parser.parse_args()
    try:
        args.cfg = load_config(args)
        check_data(args.cfg, ('train_dataloader', 'val_dataloader'))
        check_config(args.cfg, ('train_dataloader', 'val_dataloader'))
        set_start(args.cfg, args.resume, args.load_from, args.new_classes)
        if args.amp:
            set_amp(args.cfg)
        if args.fsdp and args.compile:
            raise ValueError('--compile does not go with --fsdp: leave one out')
        if args.fsdp:
            shard(args.cfg)
        set_batch_size(args.cfg, args.auto_scale_lr, args.accumulate)
        Path(args.cfg.work_dir).mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.exit(1, f'train: {error}\n')
    return args


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


def prepare(runner: Runner, args: argparse.Namespace) -> None:
    """Ready a runner to train, its weights checked.

    Raises:
        FileNotFoundError: If there is no such file of weights.
        ValueError: If weights do not fit the model or the run, or it cannot be compiled.
    """
    cfg = args.cfg
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


def main() -> None:
    """Train as the command line says."""
    args = parse_args()
    with ExitStack() as stack:
        stack.enter_context(trusting(args.trust))
        try:
            stack.enter_context(sole_run(args.cfg))
            runner = build_runner(args.cfg)
            prepare(runner, args)
        except (ValueError, OSError) as error:
            sys.exit(f'train: {error}')
        try:
            runner.train()
        except (WeightsError, FileNotFoundError) as error:  # of other runners, which load only now
            sys.exit(f'train: {error}')


if __name__ == '__main__':
    main()
