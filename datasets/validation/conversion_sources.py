"""Source files of a converted dataset: recorded by its conversion and compared before training."""
from __future__ import annotations

import json
import os
import shlex
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict

from colonnade.common.name_lists import format_names
from colonnade.settings.dataset_paths import get_setting_paths
from colonnade.settings.findings import Finding

from .validation_report import Report

RECORD, SOURCES = 'conversion.json', 'sources.json'  # files in the folder of a conversion
MAX_SHOWN = 3  # sources in a message
WORKERS, CHUNK = 16, 1000  # threads that wait for the file system, and files per task

#: size, modification time (ns) and CRC-32 of a file that was read; None if it did not exist; an
#: empty list if it was not read
State = list[int] | None


def record_path(path: Path, folder: Path) -> list[str]:
    """Return a path relative to a folder, so that both can be moved, and the absolute path."""
    path, folder = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    return [os.path.relpath(path, folder), str(path)]


def find_path(recorded: list[str], folder: Path) -> Path | None:
    """Return the path that :func:`record_path` recorded, or None if it does not exist."""
    candidates = (Path(os.path.normpath(folder / each)) for each in recorded)
    return next(filter(os.path.exists, candidates), None)


def record_sources(folder: Path,
                   tables: Collection[Path],
                   labels: Collection[Path],
                   listed: Collection[Path] = ()) -> str:
    """Return the JSON record of the files that a conversion has read, for :func:`find_changes`.

    Args:
        folder: Folder of the conversion.
        tables: Files about the whole dataset, such as lists of images or class names.
        labels: Files of single images, which may be missing. New files in their folders count as
            changes, too.
        listed: Files of single images that training reads directly; only new ones are changes.
    """
    read, single = ([Path(os.path.abspath(file)) for file in files]
                    for files in ((*tables, *labels), (*labels, *listed)))
    root = Path(os.path.commonpath([file.parent for file in (*read, *single)]))
    states: dict[str, State] = {os.path.relpath(file, root): _read_state(file) for file in read}
    names = [os.path.relpath(file, root) for file in single]
    unread = sorted(_find_similar_files(root, names) - states.keys())
    files = states | {name: [] for name in unread}
    return json.dumps(dict(root=record_path(root, folder), labels=names, files=files))


def _read_state(file: Path) -> State:
    try:
        status, content = file.stat(), file.read_bytes()
    except FileNotFoundError:
        return None
    return [status.st_size, status.st_mtime_ns, zlib.crc32(content)]


def _find_similar_files(root: Path, names: Iterable[str]) -> set[str]:
    """Return files with the same suffix in, below and next to the folders of other files.

    Below the root itself nothing is searched: there may be anything next to annotations, e.g. runs.
    """
    suffixes = defaultdict(set)
    for name in names:
        folder = os.path.dirname(name)
        suffixes[os.path.dirname(folder) or folder].add(os.path.splitext(name)[1].lower())
    similar = set()
    for top, known in suffixes.items():
        for path, below, files in os.walk(root / top):
            below[:] = [name for name in below if not name.startswith('.')]
            if not top or RECORD in files:
                below.clear()
            if RECORD in files:  # the folder of a conversion
                continue
            inner = os.path.relpath(path, root)
            similar |= {
                os.path.normpath(os.path.join(inner, name))
                for name in files
                if os.path.splitext(name)[1].lower() in known and not name.startswith('.')
            }
    return similar


def find_changes(folder: Path) -> list[str] | None:
    """Return the sources that are new, edited or deleted since the conversion.

    Returns:
        None if the sources are on another machine, not readable by this user or not recorded.
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

    def find_edited(names: list[str]) -> list[str]:
        return [change for name in names if (change := _find_change(root / name, states[name]))]

    chunks = [read[start:start + CHUNK] for start in range(0, len(read), CHUNK)]
    try:
        new = sorted(_find_similar_files(root, content['labels']) - states.keys())
        new += [name for name, state in states.items() if state is None and (root / name).exists()]
        with ThreadPoolExecutor(WORKERS) as pool:
            edited = [change for changes in pool.map(find_edited, chunks) for change in changes]
    except PermissionError:
        return None
    return [*edited, *(f'{root / name} (new)' for name in new)]


def _find_change(path: Path, state: State) -> str:
    size, time, checksum = state or (0, 0, 0)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return f'{path} (deleted)'
    is_same = status.st_size == size and (status.st_mtime_ns == time
                                          or zlib.crc32(path.read_bytes()) == checksum)
    return '' if is_same else f'{path} (edited)'


def find_conversion(dataset: ConfigDict) -> Path | None:
    """Return the folder of the conversion that a dataset reads, or None."""
    paths = get_setting_paths(dataset.get('ann_file'), dataset)
    folder = Path(paths[0]).parent if paths else None
    return folder if folder and (folder / RECORD).is_file() else None


def report_changes(dataset: ConfigDict, config: Any, known: set[Path], report: Report) -> None:
    """Report a conversion whose sources have changed.

    Args:
        config: Path of the config, for the command in the message.
        known: Folders that were checked before; updated.
    """
    folder = find_conversion(dataset)
    if folder is None or folder in known:
        return
    known.add(folder)
    rule = 'stale-conversion'
    try:
        changes = find_changes(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f'{folder / SOURCES} or a file that it lists cannot be read: {error}'
    else:
        if changes is None:
            rule = 'unknown-sources'
            text = f'{folder} was not compared with the files that it was converted from: they ' \
                   'cannot be read on this machine, or an earlier version did not record them'
        elif changes:
            text = f'{folder} is older than its source files: ' \
                   f'{format_names(changes, MAX_SHOWN)}. Convert again with: colonnade ' \
                   'check-dataset ' \
                   f'{shlex.quote(str(config))} --reconvert'
        else:
            return
    report.add(Finding(rule, text, (str(folder), )))
