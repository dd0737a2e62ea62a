"""The work dir of a run: what lies where, and the checkpoint that training goes on from."""
from __future__ import annotations

import logging
import re
import shlex
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import all_gather_object, broadcast_object_list, is_main_process
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.atomic_files import REPLACED, SCRATCH, UNFINISHED, is_left_behind, write_text
from colonnade.common.distributed import wait_for_all
from colonnade.common.errors import UserError, file_errors
from colonnade.weights.checksums import CHANGED, has_sum, read_checksums, verify_checksum
from colonnade.weights.files import read_checkpoint
from colonnade.weights.sharded_files import check_folder, is_checkpoint, is_sharded
from colonnade.weights.state_dicts import DamagedError, WeightsError

from ..upstream import get_start, is_resuming, set_start

NUMBERED = re.compile(r'(?:iter|epoch)_(\d+)\.pth')
BEST = 'best_'  # what mmengine's names of best checkpoints begin with
EARLIER = 'earlier'  # what names of those begin with that an earlier start left


class Run:
    """A work dir, as it is on the disk: what it names, its checkpoints and its tables.

    Args:
        work_dir: It need not exist.
        checkpoint_dir: Where its checkpoints are; in the work dir if not given.
    """
    LAST = 'last_checkpoint'  # mmengine's
    BEST = 'best_checkpoint'
    INTERRUPTED = 'interrupted.pth'  # of a run that a signal has stopped
    METRICS = 'metrics.csv'
    REPORT = 'report.html'
    TRACKER = 'wandb_run_id'

    def __init__(self, work_dir: str | Path, checkpoint_dir: str | Path | None = None) -> None:
        self.work_dir = Path(work_dir)
        self.checkpoint_dir = Path(checkpoint_dir or work_dir)

    @classmethod
    def of(cls, cfg: Config) -> Run:
        """Return that of a config, whose hook may save checkpoints in another folder."""
        hook = (cfg.get('default_hooks') or {}).get('checkpoint')
        out_dir = hook.get('out_dir') if isinstance(hook, dict) else None
        if not out_dir or '://' in str(out_dir) or str(out_dir) == cfg.work_dir:
            return cls(cfg.work_dir)
        return cls(cfg.work_dir, Path(out_dir, Path(cfg.work_dir).name))

    @property
    def last(self) -> str:
        """Path of the last checkpoint, as the run wrote it down; empty if it did not."""
        return self.read(self.LAST)

    @property
    def best(self) -> str:
        """Path of the best checkpoint, as the run wrote it down; empty if it did not."""
        return self.read(self.BEST)

    @property
    def metrics(self) -> Path:
        """Table of what was logged and evaluated."""
        return self.work_dir / self.METRICS

    @property
    def report(self) -> Path:
        """Page of the run."""
        return self.work_dir / self.REPORT

    def read(self, name: str) -> str:
        """Return what a file of one line says; empty if there is none."""
        file = self.work_dir / name
        return file.read_text(encoding='utf-8', errors='replace').strip() if file.is_file() else ''

    def write(self, name: str, text: str) -> None:
        """Write a file of one line to the disk, unless it says so already.

        Raises:
            OSError: If it cannot be written.
        """
        if self.read(name) != text:
            write_text(self.work_dir / name, text, synced=True)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints with the state of training, intact or not, the newest first.

        Newest means saved last. The list of SHA-256 has the order. Others, as of mmengine's own
        runner, have the number in their name, and come behind the one that the run noted as its
        last. The note of a run that was moved or copied has the path of its old folder.
        """
        folder, note = self.checkpoint_dir, Path(self.last or '.')
        last = folder / note.name
        if not is_checkpoint(last) and is_checkpoint(note):
            folder, last = note.parent, note
        saved = [name for name, _ in read_checksums(folder) if not name.startswith(BEST)]
        order = {name: place for place, name in enumerate(saved)}
        found = {path: number(path) or 0 for path in list_checkpoints(folder)
                 if path.name in order or number(path)}  # yapf: disable
        if is_checkpoint(last):
            found[last] = number(last) or 0
        later = [path for path in found if path.name not in order and self.is_later(path, last)]
        return sorted(
            found,
            key=lambda path: (path in later, path == last and path.name not in order,
                              order.get(path.name, -1), found[path]),
            reverse=True)

    def is_later(self, path: Path, last: Path) -> bool:
        """Return True if a checkpoint was saved behind the noted one, and the run was killed then.
        """
        if not is_checkpoint(last) or (number(path) or 0) <= (number(last) or 0):
            return False
        return path.stat().st_mtime_ns > (self.work_dir / self.LAST).stat().st_mtime_ns

    def best_checkpoints(self) -> list[Path]:
        """Return the best checkpoints, which may be of several metrics."""
        return [path for path in list_checkpoints(self.checkpoint_dir)
                if path.name.startswith(BEST) and path.suffix == '.pth']  # yapf: disable

    def find_best(self) -> Path | None:
        """Return the best checkpoint, which may hold weights alone; None if none is intact."""
        name = Path(self.best).name
        order = sorted(self.best_checkpoints(),
                       key=lambda path: (path.name != name, -path.stat().st_mtime))  # yapf: disable
        for path in order:
            with suppress(OSError, WeightsError):
                check_folder(path) if is_sharded(path) else read_checkpoint(path)
                return path
        return None

    def find_newest(self) -> Path | None:
        """Return the newest intact checkpoint; None if there are none at all.

        A warning names those that are damaged, and the one that is taken.

        Raises:
            OSError: If one cannot be read.
            WeightsError: If there are only damaged ones, or the newest holds more than weights.
        """
        damaged: list[str] = []
        for path in self.checkpoints():
            try:
                check_resumable(path)
            except DamagedError as error:
                damaged.append(str(error))
                continue
            for text in damaged:
                warn(f'--resume: {text}. Training goes on from the one before, {path}')
            if path.parent.resolve() != self.checkpoint_dir.resolve():
                warn(f'--resume: training goes on from {path}: {self.work_dir}/{self.LAST} names a '
                     f'checkpoint in that folder, and {self.checkpoint_dir} has none of its name')
            return path
        if damaged:
            faults = '; '.join(text.removesuffix(CHANGED).rstrip('.') for text in damaged)
            advice = CHANGED if any(text.endswith(CHANGED) for text in damaged) else ''
            best = self.find_best()
            start = f', from the best checkpoint: --load-from {shlex.quote(str(best))}' \
                if best else ''
            raise DamagedError(f'--resume: no checkpoint is whole: {faults}{advice}. '
                               f'Train anew in another --work-dir{start}')
        return None

    def rename_old_best(self) -> None:
        """Rename the best checkpoints of a run that starts anew, which would take their names.

        A run has those alone if it was killed before its first checkpoint with the state of
        training, or saved no such ones.
        """
        for path in self.best_checkpoints():
            names = (f'{EARLIER}{number or ""}_{path.name}' for number in count())
            kept = next(path.with_name(name) for name in names
                        if not path.with_name(name).exists())  # yapf: disable
            path.rename(kept)
            warn(f'--resume: no checkpoint in {self.work_dir} has the state of training, which '
                 f'starts anew. The best one is kept as {kept}: --load-from starts from it')
        (self.work_dir / self.BEST).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what a killed process left of files that it was writing.

        Only where no other process trains.
        """
        for folder in {self.work_dir, self.checkpoint_dir}:
            for path in list(folder.iterdir()) if folder.is_dir() else []:
                name = path.name.removeprefix(UNFINISHED).removeprefix(REPLACED)
                if is_left_behind(path.name) or (path.suffix == '.pth'
                                                 and SCRATCH.fullmatch(path.name)):
                    path.unlink(missing_ok=True)
                elif path.suffix != '.pth' or name == path.name:
                    continue
                elif path.name.startswith(REPLACED) and not (folder / name).exists():
                    path.rename(folder / name)  # it was whole, and its successor is not in place
                else:
                    shutil.rmtree(path, ignore_errors=True)


def warn(text: str) -> None:
    """Log a warning."""
    print_log(text, logger='current', level=logging.WARNING)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder."""
    return [path for path in folder.iterdir() if is_checkpoint(path)] if folder.is_dir() else []


def number(path: Path) -> int | None:
    """Return the iterations or epochs in a checkpoint's name."""
    found = NUMBERED.fullmatch(path.name)
    return int(found[1]) if found else None


def check_resumable(path: Path) -> None:
    """Check that training can go on from a checkpoint; one without SHA-256 is read for that.

    Raises:
        DamagedError: If it is not whole.
        WeightsError: If it holds more than weights, and is not trusted.
    """
    if is_sharded(path):
        check_folder(path)
    elif has_sum(path):
        verify_checksum(path)
    elif 'optimizer' not in read_checkpoint(path):
        raise DamagedError(f'{path} holds no state of training')


@file_errors()
def go_on(runner: Runner) -> None:
    """Let a runner that goes on from no checkpoint by name take the newest intact one.

    The first process looks, and all take what it found.

    Raises:
        ValueError: As :meth:`Run.find_newest`, or if not all processes see the checkpoint.
    """
    answer: list[Path | Exception | None] = [None]
    if is_main_process():
        run = Run.of(runner.cfg)
        try:
            run.clear()
            if is_resuming(runner) and get_start(runner) is None:
                answer = [run.find_newest()]
            elif not is_resuming(runner):
                run.rename_old_best()
        except (OSError, ValueError) as error:
            answer = [error]
    wait_for_all()  # large checkpoints are read to see if they are whole
    broadcast_object_list(answer)
    found, = answer
    if isinstance(found, Exception):
        raise found
    if found is None:
        return
    set_start(runner, str(found))
    if not all(all_gather_object(is_checkpoint(found))):
        raise UserError(f'training goes on from {found}, and not all processes see it: --work-dir '
                        'must be a folder that all machines share')
