"""Recording logged steps and evaluations of a training in metrics.csv."""
from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Mapping
from typing import Any

from mmengine.dist import broadcast_object_list, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from mmengine.visualization import BaseVisBackend

from colonnade.common.name_lists import format_count

from .metric_values import fill_missing_metrics, to_number
from .metrics_table import MetricsTable, Value


class CompleteMetrics(Hook):
    """A hook that adds missing metrics to evaluations: an mAP of 0 if nothing was detected.

    mmdet's CocoMetric gives no numbers then, and mmengine's CheckpointHook would fail. Metrics that
    are still missing, or not numbers, become NaN, which is never the best.
    """

    priority = 'HIGHEST'  # before mmengine's hooks get the metrics

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if metrics is None:
            return
        for key, value in fill_missing_metrics(metrics, runner.val_loop.evaluator.metrics).items():
            metrics.setdefault(key, value)
        for name in self.names:
            if to_number(metrics.get(name)) is None:
                present = ', '.join(metrics) or 'none'
                runner.logger.warning(
                    f'the evaluation returned no number for {name}; it returned: {present}')
                metrics[name] = float('nan')


class Recorder(Hook):
    """A hook that writes a row of a table per logged step of training, and one per evaluation.

    Times are seconds since training started, and continue from the last row when it resumes. The
    row of an evaluation also means that its best checkpoint is saved: an evaluation without a row
    is repeated.
    """

    priority = 'LOWEST'  # after the hooks that save checkpoints

    def __init__(self, table: MetricsTable) -> None:
        self.table = table
        self.started = time.monotonic()
        self.has_warned = False

    def before_train(self, runner: Runner) -> None:
        self.started = time.monotonic()
        if not is_main_process():
            return
        num_removed = self.table.keep_until(runner.iter)
        if num_removed:
            removed = format_count(num_removed, 'row')
            runner.logger.info(
                f'{self.table.path.name}: removed {removed} after iteration {runner.iter}')
        self.started -= self.table.last('time')

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if is_main_process() and metrics:
            self.write(runner, runner.iter, metrics)

    def write(self, runner: Runner, iteration: int, numbers: Mapping[str, Any]) -> None:
        """Write a row of what is a number; the first row that cannot be written is logged."""
        row: dict[str, Value] = dict(iter=iteration)
        if length := _get_epoch_length(runner):
            row['epoch'] = round(iteration / length, 3)
        row['time'] = round(time.monotonic() - self.started, 1)
        values = {key: to_number(value) for key, value in numbers.items()}
        row |= {key: value for key, value in values.items() if value is not None}
        try:
            self.table.append(row)
        except OSError as error:
            if not self.has_warned:
                runner.logger.warning(
                    f'cannot write {self.table.path}: {error}. Rows from iteration {iteration} '
                    'on will be missing until it can be written again')
            self.has_warned = True


class LoggedSteps(BaseVisBackend):
    """A visualizer backend that passes what mmengine's LoggerHook logs to a recorder."""

    def __init__(self, runner: Runner, recorder: Recorder) -> None:
        super().__init__(save_dir=str(recorder.table.path.parent))
        self.runner, self.recorder = runner, recorder

    @property
    def experiment(self) -> MetricsTable:
        return self.recorder.table

    def _init_env(self) -> None:
        """Do nothing."""

    def add_scalars(self, scalar_dict: dict, *_: Any, **__: Any) -> None:
        """Record a step of training; the hook records evaluations."""
        if self.runner.message_hub.get_info('loop_stage') != 'train':
            return
        numbers = {key.removeprefix('train/'): value for key, value in scalar_dict.items()}
        if 'time' in numbers:  # seconds per iteration, unlike the column
            numbers['iter_time'] = numbers.pop('time')
        self.recorder.write(self.runner, self.runner.iter + 1, {
            key: value
            for key, value in numbers.items() if key not in ('iter', 'epoch', 'step')
        })


def _get_epoch_length(runner: Runner) -> float:
    """Return the iterations in which all training images are seen once, or 0 if not known."""
    loop, loader = runner.train_loop, runner.train_dataloader
    if isinstance(loop, EpochBasedTrainLoop):
        return len(loader)
    try:
        return len(loader.dataset) / (runner.cfg.train_dataloader.batch_size * get_world_size())
    except (AttributeError, TypeError):  # batches of variable size, or a stream of images
        return 0.


class PendingEvaluation(Hook):
    """A hook that evaluates a resumed checkpoint if the previous run did not finish doing so.

    Args:
        table: Table of the run; if it is empty, the run did not start in this work dir.
    """

    priority = 'LOWEST'  # after all others, which are ready for an evaluation then

    def __init__(self, table: MetricsTable) -> None:
        self.table = table

    def before_train(self, runner: Runner) -> None:
        if not runner.iter or not _is_evaluation_due(runner):
            return
        is_missing = [bool(self.table.rows()) and not self.table.is_evaluated(runner.iter)]
        broadcast_object_list(is_missing)  # only the first process has the table
        if is_missing[0]:
            runner.logger.info(f'running the evaluation of iteration {runner.iter}, which the '
                               'previous run did not finish')
            runner.val_loop.run()


def _is_evaluation_due(runner: Runner) -> bool:
    """Return True if mmengine's loops evaluate after this iteration."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return False
    if isinstance(loop, EpochBasedTrainLoop):
        step, end = loop.epoch, loop.max_epochs
        if loop.iter != step * len(loop.dataloader):
            return False
    elif isinstance(loop, IterBasedTrainLoop):
        step, end = loop.iter, loop.max_iters
    else:
        return False
    interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, step + 1) - 1]
    return step >= loop.val_begin and (step % interval == 0 or step == end)
