"""Saving the checkpoints of a run, so that training can resume at any time."""
from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from colonnade.common.distributed import raise_on_all_ranks
from colonnade.common.errors import FileError
from colonnade.weights.checkpoint_files import NAME, CheckpointError, is_local

from ..runner.hooks import is_between_steps
from ..upstream import get_start
from .best_checkpoint import BestCheckpoint, record_path, rollback_on_error
from .run import Run


class RunCheckpoints(BestCheckpoint):
    """mmengine's checkpoint hook with guarantees.

    - Files appear complete or not at all, and have their SHA-256 next to them.
    - The oldest is deleted once a new one is on the disk.
    - If one cannot be written, as on a full disk, training continues. Saving is tried again when
      the next checkpoint is due, and at the end of training.
    - With accumulated gradients, a checkpoint waits for the optimizer's step, because it cannot
      hold gradients. It also waits while steps are skipped, so that it does not replace a good one,
      but not at the end of training.

    Attributes:
        is_suspect: Whether the latest step was skipped, equal in all processes.
        waiting: Epoch or iteration of a checkpoint that waits.
        is_missing: Whether the latest checkpoint that was due is not saved.
        saved_at: Iteration of the latest saved checkpoint, or -1.
        is_stock: Whether the hook saves as mmengine's own, and not as a third-party subclass.
    """

    backend_args: dict[str, Any] | None
    keep_ckpt_ids: deque[int]
    is_stock = True
    is_suspect = False
    waiting: int | None = None
    is_missing = False
    saved_at = -1

    def before_run(self, runner: Runner) -> None:
        super().before_run(runner)
        if is_local(self.out_dir or runner.work_dir, self.file_client_args, self.backend_args):
            self.backend_args = dict(backend=NAME)

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if runner.iter:
            self.last_ckpt = get_start(runner)

    def may_save(self, runner: Runner, iteration: int) -> bool:
        """Return True if a checkpoint may be saved after this many iterations."""
        ends = iteration >= runner.max_iters or getattr(runner.train_loop, 'stop_training', False)
        return is_between_steps(runner) and (ends or not self.is_suspect)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, or defer it to the optimizer's next step."""
        if self.may_save(runner, meta['iter']):
            self.waiting = None
            self.save(runner, step, meta)
            return
        if self.waiting is None:
            runner.logger.info(f'the checkpoint due at iteration {meta["iter"]} will be saved '
                               'after the next optimizer step')
        self.waiting = step

    def save(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, or log why that failed."""
        try:
            self.write(runner, step, meta)
        except FileError as error:
            if self.saved_at == meta['iter']:
                runner.logger.warning(f'{error}. {self.last_ckpt} remains, but a resumed run will '
                                      'not know about the new best checkpoint')
                return
            self.is_missing = True
            runner.logger.error(
                f'{error}. Training continues; saving will be retried when '
                f'the next checkpoint is due and at the end. {_describe_latest(runner)}')
        else:
            self.is_missing = False

    def write(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, then delete those that are too many; all processes call it."""
        if self.is_stock:
            self._write_stock(runner, step, meta)
        else:
            with raise_on_all_ranks():
                super()._save_checkpoint_with_step(runner, step, meta)
        self.saved_at = meta['iter']
        if is_main_process():
            self._delete(runner, Run.INTERRUPTED)

    def _write_stock(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save in place of mmengine's method, which deletes the oldest one first."""
        limit = self.max_keep_ckpts
        name = self.filename_tmpl.format(step)
        path = str(self.file_backend.join_path(self.out_dir, name))
        kept = self.keep_ckpt_ids if limit > 0 else ()
        steps = [other for other in kept if other != step] + [step]
        with rollback_on_error(runner), raise_on_all_ranks():
            runner.message_hub.update_info('last_ckpt', path)
            if limit > 0:
                runner.message_hub.update_info('keep_ckpt_ids', steps[-limit:])
            runner.save_checkpoint(
                self.out_dir,
                name,
                self.file_client_args,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
                meta=meta,
                by_epoch=self.by_epoch,
                backend_args=self.backend_args,
                **self.args)
        self.last_ckpt = path
        if limit > 0:
            self.keep_ckpt_ids = deque(steps[-limit:], limit)
        if is_main_process():
            record_path(runner, Run.LAST, path)
            for other in steps[:-limit] if limit > 0 else ():
                self._delete(runner, self.filename_tmpl.format(other))

    def _delete(self, runner: Runner, name: str) -> None:
        files = self.file_backend
        path = files.join_path(self.out_dir, name)
        try:
            if files.isfile(path):
                files.remove(path)
            elif files.isdir(path):  # shards
                files.rmtree(path)
        except OSError as error:
            runner.logger.warning(f'cannot delete {path}: {error}')

    def after_train_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        super().after_train_iter(runner, batch_idx, *args, **kwargs)
        done = runner.iter + 1
        if self.waiting is not None and self.may_save(runner, done):
            step = self.waiting if self.by_epoch else done
            self._save_checkpoint_with_step(runner, step, dict(epoch=runner.epoch, iter=done))

    def after_train(self, runner: Runner) -> None:
        """Save a checkpoint that still waits because a hook ended training, or that is missing."""
        step = runner.epoch if self.by_epoch else runner.iter
        meta = dict(epoch=runner.epoch, iter=runner.iter)
        if self.waiting is not None:
            self.waiting = None
            self.save(runner, step, meta)
        if self.is_missing:
            try:
                self.write(runner, step, meta)
            except FileError as error:
                has_one = runner.message_hub.runtime_info.get('last_ckpt')
                advice = 'resume with --resume' if has_one else 'train again'
                raise CheckpointError(
                    error.errno, f'{error}. Training has ended, and its last state is lost: free '
                    f'up disk space and {advice}. {_describe_latest(runner)}') from error
            self.is_missing = False
            runner.logger.info(f'saved the last checkpoint: {self.last_ckpt}')
        super().after_train(runner)

    def save_final(self, runner: Runner, epoch: int, iteration: int) -> None:
        """Save the training state after this many epochs and iterations, unless already saved.

        Nothing is saved if the config saves no checkpoints.
        """
        step = epoch if self.by_epoch else iteration
        is_saved = self.last_ckpt and \
            Path(self.last_ckpt).name == self.filename_tmpl.format(step)
        if (self.save_last or self.interval > 0) and not is_saved:
            self._save_checkpoint_with_step(runner, step, dict(epoch=epoch, iter=iteration))


def _describe_latest(runner: Runner) -> str:
    path = runner.message_hub.runtime_info.get('last_ckpt')
    return f'The latest checkpoint is {path}' if path else 'There is no checkpoint yet'


def find_checkpoint_hook(runner: Runner) -> RunCheckpoints | None:
    """Return the hook of a training that saves checkpoints, or None."""
    return next((hook for hook in runner.hooks if isinstance(hook, RunCheckpoints)), None)


def replace_checkpoint_hook(runner: Runner) -> RunCheckpoints | None:
    """Replace mmengine's checkpoint hook by :class:`RunCheckpoints` with its settings.

    A third-party subclass keeps its methods, after those of RunCheckpoints. One with attributes of
    the same names saves in its own way, without the guarantees.
    """
    for index, hook in enumerate(runner.hooks):
        if isinstance(hook, CheckpointHook):
            base = type(hook)
            if shared := _find_shared_names(hook):
                runner.logger.warning(
                    f'{base.__name__} overrides the attributes {", ".join(shared)} of Colonnade\'s '
                    'checkpoint hook, which is therefore not used: no checkpoint is saved when '
                    'a signal arrives, and a full disk ends training')
                return None
            combined: Any = RunCheckpoints if base is CheckpointHook else \
                type(base.__name__, (RunCheckpoints, base), {})
            new: RunCheckpoints = combined.__new__(combined)
            new.__dict__.update(vars(hook))
            new.is_stock = base._save_checkpoint_with_step is \
                CheckpointHook._save_checkpoint_with_step
            new.rule_map = {**base.rule_map, **BestCheckpoint.rule_map}
            if new.save_best:
                new.reset_rules()
            runner.hooks[index] = new
            return new
    return None


def _find_shared_names(hook: CheckpointHook) -> list[str]:
    """Return the names that a third-party subclass and :class:`RunCheckpoints` both add."""
    classes = type(hook).__mro__
    theirs = {*vars(hook)}.union(*map(vars, classes[:classes.index(CheckpointHook)]))
    added = {*vars(RunCheckpoints), *vars(BestCheckpoint)} - {*dir(CheckpointHook)}
    known = vars(CheckpointHook())  # attributes of every hook
    return sorted(name for name in theirs & added
                  if name not in known and not name.startswith('__'))  # yapf: disable
