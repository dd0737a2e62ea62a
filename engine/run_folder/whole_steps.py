"""Checkpoints that wait for a step of the optimizer."""
from __future__ import annotations

from typing import Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from ..hooks import is_between_steps


class SaveBetweenSteps(Hook):
    """Puts off checkpoints of the state of training until the optimizer steps.

    With accumulation, gradients may be summed that it has not stepped on. No checkpoint holds them.

    Args:
        saving: mmengine's hook, changed in place.
    """

    priority = 'LOWEST'  # behind it

    def __init__(self, saving: CheckpointHook) -> None:
        self.saving, self.save = saving, saving._save_checkpoint_with_step
        self.waiting: int | None = None  # the number of an epoch or iteration
        saving._save_checkpoint_with_step = self.save_or_wait

    def save_or_wait(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save, or do so behind the optimizer's step."""
        if is_between_steps(runner):
            self.waiting = None
            self.save(runner, step, meta)
        else:
            self.waiting = step

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Save what waits."""
        if self.waiting is not None and is_between_steps(runner):
            done = runner.iter + 1
            step = self.waiting if self.saving.by_epoch else done
            self.save_or_wait(runner, step, dict(epoch=runner.epoch, iter=done))
