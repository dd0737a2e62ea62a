"""Files that appear whole or not at all."""
from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import UserError, file_errors

SCRATCH = re.compile(r'\.(\d+)-[0-9a-f]{8}(\.\w+)?')
REPLACED = '.replaced-'  # a folder while another takes its place
UNFINISHED = '.unfinished-'


@contextmanager
def replacing(path: Path, *, synced: bool = False) -> Iterator[Path]:
    """A file to write to, which takes the place of ``path`` when the block ends without an error.

    Args:
        path: Of the file.
        synced: Wait until it is on the disk, and would also be whole after a failure of power.

    Raises:
        FileError: If the folder cannot be made or written.
    """
    with file_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
    number = zlib.crc32(os.fsencode(path.name))  # no longer than names may be
    scratch = path.with_name(f'.{os.getpid()}-{number:08x}{path.suffix}')  # which tells formats
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
    """A folder to fill, which becomes ``path`` when the block ends without an error.

    Raises:
        FileError: If it cannot be made.
        UserError: If ``path`` exists.
    """
    path = Path(os.path.abspath(path))
    if os.path.lexists(path):
        raise UserError(f'{path} exists: name another folder')
    with file_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=path.parent))
        scratch.chmod(0o777 & ~umask())
    try:
        yield scratch
        with file_errors():
            scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@file_errors()
def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises:
        FileError: If they cannot be written there.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """As :func:`sync`, where the file system can do that for folders."""
    with suppress(OSError):
        sync(path)


def is_left_behind(name: str) -> bool:
    """Whether a file is one of :func:`replacing`'s that no other process of this machine writes."""
    found = SCRATCH.fullmatch(name)
    if found is None:
        return False
    number = int(found[1])
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return number == os.getpid()  # of an earlier process of this number


@file_errors()
def replace_folder(scratch: Path, path: Path) -> None:
    """Let a folder take the place of a file or folder, or of nothing.

    Raises:
        FileError: If it cannot.
    """
    old = path.with_name(f'{REPLACED}{path.name}')
    if os.path.lexists(path):
        path.rename(old)
    scratch.rename(path)
    sync_folder(path.parent)
    if old.is_dir():
        shutil.rmtree(old)
    else:
        old.unlink(missing_ok=True)


def umask() -> int:
    """The bits that new files of this process lack."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


@file_errors()
def check_writable(path: Path) -> None:
    """Try whether a file can be written, before hours of work that it is for.

    Raises:
        FileError: If it cannot.
    """
    if path.is_dir():
        raise UserError(f'{path} is a folder: name a file')
    path.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path.parent).close()


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` to ``path`` atomically."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


@file_errors()
def write_text(path: Path, text: str, *, synced: bool = False) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8; ``synced`` as in :func:`replacing`."""
    with replacing(path, synced=synced) as scratch:
        scratch.write_text(text, encoding='utf-8')
