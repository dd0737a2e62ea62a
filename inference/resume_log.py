"""What is finished in a folder of predictions, so that a run that was stopped goes on."""
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import atomic_write, write_json
from colonnade.common.errors import UserError, file_errors
from colonnade.common.locking import lock_folder

from .coco_ids import Numbering

SETTINGS, FINISHED = 'settings.json', 'finished.jsonl'


class Records:
    """One line of JSON for each image or video that is finished.

    Attributes:
        folder: Of predictions.
        names: Of what is finished.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FINISHED
        self.names = {record['name'] for record in self}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            with self.path.open(encoding='utf-8') as file:
                yield from map(json.loads, file)

    def add(self, record: dict[str, Any]) -> None:
        """Write that something is finished; its files lie there."""
        line = json.dumps(record, separators=(',', ':'), allow_nan=False) + '\n'
        with self.path.open('a', encoding='utf-8') as file:
            file.write(line)
        self.names.add(record['name'])


def check_new(folder: Path, *, resume: bool) -> None:
    """Raise a UserError for a folder that is not to be written to."""
    if not os.path.lexists(folder):
        above = next(parent for parent in folder.absolute().parents if os.path.lexists(parent))
        if not above.is_dir():
            raise UserError(f'{above} is no folder: name another --out')
        return
    if not folder.is_dir():
        raise UserError(f'{folder} is no folder: name another --out')
    content = {path.name for path in folder.iterdir() if not path.name.startswith('.')}
    if content <= {SETTINGS, 'errors.txt'}:  # of a call that finished nothing
        return
    if SETTINGS not in content:
        raise UserError(f'{folder} holds other files than predictions: name another --out')
    if not resume:
        raise UserError(f'{folder} holds predictions: --resume goes on with them, or name '
                        'another --out')


@contextmanager
def records_of(folder: Path, settings: dict[str, Any], *, resume: bool) -> Iterator[Records]:
    """What is finished in a folder, which nobody else writes to meanwhile.

    Args:
        folder: Of predictions; made if there is none.
        settings: On which predictions depend; all values of JSON.
        resume: Whether to go on with what is there.

    Raises:
        OSError: If the folder cannot be written, or somebody writes to it.
        ValueError: If it holds predictions of other settings.
    """
    with file_errors():
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(
            folder, f'another process writes to {folder}: wait for its end, or name another '
            '--out'):
        with file_errors():
            check_new(folder, resume=resume)
            if (folder / FINISHED).exists():
                check_settings(folder, settings)
            else:
                write_json(folder / SETTINGS, settings)
            cut_torn_line(folder / FINISHED)
        yield Records(folder)


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Raise a ValueError for a folder with predictions of other settings."""
    earlier = json.loads((folder / SETTINGS).read_bytes())
    settings = json.loads(json.dumps(settings))
    for key in settings:
        if key == 'hash_of_model' and earlier.get(key) != settings[key]:
            raise UserError(f'{folder} holds predictions of other weights or another config: name '
                            'another --out')
        if earlier.get(key) != settings[key]:
            before, now = worded(key, earlier.get(key)), worded(key, settings[key])
            raise UserError(f'{folder} holds predictions with {before}, and now it is '
                            f'{now}: name another --out')


def worded(key: str, value: Any) -> str:
    """A setting as the command line has it."""
    if key == 'fuse':
        return '--fuse' if value else '--no-fuse'
    if key == 'amp':
        return f'--amp-dtype {value}' if value else 'no --amp'
    return f'{key.replace("_", " ")} {value}'


def cut_torn_line(path: Path) -> None:
    """Remove the end of a file that was being written when its process was killed."""
    if path.exists():
        with path.open('rb+') as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b'\n')))


def write_images(records: Records, numbering: Numbering, categories: list[dict[str, Any]]) -> None:
    """Write ``images.json``: ids, names and sizes of what is finished, as COCO's files have them.

    Args:
        records: With ``name``, ``size``, and ``video`` of videos.
        numbering: Ids of the inputs; what is none of them is left out.
        categories: COCO's entries of them.

    Raises:
        OSError: If it cannot be written.
    """
    images, videos = [], []
    for record in records:
        if record['name'] in numbering.images:
            height, width = record['size']
            entry = dict(
                id=numbering.images[record['name']],
                file_name=record['name'],
                width=width,
                height=height)
            if 'video' in record:
                videos.append({**entry, **record['video']})
            else:
                images.append(entry)
    for entries in (images, videos):
        entries.sort(key=lambda entry: entry['id'])
    write_json(records.folder / 'images.json',
               dict(images=images, videos=videos, categories=categories))


def write_results(records: Records, numbering: Numbering) -> None:
    """Write ``results.json``, a list of all entries with the ids of their images.

    Args:
        records: With ``name`` and ``entries``.
        numbering: Ids of the inputs; what is none of them is left out.

    Raises:
        OSError: If it cannot be written.
    """
    with atomic_write(records.folder / 'results.json') as scratch, \
            scratch.open('w', encoding='utf-8') as file:
        separator = '['
        for record in records:
            for entry in record['entries'] if record['name'] in numbering.images else ():
                whole = dict(image_id=numbering.images[record['name']], **entry)
                file.write(f'{separator}\n{json.dumps(whole)}')
                separator = ','
        file.write(f'{separator if separator == "[" else ""}\n]\n')
