"""Checkpoints that wait for a step of the optimizer."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from ..runner.hooks import is_between_steps


class SaveBetweenSteps(Hook):
    """Puts off checkpoints of the state of training until the optimizer steps.

    With accumulation, gradients may be summed that it has not stepped on. No checkpoint holds them.
    Nor does one take the place of a good one while steps are skipped, but at the end of training.
    What waits when a hook ends training is saved as it is.

    Args:
        saving: mmengine's hook, changed in place.

    Attributes:
        is_suspect: Whether the latest step was skipped, in which processes agree.
    """

    priority = 'LOWEST'  # behind it

    def __init__(self, saving: CheckpointHook) -> None:
        self.saving, self.save = saving, saving._save_checkpoint_with_step
        self.waiting: int | None = None  # the number of an epoch or iteration
        self.is_suspect: Callable[[], bool] = lambda: False
        saving._save_checkpoint_with_step = self.save_or_wait

    def is_good(self, runner: Runner, iteration: int) -> bool:
        """Whether a checkpoint may be saved behind so many iterations."""
        ends = iteration >= runner.max_iters or getattr(runner.train_loop, 'stop_training', False)
        return is_between_steps(runner) and (ends or not self.is_suspect())

    def save_or_wait(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save, or do so behind the optimizer's step."""
        if self.is_good(runner, meta['iter']):
            self.waiting = None
            self.save(runner, step, meta)
            return
        if self.waiting is None:
            runner.logger.info(f'the checkpoint that is due at iteration {meta["iter"]} waits for '
                               'the next step of the optimizer')
        self.waiting = step

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Save what waits."""
        done = runner.iter + 1
        if self.waiting is not None and self.is_good(runner, done):
            step = self.waiting if self.saving.by_epoch else done
            self.save_or_wait(runner, step, dict(epoch=runner.epoch, iter=done))

    def after_train(self, runner: Runner) -> None:
        """Save what still waits where a hook has ended training within a step."""
        if self.waiting is not None:
            step = runner.epoch if self.saving.by_epoch else runner.iter
            self.save(runner, step, dict(epoch=runner.epoch, iter=runner.iter))
            self.waiting = None
