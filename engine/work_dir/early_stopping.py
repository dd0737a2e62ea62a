"""Training that ends when evaluations get no better."""
from __future__ import annotations

from math import isfinite
from typing import Any

from mmengine.dist import broadcast_object_list
from mmengine.hooks import EarlyStoppingHook
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..runner.hooks import is_between_steps
from .last_checkpoint import saving_hook
from .metrics_table import MetricsTable


class Patience(EarlyStoppingHook):
    """Stops training after so many evaluations in which a metric got no better.

    In contrast to mmengine's, it goes on counting when training is resumed. An evaluation without
    a number is none that got better, nor is one that equals the best. Training ends between steps
    of the optimizer, in a loop of epochs also between epochs. The last state is saved.

    Args:
        table: Where evaluations are recorded.
        monitor: The metric.
        patience: How many evaluations may bring nothing.
        min_delta: By how much the metric must exceed the best.
        rule: ``'greater'`` or ``'less'``; from the metric's name if not given.
    """

    def __init__(self, table: MetricsTable, monitor: str, *, patience: int, min_delta: float,
                 rule: str | None) -> None:
        super().__init__(monitor, rule=rule, patience=patience, min_delta=min_delta)
        self.table = table
        self.best_score: float
        self.wait_count: int
        self.is_asked = False  # to stop

    def before_train(self, runner: Runner) -> None:
        """Count the evaluations of the run that goes on."""
        for score in self.table.values(self.monitor) if runner.iter else []:
            self.count(score)
        counted = [(self.best_score, self.wait_count)]
        broadcast_object_list(counted)  # the first process has the table
        self.best_score, self.wait_count = counted[0]
        if self.wait_count >= self.patience:
            self.stop(runner, runner.iter)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Count an evaluation, and stop if it was one too many."""
        score = (metrics or {}).get(self.monitor)
        self.count(float('nan') if score is None else score)
        self.is_asked = self.is_asked or self.wait_count >= self.patience
        self.stop_between_steps(runner, runner.epoch, runner.iter)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Stop if that was put off."""
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            self.stop_between_steps(runner, runner.epoch, runner.iter + 1)

    def after_train_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Stop if that was put off."""
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            self.stop_between_steps(runner, runner.epoch + 1, runner.iter)

    def stop_between_steps(self, runner: Runner, epoch: int, iteration: int) -> None:
        """Stop behind so many epochs and iterations, if that is asked for, and save."""
        if not self.is_asked or runner.train_loop.stop_training:
            return
        if iteration < runner.max_iters and is_between_steps(runner):
            self.stop(runner, iteration)
            if (saving := saving_hook(runner)) is not None:
                saving.save_final(runner, epoch, iteration)

    def count(self, score: float) -> None:
        """Count an evaluation."""
        better = self.rule_map[self.rule]
        if isfinite(score) and better(score, self.best_score + self.min_delta):
            self.best_score, self.wait_count = score, 0
        else:
            self.wait_count += 1

    def stop(self, runner: Runner, iteration: int) -> None:
        """End training behind so many iterations, and say why."""
        runner.train_loop.stop_training = True
        best = f'{self.best_score:.4g}' if isfinite(self.best_score) else 'no number'
        best += f' by more than {abs(self.min_delta):g}' if self.min_delta else ''
        runner.logger.info(
            f'training stops at iteration {iteration} of {runner.max_iters}: {self.monitor} got '
            f'no better than {best} in {self.wait_count} evaluations (--patience {self.patience})')
