"""Files that appear whole or not at all."""
from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of ``path`` when the block ends without an error.

    Raises:
        OSError: If the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    number = zlib.crc32(os.fsencode(path.name))  # no longer than names may be
    scratch = path.with_name(f'.{os.getpid()}-{number:08x}{path.suffix}')  # which tells formats
    try:
        yield scratch
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` when the block ends without an error.

    Raises:
        FileExistsError: If ``path`` exists.
        OSError: If it cannot be made.
    """
    path = Path(os.path.abspath(path))
    if os.path.lexists(path):
        raise FileExistsError(f'{path} exists: name another folder')
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix='.unfinished-', dir=path.parent))
    scratch.chmod(0o777 & ~umask())
    try:
        yield scratch
        scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replace_folder(scratch: Path, path: Path) -> None:
    """Let a folder take the place of a file or folder, or of nothing.

    Raises:
        OSError: If it cannot.
    """
    old = path.with_name(f'.replaced-{path.name}')
    if os.path.lexists(path):
        path.rename(old)
    scratch.rename(path)
    if old.is_dir():
        shutil.rmtree(old)
    else:
        old.unlink(missing_ok=True)


def umask() -> int:
    """The bits that new files of this process lack."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


def check_writable(path: Path) -> None:
    """Try whether a file can be written, before hours of work that it is for.

    Raises:
        OSError: If it cannot.
    """
    if path.is_dir():
        raise IsADirectoryError(f'{path} is a folder: name a file')
    path.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path.parent).close()


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` to ``path`` atomically."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with replacing(path) as scratch:
        scratch.write_text(text)
