"""A hook that sends its process a signal once, as a terminal, Slurm or torchrun does."""
from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class SignalledOnce(Hook):
    """Sends a signal, unless a file says that it was done.

    Args:
        name: Name of the signal, such as ``'SIGTERM'``.
        done: The file.
        iteration: Iteration after which it is sent.
        rank: Rank of the process that gets it.
        evaluating: Send it in the evaluation of this iteration.
        group: Send it to all processes of the group, as a terminal does; else to this one.
        times: How often.
    """

    def __init__(self,
                 name: str,
                 done: str,
                 iteration: int,
                 *,
                 rank: int = 0,
                 evaluating: bool = False,
                 group: bool = False,
                 times: int = 1) -> None:
        self.number, self.done, self.iteration = getattr(signal, name), Path(done), iteration
        self.rank, self.evaluating, self.group, self.times = rank, evaluating, group, times

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if runner.iter + 1 == self.iteration and not self.evaluating:
            self.send(runner)

    def before_val_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if runner.iter == self.iteration and self.evaluating:
            self.send(runner)

    def before_test_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        self.send(runner)

    def send(self, runner: Runner) -> None:
        if runner.rank == self.rank and not self.done.exists():
            self.done.touch()
            for _ in range(self.times):
                (os.killpg if self.group else os.kill)(os.getpid(), self.number)
