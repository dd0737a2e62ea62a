"""Sources of a converted dataset: recorded by its conversion, and compared before training."""
from __future__ import annotations

import json
import os
import shlex
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict

from colonnade.common.name_lists import format_names
from colonnade.settings.dataset_paths import paths_of_setting
from colonnade.settings.findings import Finding

from .validation_report import Report

RECORD, SOURCES = 'conversion.json', 'sources.json'  # files in the folder of a conversion
MAX_SHOWN = 3  # sources that a message names
WORKERS, CHUNK = 16, 1000  # threads that wait for the file system, and files for each at a time
ADVICE = 'convert again with: colonnade check_dataset {} --convert-again'

#: size, time of modification and CRC-32 of a file that was read, None if there was none; an empty
#: list for a file that was not read
State = list[int] | None


def portable_path(path: Path, folder: Path) -> list[str]:
    """Return a path relative to a folder, with which it may move, and the absolute one."""
    path, folder = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    return [os.path.relpath(path, folder), str(path)]


def find_path(recorded: list[str], folder: Path) -> Path | None:
    """Return the path that :func:`portable_path` recorded, or None if it does not exist."""
    candidates = (Path(os.path.normpath(folder / each)) for each in recorded)
    return next(filter(os.path.exists, candidates), None)


def record_sources(folder: Path,
                   tables: Collection[Path],
                   labels: Collection[Path],
                   listed: Collection[Path] = ()) -> str:
    """Return the text that says which files a conversion has read, for :func:`find_changes`.

    Args:
        folder: Folder of the conversion.
        tables: Files on the whole dataset, such as lists of images or names of classes.
        labels: Files of single images, some of which may not exist. New ones in their folders are
            changes, too.
        listed: Files of single images that training reads itself: only new ones are changes.
    """
    read, single = ([Path(os.path.abspath(file)) for file in files]
                    for files in ((*tables, *labels), (*labels, *listed)))
    root = Path(os.path.commonpath([file.parent for file in (*read, *single)]))
    states: dict[str, State] = {os.path.relpath(file, root): _read_state(file) for file in read}
    names = [os.path.relpath(file, root) for file in single]
    unread = sorted(_list_like(root, names) - states.keys())
    content = dict(
        root=portable_path(root, folder),
        labels=names,
        files=states | {name: []
                        for name in unread})
    return json.dumps(content)


def _read_state(file: Path) -> State:
    try:
        status, content = file.stat(), file.read_bytes()
    except FileNotFoundError:
        return None
    return [status.st_size, status.st_mtime_ns, zlib.crc32(content)]


def _list_like(root: Path, names: Iterable[str]) -> set[str]:
    """Return the files in and below the folders of others that have a suffix of theirs.

    The neighbors of a folder count as well, but for those that are directly in the root. Below the
    root itself, nothing is looked for: next to annotations, there may be anything, such as a run.
    """
    suffixes = defaultdict(set)
    for name in names:
        folder = os.path.dirname(name)
        top = os.path.dirname(folder) or folder
        suffixes[top].add(os.path.splitext(name)[1].lower())
    found = set()
    for top, known in suffixes.items():
        for path, below, files in os.walk(root / top):
            below[:] = [name for name in below if not name.startswith('.')]
            if not top:
                below.clear()
            if RECORD in files:  # a conversion
                below.clear()
                continue
            inner = os.path.relpath(path, root)
            found |= {
                os.path.normpath(os.path.join(inner, name))
                for name in files
                if os.path.splitext(name)[1].lower() in known and not name.startswith('.')
            }
    return found


def find_changes(folder: Path) -> list[str] | None:
    """Return the sources that are new, edited or gone since the conversion, with what they are.

    None if they are not on this machine, or of another user, or if an earlier version has not
    recorded them.

    Raises:
        OSError: If a source cannot be read for another reason.
        ValueError: If the record is damaged.
    """
    if not (folder / SOURCES).is_file():
        return None
    content = json.loads((folder / SOURCES).read_bytes())
    states: dict[str, State] = content['files']
    root = find_path(content['root'], folder)
    read = [name for name, state in states.items() if state]
    if root is None or read and not any(
            map(os.path.exists, (root / name for name in read[:CHUNK]))):
        return None
    missing = [name for name, state in states.items() if state is None]
    chunks = [read[start:start + CHUNK] for start in range(0, len(read), CHUNK)]
    try:
        new = sorted(_list_like(root, content['labels']) - states.keys())
        new += [name for name in missing if (root / name).exists()]
        with ThreadPoolExecutor(WORKERS) as pool:
            changed = [each for found in pool.map(lambda names: list(_changed(root, names, states)),
                                                  chunks) for each in found]  # yapf: disable
    except PermissionError:
        return None
    return [*changed, *(f'{root / name} (new)' for name in new)]


def _changed(root: Path, names: list[str], states: dict[str, State]) -> Iterator[str]:
    """Yield the files that are edited or gone; contents are read where times alone differ."""
    for name in names:
        size, time, checksum = states[name] or (0, 0, 0)
        try:
            status = os.stat(root / name)
        except FileNotFoundError:
            yield f'{root / name} (gone)'
            continue
        if status.st_size != size or \
                status.st_mtime_ns != time and zlib.crc32((root / name).read_bytes()) != checksum:
            yield f'{root / name} (edited)'


def conversion_of(dataset: ConfigDict) -> Path | None:
    """Return the folder of the conversion that a dataset reads, or None if it reads none."""
    paths = paths_of_setting(dataset.get('ann_file'), dataset)
    folder = Path(paths[0]).parent if paths else None
    return folder if folder and (folder / RECORD).is_file() else None


def report_changes(dataset: ConfigDict, config: Any, known: set[Path], report: Report) -> None:
    """Report a conversion whose sources have changed.

    Args:
        dataset: Its settings.
        config: Path of the config, for the command that converts again.
        known: Folders that were looked at before; takes the one of this dataset.
        report: Takes what is found.
    """
    folder = conversion_of(dataset)
    if folder is None or folder in known:
        return
    known.add(folder)
    try:
        changes = find_changes(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f'{folder / SOURCES} or a file that it names cannot be read: {error}'
        report.add(Finding('stale-conversion', text, (str(folder), )))
        return
    if changes is None:
        text = f'{folder} was converted from files that cannot be read on this machine, or by an ' \
               'earlier version: they were not compared with it'
        report.add(Finding('unknown-sources', text, (str(folder), )))
    elif changes:
        text = f'{folder} is older than what it was converted from: ' \
               f'{format_names(changes, MAX_SHOWN)}; ' \
               f'{ADVICE.format(shlex.quote(str(config)))}'
        report.add(Finding('stale-conversion', text, (str(folder), )))
