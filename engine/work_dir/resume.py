"""The newest whole checkpoint of a run, which training goes on from."""
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

from colonnade.common.atomic_files import REPLACED, SCRATCH, UNFINISHED, is_left_behind
from colonnade.common.distributed import wait_for_all
from colonnade.common.errors import UserError, file_errors
from colonnade.weights.checksums import CHANGED, check_content, has_sum, sums_of
from colonnade.weights.files import read_checkpoint
from colonnade.weights.sharded_files import check_folder, is_checkpoint, is_sharded
from colonnade.weights.state_dicts import DamagedError, WeightsError

from .best_checkpoint import FILE as BEST_FILE
from .last_checkpoint import FILE

NUMBERED = re.compile(r'(?:iter|epoch)_(\d+)\.pth')
BEST = 'best_'  # what mmengine's names of best checkpoints begin with
EARLIER = 'earlier'  # what names of those begin with that an earlier start left


def folder_of(cfg: Config) -> Path:
    """Where the checkpoints of a run are: its work dir, unless the config names another folder."""
    hook = (cfg.get('default_hooks') or {}).get('checkpoint')
    out_dir = hook.get('out_dir') if isinstance(hook, dict) else None
    if not out_dir or '://' in str(out_dir) or str(out_dir) == cfg.work_dir:
        return Path(cfg.work_dir)
    return Path(out_dir, Path(cfg.work_dir).name)


def noted(work_dir: str | Path, name: str = FILE) -> str:
    """The path of the last checkpoint, or the best, as the run wrote it down; empty if it did not.

    Args:
        work_dir: Of the run.
        name: The file that has the path.
    """
    file = Path(work_dir, name)
    return file.read_text(encoding='utf-8', errors='replace').strip() if file.is_file() else ''


def candidates(cfg: Config) -> list[Path]:
    """The checkpoints of a run with the state of training, whole or not, the newest first.

    Newest means saved last. The list of SHA-256 has the order. Others, as of mmengine's own runner,
    have the number in their name, and come behind the one that the run noted as its last. The note
    of a run that was moved or copied has the path of its old folder.
    """
    folder, note = folder_of(cfg), Path(noted(cfg.work_dir) or '.')
    last = folder / note.name
    if not is_checkpoint(last) and is_checkpoint(note):
        folder, last = note.parent, note
    saved = [name for name, _ in sums_of(folder) if not name.startswith(BEST)]
    order = {name: place for place, name in enumerate(saved)}
    found = {path: number(path) for path in listed(folder) if path.name in order or number(path)}
    if is_checkpoint(last):
        found[last] = number(last)
    later = [path for path in found if path.name not in order and is_later(path, last, cfg)]
    return sorted(
        found,
        key=lambda path: (path in later, path == last and path.name not in order,
                          order.get(path.name, -1), found[path] or 0),
        reverse=True)


def listed(folder: Path) -> list[Path]:
    """The checkpoints in a folder."""
    return [path for path in folder.iterdir() if is_checkpoint(path)] if folder.is_dir() else []


def number(path: Path) -> int | None:
    """The iterations or epochs in a checkpoint's name."""
    found = NUMBERED.fullmatch(path.name)
    return int(found[1]) if found else None


def is_later(path: Path, last: Path, cfg: Config) -> bool:
    """Whether a checkpoint was saved behind the noted one, and the run was killed then."""
    if not is_checkpoint(last) or (number(path) or 0) <= (number(last) or 0):
        return False
    return path.stat().st_mtime_ns > Path(cfg.work_dir, FILE).stat().st_mtime_ns


def best_ones(cfg: Config) -> list[Path]:
    """The best checkpoints in the folder of a run."""
    return [path for path in listed(folder_of(cfg))
            if path.name.startswith(BEST) and path.suffix == '.pth']  # yapf: disable


def check_whole(path: Path) -> None:
    """Look whether training can go on from a checkpoint; one without SHA-256 is read for that.

    Raises:
        DamagedError: If it is not whole.
        WeightsError: If it holds more than weights, and is not trusted.
    """
    if is_sharded(path):
        check_folder(path)
    elif has_sum(path):
        check_content(path)
    else:
        content = read_checkpoint(path)
        if 'optimizer' not in content:
            raise DamagedError(f'{path} holds no state of training')


def whole_best(cfg: Config) -> Path | None:
    """The best checkpoint of a run, which may hold weights alone; None if none is whole."""
    name = Path(noted(cfg.work_dir, BEST_FILE)).name
    for path in sorted(best_ones(cfg), key=lambda path: (path.name != name, -path.stat().st_mtime)):
        with suppress(OSError, WeightsError):
            check_folder(path) if is_sharded(path) else read_checkpoint(path)
            return path
    return None


def newest_whole(cfg: Config) -> Path | None:
    """The newest whole checkpoint of a run; None if it has none at all.

    A warning names those that are damaged, and the one that is taken.

    Raises:
        OSError: If one cannot be read.
        WeightsError: If there are only damaged ones, or the newest holds more than weights.
    """
    damaged: list[str] = []
    for path in candidates(cfg):
        try:
            check_whole(path)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        for text in damaged:
            print_log(f'--resume: {text}. Training goes on from the one before, {path}',
                      logger='current', level=logging.WARNING)  # yapf: disable
        folder = folder_of(cfg)
        if path.parent.resolve() != folder.resolve():
            print_log(
                f'--resume: training goes on from {path}: {cfg.work_dir}/{FILE} names a checkpoint '
                f'in that folder, and {folder} has none of its name',
                logger='current',
                level=logging.WARNING)
        return path
    if damaged:
        faults = '; '.join(text.removesuffix(CHANGED).rstrip('.') for text in damaged)
        advice = CHANGED if any(text.endswith(CHANGED) for text in damaged) else ''
        best = whole_best(cfg)
        start = f', from the best checkpoint: --load-from {shlex.quote(str(best))}' if best else ''
        raise DamagedError(f'--resume: no checkpoint is whole: {faults}{advice}. '
                           f'Train anew in another --work-dir{start}')
    return None


def set_aside_best(cfg: Config) -> None:
    """Rename the best checkpoints of a run that starts anew, which would take their names.

    A run has those alone if it was killed before its first checkpoint with the state of training,
    or saved no such ones.
    """
    for path in best_ones(cfg):
        names = (f'{EARLIER}{number or ""}_{path.name}' for number in count())
        kept = next(path.with_name(name) for name in names if not path.with_name(name).exists())
        path.rename(kept)
        print_log(
            f'--resume: no checkpoint in {cfg.work_dir} has the state of training, which starts '
            f'anew. The best one is kept as {kept}: --load-from starts from it',
            logger='current',
            level=logging.WARNING)
    Path(cfg.work_dir, BEST_FILE).unlink(missing_ok=True)


def clear(cfg: Config) -> None:
    """Remove what a killed process left of files that it was writing.

    Only where no other process trains.
    """
    for folder in {Path(cfg.work_dir), folder_of(cfg)}:
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


@file_errors()
def go_on(runner: Runner) -> None:
    """Let a runner that goes on from no checkpoint by name take the newest whole one.

    The first process looks, and all take what it found.

    Raises:
        ValueError: As :func:`newest_whole`, or if not all processes see the checkpoint.
    """
    answer: list[Path | Exception | None] = [None]
    if is_main_process():
        try:
            clear(runner.cfg)
            if runner._resume and runner._load_from is None:
                answer = [newest_whole(runner.cfg)]
            elif not runner._resume:
                set_aside_best(runner.cfg)
        except (OSError, ValueError) as error:
            answer = [error]
    wait_for_all()  # large checkpoints are read to see if they are whole
    broadcast_object_list(answer)
    found, = answer
    if isinstance(found, Exception):
        raise found
    if found is None:
        return
    runner._load_from = str(found)
    if not all(all_gather_object(is_checkpoint(found))):
        raise UserError(f'training goes on from {found}, and not all processes see it: --work-dir '
                        'must be a folder that all machines share')
