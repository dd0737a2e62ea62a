"""Checkpoints that appear whole or not at all, each with its SHA-256 in a file beside it."""
from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from mmengine.fileio import LocalBackend, register_backend

from colonnade.common.atomic_files import atomic_write, write_text
from colonnade.common.errors import FileError

from .checksums import SUMS, read_checksums

NAME = 'colonnade.checkpoints'  # in backend_args of mmengine
#: where a config asks for nothing else than files of this machine
LOCAL: tuple[dict | None, ...] = (None, {}, dict(backend='local'), dict(backend=NAME))
BOUNDS = (errno.EDQUOT, errno.EFBIG)  # of a user, of a file


class CheckpointError(FileError):
    """A checkpoint that could not be written; says which, and why."""

    def __str__(self) -> str:
        return str(self.strerror)


@register_backend(NAME)
class CheckpointFiles(LocalBackend):
    """mmengine's files of this machine; what is written is whole, on the disk, and has its SHA-256.

    The sum is there before the file takes its place. So a file never is without, or with that of
    another, whenever a process ends.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file; an earlier one of this name stays until the new one is whole.

        Raises:
            CheckpointError: If it cannot be written. Nothing of it remains then.
        """
        path = Path(filepath)
        try:
            with atomic_write(path, synced=True) as scratch:
                scratch.write_bytes(obj)
                keep_sums(path.parent, {path.name: sha256(obj).hexdigest()})
        except OSError as error:
            raise CheckpointError(error.errno, reason(path, len(obj), error)) from error
        with suppress(OSError):  # two sums of a file do no harm
            drop_earlier_sums(path.parent)

    def remove(self, filepath: str | Path) -> None:
        """Delete a file and its sum."""
        super().remove(filepath)
        with suppress(OSError):  # a sum without a file does no harm
            drop_earlier_sums(Path(filepath).parent)


def reason(path: Path, size: int, error: OSError) -> str:
    """Why a checkpoint could not be written, with its bytes if they are known and too many."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOSPC and size:
        free = shutil.disk_usage(path.parent).free
        why += f' (it needs {size:,} bytes, and {free:,} are free)'
    elif error.errno in BOUNDS and size:
        why += f' (it needs {size:,} bytes)'
    return f'{path} cannot be saved: {why}'


def keep_sums(folder: Path, sums: dict[str, str]) -> None:
    """Add the SHA-256 of files to the list beside them, behind all others.

    Raises:
        OSError: If it cannot be written.
    """
    lines = [(name, digest) for name, digest in read_checksums(folder) if (folder / name).exists()]
    _write(folder, [*lines, *sums.items()])


def drop_earlier_sums(folder: Path) -> None:
    """Keep the last SHA-256 of each file that is there.

    Raises:
        OSError: If the list cannot be written.
    """
    before = read_checksums(folder)
    last = {name: place for place, (name, _) in enumerate(before) if (folder / name).exists()}
    after = [before[place] for place in sorted(last.values())]
    if after != before:
        _write(folder, after)


def _write(folder: Path, sums: list[tuple[str, str]]) -> None:
    text = ''.join(f'{digest}  {name}\n' for name, digest in sums if '\n' not in name)
    write_text(folder / SUMS, text, synced=True)


def arguments_of_whole_files(out_dir: str, *given: Any, **options: Any) -> dict[str, Any]:
    """Arguments of mmengine's ``Runner.save_checkpoint`` that save by :class:`CheckpointFiles`.

    Args:
        out_dir: Where the checkpoint goes; elsewhere than on this machine, nothing changes.
        *given: Behind the file's name.
        **options: By name.

    Returns:
        The options.
    """
    client = given[0] if given else options.get('file_client_args')
    if len(given) < 6 and is_local(out_dir, client, options.get('backend_args')):
        options['backend_args'] = dict(backend=NAME)
    return options


def is_local(out_dir: str | Path, client: dict | None, backend: dict | None) -> bool:
    """Whether mmengine would write plain files of this machine."""
    return '://' not in str(out_dir) and client is None and backend in LOCAL
