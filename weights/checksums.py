"""What tells whether a checkpoint is what was saved: its SHA-256, kept in a file beside it.

The file is a list that ``sha256sum --check`` reads. Its lines stand in the order of saving. Files
without a line, such as those of others, have the CRC-32 that ``torch.save`` writes.
"""
from __future__ import annotations

import re
import zipfile
from functools import lru_cache
from pathlib import Path

from colonnade.common.hashing import compute_sha256

from .state_dicts import DamagedError

SUMS = 'checkpoints.sha256'
LINE = re.compile(r'([0-9a-f]{64}) [ *](.+)')
BLOCK = 2**20  # bytes that are read at once
CHANGED = '. If you changed the file, delete its line there'  # for one that is not what was saved


def read_checksums(folder: Path) -> list[tuple[str, str]]:
    """Names and SHA-256 of a folder's checkpoints, the one that was saved last at the end.

    While a file is replaced, it has two.

    Raises:
        OSError: If the list cannot be read.
    """
    file = folder / SUMS
    lines = file.read_text(encoding='utf-8', errors='replace').split('\n') if file.is_file() else []
    return [(found[2], found[1]) for found in map(LINE.fullmatch, lines) if found]


def has_sum(path: Path) -> bool:
    """Whether the SHA-256 of a file is kept beside it."""
    return any(name == path.name for name, _ in read_checksums(path.parent))


def verify_checksum(path: Path) -> None:
    """Compare a file with what was saved.

    Raises:
        DamagedError: If it differs.
        OSError: If it cannot be read.
    """
    kept = {digest for name, digest in read_checksums(path.parent) if name == path.name}
    if kept:
        status = path.stat()
        if _sum_of_version(path, status.st_size, status.st_mtime_ns, status.st_ino) not in kept:
            raise DamagedError(f'{path} is damaged or was altered: its SHA-256 is not the one in '
                               f'{path.parent / SUMS}{CHANGED}')
    elif record := wrong_record(path):
        raise DamagedError(f'{path} is damaged: {record} in it is not what its CRC-32 says')


@lru_cache(16)
def _sum_of_version(path: Path, *version: int) -> str:
    """The SHA-256 of a file, computed once: training looks at a checkpoint, and loads it later."""
    return compute_sha256(path)


def wrong_record(path: Path) -> str | None:
    """The first record of a file of ``torch.save`` that is not what its CRC-32 says.

    torch does not look at it when it loads. Where torch was told to write none, it is 0.
    """
    try:
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as file:
            for record in file.infolist():
                if record.CRC and record.compress_type == zipfile.ZIP_STORED and \
                        not is_readable(file, record):
                    return record.filename
    except Exception:  # damaged heads lead zipfile to errors of all kinds
        pass  # torch says what it is
    return None


def is_readable(file: zipfile.ZipFile, record: zipfile.ZipInfo) -> bool:
    """Whether a record can be read to its end, where its CRC-32 is compared."""
    try:
        with file.open(record) as content:
            while content.read(BLOCK):
                pass
    except zipfile.BadZipFile:
        return False
    return True
