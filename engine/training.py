"""Preparing a training: from a config and options to a runner that is ready to train."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device, is_cuda_available
from mmengine.dist import barrier
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import LogProcessor, Runner

from colonnade.common.atomic_files import check_writable
from colonnade.common.console_logging import hide_coco_output
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.datasets.bad_samples import SkippedSamplesHook
from colonnade.datasets.gc_control import pause_gc
from colonnade.datasets.path_checks import check_pickles
from colonnade.datasets.training_checks import check_loaded_data, loaded_datasets
from colonnade.datasets.validation.preflight import run_preflight_checks
from colonnade.models.class_transfer import ClassTransfer
from colonnade.models.half_precision import get_half_type
from colonnade.settings.backbone_config import set_trained_part
from colonnade.settings.dataset_paths import exists
from colonnade.settings.pipeline_steps import get_type_name
from colonnade.settings.reading import report_config_errors
from colonnade.settings.settings import Settings
from colonnade.weights.downloads import find_timm_weights
from colonnade.weights.files import allow_pickle
from colonnade.weights.pretrained import get_timm_name
from colonnade.weights.sharded_files import is_checkpoint

from .compilation import UncompiledEvaluation, compile_blocks
from .distributed.fsdp import enable_fsdp
from .distributed.process_consistency import check_same_data, check_same_start
from .nan_guard import NanGuard, register_nan_guard
from .optim.batch_size import (enable_auto_scale_lr, get_batch_size, set_grad_accumulation,
                               set_total_batch_size)
from .options import TrainOptions
from .runner.hooks import BatchSizeHook, BroadcastBuffers, HistoryLimit
from .runner.launch import build_runner, lock_work_dir
from .runner.signal_handling import Interrupted
from .runner.strict_runner import StrictRunner
from .watchdog import watch_processes
from .work_dir import Run, configure_run, record_run, select_resume_checkpoint
from .work_dir.metrics_recorder import PendingEvaluation
from .work_dir.metrics_table import MetricsTable
from .work_dir.trackers import resume_wandb_run


@report_config_errors
def load_training_settings(options: TrainOptions) -> Settings:
    """Return the settings of a training, checked as far as that needs no model."""
    dataloaders = ('train_dataloader', 'val_dataloader')

    def change(cfg: Config) -> None:
        check_pickles(cfg, dataloaders, trust=options.trust)
        if options.tune is not None:
            set_trained_part(cfg.model, options.tune)
        set_initial_weights(cfg, options.resume, options.load_from, options.new_classes)

    settings = Settings.load(options, dataloaders, change=change)
    cfg = settings.config
    set_amp(cfg, options.amp)
    if options.fsdp and options.compile:
        raise UserError('--compile does not support --fsdp: remove one of them')
    if options.cuda_graphs and not options.compile:
        raise UserError('--cuda-graphs needs --compile')
    if options.cuda_graphs and not is_cuda_available():
        raise UserError('--cuda-graphs needs an NVIDIA GPU, but torch finds none')
    if options.fsdp:
        enable_fsdp(cfg, options.checkpoint_format == 'sharded')
    elif options.checkpoint_format == 'sharded':
        raise UserError('--checkpoint-format sharded needs --fsdp')
    set_batch_size(cfg, options)
    configure_run(cfg, options.patience, options.min_delta, options.tracker)
    name = get_timm_name((cfg.model.get('backbone') or {}).get('init_cfg'))
    if name and not cfg.load_from:
        find_timm_weights(name)  # before the work dir is created
    return settings


def set_initial_weights(cfg: Config, resume: str | None, load_from: str | None,
                        new_classes: bool) -> None:
    """Set the weights that training starts from."""
    if load_from is not None:
        if resume not in (None, 'auto'):
            raise UserError(f'--load-from {load_from} has no effect with --resume {resume}: remove '
                            'one of them')
        if '://' not in load_from and not is_checkpoint(load_from):
            raise MissingFileError(f'--load-from: no such weights file: {load_from}')
        cfg.load_from = load_from
    if new_classes and (resume not in (None, 'auto') or cfg.resume or not cfg.load_from):
        raise UserError('--new-classes needs --load-from FILE, the model to start from')
    set_resume(cfg, resume)


@file_errors()
def set_resume(cfg: Config, resume: str | None) -> None:
    """Set the checkpoint to resume from, and keep training from overwriting checkpoints.

    With ``'auto'`` and no checkpoint yet, training starts from ``cfg.load_from``.
    """
    run = Run.from_config(cfg)
    if resume is None:
        has_checkpoints = run.last or run.checkpoints()
        if not cfg.resume and (has_checkpoints or run.best_checkpoints()):
            what = 'checkpoints' if has_checkpoints else 'the best checkpoint'
            advice = 'pass --resume to continue it, or ' if has_checkpoints else ''
            raise UserError(f'{cfg.work_dir} has {what} from an earlier run: {advice}choose '
                            'another --work-dir')
    elif resume == 'auto':
        last = run.last
        cfg.resume = True
        try:
            is_stored = '://' in last and exists(last)
        except ValueError as error:
            raise UserError(f'{cfg.work_dir}/last_checkpoint: {error}') from error
        if is_stored:
            cfg.load_from = last
        elif run.checkpoints():
            cfg.load_from = None  # select_resume_checkpoint sets it to the latest intact one
        elif last:
            raise MissingFileError(f'--resume: {cfg.work_dir}/last_checkpoint names {last}, which '
                                   'does not exist: pass --resume CHECKPOINT')
        else:
            weights = f' with the weights of {cfg.load_from}' if cfg.load_from else ''
            print_log(
                f'--resume: no checkpoint in {cfg.work_dir} yet; training starts at iteration 0'
                f'{weights}',
                level=logging.WARNING)
            cfg.resume = False
    else:
        if not is_checkpoint(resume):
            raise MissingFileError(f'--resume: no such checkpoint: {resume}')
        cfg.resume, cfg.load_from = True, resume


def set_batch_size(cfg: Config, options: TrainOptions) -> None:
    """Apply the options about the batch size and the learning rate to a config."""
    if options.total_batch_size is not None:
        if 'train_dataloader.batch_size' in (options.cfg_options or {}):
            raise UserError('--total-batch-size and --cfg-options train_dataloader.batch_size both '
                            'set the batch size: remove one of them')
        set_total_batch_size(cfg, options.total_batch_size)
    if options.auto_scale_lr:
        enable_auto_scale_lr(cfg)
    elif options.grad_accum is not None:
        count = set_grad_accumulation(cfg, options.grad_accum or None)
        print_log(f'--grad-accum: an optimizer step every {count} iterations of '
                  f'{get_batch_size(cfg)} images; all iteration counts in the config are '
                  f'multiplied by {count}')


def set_amp(cfg: Config, amp: bool | str) -> None:
    """Set mixed precision: float16 with dynamic loss scaling, or bfloat16 without.

    An explicit type goes before the config's. Settings without effect are logged.
    """
    device, wrapper = get_device(), cfg.optim_wrapper
    dtype = get_half_type(amp, device)
    if dtype is None:
        if device == 'cpu' and get_type_name(wrapper.get('type')) == 'AmpOptimWrapper':
            raise UserError(
                'optim_wrapper.type AmpOptimWrapper needs a GPU, but this '
                'machine has none: pass --amp, which trains in bfloat16 on a CPU, or '
                'set optim_wrapper.type to OptimWrapper and remove dtype and loss_scale')
        return
    if device == 'mps':
        raise UserError('--amp does not support training on mps: remove it')
    type_name = get_type_name(wrapper.get('type', 'OptimWrapper'))
    if type_name not in ('OptimWrapper', 'AmpOptimWrapper', 'Bfloat16OptimWrapper'):
        raise UserError(f'--amp needs optim_wrapper.type OptimWrapper, got {type_name}')
    if dtype == torch.bfloat16:
        wrapper.type = 'Bfloat16OptimWrapper'
        _drop_option(wrapper, 'loss_scale')
        _drop_option(wrapper, 'dtype', 'bfloat16', torch.bfloat16)
        return
    wrapper.type = 'AmpOptimWrapper'
    wrapper.setdefault('loss_scale', 'dynamic')
    if amp == 'float16':
        _drop_option(wrapper, 'dtype', 'float16', torch.float16)
        wrapper.dtype = amp


def _drop_option(wrapper: ConfigDict, option: str, *effective: Any) -> None:
    """Remove an option of the optimizer wrapper; log it unless its value is in effect anyway."""
    if option in wrapper and (value := wrapper.pop(option)) not in effective:
        print_log(f'--amp: optim_wrapper.{option}={value!r} in the config has no effect',
                  level=logging.WARNING)  # yapf: disable


def _require_strict_runner(runner: Runner, option: str) -> StrictRunner:
    if not isinstance(runner, StrictRunner):
        raise UserError(f'{option} needs a Colonnade runner, but the config sets '
                        f'{type(runner).__name__}')
    return runner


def _register_hooks(runner: Runner, options: TrainOptions) -> None:
    """Register the hooks of every training, and set up what options add to the runner."""
    cfg = runner.cfg
    if options.on_bad_sample == 'skip':
        hook = SkippedSamplesHook(Path(runner.work_dir))
        _require_strict_runner(runner, '--on-bad-sample skip').skipped_samples = hook.file
        runner.register_hook(hook)
    run_preflight_checks(cfg, skip=options.on_bad_sample == 'skip')
    if options.new_classes and not cfg.resume:
        _require_strict_runner(runner, '--new-classes').adapt = ClassTransfer(cfg)
    if cfg.train_dataloader.get('batch_size'):
        accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
        runner.register_hook(BatchSizeHook(cfg.train_dataloader.batch_size, accumulated))
    runner.register_hook(BroadcastBuffers())
    if type(runner.log_processor) is LogProcessor:  # subclasses may need full histories
        runner.register_hook(HistoryLimit())


@contextmanager
def prepare_runner(
        options: TrainOptions,
        make_record: Callable[[Mapping[str, str]], Hook] | None = None) -> Iterator[Runner]:
    """Context manager that yields a runner that is ready to train, and locks its work dir.

    Args:
        options: Options of the training.
        make_record: Function that returns the hook that records the run, given the known SHA-256 of
            files and folders of the data, by path. It is not called without ``options.report``.

    Raises:
        FileError: If a file or folder does not exist, or cannot be written.
        UserError: If the config, the options, the data and the weights do not fit each other.
    """
    settings = load_training_settings(options)
    cfg = settings.config
    run = Run.from_config(cfg)
    check_writable(run.metrics)
    with allow_pickle(options.trust), lock_work_dir(cfg, run.checkpoint_dir), ExitStack() as stack:
        stack.enter_context(resume_wandb_run(cfg, options.tracker))
        runner = build_runner(cfg, options.hang_timeout)
        stack.enter_context(watch_processes(runner, options.hang_timeout))
        select_resume_checkpoint(runner)
        settings.log_warnings()
        check_same_start(runner)
        _register_hooks(runner, options)
        if isinstance(runner, StrictRunner):
            runner.check_weights()
        if options.compile:
            compile_blocks(runner.model, cuda_graphs=options.cuda_graphs)
        if options.cuda_graphs:
            runner.register_hook(UncompiledEvaluation())
        with hide_coco_output(), pause_gc():
            check_loaded_data(runner, allow_external_files=options.allow_external_files)
        digests = check_same_data(cfg, loaded_datasets(runner))
        register_nan_guard(runner, options.max_skipped_steps)
        with record_run(
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
            except BaseException as error:  # commands turn errors of users into SystemExit
                if record is not None:
                    record.after_train(runner)
                if isinstance(error, Interrupted):
                    barrier()  # launchers end all processes when one has exited
                raise
            finally:
                for hook in runner.hooks:
                    if isinstance(hook, NanGuard):
                        hook.log_skips(runner)
                    elif isinstance(hook, SkippedSamplesHook):
                        hook.say(runner)
        barrier()  # no process may exit while the first still writes
