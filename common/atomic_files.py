"""Files and folders that appear complete or not at all."""
from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from .errors import UserError, file_errors

SCRATCH = re.compile(r'\.(\d+)-[0-9a-f]{8}(\.\w+)?')
REPLACED = '.replaced-'  # prefix of a folder while another takes its place
UNFINISHED = '.unfinished-'


@contextmanager
def atomic_write(path: Path, *, synced: bool = False) -> Iterator[Path]:
    """Context manager that yields a file to write, which replaces ``path`` if the block succeeds.

    Args:
        synced: Whether to wait until the file is on the disk, where it survives a power failure.

    Raises:
        FileError: If the folder cannot be created or written.
    """
    with file_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
    name_hash = zlib.crc32(os.fsencode(path.name))  # keeps the name short enough
    scratch = path.with_name(f'.{os.getpid()}-{name_hash:08x}{path.suffix}')
    try:
        yield scratch
        with file_errors():
            if synced:
                sync(scratch)
            scratch.replace(path)
            if synced:
                sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Context manager that yields a folder to fill, which becomes ``path`` if the block succeeds.
    """
    path = Path(os.path.abspath(path))
    if os.path.lexists(path):
        raise UserError(f'{path} already exists: choose another folder')
    with file_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=path.parent))
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o777 & ~umask)
    try:
        yield scratch
        with file_errors():
            scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@file_errors()
def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, if its file system supports that."""
    with suppress(OSError):
        sync(path)


def is_stale_scratch(name: str) -> bool:
    """Return True if a file is one of :func:`atomic_write` that no other local process writes."""
    match = SCRATCH.fullmatch(name)
    if match is None:
        return False
    pid = int(match[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return pid == os.getpid()  # left by an earlier process with the same ID


@file_errors()
def replace_folder(scratch: Path, path: Path) -> None:
    """Rename a folder to ``path``, replacing what is there."""
    old = path.with_name(f'{REPLACED}{path.name}')
    if os.path.lexists(path):
        path.rename(old)
    scratch.rename(path)
    sync_folder(path.parent)
    if old.is_dir():
        shutil.rmtree(old)
    else:
        old.unlink(missing_ok=True)


@contextmanager
def set_aside(*paths: Path) -> Iterator[list[Path]]:
    """Context manager that renames existing files and folders, and restores them after an error.

    Yields:
        The new paths, of which the caller removes what is not needed.
    """
    moved: list[tuple[Path, Path]] = []
    try:
        for path in paths:
            if os.path.lexists(path):
                old = find_free_path(path)
                path.rename(old)
                moved.append((path, old))
        yield [old for _, old in moved]
    except BaseException:
        for path, old in reversed(moved):
            replace_folder(old, path)
        raise


def find_free_path(path: Path) -> Path:
    """Return a path like ``path`` that does not exist: ``NAME_old``, ``NAME_old2``, …"""
    numbers = chain([''], map(str, count(2)))
    paths = (path.with_name(f'{path.stem}_old{number}{path.suffix}') for number in numbers)
    return next(each for each in paths if not os.path.lexists(each))


@file_errors()
def check_writable(path: Path) -> None:
    """Check that a file can be written, before hours of work that produce it."""
    if path.is_dir():
        raise UserError(f'{path} is a folder: choose a file')
    path.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path.parent).close()


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` to ``path`` atomically."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


@file_errors()
def write_text(path: Path, text: str, *, synced: bool = False) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8; ``synced`` as in :func:`atomic_write`."""
    with atomic_write(path, synced=synced) as scratch:
        scratch.write_text(text, encoding='utf-8')
