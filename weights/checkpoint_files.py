"""Checkpoint files that are complete or absent, each with its SHA-256 in a list next to it.

The list is one that ``sha256sum --check`` reads, in the order of saving. Files that are not in it,
such as third-party ones, have the CRC-32 that ``torch.save`` writes.
"""
from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import zipfile
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from mmengine.fileio import LocalBackend, register_backend

from colonnade.common.atomic_files import atomic_write, write_text
from colonnade.common.errors import FileError
from colonnade.common.hashing import compute_sha256

from .state_dicts import DamagedError

NAME = 'colonnade.checkpoints'  # in mmengine's backend_args
#: settings of mmengine that write local files
LOCAL: tuple[dict | None, ...] = (None, {}, dict(backend='local'), dict(backend=NAME))
SUMS = 'checkpoints.sha256'
LINE = re.compile(r'([0-9a-f]{64}) [ *](.+)')
BLOCK = 2**20  # bytes read at a time
#: what zipfile raises for damaged headers
ZIP_ERRORS = (ArithmeticError, EOFError, OSError, RuntimeError, ValueError, struct.error,
              zipfile.BadZipFile)
CHANGED = '. If you changed the file, delete its line there'


def read_checksums(folder: Path) -> list[tuple[str, str]]:
    """Return names and SHA-256 of a folder's checkpoints, in the order of saving.

    A file has two while it is replaced.
    """
    file = folder / SUMS
    lines = file.read_text(encoding='utf-8', errors='replace').split('\n') if file.is_file() else []
    return [(match[2], match[1]) for match in map(LINE.fullmatch, lines) if match]


def has_checksum(path: Path) -> bool:
    """Return True if the SHA-256 of a file is in the list next to it."""
    return any(name == path.name for name, _ in read_checksums(path.parent))


def verify_checksum(path: Path) -> None:
    """Raise a DamagedError if the checksum of a file is wrong."""
    digests = {digest for name, digest in read_checksums(path.parent) if name == path.name}
    if digests:
        status = path.stat()
        if _compute_checksum(path, status.st_size, status.st_mtime_ns,
                             status.st_ino) not in digests:
            raise DamagedError(f'{path} is damaged or was altered: its SHA-256 does not match '
                               f'{path.parent / SUMS}{CHANGED}')
    elif record := find_damaged_record(path):
        raise DamagedError(f'{path} is damaged: the CRC-32 of its record {record} is wrong')


@lru_cache(16)
def _compute_checksum(path: Path, *version: int) -> str:
    """Return the SHA-256 of a file, cached since training checks a file and then loads it."""
    return compute_sha256(path)


def find_damaged_record(path: Path) -> str | None:
    """Return the first record of a file of ``torch.save`` whose CRC-32 is wrong, or None.

    torch does not check it when it loads. It is 0 if torch was set to write none.
    """
    try:
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as file:
            for record in file.infolist():
                if not record.CRC or record.compress_type != zipfile.ZIP_STORED:
                    continue
                try:
                    with file.open(record) as content:
                        while content.read(BLOCK):
                            pass
                except zipfile.BadZipFile:
                    return record.filename
    except ZIP_ERRORS:  # torch reports them
        pass
    return None


class CheckpointError(FileError):
    """Checkpoint that cannot be written."""

    def __str__(self) -> str:
        return str(self.strerror)


@register_backend(NAME)
class CheckpointFiles(LocalBackend):
    """Backend of local files that are complete, on the disk, and have their SHA-256.

    The checksum is written before the file is moved to its place. So whenever a process ends, no
    file is without its checksum, or has that of another.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file, replacing an earlier one when the new one is complete."""
        path = Path(filepath)
        try:
            with atomic_write(path, synced=True) as scratch:
                scratch.write_bytes(obj)
                add_checksums(path.parent, {path.name: sha256(obj).hexdigest()})
        except OSError as error:
            raise CheckpointError(error.errno, explain_failure(path, len(obj), error)) from error
        with suppress(OSError):  # two checksums of a file are harmless
            remove_old_checksums(path.parent)

    def remove(self, filepath: str | Path) -> None:
        """Delete a file and its checksum."""
        super().remove(filepath)
        with suppress(OSError):  # a checksum without a file is harmless
            remove_old_checksums(Path(filepath).parent)


def explain_failure(path: Path, size: int, error: OSError) -> str:
    """Return why a checkpoint cannot be written; ``size`` is 0 if it is unknown."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOSPC and size:
        free = shutil.disk_usage(path.parent).free
        why += f' (it needs {size:,} bytes, and {free:,} are free)'
    elif error.errno in (errno.EDQUOT, errno.EFBIG) and size:
        why += f' (it needs {size:,} bytes)'
    return f'{path} cannot be saved: {why}'


def add_checksums(folder: Path, sums: dict[str, str]) -> None:
    """Append the SHA-256 of files to the list next to them."""
    lines = [(name, digest) for name, digest in read_checksums(folder) if (folder / name).exists()]
    _write_checksums(folder, [*lines, *sums.items()])


def remove_old_checksums(folder: Path) -> None:
    """Keep the last SHA-256 of each existing file."""
    before = read_checksums(folder)
    last = {name: index for index, (name, _) in enumerate(before) if (folder / name).exists()}
    after = [before[index] for index in sorted(last.values())]
    if after != before:
        _write_checksums(folder, after)


def _write_checksums(folder: Path, sums: list[tuple[str, str]]) -> None:
    text = ''.join(f'{digest}  {name}\n' for name, digest in sums if '\n' not in name)
    write_text(folder / SUMS, text, synced=True)


def get_save_options(out_dir: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Return options of mmengine's ``save_checkpoint`` that save by :class:`CheckpointFiles`.

    Nothing changes if ``out_dir`` is not local. ``args`` are those after the file's name.
    """
    client = args[0] if args else options.get('file_client_args')
    if len(args) < 6 and is_local(out_dir, client, options.get('backend_args')):
        options['backend_args'] = dict(backend=NAME)
    return options


def is_local(out_dir: str | Path, client: dict | None, backend: dict | None) -> bool:
    """Return True if mmengine would write local files."""
    return '://' not in str(out_dir) and client is None and backend in LOCAL
