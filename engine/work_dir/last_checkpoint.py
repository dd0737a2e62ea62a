"""The last checkpoints of a run: whole, on the disk, and there until newer ones are."""
from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from colonnade.common.atomic_files import write_text
from colonnade.common.distributed import failing_together
from colonnade.common.errors import FileError
from colonnade.weights.checkpoint_files import NAME, CheckpointError, is_local

from .saving import saving_hook, unless_it_fails

FILE = 'last_checkpoint'  # mmengine's
INTERRUPTED = 'interrupted.pth'  # of a run that a signal has stopped


class LastCheckpoints(Hook):
    """Saves the state of training in place of mmengine's hook.

    - Files appear whole or not at all, and have their SHA-256 beside them.
    - The oldest is deleted when a new one is on the disk, not before.
    - If one cannot be written, as on a full disk, training goes on. It is tried again when the next
      is due, and at the end of training.

    Args:
        saving: mmengine's hook, which says when to save. It is changed in place.

    Attributes:
        saved_at: The iteration of the latest checkpoint that was saved; -1 if there is none.
    """

    priority = 'LOWEST'  # behind what saves checkpoints

    def __init__(self, saving: CheckpointHook) -> None:
        self.saving = saving
        self.is_missing = False  # the state that should have been saved last
        self.saved_at = -1
        self._write = saving._save_checkpoint_with_step
        #: subclasses of other libraries write in their own way
        self.is_plain = type(saving)._save_checkpoint_with_step is \
            CheckpointHook._save_checkpoint_with_step
        saving._save_checkpoint_with_step = self.save

    def before_run(self, runner: Runner) -> None:
        """Let the hook write whole files, also with runners that are not ours."""
        hook = self.saving
        if is_local(hook.out_dir or runner.work_dir, hook.file_client_args, hook.backend_args):
            hook.backend_args = dict(backend=NAME)

    def before_train(self, runner: Runner) -> None:
        """Take the checkpoint that training goes on from for the last one."""
        if runner.iter:
            self.saving.last_ckpt = runner._load_from

    def save(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, or log why there is none."""
        try:
            self.write(runner, step, meta)
        except FileError as error:
            if self.saved_at == meta['iter']:
                runner.logger.warning(f'{error}. {self.saving.last_ckpt} is on the disk, without '
                                      'what is noted of the best checkpoint since')
                return
            self.is_missing = True
            runner.logger.error(f'{error}. Training goes on, and saves again when the next '
                                f'checkpoint is due, and at its end. {self.newest(runner)}')
        else:
            self.is_missing = False

    def write(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, then delete those that are too many; all processes call it.

        Raises:
            FileError: If it cannot be written, in all processes. Nothing has changed then.
        """
        if self.is_plain:
            self.write_plain(runner, step, meta)
        else:
            with failing_together():
                self._write(runner, step, meta)
        self.saved_at = meta['iter']
        if is_main_process():
            self.delete(runner, INTERRUPTED)

    def write_plain(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """As :meth:`write`, in the place of mmengine's own hook."""
        hook, limit = self.saving, self.saving.max_keep_ckpts
        name = hook.filename_tmpl.format(step)
        path = str(hook.file_backend.join_path(hook.out_dir, name))
        kept = [other for other in getattr(hook, 'keep_ckpt_ids', ()) if other != step] + [step]
        with unless_it_fails(runner), failing_together():
            runner.message_hub.update_info('last_ckpt', path)
            if limit > 0:
                runner.message_hub.update_info('keep_ckpt_ids', kept[-limit:])
            runner.save_checkpoint(
                hook.out_dir,
                name,
                hook.file_client_args,
                save_optimizer=hook.save_optimizer,
                save_param_scheduler=hook.save_param_scheduler,
                meta=meta,
                by_epoch=hook.by_epoch,
                backend_args=hook.backend_args,
                **hook.args)
        hook.last_ckpt = path
        if limit > 0:
            hook.keep_ckpt_ids = deque(kept[-limit:], limit)
        if is_main_process():
            self.note(runner, path)
            for other in kept[:-limit] if limit > 0 else ():
                self.delete(runner, hook.filename_tmpl.format(other))

    def note(self, runner: Runner, path: str) -> None:
        """Write down which checkpoint is the last; going on finds it without that too."""
        try:
            write_text(Path(runner.work_dir, FILE), path, synced=True)
        except OSError as error:
            runner.logger.warning(f'{runner.work_dir}/{FILE} cannot be written: {error}')

    def delete(self, runner: Runner, name: str) -> None:
        """Delete a checkpoint of which there are newer ones."""
        files = self.saving.file_backend
        path = files.join_path(self.saving.out_dir, name)
        try:
            if files.isfile(path):
                files.remove(path)
            elif files.isdir(path):  # shards
                files.rmtree(path)
        except OSError as error:
            runner.logger.warning(f'{path} cannot be deleted: {error}')

    def newest(self, runner: Runner) -> str:
        """A sentence on what training would go on from."""
        path = runner.message_hub.runtime_info.get('last_ckpt')
        return f'The newest checkpoint is {path}' if path else 'There is no checkpoint yet'

    def after_train(self, runner: Runner) -> None:
        """Save what is missing.

        Raises:
            CheckpointError: If it cannot be written.
        """
        if not self.is_missing:
            return
        step = runner.epoch if self.saving.by_epoch else runner.iter
        try:
            self.write(runner, step, dict(epoch=runner.epoch, iter=runner.iter))
        except FileError as error:
            has_one = runner.message_hub.runtime_info.get('last_ckpt')
            what = 'go on with --resume' if has_one else 'train again'
            raise CheckpointError(
                error.errno, f'{error}. Training has ended, and its last state is lost: make room '
                f'and {what}. {self.newest(runner)}') from error
        self.is_missing = False
        runner.logger.info(f'the last state is saved: {self.saving.last_ckpt}')


def save_last(runner: Runner, epoch: int, iteration: int) -> None:
    """Save the state of training, unless that was done or the config saves none at the end.

    Args:
        runner: Between two iterations.
        epoch: How many are done.
        iteration: How many are done.
    """
    hook = saving_hook(runner)
    if hook is None or not (hook.save_last or hook.interval > 0):
        return
    step = epoch if hook.by_epoch else iteration
    if not hook.last_ckpt or Path(hook.last_ckpt).name != hook.filename_tmpl.format(step):
        hook._save_checkpoint_with_step(runner, step, meta=dict(epoch=epoch, iter=iteration))
