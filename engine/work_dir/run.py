"""The files of a work dir, and the checkpoint that training resumes from."""
from __future__ import annotations

import logging
import re
import shlex
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.config import Config
from mmengine.dist import all_gather_object, broadcast_object_list, is_main_process
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.atomic_files import (REPLACED, SCRATCH, UNFINISHED, is_stale_scratch,
                                           write_text)
from colonnade.common.distributed import wait_for_all
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.weights.checkpoint_files import (CHANGED, has_checksum, read_checksums,
                                                verify_checksum)
from colonnade.weights.files import read_checkpoint
from colonnade.weights.sharded_files import check_folder, is_checkpoint, is_sharded
from colonnade.weights.state_dicts import DamagedError, WeightsError

from ..upstream import get_start, is_resuming, set_start

if TYPE_CHECKING:
    from typing_extensions import Self

NUMBERED = re.compile(r'(?:iter|epoch)_(\d+)\.pth')
BEST = 'best_'  # prefix of mmengine's names of best checkpoints
EARLIER = 'earlier'  # prefix of the names of those from an earlier start


class Run:
    """A work dir on the disk: its records, its checkpoints and its tables.

    Args:
        work_dir: Folder that may not exist yet.
        checkpoint_dir: Folder of the checkpoints. Defaults to the work dir.
    """
    LAST = 'last_checkpoint'  # mmengine's
    BEST = 'best_checkpoint'
    INTERRUPTED = 'interrupted.pth'  # checkpoint of a run that a signal has stopped
    METRICS = 'metrics.csv'
    REPORT = 'report.html'
    TRACKER = 'wandb_run_id'

    def __init__(self, work_dir: str | Path, checkpoint_dir: str | Path | None = None) -> None:
        self.work_dir = Path(work_dir)
        self.checkpoint_dir = Path(checkpoint_dir or work_dir)

    @classmethod
    def from_config(cls, cfg: Config) -> Self:
        """Return the run of a config, whose hook may save checkpoints in another folder."""
        hook = (cfg.get('default_hooks') or {}).get('checkpoint')
        out_dir = hook.get('out_dir') if isinstance(hook, dict) else None
        if not out_dir or '://' in str(out_dir) or str(out_dir) == cfg.work_dir:
            return cls(cfg.work_dir)
        return cls(cfg.work_dir, Path(out_dir, Path(cfg.work_dir).name))

    @property
    def last(self) -> str:
        """Recorded path of the last checkpoint, or an empty string if there is none."""
        return self.read(self.LAST)

    @property
    def best(self) -> str:
        """Recorded path of the best checkpoint, or an empty string if there is none."""
        return self.read(self.BEST)

    def find_model(self, checkpoint: str | Path | None = None) -> tuple[Path, str | Path]:
        """Return the config that the run wrote, and its best checkpoint, or else the last one.

        If neither is recorded, as of files that were copied, it is the one of the latest iteration.

        Args:
            checkpoint: Checkpoint to return instead. By default, a line of the log names the one
                that is used.

        Raises:
            FileNotFoundError: If the folder contains no config or none of these checkpoints.
        """
        configs = sorted(self.work_dir.glob('*.py'), key=lambda path: path.stat().st_mtime)
        if configs and checkpoint:
            return configs[-1], checkpoint
        # A run that was moved or copied has recorded the path of its old folder.
        candidates = [(name, path) for name, recorded in (('best', self.best), ('last', self.last))
                      if recorded
                      for path in (self.work_dir / Path(recorded).name, Path(recorded))
                      if is_checkpoint(path)]  # yapf: disable
        candidates += [('latest', path) for path in self.checkpoints()[:1]]
        if configs and candidates:
            name, path = candidates[0]
            print_log(f'{self.work_dir}: using the {name} checkpoint, {path}, and {configs[-1]}')
            return configs[-1], path
        if configs and (self.metrics.is_file() or self.report.is_file()):
            raise MissingFileError(f'the run in {self.work_dir} has saved no checkpoint')
        missing = 'checkpoint' if configs else 'config'
        raise MissingFileError(
            f'{self.work_dir} is neither a package nor the work dir of a run: it '
            f'has no {missing}')

    @property
    def metrics(self) -> Path:
        """Path of the table of logged and evaluated numbers."""
        return self.work_dir / self.METRICS

    @property
    def report(self) -> Path:
        """Path of the report."""
        return self.work_dir / self.REPORT

    def read(self, name: str) -> str:
        """Return the content of a file of one line, or an empty string if it does not exist."""
        file = self.work_dir / name
        return file.read_text(encoding='utf-8', errors='replace').strip() if file.is_file() else ''

    def write(self, name: str, text: str) -> None:
        """Write a file of one line, unless it has that content."""
        if self.read(name) != text:
            write_text(self.work_dir / name, text, synced=True)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints with training state, intact or not, in reverse order of saving.

        The list of SHA-256 has the order. Those that it lacks, such as mmengine's, have the
        iteration in their name, and come after the recorded last checkpoint. The record of a run
        that was moved or copied has the path of its old folder.
        """
        folder, recorded = self.checkpoint_dir, Path(self.last or '.')
        last = folder / recorded.name
        if not is_checkpoint(last) and is_checkpoint(recorded):
            folder, last = recorded.parent, recorded
        saved = [name for name, _ in read_checksums(folder) if not name.startswith(BEST)]
        order = {name: index for index, name in enumerate(saved)}
        steps = {path: _parse_step(path) for path in _list_checkpoints(folder)
                 if path.name in order or _parse_step(path)}  # yapf: disable
        later = []
        if is_checkpoint(last):
            steps[last] = _parse_step(last)
            recorded_at = (self.work_dir / self.LAST).stat().st_mtime_ns
            later = [path for path in steps  # the run was killed before it recorded them
                     if path.name not in order and steps[path] > steps[last]
                     and path.stat().st_mtime_ns > recorded_at]  # yapf: disable
        return sorted(
            steps,
            key=lambda path: (path in later, path == last and path.name not in order,
                              order.get(path.name, -1), steps[path]),
            reverse=True)

    def best_checkpoints(self) -> list[Path]:
        """Return the best checkpoints, of one or several metrics."""
        return [path for path in _list_checkpoints(self.checkpoint_dir)
                if path.name.startswith(BEST) and path.suffix == '.pth']  # yapf: disable

    def find_best_intact(self) -> Path | None:
        """Return the best checkpoint, which may hold only weights, or None if none is intact."""
        name = Path(self.best).name
        order = sorted(self.best_checkpoints(),
                       key=lambda path: (path.name != name, -path.stat().st_mtime))  # yapf: disable
        for path in order:
            with suppress(OSError, WeightsError):
                check_folder(path) if is_sharded(path) else read_checkpoint(path)
                return path
        return None

    def find_latest_intact(self) -> Path | None:
        """Return the latest intact checkpoint, or None if there are no checkpoints.

        Warnings name damaged ones, and the one that is used instead.
        """
        damaged: list[str] = []
        for path in self.checkpoints():
            try:
                _check_resumable(path)
            except DamagedError as error:
                damaged.append(str(error))
                continue
            for text in damaged:
                _warn(f'--resume: {text}. Training resumes from the one before, {path}')
            if path.parent.resolve() != self.checkpoint_dir.resolve():
                _warn(f'--resume: training resumes from {path}: {self.work_dir}/{self.LAST} names '
                      f'a checkpoint in that folder, and {self.checkpoint_dir} has none with '
                      'that name')
            return path
        if damaged:
            errors = '; '.join(text.removesuffix(CHANGED).rstrip('.') for text in damaged)
            advice = CHANGED if any(text.endswith(CHANGED) for text in damaged) else ''
            best = self.find_best_intact()
            start = f', from the best checkpoint: --load-from {shlex.quote(str(best))}' \
                if best else ''
            raise DamagedError(f'--resume: no checkpoint is intact: {errors}{advice}. '
                               f'Start a new run in another --work-dir{start}')
        return None

    def rename_old_best(self) -> None:
        """Rename the best checkpoints of an earlier start, which new ones would overwrite.

        They are alone if a run was killed before its first checkpoint with training state, or saved
        none.
        """
        for path in self.best_checkpoints():
            names = (f'{EARLIER}{number or ""}_{path.name}' for number in count())
            backup = next(path.with_name(name) for name in names
                          if not path.with_name(name).exists())  # yapf: disable
            path.rename(backup)
            _warn(f'--resume: no checkpoint in {self.work_dir} has training state, so training '
                  f'starts from scratch. The best one is kept as {backup}: pass it to --load-from '
                  'to start from it')
        (self.work_dir / self.BEST).unlink(missing_ok=True)

    def remove_partial_files(self) -> None:
        """Remove files that a killed process was writing; no other process may be training."""
        for folder in {self.work_dir, self.checkpoint_dir}:
            for path in list(folder.iterdir()) if folder.is_dir() else []:
                name = path.name.removeprefix(UNFINISHED).removeprefix(REPLACED)
                is_scratch = path.suffix == '.pth' and SCRATCH.fullmatch(path.name)
                if is_stale_scratch(path.name) or is_scratch:
                    path.unlink(missing_ok=True)
                elif path.suffix != '.pth' or name == path.name:
                    continue
                elif path.name.startswith(REPLACED) and not (folder / name).exists():
                    path.rename(folder / name)  # it is complete, and its successor not in place
                else:
                    shutil.rmtree(path, ignore_errors=True)


def _warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


def _list_checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if is_checkpoint(path)] if folder.is_dir() else []


def _parse_step(path: Path) -> int:
    """Return the iteration or epoch in the name of a checkpoint, or 0."""
    match = NUMBERED.fullmatch(path.name)
    return int(match[1]) if match else 0


def _check_resumable(path: Path) -> None:
    """Check that training can resume from a checkpoint; one without SHA-256 is read for that."""
    if is_sharded(path):
        check_folder(path)
    elif has_checksum(path):
        verify_checksum(path)
    elif 'optimizer' not in read_checkpoint(path):
        raise DamagedError(f'{path} has no training state')


@file_errors()
def select_resume_checkpoint(runner: Runner) -> None:
    """Make a runner that resumes without a named checkpoint use the latest intact one.

    The first process searches, and all use what it finds.
    """
    result: list[Path | Exception | None] = [None]
    if is_main_process():
        run = Run.from_config(runner.cfg)
        try:
            run.remove_partial_files()
            if is_resuming(runner) and get_start(runner) is None:
                result = [run.find_latest_intact()]
            elif not is_resuming(runner):
                run.rename_old_best()
        except (OSError, ValueError) as error:
            result = [error]
    wait_for_all()  # large checkpoints are read to check them
    broadcast_object_list(result)
    checkpoint, = result
    if isinstance(checkpoint, Exception):
        raise checkpoint
    if checkpoint is None:
        return
    set_start(runner, str(checkpoint))
    if not all(all_gather_object(is_checkpoint(checkpoint))):
        raise UserError(f'training resumes from {checkpoint}, which some processes cannot see: '
                        '--work-dir must be a folder that all hosts share')
