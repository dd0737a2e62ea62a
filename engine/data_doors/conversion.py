"""A conversion happens once, into a folder of its own that says what it was made of."""
from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..atomic import new_folder, write_json

RECORD = 'conversion.json'
DECISIVE = ('form', 'fingerprint', 'split')  # keys of the record that make a conversion another one


def convert_once(folder: Path, record: Mapping[str, Any], write: Callable[[Path], None]) -> bool:
    """Fill a folder, unless the same conversion is there already.

    Args:
        folder: What to make; it appears whole, with ``record`` as ``conversion.json``.
        record: ``source``, ``form``, ``fingerprint`` (text that is another where the source is
            another), ``split``, ``counts``, ``lost``: all that JSON holds.
        write: Writes all other files to the folder it is given.

    Returns:
        Whether it was written now.

    Raises:
        FileExistsError: If the folder is something else.
        OSError: If it cannot be read or written.
    """
    if os.path.lexists(folder):
        _check_same(folder, record)
        return False
    with new_folder(folder) as scratch:
        write(scratch)
        write_json(scratch / RECORD, record)
    return True


def _check_same(folder: Path, record: Mapping[str, Any]) -> None:
    try:
        found = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FileExistsError(f'{folder} exists and is no conversion of a data set: name another '
                              '--data-out')
    now = json.loads(json.dumps(record))  # as it would be read
    changed = [key for key in DECISIVE if found.get(key) != now.get(key)]
    if changed:
        said = {'form': 'of another form', 'fingerprint': 'of other data',
                'split': 'split in another way'}  # yapf: disable
        raise FileExistsError(f'{folder} is a conversion {said[changed[0]]}: remove it, or name '
                              'another --data-out')


def data_out(args: argparse.Namespace) -> Path:
    """The folder that a conversion is written to: ``--data-out``, or beside ``--out``."""
    return args.data_out or args.out.with_name(f'{args.out.stem}_data')
