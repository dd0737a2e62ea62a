"""The numbers of a training as ``metrics.csv``: what is logged, and every evaluation."""
from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mmengine.dist import broadcast_object_list, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from mmengine.visualization import BaseVisBackend

from ..upstream import update_val_interval
from .metric_values import as_number, complete
from .metrics_table import MetricsTable, Value


class CompleteMetrics(Hook):
    """Adds to each evaluation what it lacks: an mAP of 0 where nothing was detected.

    mmdet's CocoMetric gives no numbers then, and mmengine's CheckpointHook would fail on the metric
    that it is to compare. Metrics of these names that nothing gave, or that are no numbers, become
    NaN, which is never the best.

    Args:
        names: Of the metrics that other hooks look for.
    """

    priority = 'HIGHEST'  # before mmengine notes what was evaluated

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Complete ``metrics`` in place."""
        if metrics is None:
            return
        for key, value in complete(metrics, runner.val_loop.evaluator.metrics).items():
            metrics.setdefault(key, value)
        for name in self.names:
            if as_number(metrics.get(name)) is None:
                given = ', '.join(metrics) or 'none'
                runner.logger.warning(f'the evaluation gave no number for {name}; it gave: {given}')
                metrics[name] = float('nan')


class Recorder(Hook):
    """Writes a row of a table per logged step of training, and one per evaluation.

    Times are seconds since training began. They go on from the last row when it is resumed. The row
    of an evaluation says that its best checkpoint is saved: without it, the evaluation is made
    again.
    """

    priority = 'LOWEST'  # behind what saves checkpoints

    def __init__(self, table: MetricsTable) -> None:
        self.table = table
        self.started = time.monotonic()
        self.told = False  # that a row is missing

    def before_train(self, runner: Runner) -> None:
        """Drop what lies behind the iteration that training starts at."""
        self.started = time.monotonic()
        if not is_main_process():
            return
        dropped = self.table.keep_until(runner.iter)
        if dropped:
            runner.logger.info(f'{self.table.path.name}: {dropped} rows behind iteration '
                               f'{runner.iter} are dropped')
        self.started -= self.table.last('time')

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Write an evaluation."""
        if is_main_process() and metrics:
            self.write(runner, runner.iter, metrics)

    def write(self, runner: Runner, iteration: int, numbers: Mapping[str, Any]) -> None:
        """Write a row; what is no number is left out.

        A row that cannot be written is missing, and the first of them is warned of.
        """
        row: dict[str, Value] = dict(iter=iteration)
        if length := iterations_per_epoch(runner):
            row['epoch'] = round(iteration / length, 3)
        row['time'] = round(time.monotonic() - self.started, 1)
        found = {key: as_number(value) for key, value in numbers.items()}
        row |= {key: value for key, value in found.items() if value is not None}
        try:
            self.table.append(row)
        except OSError as error:
            if not self.told:
                runner.logger.warning(
                    f'{self.table.path} cannot be written, and lacks rows from iteration '
                    f'{iteration} on until it can: {error}')
            self.told = True


class LoggedSteps(BaseVisBackend):
    """Hands what mmengine's LoggerHook logs of a training to a recorder."""

    def __init__(self, runner: Runner, recorder: Recorder) -> None:
        super().__init__(save_dir=str(recorder.table.path.parent))
        self.runner, self.recorder = runner, recorder

    @property
    def experiment(self) -> MetricsTable:
        """The table."""
        return self.recorder.table

    def _init_env(self) -> None:
        """There is nothing to set up."""

    def add_scalars(self,
                    scalar_dict: dict,
                    step: int = 0,
                    file_path: str | None = None,
                    **kwargs: Any) -> None:
        """Record a step of training; evaluations are recorded by the hook."""
        if self.runner.message_hub.get_info('loop_stage') != 'train':
            return
        numbers = {key.removeprefix('train/'): value for key, value in scalar_dict.items()}
        if 'time' in numbers:  # of an iteration; the column is that of the run
            numbers['iter_time'] = numbers.pop('time')
        self.recorder.write(self.runner, self.runner.iter + 1, {
            key: value
            for key, value in numbers.items() if key not in ('iter', 'epoch', 'step')
        })


def iterations_per_epoch(runner: Runner) -> float:
    """How many iterations show all images of the training set once; 0 if that is not known."""
    loop, loader = runner.train_loop, runner.train_dataloader
    if isinstance(loop, EpochBasedTrainLoop):
        return len(loader)
    try:
        return len(loader.dataset) / (runner.cfg.train_dataloader.batch_size * get_world_size())
    except (AttributeError, TypeError):  # batches of no fixed size, or a stream of images
        return 0.


class PendingEvaluation(Hook):
    """Evaluates before training goes on, where the checkpoint was saved and its evaluation not.

    Args:
        table: Of the run; if it is empty, the run did not begin in this folder.
    """

    priority = 'LOWEST'  # behind all others, which are ready for an evaluation then

    def __init__(self, table: MetricsTable) -> None:
        self.table = table

    def before_train(self, runner: Runner) -> None:
        """Evaluate if that is due."""
        if not runner.iter or not is_due(runner):
            return
        lacks = [bool(self.table.rows()) and not self.table.is_evaluated(runner.iter)]
        broadcast_object_list(lacks)  # the first process has the table
        if lacks[0]:
            runner.logger.info(f'the evaluation of iteration {runner.iter} is missing, and made')
            runner.val_loop.run()


def is_due(runner: Runner) -> bool:
    """Whether mmengine's loops evaluate behind this iteration."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return False
    if isinstance(loop, EpochBasedTrainLoop):
        place, end = loop.epoch, loop.max_epochs
        if loop.iter != place * len(loop.dataloader):
            return False
    elif isinstance(loop, IterBasedTrainLoop):
        place, end = loop.iter, loop.max_iters
    else:
        return False
    update_val_interval(loop)
    return place >= loop.val_begin and (place % loop.val_interval == 0 or place == end)
