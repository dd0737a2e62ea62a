"""A conversion happens once, into a folder of its own that says what it was made of.

It can be repeated there, with the options of the first time.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import new_folder, write_json, write_text
from colonnade.common.errors import UserError

from ..options import DataOptions
from ..validation.conversion_sources import RECORD, SOURCES, portable_path, record_sources

DECISIVE = ('form', 'fingerprint', 'split')  # keys of the record that make a conversion another one
#: options that :func:`~.reconversion.convert_again` repeats, those that are paths first
PATHS = ('data', 'coco', 'images', 'masks', 'colours')
OPTIONS = (*PATHS, 'split', 'split_seed', 'group', 'classes', 'zero', 'suffixes', 'ignore_255',
           'boxes', 'on_bad_data')


def keep_options(args: DataOptions) -> None:
    """Keep the options as they are before a conversion changes them."""
    args.given = {key: getattr(args, key, None) for key in OPTIONS}


def recorded_options(args: DataOptions, folder: Path) -> dict[str, Any]:
    """Return the options of a conversion as JSON holds them.

    Args:
        args: Options of a tool, after :func:`keep_options`.
        folder: Folder of the conversion, which the paths are relative to.
    """
    options = dict(args.given)
    for key in PATHS:
        if isinstance(options[key], list):
            options[key] = [portable_path(path, folder) for path in options[key]]
        elif options[key]:
            options[key] = portable_path(options[key], folder)
    return options


def convert_once(
    folder: Path,
    record: Mapping[str, Any],
    write: Callable[[Path], None],
    *,
    tables: Collection[Path] = (),
    labels: Collection[Path] = (),
    listed: Collection[Path] = ()
) -> bool:
    """Fill a folder, unless the same conversion is there already.

    Args:
        folder: What to make; it appears whole, with ``record`` as ``conversion.json``.
        record: ``source``, ``form``, ``fingerprint`` (text that is another where the source is
            another), ``split``, ``counts``, ``lost``: all that JSON holds.
        write: Writes all other files to the folder it is given.
        tables, labels, listed: See :func:`~.conversion_sources.record_sources`.

    Returns:
        Whether it was written now.

    Raises:
        UserError: If the folder is something else.
        OSError: If it cannot be read or written.
    """
    if os.path.lexists(folder):
        _check_same(folder, record)
        return False
    with new_folder(folder) as scratch:
        write(scratch)
        write_text(scratch / SOURCES, record_sources(folder, tables, labels, listed))
        write_json(scratch / RECORD, record)
    return True


def _check_same(folder: Path, record: Mapping[str, Any]) -> None:
    try:
        found = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f'{folder} exists and is no conversion of a data set: name another '
                        '--data-out')
    now = json.loads(json.dumps(record))  # as it would be read
    changed = [key for key in DECISIVE if found.get(key) != now.get(key)]
    if changed:
        said = {'form': 'of another form', 'fingerprint': 'of other data',
                'split': 'split in another way'}  # yapf: disable
        raise UserError(f'{folder} is a conversion {said[changed[0]]}: remove it, or name '
                        'another --data-out')


def data_out(args: DataOptions) -> Path:
    """The folder that a conversion is written to: ``--data-out``, or beside ``--out``."""
    if args.data_out:
        return args.data_out
    assert args.out is not None  # all tools name one
    return args.out.with_name(f'{args.out.stem}_data')
