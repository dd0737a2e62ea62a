"""Log of finished inputs, from which a stopped prediction resumes."""
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import write_json
from colonnade.common.errors import UserError, file_errors
from colonnade.common.locking import lock_folder

SETTINGS, FINISHED = 'settings.json', 'finished.jsonl'


class ResumeLog:
    """A file with a line of JSON for each finished image or video."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = {record['name'] for record in self}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            with self.path.open(encoding='utf-8') as file:
                yield from map(json.loads, file)

    def add(self, record: dict[str, Any]) -> None:
        """Append the record of an input whose files are written."""
        line = json.dumps(record, separators=(',', ':'), allow_nan=False) + '\n'
        with self.path.open('a', encoding='utf-8') as file:
            file.write(line)
        self.names.add(record['name'])


@contextmanager
def open_resume_log(folder: Path, settings: dict[str, Any], *, resume: bool) -> Iterator[ResumeLog]:
    """Context manager that locks a folder of predictions and opens its log."""
    with file_errors():
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(
            folder, f'another process writes to {folder}: wait until it ends, or choose '
            'another --out'):
        with file_errors():
            check_output_folder(folder, resume=resume)
            if (folder / FINISHED).exists():
                check_settings(folder, settings)
                with (folder / FINISHED).open('rb+') as file:
                    # A killed process can leave an incomplete line at the end.
                    file.truncate(sum(len(line) for line in file if line.endswith(b'\n')))
            else:
                write_json(folder / SETTINGS, settings)
        yield ResumeLog(folder / FINISHED)


def check_output_folder(folder: Path, *, resume: bool) -> None:
    """Raise a UserError if predictions cannot be written to a folder."""
    existing = folder
    if not os.path.lexists(folder):
        existing = next(path for path in folder.absolute().parents if os.path.lexists(path))
    if not existing.is_dir():
        raise UserError(f'{existing} is not a folder: choose another --out')
    if existing != folder:
        return
    content = {path.name for path in folder.iterdir() if not path.name.startswith('.')}
    if content <= {SETTINGS, 'errors.txt'}:  # left by a run that finished no input
        return
    if SETTINGS not in content:
        raise UserError(f'{folder} contains files other than predictions: choose another --out')
    if not resume:
        raise UserError(f'{folder} already contains predictions: pass --resume to continue with '
                        'them, or choose another --out')


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Raise a UserError if a folder holds predictions with different settings."""
    earlier = json.loads((folder / SETTINGS).read_bytes())
    for key, value in json.loads(json.dumps(settings)).items():
        if earlier.get(key) == value:
            continue
        if key == 'hash_of_model':
            raise UserError(
                f'{folder} contains predictions made with other weights or another config: choose '
                'another --out')
        before, now = (format_setting(key, each) for each in (earlier.get(key), value))
        raise UserError(
            f'{folder} contains predictions with {before}, not {now}: choose another --out')


def format_setting(key: str, value: Any) -> str:
    """Format a setting like the option of the command line."""
    if key == 'fuse':
        return '--fuse' if value else '--no-fuse'
    if key == 'amp':
        return f'--amp-dtype {value}' if value else 'no --amp'
    return f'{key.replace("_", " ")} {value}'
