"""The best checkpoint of a run: where it is, and how it is tested."""
from __future__ import annotations

import operator
import os
import shlex
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from colonnade.common.atomic_files import write_text
from colonnade.common.distributed import failing_together
from colonnade.common.errors import FileError
from colonnade.weights.sharded_files import is_checkpoint

from .metric_values import is_lowest
from .saving import unless_it_fails

FILE = 'best_checkpoint'


def names_of_best(hook: CheckpointHook | None) -> list[str]:
    """The metrics that best checkpoints are chosen by, ``auto`` being none."""
    return [] if hook is None else [name for name in hook.save_best or [] if name != 'auto']


class BestCheckpoint(Hook):
    """Notes the path of the best checkpoint in a file, and says at the end which it is.

    Of several that are equally good, the last is the best, which was trained for the longest. A
    metric at its lowest value, as an mAP of 0, makes no checkpoint the best. If that is all there
    is, the file names the last checkpoint.

    Args:
        saving: The hook that saves the checkpoints. It is changed in place.
    """

    priority = 'LOWEST'  # behind what saves checkpoints

    def __init__(self, saving: CheckpointHook) -> None:
        self.saving = saving
        self.previous: list[str | None] = []
        self._save = saving._save_best_checkpoint
        saving._save_best_checkpoint = self.save
        if saving.save_best is not None:
            saving.rule_map = dict(greater=operator.ge, less=operator.le)
            saving._init_rule(saving.rules, saving.key_indicators)

    @property
    def names(self) -> list[str]:
        """The metrics that best checkpoints are chosen by."""
        return list(getattr(self.saving, 'key_indicators', None) or [])

    @property
    def paths(self) -> list[str | None]:
        """Where the best checkpoints of these metrics are, which mmengine deletes for better ones.
        """
        if len(self.names) == 1:
            return [self.saving.best_ckpt_path]
        return [self.saving.best_ckpt_path_dict[name] for name in self.names]

    @paths.setter
    def paths(self, paths: list[str | None]) -> None:
        if len(self.names) == 1:
            self.saving.best_ckpt_path, = paths
        elif self.names:
            self.saving.best_ckpt_path_dict = dict(zip(self.names, paths, strict=True))

    def before_train(self, runner: Runner) -> None:
        """Take the best checkpoints in this run's own folder, if it was moved or copied."""
        folder = str(self.saving.out_dir)
        own = [path and os.path.join(folder, os.path.basename(path)) for path in self.paths]
        paths = [there if there and is_checkpoint(there) else path
                 for there, path in zip(own, self.paths, strict=True)]  # yapf: disable
        if paths == self.paths:
            return
        self.paths = paths
        for name, path in zip(self.names, paths, strict=True):
            if path:
                runner.message_hub.update_info(self.key_of(name), path)
        if (best := next(filter(None, paths), None)) and is_main_process():
            self.note(runner, best)

    def key_of(self, name: str, of: str = 'ckpt') -> str:
        """Under which mmengine's message hub has the best checkpoint of a metric."""
        return f'best_{of}' if len(self.names) == 1 else f'best_{of}_{name}'

    def save(self, runner: Runner, metrics: dict[str, float]) -> None:
        """Save a checkpoint that is the best; if it cannot be written, it counts for nothing.

        Then the last checkpoint is saved again, with what is noted of the best.
        """
        hook, paths = self.saving, self.paths
        compared = {
            name: None if is_lowest(name, value) else value
            for name, value in metrics.items()
        }
        last, hook.last_ckpt = hook.last_ckpt, None  # mmengine's hook saves the best alone then
        try:
            with unless_it_fails(runner), failing_together():
                self._save(runner, compared)
        except FileError as error:
            self.paths = paths
            runner.logger.error(f'{error}. Training goes on, and the best checkpoint stays the one '
                                'before. The next evaluation that exceeds it is saved')
        finally:
            hook.last_ckpt = last
        if last is not None and self.paths != paths:
            step = runner.epoch if hook.by_epoch else runner.iter
            meta = dict(epoch=runner.epoch, iter=runner.iter)
            hook._save_checkpoint_with_step(runner, step, meta)

    def before_val_epoch(self, runner: Runner) -> None:
        """Keep mmengine from deleting the best checkpoint before a better one is saved."""
        self.previous = self.paths
        self.paths = [None] * len(self.previous)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Note the path of the best, and delete what it is better than, in this folder alone."""
        best = [new or old for new, old in zip(self.paths, self.previous, strict=True)]
        replaced = [path for path in self.previous if path and path not in best]
        self.paths = best
        if not is_main_process():
            return
        if path := next(filter(None, best), None):
            self.note(runner, path)
        for path in replaced:
            files = self.saving.file_backend
            if os.path.dirname(path) == str(self.saving.out_dir) and files.isfile(path):
                files.remove(path)

    def note(self, runner: Runner, path: str) -> None:
        """Write down which checkpoint is the best."""
        file = Path(runner.work_dir, FILE)
        try:
            if not file.is_file() or file.read_text(encoding='utf-8') != path:
                write_text(file, path, synced=True)
        except OSError as error:
            runner.logger.warning(f'{file} cannot be written: {error}')

    def after_train(self, runner: Runner) -> None:
        """Say which is the best, and how it is tested."""
        if not is_main_process():
            return
        found, last = self.found(runner), self.saving.last_ckpt
        for name, (path, score) in found.items():
            runner.logger.info(f'the best {name} is {score:.4g}: {relative(path)}\n'
                               f'to test it: {test_command(runner, path)}')
        if self.names and not found and last:
            self.note(runner, last)
            runner.logger.warning(
                f'no evaluation gave a {" or ".join(self.names)} above its lowest value, so there '
                f'is no best checkpoint: {FILE} names the last one, {relative(last)}\n'
                f'to test it: {test_command(runner, last)}')

    def found(self, runner: Runner) -> dict[str, tuple[str, float]]:
        """The path and score of the best checkpoint of each metric that has one."""
        infos, found = runner.message_hub.runtime_info, {}
        for name in self.names:
            if path := infos.get(self.key_of(name)):
                found[name] = (path, infos[self.key_of(name, 'score')])
        return found


def test_command(runner: Runner, checkpoint: str) -> str:
    """Return the command that tests a checkpoint of a run."""
    config = Path(runner.work_dir, Path(runner.cfg.filename or 'config.py').name)
    return shlex.join(['colonnade', 'test', relative(config), relative(checkpoint)])


def relative(path: str | Path) -> str:
    """A path from the current directory on, if it lies below."""
    short = os.path.relpath(path)
    return str(path) if short.startswith('..') else short
