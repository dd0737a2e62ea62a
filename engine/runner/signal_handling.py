"""Signals that end a training: it saves its state, and goes on later from the same iteration."""
from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils.data import DataLoader

from colonnade.common.distributed import raise_on_all_ranks

from ..distributed.sharded_tensors import keep_shards
from ..work_dir.last_checkpoint import saving_hook
from ..work_dir.run import Run
from .hooks import averages_weights, is_between_steps
from .loops import SeededEpochLoop, SeededIterationLoop

#: of a terminal, of Slurm and torchrun, of ``--signal=USR1@120``, and of a connection that is lost
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
LOOK = 1.  # seconds


class Interrupted(Exception):
    """A signal has stopped a training.

    Attributes:
        text: What happened.
        signal: Its number.
        saved: The checkpoint to go on from; None if there is none of this iteration.
    """

    def __init__(self, text: str, number: int, saved: str | None) -> None:
        super().__init__(text, number, saved)
        self.text, self.signal, self.saved = text, number, saved

    def __str__(self) -> str:
        return self.text


@contextmanager
def handle_signals(runner: Runner) -> Iterator[StopOnSignal]:
    """While open, signals let a runner finish its iteration, save its state and stop.

    They raise :class:`Interrupted` in it. A second SIGINT is a KeyboardInterrupt. Before training
    begins, and in threads, signals do what they did.
    """
    hook = StopOnSignal()
    runner.register_hook(hook)
    try:
        yield hook
    finally:
        hook.give_back()


class StopOnSignal(Hook):
    """Stops training in all processes behind the same iteration, if one of them gets a signal.

    Attributes:
        has_ended: Whether training has, and what is left to be written comes by itself.
        saves: Whether checkpoints are saved.
    """

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.signal = 0  # none
        self.process = os.getpid()
        self.before: dict[int, Any] = {}  # handlers
        self.has_ended = False
        self.saves = False
        self.have_batches = False  # whether all processes have some to validate
        self.looked = -LOOK  # when this process last looked whether another one got a signal

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Note a signal."""
        if os.getpid() != self.process:  # a worker that has just been forked
            return
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
        if is_main_process():
            name = signal.Signals(number).name
            again = ' again' * (number == signal.SIGINT)
            what, lacking = ('training stops once its state is saved', ', without saving')
            if not self.saves:
                what, lacking = ('training stops, and its config saves no state', '')
            if self.has_ended:
                what, lacking = ('training has ended, and its last files are written', '')
            os.write(2, f'\n{name}: {what}; press Ctrl-C{again} to end at once{lacking}\n'.encode())

    def give_back(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before.clear()

    def before_train(self, runner: Runner) -> None:
        """Take over the signals, unless they are ignored, as SIGHUP is under nohup."""
        if threading.current_thread() is not threading.main_thread():
            return
        for loader in loaders_of(runner):
            ignore_signals_in_workers(loader)
        self.saves = saving_hook(runner) is not None
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self.before[number] = signal.signal(number, self.receive)

    def after_train(self, runner: Runner) -> None:
        """Note that no iteration is left to stop before."""
        self.has_ended = True

    def before_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Stop if a signal came, and no gradients wait for a step."""
        if is_between_steps(runner) and self.is_asked():
            self.stop(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Find out whether all processes have a batch to stop after."""
        fewest = torch.tensor([len(runner.val_loop.dataloader)])
        all_reduce(fewest, 'min')
        self.have_batches = bool(fewest > 0)

    def after_val_iter(self, runner: Runner, batch_idx: int, *_: Any, **__: Any) -> None:
        """Stop if a signal came, and no gradients wait for a step.

        Processes wait for each other once, when each is at its last batch or knows of a signal.
        This validation is run again when training goes on.
        """
        if not self.have_batches or not is_between_steps(runner):
            return
        is_last = batch_idx + 1 == len(runner.val_loop.dataloader)
        if (self.knows_of_signal(runner) or is_last) and self.is_asked():
            keep_shards(runner.model)
            for hook in runner.hooks:
                if averages_weights(hook):
                    hook.after_val_epoch(runner)  # puts trained weights back
            self.stop(runner)

    def knows_of_signal(self, runner: Runner) -> bool:
        """Return True if this process got a signal, or sees now that another one did.

        It looks at most once in :data:`LOOK` seconds, and waits for nobody.
        """
        if get_world_size() == 1:
            return self.signal > 0
        key = f'colonnade/signal/{runner.timestamp}/{runner.iter}'
        if self.signal:
            _get_default_store().set(key, str(self.signal))
            return True
        if time.monotonic() - self.looked < LOOK:
            return False
        self.looked = time.monotonic()
        return _get_default_store().check([key])

    def is_asked(self) -> bool:
        """Whether any process got a signal."""
        if get_world_size() > 1:
            number = torch.tensor([self.signal])
            all_reduce(number, 'max')
            self.signal = int(number)
        return self.signal > 0

    def stop(self, runner: Runner) -> None:
        """Save, and raise :class:`Interrupted`."""
        saved = self.save(runner)
        barrier()  # none may leave while the first still writes
        state = f'saved {saved}' if saved else 'nothing was saved'
        raise Interrupted(
            f'stopped by {signal.Signals(self.signal).name} at iteration {runner.iter} of '
            f'{runner.max_iters}, {state}', self.signal, saved)

    def save(self, runner: Runner) -> str | None:
        """Save what training goes on from; None if the config saves nothing, or it would not.

        Raises:
            OSError: If it cannot be written, in all processes.
        """
        hook = saving_hook(runner)
        if hook is None or not can_resume_mid_epoch(runner):
            return None
        if runner.iter == hook.saved_at and hook.save_optimizer:
            return hook.last_ckpt
        with raise_on_all_ranks():
            runner.save_checkpoint(
                hook.out_dir,
                Run.INTERRUPTED,
                file_client_args=hook.file_client_args,
                meta=dict(epoch=runner.epoch, iter=runner.iter),
                by_epoch=False,
                backend_args=hook.backend_args)
        path = hook.file_backend.join_path(hook.out_dir, Run.INTERRUPTED)
        if is_main_process():
            Run(runner.work_dir).write(Run.LAST, path)
        return path


def can_resume_mid_epoch(runner: Runner) -> bool:
    """Whether the loop of a runner goes on from this iteration; mmengine's repeats whole epochs."""
    loop = runner.train_loop
    return isinstance(loop, SeededEpochLoop) or not isinstance(loop, EpochBasedTrainLoop) or \
        runner.iter == runner.epoch * len(loop.dataloader)


def loaders_of(runner: Runner) -> set[DataLoader]:
    """The loaders that training and validation read, which hooks may read too."""
    loops = [loop for loop in (runner.train_loop, runner.val_loop) if loop is not None]
    loaders = {loop.dataloader for loop in loops}
    return loaders | {loop.endless for loop in loops if isinstance(loop, SeededIterationLoop)}


def ignore_signals_in_workers(loader: DataLoader) -> None:
    """Keep a loader's workers when a signal reaches all processes of a terminal or a job.

    Args:
        loader: Changed in place, before it starts workers.
    """
    loader.worker_init_fn = partial(start_worker, loader.worker_init_fn)


def start_worker(before: Callable[[int], None] | None, number: int) -> None:
    """Let a worker end by its parent alone, and then do what it did ``before``."""
    for each in set(SIGNALS) - {signal.SIGTERM}:
        signal.signal(each, signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        parent = multiprocessing.parent_process()  # not the server that forks it, if there is one
        number_of_parent = os.getppid() if parent is None else parent.pid
        threading.Thread(target=end_with, args=(number_of_parent, ), daemon=True).start()
    if before is not None:
        before(number)


def end_with(parent: int) -> None:
    """End this process when its parent sends SIGTERM; from others it is ignored."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
