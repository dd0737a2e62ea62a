"""The checkpoints of a run: whole, on the disk, and there until newer ones are."""
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
from .best_checkpoint import BestCheckpoint, note, rollback_on_error
from .run import Run


class RunCheckpoints(BestCheckpoint):
    """mmengine's hook that saves checkpoints, so that training can go on from one at any time.

    - Files appear whole or not at all, and have their SHA-256 beside them.
    - The oldest is deleted when a new one is on the disk, not before.
    - If one cannot be written, as on a full disk, training goes on. It is tried again when the next
      is due, and at the end of training.
    - With accumulation, gradients may be summed that the optimizer has not stepped on, and that no
      checkpoint holds. It waits for the step. It also waits while steps are skipped, so that it
      takes the place of no good one, but at the end of training.

    Attributes:
        is_suspect: Whether the latest step was skipped, in which processes agree.
        waiting: The number of the epoch or iteration of a checkpoint that waits.
        is_missing: Whether the state that should have been saved last is not.
        saved_at: The iteration of the latest checkpoint that was saved; -1 if there is none.
        is_plain: Whether mmengine's own hook would write, and no subclass of another library.
    """

    backend_args: dict[str, Any] | None
    is_plain = True
    is_suspect = False
    waiting: int | None = None
    is_missing = False
    saved_at = -1

    def before_run(self, runner: Runner) -> None:
        """Write whole files, also with runners that are not ours."""
        super().before_run(runner)
        if is_local(self.out_dir or runner.work_dir, self.file_client_args, self.backend_args):
            self.backend_args = dict(backend=NAME)

    def before_train(self, runner: Runner) -> None:
        """As mmengine's; the checkpoint that training goes on from is the last one."""
        super().before_train(runner)
        if runner.iter:
            self.last_ckpt = get_start(runner)

    def may_save(self, runner: Runner, iteration: int) -> bool:
        """Return True if a checkpoint may be saved behind so many iterations."""
        ends = iteration >= runner.max_iters or getattr(runner.train_loop, 'stop_training', False)
        return is_between_steps(runner) and (ends or not self.is_suspect)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, or do so behind the optimizer's next step."""
        if self.may_save(runner, meta['iter']):
            self.waiting = None
            self.save(runner, step, meta)
            return
        if self.waiting is None:
            runner.logger.info(f'the checkpoint that is due at iteration {meta["iter"]} waits for '
                               'the next step of the optimizer')
        self.waiting = step

    def save(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """Save a checkpoint, or log why there is none."""
        try:
            self.write(runner, step, meta)
        except FileError as error:
            if self.saved_at == meta['iter']:
                runner.logger.warning(f'{error}. {self.last_ckpt} is on the disk, without what is '
                                      'noted of the best checkpoint since')
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
            with raise_on_all_ranks():
                super()._save_checkpoint_with_step(runner, step, meta)
        self.saved_at = meta['iter']
        if is_main_process():
            self.delete(runner, Run.INTERRUPTED)

    def write_plain(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        """As :meth:`write`, in the place of mmengine's own method."""
        limit = self.max_keep_ckpts
        name = self.filename_tmpl.format(step)
        path = str(self.file_backend.join_path(self.out_dir, name))
        kept = [other for other in getattr(self, 'keep_ckpt_ids', ()) if other != step] + [step]
        with rollback_on_error(runner), raise_on_all_ranks():
            runner.message_hub.update_info('last_ckpt', path)
            if limit > 0:
                runner.message_hub.update_info('keep_ckpt_ids', kept[-limit:])
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
            self.keep_ckpt_ids = deque(kept[-limit:], limit)
        if is_main_process():
            note(runner, Run.LAST, path)
            for other in kept[:-limit] if limit > 0 else ():
                self.delete(runner, self.filename_tmpl.format(other))

    def delete(self, runner: Runner, name: str) -> None:
        """Delete a checkpoint of which there are newer ones."""
        files = self.file_backend
        path = files.join_path(self.out_dir, name)
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

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: dict | None = None) -> None:
        """As mmengine's; then save what waits."""
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        done = runner.iter + 1
        if self.waiting is not None and self.may_save(runner, done):
            step = self.waiting if self.by_epoch else done
            self._save_checkpoint_with_step(runner, step, dict(epoch=runner.epoch, iter=done))

    def after_train(self, runner: Runner) -> None:
        """Save what waits still where a hook has ended training, and what is missing.

        Raises:
            CheckpointError: If it cannot be written.
        """
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
                what = 'go on with --resume' if has_one else 'train again'
                raise CheckpointError(
                    error.errno, f'{error}. Training has ended, and its last state is lost: make '
                    f'room and {what}. {self.newest(runner)}') from error
            self.is_missing = False
            runner.logger.info(f'the last state is saved: {self.last_ckpt}')
        super().after_train(runner)

    def save_final(self, runner: Runner, epoch: int, iteration: int) -> None:
        """Save the state of training, unless that was done or the config saves none at the end.

        Args:
            runner: Between two iterations.
            epoch: How many are done.
            iteration: How many are done.
        """
        step = epoch if self.by_epoch else iteration
        is_saved = self.last_ckpt and \
            Path(self.last_ckpt).name == self.filename_tmpl.format(step)
        if (self.save_last or self.interval > 0) and not is_saved:
            self._save_checkpoint_with_step(runner, step, dict(epoch=epoch, iter=iteration))


def saving_hook(runner: Runner) -> RunCheckpoints | None:
    """Return the hook of a training that saves checkpoints."""
    return next((hook for hook in runner.hooks if isinstance(hook, RunCheckpoints)), None)


def take_over_saving(runner: Runner) -> RunCheckpoints | None:
    """Put a hook of ours in the place of mmengine's that saves checkpoints, with its settings.

    A subclass of another library keeps its methods behind ours. One that has other attributes of
    the same names saves in its own way, without what ours adds.
    """
    for place, hook in enumerate(runner.hooks):
        if isinstance(hook, CheckpointHook):
            kind = type(hook)
            if shared := find_shared_names(hook):
                runner.logger.warning(
                    f'{kind.__name__} saves checkpoints in its own way, because it has attributes '
                    f'named {", ".join(shared)}: signals save no state, and a full disk ends '
                    'training')
                return None
            ours: Any = RunCheckpoints if kind is CheckpointHook else \
                type(kind.__name__, (RunCheckpoints, kind), {})
            own: RunCheckpoints = ours.__new__(ours)
            own.__dict__.update(vars(hook))
            own.is_plain = kind._save_checkpoint_with_step is \
                CheckpointHook._save_checkpoint_with_step
            own.rule_map = {**kind.rule_map, **BestCheckpoint.rule_map}
            if own.save_best:
                own._init_rule(own.rules, own.key_indicators)  # with our rule_map
            runner.hooks[place] = own
            return own
    return None


def find_shared_names(hook: CheckpointHook) -> list[str]:
    """Return the names that a subclass of another library and :class:`RunCheckpoints` both add."""
    kinds = type(hook).__mro__
    theirs = {*vars(hook)}.union(*map(vars, kinds[:kinds.index(CheckpointHook)]))
    ours = {*vars(RunCheckpoints), *vars(BestCheckpoint)} - {*dir(CheckpointHook)}
    known = vars(CheckpointHook())  # which every hook has
    return sorted(name for name in theirs & ours
                  if name not in known and not name.startswith('__'))  # yapf: disable
