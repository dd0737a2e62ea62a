"""Hooks that end training early, between steps: for example without further improvement."""
from __future__ import annotations

from math import isfinite
from typing import Any

from mmengine.dist import broadcast_object_list
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..runner.hooks import is_between_steps
from .last_checkpoint import find_checkpoint_hook
from .metrics_table import MetricsTable


class StopBetweenSteps(Hook):
    """A hook that ends training once ``should_stop`` is set, and saves the last state.

    Training ends between optimizer steps, and in an epoch-based loop between epochs.
    """
    should_stop = False

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            self.stop_between_steps(runner, runner.epoch, runner.iter + 1)

    def after_train_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            self.stop_between_steps(runner, runner.epoch + 1, runner.iter)

    def stop_between_steps(self, runner: Runner, epoch: int, iteration: int) -> None:
        """Stop and save after this many epochs and iterations, if training should stop."""
        if not self.should_stop or runner.train_loop.stop_training:
            return
        if iteration < runner.max_iters and is_between_steps(runner):
            self.stop(runner, iteration)
            if (saving := find_checkpoint_hook(runner)) is not None:
                saving.save_final(runner, epoch, iteration)

    def stop(self, runner: Runner, iteration: int) -> None:
        """End training, and log why."""
        runner.train_loop.stop_training = True
        runner.logger.info(f'training stops at iteration {iteration} of {runner.max_iters}: '
                           f'{self.explain()}')

    def explain(self) -> str:
        """Return why training stops."""
        raise NotImplementedError


class EarlyStopping(StopBetweenSteps, EarlyStoppingHook):
    """A hook that stops training after evaluations without improvement.

    Unlike mmengine's, it continues counting when training resumes. An evaluation without a number
    does not count as an improvement, and neither does one that equals the best.
    """

    def __init__(self, table: MetricsTable, monitor: str, *, patience: int, min_delta: float,
                 rule: str | None) -> None:
        super().__init__(monitor, rule=rule, patience=patience, min_delta=min_delta)
        self.table = table
        self.best_score: float
        self.wait_count: int

    def before_train(self, runner: Runner) -> None:
        for score in self.table.values(self.monitor) if runner.iter else []:
            self.count(score)
        counts = [(self.best_score, self.wait_count)]
        broadcast_object_list(counts)  # only the first process has the table
        self.best_score, self.wait_count = counts[0]
        if self.wait_count >= self.patience:
            self.stop(runner, runner.iter)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        score = (metrics or {}).get(self.monitor)
        self.count(float('nan') if score is None else score)
        self.should_stop = self.should_stop or self.wait_count >= self.patience
        self.stop_between_steps(runner, runner.epoch, runner.iter)

    def count(self, score: float) -> None:
        """Count an evaluation."""
        is_better = self.rule_map[self.rule]
        if isfinite(score) and is_better(score, self.best_score + self.min_delta):
            self.best_score, self.wait_count = score, 0
        else:
            self.wait_count += 1

    def explain(self) -> str:
        best = f'{self.best_score:.4g}' if isfinite(self.best_score) else 'NaN'
        best += f' by more than {abs(self.min_delta):g}' if self.min_delta else ''
        return (f'{self.monitor} did not improve on {best} in {self.wait_count} evaluations '
                f'(--patience {self.patience})')
