"""From a config and options to a runner that is ready to train, and to trained weights."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import barrier
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import LogProcessor, Runner

from colonnade.common.atomic_files import check_writable
from colonnade.common.console_logging import without_steps
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.common.gc_control import pause_gc
from colonnade.datasets.bad_samples import SkippedSamples
from colonnade.datasets.path_checks import check_pickles
from colonnade.datasets.training_checks import check_loaded_data, loaded_datasets
from colonnade.datasets.validation.preflight import run_preflight_checks
from colonnade.models.class_transfer import ClassTransfer
from colonnade.models.half_precision import Amp, half_type
from colonnade.settings.dataset_paths import exists
from colonnade.settings.pipeline_steps import name_of
from colonnade.settings.reading import reading_config
from colonnade.settings.settings import Settings
from colonnade.weights.files import allow_pickle
from colonnade.weights.sharded_files import is_checkpoint

from .distributed.fsdp import shard
from .distributed.process_consistency import check_same_data, check_same_start
from .nan_guard import NanGuard, register_nan_guard
from .optim.batch_size import accumulate, batch_size, enable_auto_scale_lr, set_total_batch_size
from .options import CHECKPOINTS, ON_BAD_DATA, TrainOptions
from .runner.hooks import BatchSizeHook, HistoryLimit, SameBuffers
from .runner.launch import build_runner, lock_work_dir
from .runner.signal_handling import Interrupted
from .runner.strict_runner import StrictRunner
from .watchdog import watched
from .work_dir import Run, go_on, recorded, settle
from .work_dir.metrics_recorder import PendingEvaluation
from .work_dir.metrics_table import MetricsTable
from .work_dir.trackers import same_wandb_run


@reading_config
def training_settings(options: TrainOptions) -> Settings:
    """Return the settings that are asked for, checked as far as they can be without a model.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If the config, the options and the data do not fit each other.
    """
    if options.on_bad_data not in ON_BAD_DATA:
        raise UserError(f'on_bad_data must be {" or ".join(ON_BAD_DATA)}, got '
                        f'{options.on_bad_data!r}')
    dataloaders = ('train_dataloader', 'val_dataloader')

    def start(cfg: Config) -> None:
        check_pickles(cfg, dataloaders, trust=options.trust)
        set_start(cfg, options.resume, options.load_from, options.new_classes)

    settings = Settings.load(options, dataloaders, change=start)
    cfg = settings.config
    set_total_batch(cfg, options)
    set_amp(cfg, options.amp)
    set_sharding(cfg, options.fsdp, options.checkpoints)
    set_batch_size(cfg, options.auto_scale_lr, options.accumulate)
    settle(cfg, options.patience, options.min_delta, options.tracker)
    return settings


def set_start(cfg: Config, resume: str | None, load_from: str | None, new_classes: bool) -> None:
    """Say which weights training starts from.

    Raises:
        FileNotFoundError: If there is no such file.
        UserError: As :func:`set_resume`.
        ValueError: If ``new_classes`` or ``load_from`` never has an effect.
    """
    if load_from is not None:
        if resume not in (None, 'auto'):
            raise UserError(f'--load-from {load_from} has no effect with --resume {resume}: leave '
                            'one of them out')
        if '://' not in load_from and not is_checkpoint(load_from):
            raise MissingFileError(f'--load-from: no weights file {load_from}')
        cfg.load_from = load_from
    if new_classes and (resume not in (None, 'auto') or cfg.resume or not cfg.load_from):
        raise UserError('--new-classes needs --load-from FILE, a model to start from')
    set_resume(cfg, resume)


def is_there(url: str, work_dir: str) -> bool:
    """Whether the last checkpoint of a run is where its work dir says.

    Raises:
        ValueError: If nothing reads such a URL.
    """
    try:
        return exists(url)
    except ValueError as error:
        raise UserError(f'{work_dir}/last_checkpoint: {error}') from error


@file_errors()
def set_resume(cfg: Config, resume: str | None) -> None:
    """Say where training starts, and keep it from overwriting checkpoints.

    With ``'auto'``, ``cfg.load_from`` is what the first start begins with.

    Raises:
        FileNotFoundError: If the checkpoint to resume from does not exist.
        UserError: If the work dir has checkpoints and nothing was said about them.
    """
    run = Run.of(cfg)
    if resume is None:
        if not cfg.resume and (run.last or run.checkpoints()):
            raise UserError(
                f'{cfg.work_dir} has checkpoints of an earlier run: go on from them with --resume, '
                'or name another --work-dir')
        if not cfg.resume and run.best_checkpoints():
            raise UserError(f'{cfg.work_dir} has the best checkpoint of an earlier run: name '
                            'another --work-dir')
    elif resume == 'auto':
        last = run.last
        cfg.resume = True
        if '://' in last and is_there(last, cfg.work_dir):
            cfg.load_from = last
        elif run.checkpoints():
            cfg.load_from = None  # prepared_runner takes the newest whole one
        elif last:
            raise MissingFileError(f'--resume: {cfg.work_dir}/last_checkpoint names {last}, which '
                                   'is not there: name a checkpoint, --resume FILE')
        else:
            weights = f' with the weights of {cfg.load_from}' if cfg.load_from else ''
            print_log(
                f'--resume: no checkpoint in {cfg.work_dir} yet, training starts at iteration 0'
                f'{weights}',
                level=logging.WARNING)
            cfg.resume = False
    else:
        if not is_checkpoint(resume):
            raise MissingFileError(f'--resume: no checkpoint {resume}')
        cfg.resume, cfg.load_from = True, resume


def set_sharding(cfg: Config, fsdp: bool, checkpoints: str) -> None:
    """Share out what is trained over the processes, if that is wanted.

    Raises:
        ValueError: If there is no such kind of checkpoints, or it needs shards.
    """
    if checkpoints not in CHECKPOINTS:
        raise UserError(f'checkpoints must be {" or ".join(CHECKPOINTS)}, got {checkpoints!r}')
    if fsdp:
        shard(cfg, checkpoints == 'sharded')
    elif checkpoints == 'sharded':
        raise UserError('--checkpoints sharded needs --fsdp')


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


def set_total_batch(cfg: Config, options: TrainOptions) -> None:
    """Share out the images of an iteration over the processes, if that is wanted.

    Raises:
        ValueError: As :func:`~.batch_size.set_total_batch_size`, or if a setting says something else.
    """
    if options.total_batch is None:
        return
    if 'train_dataloader.batch_size' in (options.cfg_options or {}):
        raise UserError('--total-batch and --cfg-options train_dataloader.batch_size both say how '
                        'many images an iteration has: leave one of them out')
    set_total_batch_size(cfg, options.total_batch)


def set_amp(cfg: Config, amp: Amp) -> None:
    """Train in mixed precision: float16 with dynamic loss scaling, bfloat16 without.

    A type that ``amp`` names goes before the config's; a warning says what has no effect.

    Raises:
        ValueError: If the device gains nothing by it, the config has an optimizer wrapper of its
            own kind, or one for a GPU without ``amp`` and without a GPU.
    """
    device, wrapper = get_device(), cfg.optim_wrapper
    dtype = half_type(amp, device)
    if dtype is None:
        if device == 'cpu' and name_of(wrapper.get('type')) == 'AmpOptimWrapper':
            raise UserError('optim_wrapper.type AmpOptimWrapper needs a GPU, and there is none: '
                            '--amp trains in bfloat16 on a CPU. For float32, set it to '
                            'OptimWrapper, without dtype and loss_scale')
        return
    if device == 'mps':
        raise UserError('--amp: on mps there is no training in mixed precision: leave it out')
    kind = name_of(wrapper.get('type', 'OptimWrapper'))
    if kind not in ('OptimWrapper', 'AmpOptimWrapper', 'Bfloat16OptimWrapper'):
        raise UserError(f'--amp needs optim_wrapper.type OptimWrapper, the config says {kind}')
    if dtype == torch.bfloat16:
        wrapper.type = 'Bfloat16OptimWrapper'
        drop_option(wrapper, 'loss_scale')
        drop_option(wrapper, 'dtype', 'bfloat16', torch.bfloat16)
        return
    wrapper.type = 'AmpOptimWrapper'
    wrapper.setdefault('loss_scale', 'dynamic')
    if amp == 'float16':
        drop_option(wrapper, 'dtype', 'float16', torch.float16)
        wrapper.dtype = amp


def drop_option(wrapper: ConfigDict, option: str, *same: Any) -> None:
    """Drop an option of the optimizer's wrapper, and say so unless it is the ``same`` in effect."""
    if option in wrapper and (value := wrapper.pop(option)) not in same:
        print_log(f'--amp: optim_wrapper.{option}={value!r} of the config has no effect',
                  level=logging.WARNING)  # yapf: disable


def skip_samples(runner: Runner, on_bad_data: str) -> None:
    """Let training go on without samples that break, if that is wanted.

    Raises:
        ValueError: If the runner is none of ours.
    """
    if on_bad_data == 'skip':
        if not isinstance(runner, StrictRunner):
            raise UserError('--on-bad-data skip needs a runner of colonnade, the config asks for '
                            f'{type(runner).__name__}')
        hook = SkippedSamples(Path(runner.work_dir))
        runner.register_hook(hook)
        runner.skipped_samples = hook.file


@contextmanager
def prepared_runner(
        options: TrainOptions,
        make_record: Callable[[Mapping[str, str]], Hook] | None = None) -> Iterator[Runner]:
    """A runner that is ready to train; while open, no other trains in its work dir.

    Args:
        options: Options of the training.
        make_record: Returns the hook that records the run, from the SHA-256 of files and folders of
            the data that are known, by path. It is not called without ``options.report``.

    Raises:
        OSError: If a file or folder is missing, or cannot be written.
        ValueError: If the config, the options, the data and the weights do not fit each other.
    """
    settings = training_settings(options)
    cfg = settings.config
    run = Run.of(cfg)
    check_writable(run.metrics)
    with allow_pickle(options.trust), lock_work_dir(cfg, run.checkpoint_dir), ExitStack() as stack:
        stack.enter_context(same_wandb_run(cfg, options.tracker))
        runner = build_runner(cfg)
        stack.enter_context(watched(runner, options.hang_limit))
        go_on(runner)
        settings.log_warnings()
        check_same_start(runner)
        skip_samples(runner, options.on_bad_data)
        run_preflight_checks(cfg, skip=options.on_bad_data == 'skip')
        if options.new_classes and not cfg.resume:
            if not isinstance(runner, StrictRunner):
                raise UserError('--new-classes needs a runner of colonnade, the config asks for '
                                f'{type(runner).__name__}')
            runner.adapt = ClassTransfer(cfg)
        if cfg.train_dataloader.get('batch_size'):
            accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
            runner.register_hook(BatchSizeHook(cfg.train_dataloader.batch_size, accumulated))
        runner.register_hook(SameBuffers())
        if type(runner.log_processor) is LogProcessor:  # another one may need whole histories
            runner.register_hook(HistoryLimit())
        if isinstance(runner, StrictRunner):
            runner.check_weights()
        with without_steps(), pause_gc():
            check_loaded_data(runner, allow_outside=options.allow_outside)
        digests = check_same_data(cfg, loaded_datasets(runner))
        register_nan_guard(runner, options.max_bad_steps)
        with recorded(
                runner,
                patience=options.patience,
                min_delta=options.min_delta,
                trackers=options.tracker):
            record = make_record(digests) if make_record and options.report else None
            if record is not None:
                runner.register_hook(record)
            runner.register_hook(PendingEvaluation(MetricsTable(run.metrics)))
            try:
                yield runner
            except Interrupted:
                if record is not None:
                    record.after_train(runner)
                barrier()  # launchers end all processes when one has left
                raise
            finally:
                for hook in runner.hooks:
                    if isinstance(hook, (NanGuard, SkippedSamples)):
                        hook.say(runner)
        barrier()  # none may leave while the first still writes
