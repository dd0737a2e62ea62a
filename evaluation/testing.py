"""From a config, weights and options to a runner that is ready to test, and to its metrics."""
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
from colonnade.common.console_logging import without_steps
from colonnade.common.distributed import do_in_first
from colonnade.common.errors import FileError, MissingFileError, UserError
from colonnade.common.hashing import sha256_of
from colonnade.configs import find_config
from colonnade.datasets.path_checks import check_pickles, iter_image_paths, report_deep_json
from colonnade.datasets.training_checks import iter_datasets
from colonnade.datasets.validation.label_map_files import find_label_problems
from colonnade.engine.distributed.fsdp import ShardedRunner
from colonnade.engine.distributed.process_consistency import (check_same_data, check_same_start,
                                                              check_same_weights)
from colonnade.engine.runner.hooks import drop_averaging
from colonnade.engine.runner.launch import build_runner
from colonnade.engine.runner.strict_runner import StrictRunner
from colonnade.engine.watchdog import watched
from colonnade.engine.work_dir.metric_values import Metrics, complete
from colonnade.models.fusion import is_fused, maybe_fuse
from colonnade.models.half_precision import compute_in, half_type, name_of_type
from colonnade.settings.dataset_paths import evaluators
from colonnade.settings.reading import reading_config
from colonnade.settings.registries import find_class
from colonnade.settings.settings import Settings
from colonnade.weights.files import allow_pickle
from colonnade.weights.sharded_files import is_checkpoint

from .options import TestOptions
from .tta import augment_tests

OWNERS = ('mmengine', 'mmseg', 'colonnade')  # whose hooks and visualizers read no logits


def evaluate(config: str | Path, checkpoint: str | Path, **options: Any) -> Metrics:
    """Evaluate a detector or segmenter, as ``tools/test.py`` does.

    Args:
        config: A config file, or the name of a shipped config.
        checkpoint: File or URL of a whole model.
        **options: The attributes of :class:`TestOptions`. The metrics are also written to ``out``.

    Returns:
        Names and values; None for those that are undefined. What is no number is as JSON has it.

    Raises:
        OSError: If a file or folder is missing, or cannot be written.
        TypeError: If there is no such option.
        ValueError: If the config, the options, the data and the weights do not fit each other.
    """
    settings = TestOptions(find_config(config), str(checkpoint), **options)
    with prepared_runner(settings) as runner:
        found = runner.test()
    return write_metrics(found, runner, settings)


@reading_config
def testing_settings(options: TestOptions) -> Settings:
    """Return the settings that are asked for, checked as far as they can be without a model.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If the config, the options and the data do not fit each other.
    """
    if '://' not in options.checkpoint and not is_checkpoint(options.checkpoint):
        raise MissingFileError(f'no checkpoint {options.checkpoint}')

    def start(cfg: Config) -> None:
        drop_averaging(cfg)
        cfg.load_from, cfg.resume = options.checkpoint, False
        if cfg.get('runner_type') == ShardedRunner.__name__:  # a config that a run dumped
            cfg.pop('runner_type')  # an evaluation has no states to share out
        check_pickles(cfg, ('test_dataloader', ), trust=options.trust)

    settings = Settings.load(
        options, ('test_dataloader', ), change=start, further=[find_label_problems])
    if options.tta:
        augment_tests(settings.config)
    return settings


@contextmanager
def prepared_runner(options: TestOptions) -> Iterator[Runner]:
    """A runner that is ready to test.

    Raises:
        OSError: If a file or folder is missing, or cannot be written.
        ValueError: If the config, the options, the data and the weights do not fit each other.
    """
    dtype = half_type(options.amp, get_device())
    settings = testing_settings(options)
    cfg = settings.config
    check_writable(Path(cfg.work_dir, 'metrics.json'))
    if options.out:
        check_writable(Path(options.out))
    with allow_pickle(options.trust), ExitStack() as stack:
        runner = build_runner(cfg)
        stack.enter_context(watched(runner, options.hang_limit))
        settings.log_warnings()
        check_same_start(runner)
        if isinstance(runner, StrictRunner):
            runner.prepare = partial(
                prepare, fuse=options.fuse, labels_alone=reads_labels_alone(cfg), dtype=dtype)
            runner.check_weights()
        elif options.fuse or dtype:
            raise UserError('--fuse and --amp need the default runner, the config asks for '
                            f'{type(runner).__name__}')
        elif options.fuse is None:
            runner.logger.info(f'not fused: the runner is a {type(runner).__name__}')
        check_same_weights(options.checkpoint)
        if get_world_size() > 1 or not options.allow_outside:
            check_loaded_data(runner, allow_outside=options.allow_outside)
        yield runner


def check_loaded_data(runner: Runner, *, allow_outside: bool) -> None:
    """Load the data set of a test, and look where its files lie and if all processes have it.

    Raises:
        ValueError: If annotations name files that they may not, or if processes have other data.
    """
    with without_steps(), report_deep_json(runner.cfg, ('test_dataloader', )):
        if runner.test_loop is None:
            return
        dataset = runner.test_dataloader.dataset
    if not allow_outside:
        do_in_first(
            lambda: deque(iter_image_paths(iter_datasets(dataset), allow_outside=False), maxlen=0))
    check_same_data(runner.cfg, dict(test_dataloader=dataset))


def reads_labels_alone(cfg: Config) -> bool:
    """Whether a test needs label maps, and no logits.

    Its metrics are mmseg's IoU. Hooks and visualizers of others may read logits.
    """
    hooks = [*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or [])]
    kinds = [type(hook) if isinstance(hook, Hook) else find_class(hook['type'], HOOKS)
             for hook in hooks if hook]  # yapf: disable
    if visualizer := cfg.get('visualizer'):
        kinds.append(find_class(visualizer['type'], VISUALIZERS))
    metrics = evaluators(cfg, ('test_evaluator', ))
    return all(metric.get('type') == 'IoUMetric' for metric in metrics) and all(
        getattr(kind, '__module__', '').partition('.')[0] in OWNERS for kind in kinds)


def prepare(model: nn.Module, *, fuse: bool | None, labels_alone: bool,
            dtype: torch.dtype | None) -> None:
    """Fuse a model whose weights are loaded, and let it compute in half precision."""
    if lines := maybe_fuse(model, fuse, dtype):
        if labels_alone:
            from colonnade.models.fusion.label_maps import fuse_label_maps  # brings mmseg
            lines += fuse_label_maps(model)
        print_log(f'fused: {"; ".join(lines)}', logger='current')
    if dtype is not None:
        compute_in(model, dtype)


def write_metrics(found: dict[str, Any], runner: Runner, options: TestOptions) -> Metrics:
    """The metrics of a test in full, written to a file by the first process.

    Args:
        found: What the evaluators computed.
        runner: That computed it.
        options: Of the test.

    Raises:
        OSError: If they cannot be written.
    """
    metrics = complete(found, runner.test_loop.evaluator.metrics)
    if is_main_process():
        content = dict(
            config=str(options.config),
            checkpoint=options.checkpoint,
            fused=is_fused(runner.model),
            amp=name_of_type(half_type(options.amp, get_device())),
            metrics=metrics)
        if (path := Path(options.checkpoint).expanduser()).is_file():
            content['checkpoint_sha256'] = sha256_of(path)
        try:
            write_json(metrics_file(runner, options), content)
        except OSError as error:
            raise FileError(f'the metrics cannot be written: {error}') from error
    return metrics


def metrics_file(runner: Runner, options: TestOptions) -> Path:
    """Where the metrics of a test go."""
    return Path(options.out or Path(runner.log_dir, 'metrics.json'))


def report(found: dict[str, Any], runner: Runner, options: TestOptions) -> None:
    """Print the metrics of a test and write them, in the first process alone.

    Args:
        found: What the evaluators computed.
        runner: That computed it.
        options: Of the test.

    Raises:
        OSError: If they cannot be written.
    """
    if not is_main_process():
        return
    for key, value in complete(found, runner.test_loop.evaluator.metrics).items():
        text = f'{value:.4g}' if isinstance(value, float) else str(value)
        print(f'{key:24} {"undefined" if value is None else text}')
    if not write_metrics(found, runner, options):
        print('no metrics: the evaluators of the config compute none')
    print(f'written to {metrics_file(runner, options)}')
