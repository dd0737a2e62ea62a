"""The best checkpoint of a run: saving it, recording its path, and how to test it."""
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

from .metric_values import is_at_minimum
from .run import Run


@contextmanager
def rollback_on_error(runner: Runner) -> Iterator[None]:
    """Context manager that undoes changes to the records in checkpoints if its block raises."""
    infos = runner.message_hub.runtime_info
    before = dict(infos)
    try:
        yield
    except BaseException:
        infos.clear()
        infos.update(before)
        raise


class BestCheckpoint(CheckpointHook):
    """A hook that saves the best checkpoint as mmengine does, records its path, and logs it.

    Of several that are equally good, the last is the best, which was trained for the longest. A
    metric at its lowest value, as an mAP of 0, makes no checkpoint the best. If there is none, the
    last checkpoint is recorded.
    """

    last_ckpt: str | None
    rule_map = dict(greater=operator.ge, less=operator.le)

    @property
    def names(self) -> list[str]:
        """The metrics that best checkpoints are chosen by."""
        return list(self.key_indicators) if self.save_best else []

    @property
    def paths(self) -> list[str | None]:
        """The best checkpoints of these metrics."""
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
        super().before_train(runner)
        moved = [path and os.path.join(self.out_dir, os.path.basename(path)) for path in self.paths]
        paths = [new if new and is_checkpoint(new) else path
                 for new, path in zip(moved, self.paths, strict=True)]  # yapf: disable
        if paths == self.paths:
            return
        self.paths = paths
        for name, path in zip(self.names, paths, strict=True):
            if path:
                runner.message_hub.update_info(self.get_key(name), path)
        if (best := next(filter(None, paths), None)) and is_main_process():
            record_path(runner, Run.BEST, best)

    def reset_rules(self) -> None:
        """Use the current ``rule_map``."""
        self._init_rule(self.rules, self.key_indicators)

    def get_key(self, name: str, item: str = 'ckpt') -> str:
        """Return the key of the best checkpoint of a metric in mmengine's message hub."""
        return f'best_{item}' if len(self.names) == 1 else f'best_{item}_{name}'

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        """Save the best checkpoint; one that cannot be written does not count."""
        if not self.save_best:
            return
        compared = {
            name: None if is_at_minimum(name, value) else value
            for name, value in metrics.items()
        }
        before, nothing = self.paths, [None] * len(self.paths)
        self.paths = [*nothing]  # mmengine would delete them before better ones are saved
        last, self.last_ckpt = self.last_ckpt, None  # keeps mmengine from saving the last again
        try:
            with rollback_on_error(runner), raise_on_all_ranks():
                super()._save_best_checkpoint(runner, compared)
        except FileError as error:
            self.paths = [*nothing]
            runner.logger.error(f'{error}. The previous best checkpoint is kept; the next '
                                'checkpoint that beats it will be saved')
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
                record_path(runner, Run.BEST, best)
            for path in {*filter(None, before)} - {*self.paths}:
                if os.path.dirname(path) == str(self.out_dir) and self.file_backend.isfile(path):
                    self.file_backend.remove(path)

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        if not is_main_process():
            return
        infos, has_best = runner.message_hub.runtime_info, False
        for name in self.names:
            if path := infos.get(self.get_key(name)):
                has_best, score = True, infos[self.get_key(name, 'score')]
                runner.logger.info(f'the best {name} is {score:.4g}: {_shorten(path)}\n'
                                   f'to test it: {_format_test_command(runner, path)}')
        if self.names and not has_best and self.last_ckpt:
            record_path(runner, Run.BEST, self.last_ckpt)
            runner.logger.warning(
                f'{" or ".join(self.names)} never rose above its minimum: {Run.BEST} '
                f'points to the last checkpoint, {_shorten(self.last_ckpt)}'
                f'\nto test it: {_format_test_command(runner, self.last_ckpt)}')


def record_path(runner: Runner, name: str, path: str) -> None:
    """Record the path of the last or best checkpoint; resuming also works without it."""
    try:
        Run(runner.work_dir).write(name, path)
    except OSError as error:
        runner.logger.warning(f'cannot write {runner.work_dir}/{name}: {error}')


def _format_test_command(runner: Runner, checkpoint: str) -> str:
    config = Path(runner.work_dir, Path(runner.cfg.filename or 'config.py').name)
    return shlex.join(['colonnade', 'test', _shorten(config), _shorten(checkpoint)])


def _shorten(path: str | Path) -> str:
    """Return a path relative to the working directory, if it is below."""
    short = os.path.relpath(path)
    return str(path) if short.startswith('..') else short
