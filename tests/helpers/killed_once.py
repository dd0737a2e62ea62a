"""A hook that kills its process once, as a machine that fails does."""
from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class KilledOnce(Hook):
    """Kills one of several processes at an iteration, unless a file says that it was done.

    Args:
        rank: Rank of the process.
        iteration: Iteration after which it is killed.
        done: The file.
    """

    def __init__(self, rank: int, iteration: int, done: str) -> None:
        self.rank, self.iteration, self.done = rank, iteration, Path(done)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if runner.iter + 1 == self.iteration and runner.rank == self.rank \
                and not self.done.exists():
            self.done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
