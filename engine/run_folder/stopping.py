"""Training that ends when evaluations get no better."""
from __future__ import annotations

from math import isfinite

from mmengine.dist import broadcast_object_list
from mmengine.hooks import EarlyStoppingHook
from mmengine.runner import Runner

from .last import save_last
from .table import MetricsTable


class Patience(EarlyStoppingHook):
    """Stops training after so many evaluations in which a metric got no better.

    In contrast to mmengine's, it goes on counting when training is resumed. An evaluation without
    a number is none that got better, nor is one that equals the best. The last state is saved.

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

    def before_train(self, runner: Runner) -> None:
        """Count the evaluations of the run that goes on."""
        for score in self.table.values(self.monitor) if runner.iter else []:
            self.count(score)
        counted = [(self.best_score, self.wait_count)]
        broadcast_object_list(counted)  # the first process has the table
        self.best_score, self.wait_count = counted[0]
        if self.wait_count >= self.patience:
            self.stop(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Count an evaluation, and stop if it was one too many."""
        score = (metrics or {}).get(self.monitor)
        self.count(float('nan') if score is None else score)
        if self.wait_count >= self.patience and runner.iter < runner.max_iters:
            self.stop(runner)
            save_last(runner)

    def count(self, score: float) -> None:
        """Count an evaluation."""
        better = self.rule_map[self.rule]
        if isfinite(score) and better(score, self.best_score + self.min_delta):
            self.best_score, self.wait_count = score, 0
        else:
            self.wait_count += 1

    def stop(self, runner: Runner) -> None:
        """End training, and say why."""
        runner.train_loop.stop_training = True
        best = f'{self.best_score:.4g}' if isfinite(self.best_score) else 'no number'
        best += f' by more than {abs(self.min_delta):g}' if self.min_delta else ''
        runner.logger.info(
            f'training stops at iteration {runner.iter} of {runner.max_iters}: {self.monitor} got '
            f'no better than {best} in {self.wait_count} evaluations (--patience {self.patience})')
