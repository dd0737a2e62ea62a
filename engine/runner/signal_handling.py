"""Signals that stop a training: it saves its state and can resume from the same iteration."""
from __future__ import annotations

import multiprocessing
import os
import signal
import sys
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
from colonnade.datasets.packed_batches import exit_when_orphaned

from ..distributed.sharded_tensors import reshard_model
from ..work_dir.last_checkpoint import find_checkpoint_hook
from ..work_dir.run import Run
from .hooks import is_between_steps, is_ema_hook
from .loops import SeededEpochLoop, SeededIterationLoop

#: Ctrl-C; Slurm and torchrun; ``sbatch --signal=USR1@120``; a closed connection
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
CHECK_INTERVAL = 1.  # seconds


class Interrupted(Exception):
    """A training that was stopped by a signal."""

    def __init__(self, text: str, number: int, saved: str | None) -> None:
        super().__init__(text, number, saved)
        self.text, self.signal = text, number
        self.saved = saved  # checkpoint to resume from, if one of this iteration was saved

    def __str__(self) -> str:
        return self.text


@contextmanager
def handle_signals(runner: Runner) -> Iterator[StopOnSignal]:
    """Context manager in which a signal makes a runner finish its iteration, save and stop.

    The runner raises :class:`Interrupted`. A second SIGINT is a KeyboardInterrupt. Before training
    starts, and in threads, signals keep their previous effect.
    """
    hook = StopOnSignal()
    runner.register_hook(hook)
    try:
        yield hook
    finally:
        hook.restore_handlers()


class StopOnSignal(Hook):
    """A hook that stops all processes after the same iteration if one of them gets a signal."""

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.signal = 0  # none
        self.process = os.getpid()
        self.handlers: dict[int, Any] = {}  # previous handlers
        self.has_ended = False  # training is over, and only last files are being written
        self.saves = False  # whether checkpoints are saved
        self.have_batches = False  # whether all processes have some to validate
        self.last_check = -CHECK_INTERVAL  # time of the latest check for signals of others

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if os.getpid() != self.process:  # a worker that has just been forked
            return
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
        if is_main_process():
            name = signal.Signals(number).name
            again = ' again' * (number == signal.SIGINT)
            effect, loss = ('training stops once its state is saved', ', without saving')
            if not self.saves:
                effect, loss = ('training stops, and its config saves no state', '')
            if self.has_ended:
                effect, loss = ('training has ended, and its last files are being written', '')
            os.write(2, f'\n{name}: {effect}; press Ctrl-C{again} to end at once{loss}\n'.encode())

    def restore_handlers(self) -> None:
        """Restore the previous handlers of signals."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers.clear()

    def before_train(self, runner: Runner) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loops = [loop for loop in (runner.train_loop, runner.val_loop) if loop is not None]
        loaders = {loop.dataloader for loop in loops}
        loaders |= {loop.endless for loop in loops if isinstance(loop, SeededIterationLoop)}
        for loader in loaders:
            ignore_signals_in_workers(loader)
        self.saves = find_checkpoint_hook(runner) is not None
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self.handlers[number] = signal.signal(number, self.receive)

    def after_train(self, runner: Runner) -> None:
        self.has_ended = True

    def before_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if is_between_steps(runner) and self.should_stop():
            self.stop(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        num_batches = torch.tensor([len(runner.val_loop.dataloader)])
        all_reduce(num_batches, 'min')
        self.have_batches = bool(num_batches > 0)

    def after_val_iter(self, runner: Runner, batch_idx: int, *_: Any, **__: Any) -> None:
        """Stop after a signal, if no accumulated gradients wait for a step.

        Processes wait for each other once, when each is at its last batch or knows of a signal. The
        resumed training runs this validation again.
        """
        if not self.have_batches or not is_between_steps(runner):
            return
        is_last = batch_idx + 1 == len(runner.val_loop.dataloader)
        if (self.knows_of_signal(runner) or is_last) and self.should_stop():
            reshard_model(runner.model)
            for hook in runner.hooks:
                if is_ema_hook(hook):
                    hook.after_val_epoch(runner)  # restores the trained weights
            self.stop(runner)

    def knows_of_signal(self, runner: Runner) -> bool:
        """Return True if this process got a signal, or finds that another one did.

        It checks at most once per :data:`CHECK_INTERVAL`, and does not wait.
        """
        if get_world_size() == 1:
            return self.signal > 0
        key = f'colonnade/signal/{runner.timestamp}/{runner.iter}'
        if self.signal:
            _get_default_store().set(key, str(self.signal))
            return True
        if time.monotonic() - self.last_check < CHECK_INTERVAL:
            return False
        self.last_check = time.monotonic()
        return _get_default_store().check([key])

    def should_stop(self) -> bool:
        """Return True if any process got a signal; all processes must call it."""
        if get_world_size() > 1:
            number = torch.tensor([self.signal])
            all_reduce(number, 'max')
            self.signal = int(number)
        return self.signal > 0

    def stop(self, runner: Runner) -> None:
        """Save a checkpoint, and raise :class:`Interrupted`."""
        saved = self.save(runner)
        barrier()  # launchers end all processes when one exits, and the first may still write
        state = f'saved {saved}' if saved else 'nothing was saved'
        raise Interrupted(
            f'stopped by {signal.Signals(self.signal).name} at iteration {runner.iter} of '
            f'{runner.max_iters}, {state}', self.signal, saved)

    def save(self, runner: Runner) -> str | None:
        """Save a checkpoint, and return its path; None if the config saves none, or it is useless.
        """
        hook = find_checkpoint_hook(runner)
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
    """Return True if the loop can resume from this iteration; mmengine's repeats whole epochs."""
    loop = runner.train_loop
    return isinstance(loop, SeededEpochLoop) or not isinstance(loop, EpochBasedTrainLoop) or \
        runner.iter == runner.epoch * len(loop.dataloader)


def ignore_signals_in_workers(loader: DataLoader) -> None:
    """Make a loader's workers ignore signals that reach all processes of a terminal or a job."""
    loader.worker_init_fn = partial(start_worker, loader.worker_init_fn)


def start_worker(init: Callable[[int], None] | None, number: int) -> None:
    """Make this worker end by its parent only, then call its own ``worker_init_fn``."""
    for each in set(SIGNALS) - {signal.SIGTERM}:
        signal.signal(each, signal.SIG_IGN)
    if sys.platform != 'darwin':  # macOS lacks sigwaitinfo
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        parent = multiprocessing.parent_process()  # os.getppid() may be that of the fork server
        pid = os.getppid() if parent is None else parent.pid
        threading.Thread(target=_exit_on_sigterm, args=(pid, ), daemon=True).start()
    exit_when_orphaned()
    if init is not None:
        init(number)


def _exit_on_sigterm(parent: int) -> None:
    """End this process when its parent sends SIGTERM; that of others is ignored."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
