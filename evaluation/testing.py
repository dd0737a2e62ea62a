"""Evaluation of a checkpoint."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS, VISUALIZERS
from mmengine.runner import Runner
from torch import nn

from colonnade.common.atomic_files import check_writable, write_json
from colonnade.common.console_logging import hide_coco_output
from colonnade.common.distributed import run_on_first_rank
from colonnade.common.errors import FileError, MissingFileError, UserError
from colonnade.common.hashing import compute_sha256
from colonnade.configs import find_config
from colonnade.datasets.path_checks import check_pickles, iter_image_paths, report_deep_json
from colonnade.datasets.training_checks import iter_datasets
from colonnade.datasets.validation.label_map_files import find_label_problems
from colonnade.engine.distributed.fsdp import ShardedRunner
from colonnade.engine.distributed.process_consistency import (check_same_data, check_same_start,
                                                              check_same_weights)
from colonnade.engine.runner.hooks import remove_ema_hooks
from colonnade.engine.runner.launch import build_runner
from colonnade.engine.runner.strict_runner import StrictRunner
from colonnade.engine.watchdog import watch_processes
from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.metric_values import Metrics, fill_missing_metrics
from colonnade.models.fusion import is_fused, maybe_fuse
from colonnade.models.half_precision import compute_in, get_half_type, get_type_name
from colonnade.settings.dataset_paths import iter_evaluators
from colonnade.settings.reading import report_config_errors
from colonnade.settings.registries import find_class
from colonnade.settings.settings import Settings
from colonnade.weights.files import allow_pickle
from colonnade.weights.sharded_files import is_checkpoint

from .options import TestOptions
from .tta import augment_tests

OWNERS = ('mmengine', 'mmseg', 'colonnade')  # packages whose hooks and visualizers read no logits


def evaluate(config: str | Path, checkpoint: str | Path | None = None, **options: Any) -> Metrics:
    """Evaluate a detector or segmenter, like ``colonnade test``.

    Args:
        config: Config file, name of a shipped config, or work dir of a run.
        checkpoint: File or URL of a full model. For a work dir, it defaults to the best checkpoint,
            or the last one if there is no best.
        **options: Attributes of :class:`TestOptions`. The metrics are also written to ``out``.

    Returns:
        Names and values, ready for JSON; None for undefined values.

    Raises:
        OSError: If a file or folder is missing, or cannot be written.
        TypeError: If an option does not exist.
        ValueError: If the config, the options, the data and the weights do not fit together.
    """
    path = Path(config) if Path(config).is_dir() else find_config(config)
    settings = TestOptions(
        config=path, checkpoint=None if checkpoint is None else str(checkpoint), **options)
    with prepared_runner(settings) as runner:
        metrics = runner.test()
    return write_metrics(metrics, runner, settings)


@report_config_errors
def testing_settings(options: TestOptions) -> Settings:
    """Return the settings of an evaluation, checked as far as possible without a model."""
    if options.config.suffix in ('.pth', '.pt'):
        raise UserError(f'{options.config} is a checkpoint: pass its work dir or config before it, '
                        f'as in {options.config.parent} {options.config}')
    if (options.config / 'model.safetensors').is_file():
        raise UserError(f'{options.config} is a package: pass {options.config}/config.py '
                        f'{options.config}/model.safetensors, and --data-root')
    if options.config.is_dir():
        options.work_dir = options.work_dir or options.config  # also if it was moved
        options.config, checkpoint = Run(options.config).find_model(options.checkpoint)
        options.checkpoint = str(checkpoint)
    if options.checkpoint is None:
        raise UserError(f'no checkpoint given for {options.config}: pass one after it')
    if '://' not in options.checkpoint and not is_checkpoint(options.checkpoint):
        raise MissingFileError(f'no such weights file: {options.checkpoint}')

    def start(cfg: Config) -> None:
        remove_ema_hooks(cfg)
        cfg.load_from, cfg.resume = options.checkpoint, False
        if cfg.get('runner_type') == ShardedRunner.__name__:  # a config that a run dumped
            cfg.pop('runner_type')  # An evaluation has no states to shard.
        check_pickles(cfg, ('test_dataloader', ), trust=options.trust)

    settings = Settings.load(
        options, ('test_dataloader', ), change=start, further=[find_label_problems])
    if options.tta:
        augment_tests(settings.config)
    return settings


@contextmanager
def prepared_runner(options: TestOptions) -> Iterator[Runner]:
    """Context manager that yields a runner that is ready to test."""
    dtype = get_half_type(options.amp, get_device())
    settings = testing_settings(options)
    cfg = settings.config
    check_writable(Path(cfg.work_dir, 'metrics.json'))
    if options.out:
        check_writable(Path(options.out))
    with allow_pickle(options.trust), ExitStack() as stack:
        runner = build_runner(cfg, options.hang_timeout)
        stack.enter_context(watch_processes(runner, options.hang_timeout))
        settings.log_warnings()
        check_same_start(runner)
        if isinstance(runner, StrictRunner):
            runner.prepare = partial(
                prepare, fuse=options.fuse, labels_alone=reads_labels_alone(cfg), dtype=dtype)
            runner.check_weights()
        elif options.fuse or dtype:
            raise UserError('--fuse and --amp need a Colonnade runner, but the config uses '
                            f'{type(runner).__name__}')
        elif options.fuse is None:
            runner.logger.info(f'not fused: the runner is a {type(runner).__name__}')
        check_same_weights(cfg.load_from)
        if get_world_size() > 1 or not options.allow_external_files:
            check_loaded_data(runner, allow_external_files=options.allow_external_files)
        yield runner


def check_loaded_data(runner: Runner, *, allow_external_files: bool) -> None:
    """Load the dataset, and check that its files are inside of it and equal in all processes."""
    with hide_coco_output(), report_deep_json(runner.cfg, ('test_dataloader', )):
        if runner.test_loop is None:
            return
        dataset = runner.test_dataloader.dataset
    if not allow_external_files:
        run_on_first_rank(lambda: deque(
            iter_image_paths(iter_datasets(dataset), allow_external_files=False), maxlen=0))
    check_same_data(runner.cfg, dict(test_dataloader=dataset))


def reads_labels_alone(cfg: Config) -> bool:
    """Return True if only mmseg's IoU is computed, for which label maps suffice.

    Third-party hooks and visualizers may read logits.
    """
    hooks = [*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or [])]
    classes = [type(hook) if isinstance(hook, Hook) else find_class(hook['type'], HOOKS)
               for hook in hooks if hook]  # yapf: disable
    if visualizer := cfg.get('visualizer'):
        classes.append(find_class(visualizer['type'], VISUALIZERS))
    metrics = iter_evaluators(cfg, ('test_evaluator', ))
    return all(metric.get('type') == 'IoUMetric' for metric in metrics) and all(
        each.__module__.partition('.')[0] in OWNERS for each in classes)


def prepare(model: nn.Module, *, fuse: bool | None, labels_alone: bool,
            dtype: torch.dtype | None) -> None:
    """Fuse a model whose weights are loaded, and enable half precision."""
    if lines := maybe_fuse(model, fuse, dtype):
        if labels_alone:
            from colonnade.models.fusion.label_maps import fuse_label_maps  # needs mmseg
            lines += fuse_label_maps(model)
        print_log(f'fused: {"; ".join(lines)}', logger='current')
    if dtype is not None:
        compute_in(model, dtype)


def write_metrics(computed: dict[str, Any], runner: Runner, options: TestOptions) -> Metrics:
    """Return the metrics ready for JSON, and write them to a file in the first process."""
    metrics = fill_missing_metrics(computed, runner.test_loop.evaluator.metrics)
    if is_main_process():
        content = dict(
            config=str(options.config),
            checkpoint=options.checkpoint,
            fused=is_fused(runner.model),
            amp=get_type_name(get_half_type(options.amp, get_device())),
            metrics=metrics)
        if (path := Path(str(options.checkpoint)).expanduser()).is_file():
            content['checkpoint_sha256'] = compute_sha256(path)
        try:
            write_json(get_metrics_path(runner, options), content)
        except OSError as error:
            raise FileError(f'cannot write the metrics: {error}') from error
    return metrics


def get_metrics_path(runner: Runner, options: TestOptions) -> Path:
    """Return the output file of the metrics."""
    return Path(options.out or Path(runner.log_dir, 'metrics.json'))


def report_metrics(computed: dict[str, Any], runner: Runner, options: TestOptions) -> None:
    """Print and write the metrics of the evaluators in the first process."""
    if not is_main_process():
        return
    for key, value in fill_missing_metrics(computed, runner.test_loop.evaluator.metrics).items():
        text = f'{value:.4g}' if isinstance(value, float) else str(value)
        print(f'{key:24} {"undefined" if value is None else text}')
    if not write_metrics(computed, runner, options):
        print('no metrics: the config has no evaluators that compute any')
    print(f'written: {get_metrics_path(runner, options)}')
