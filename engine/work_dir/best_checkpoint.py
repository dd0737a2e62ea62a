"""The best checkpoint of a run: where it is, and how it is tested."""
from __future__ import annotations

import operator
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from colonnade.common.distributed import raise_on_all_ranks
from colonnade.common.errors import FileError
from colonnade.weights.sharded_files import is_checkpoint

from .metric_values import is_lowest
from .run import Run


@contextmanager
def rollback_on_error(runner: Runner) -> Iterator[None]:
    """Context manager that undoes changes to what checkpoints note, if its block raises."""
    infos = runner.message_hub.runtime_info
    before = dict(infos)
    try:
        yield
    except BaseException:
        infos.clear()
        infos.update(before)
        raise


class BestCheckpoint(CheckpointHook):
    """Saves the best checkpoint as mmengine does, notes its path, and names it at the end.

    Of several that are equally good, the last is the best, which was trained for the longest. A
    metric at its lowest value, as an mAP of 0, makes no checkpoint the best. If that is all there
    is, the file names the last checkpoint.
    """

    last_ckpt: str | None
    rule_map = dict(greater=operator.ge, less=operator.le)

    @property
    def names(self) -> list[str]:
        """The metrics that best checkpoints are chosen by."""
        return list(self.key_indicators) if self.save_best else []

    @property
    def paths(self) -> list[str | None]:
        """Where the best checkpoints of these metrics are."""
        if len(self.names) == 1:
            return [self.best_ckpt_path]
        return [self.best_ckpt_path_dict[name] for name in self.names]

    @paths.setter
    def paths(self, paths: list[str | None]) -> None:
        if len(self.names) == 1:
            self.best_ckpt_path, = paths
        elif self.names:
            self.best_ckpt_path_dict = dict(zip(self.names, paths, strict=True))

    def before_train(self, runner: Runner) -> None:
        """As mmengine's; of a run that was moved or copied, the best ones are in its own folder."""
        super().before_train(runner)
        own = [path and os.path.join(self.out_dir, os.path.basename(path)) for path in self.paths]
        paths = [there if there and is_checkpoint(there) else path
                 for there, path in zip(own, self.paths, strict=True)]  # yapf: disable
        if paths == self.paths:
            return
        self.paths = paths
        for name, path in zip(self.names, paths, strict=True):
            if path:
                runner.message_hub.update_info(self.key_of(name), path)
        if (best := next(filter(None, paths), None)) and is_main_process():
            self.note_best(runner, best)

    def key_of(self, name: str, of: str = 'ckpt') -> str:
        """Return under which key mmengine's message hub has the best checkpoint of a metric."""
        return f'best_{of}' if len(self.names) == 1 else f'best_{of}_{name}'

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        """Save a checkpoint that is the best; if it cannot be written, it counts for nothing.

        Then the last checkpoint is saved again, with what is noted of the best, and the ones before
        are deleted, in this folder alone.
        """
        if not self.save_best:
            return
        compared = {
            name: None if is_lowest(name, value) else value
            for name, value in metrics.items()
        }
        before, nothing = self.paths, [None] * len(self.paths)
        self.paths = [*nothing]  # which mmengine would delete before better ones are saved
        last, self.last_ckpt = self.last_ckpt, None  # mmengine's hook saves the best alone then
        try:
            with rollback_on_error(runner), raise_on_all_ranks():
                super()._save_best_checkpoint(runner, compared)
        except FileError as error:
            self.paths = [*nothing]
            runner.logger.error(f'{error}. Training goes on, and the best checkpoint stays the one '
                                'before. The next evaluation that exceeds it is saved')
        finally:
            self.last_ckpt = last
        has_better = any(self.paths)
        self.paths = [new or old for new, old in zip(self.paths, before, strict=True)]
        if has_better and last is not None:
            step = runner.epoch if self.by_epoch else runner.iter
            meta = dict(epoch=runner.epoch, iter=runner.iter)
            self._save_checkpoint_with_step(runner, step, meta)
        if is_main_process():
            if best := next(filter(None, self.paths), None):
                self.note_best(runner, best)
            for path in {*filter(None, before)} - {*self.paths}:
                if os.path.dirname(path) == str(self.out_dir) and self.file_backend.isfile(path):
                    self.file_backend.remove(path)

    def note_best(self, runner: Runner, path: str) -> None:
        """Write down which checkpoint is the best."""
        note(runner, Run.BEST, path)

    def after_train(self, runner: Runner) -> None:
        """As mmengine's; then say which is the best, and how it is tested."""
        super().after_train(runner)
        if not is_main_process():
            return
        found, last = self.find_best(runner), self.last_ckpt
        for name, (path, score) in found.items():
            runner.logger.info(f'the best {name} is {score:.4g}: {relative(path)}\n'
                               f'to test it: {test_command(runner, path)}')
        if self.names and not found and last:
            self.note_best(runner, last)
            runner.logger.warning(
                f'no evaluation gave a {" or ".join(self.names)} above its lowest value, so there '
                f'is no best checkpoint: {Run.BEST} names the last one, {relative(last)}\n'
                f'to test it: {test_command(runner, last)}')

    def find_best(self, runner: Runner) -> dict[str, tuple[str, float]]:
        """The path and score of the best checkpoint of each metric that has one."""
        infos, found = runner.message_hub.runtime_info, {}
        for name in self.names:
            if path := infos.get(self.key_of(name)):
                found[name] = (path, infos[self.key_of(name, 'score')])
        return found


def note(runner: Runner, name: str, path: str) -> None:
    """Write down which checkpoint is the last or the best; going on finds it without that too."""
    try:
        Run(runner.work_dir).write(name, path)
    except OSError as error:
        runner.logger.warning(f'{runner.work_dir}/{name} cannot be written: {error}')


def test_command(runner: Runner, checkpoint: str) -> str:
    """Return the command that tests a checkpoint of a run."""
    config = Path(runner.work_dir, Path(runner.cfg.filename or 'config.py').name)
    return shlex.join(['colonnade', 'test', relative(config), relative(checkpoint)])


def relative(path: str | Path) -> str:
    """A path from the current directory on, if it lies below."""
    short = os.path.relpath(path)
    return str(path) if short.startswith('..') else short
