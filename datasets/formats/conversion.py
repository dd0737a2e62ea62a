"""A conversion happens once, into a folder of its own that says what it was made of.

It can be repeated there, with the options of the first time.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import new_folder, write_json, write_text
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

from ..options import DataOptions
from ..validation.conversion_sources import RECORD, SOURCES, portable_path, record_sources
from .splitting import split

DECISIVE = ('form', 'fingerprint', 'split')  # keys of the record that make a conversion another one
#: options that :func:`~.reconversion.convert_again` repeats, those that are paths first
PATHS = ('data', 'coco', 'images', 'masks', 'colours')
OPTIONS = (*PATHS, 'split', 'split_seed', 'group', 'classes', 'zero', 'suffixes', 'ignore_255',
           'boxes', 'on_bad_data')


def keep_options(args: DataOptions) -> None:
    """Keep the options as they are before a conversion changes them."""
    args.given = {key: vars(args).get(key) for key in OPTIONS}


def _record_options(args: DataOptions, folder: Path) -> dict[str, Any]:
    """Return the options of a conversion as JSON holds them, with paths relative to its folder."""
    options = dict(args.given)
    for key in PATHS:
        if isinstance(options[key], list):
            options[key] = [portable_path(path, folder) for path in options[key]]
        elif options[key]:
            options[key] = portable_path(options[key], folder)
    return options


def convert_once(
    args: DataOptions,
    record: Mapping[str, Any],
    write: Callable[[Path], Mapping[str, Any]],
    *,
    tables: Collection[Path] = (),
    labels: Collection[Path] = (),
    listed: Collection[Path] = ()
) -> tuple[Path, bool]:
    """Write a conversion to its folder, unless the same one is there already.

    Args:
        args: Options of a tool, after :func:`keep_options`.
        record: ``kind``, ``source``, ``form``, ``fingerprint`` (another text where the source is
            another) and ``split``, as JSON holds them.
        write: Writes all files to the folder it is given, and returns what else is to be recorded.
        tables, labels, listed: See :func:`~.conversion_sources.record_sources`.

    Returns:
        The folder, which appears whole, and whether it was written now.

    Raises:
        UserError: If the folder is something else.
        OSError: If it cannot be read or written.
    """
    folder = find_conversion_folder(args)
    if os.path.lexists(folder):
        _check_same(folder, record)
        return folder, False
    with new_folder(folder) as scratch:
        more = write(scratch)
        write_text(scratch / SOURCES, record_sources(folder, tables, labels, listed))
        options = _record_options(args, folder)
        write_json(scratch / RECORD, {**record, **more, 'options': options})
    return folder, True


def find_conversion_folder(args: DataOptions) -> Path:
    """Return the folder that a conversion is written to: ``--data-out``, or next to ``--out``."""
    if args.data_out:
        return args.data_out
    assert args.out is not None  # all tools name one
    return args.out.with_name(f'{args.out.stem}_data')


def _check_same(folder: Path, record: Mapping[str, Any]) -> None:
    try:
        found = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f'{folder} exists and is no conversion of a data set: name another '
                        '--data-out')
    if isinstance(found.get('fingerprint'), str):
        raise UserError(f'{folder} was converted by an earlier version: remove it, or name another '
                        '--data-out')
    now = json.loads(json.dumps(record))  # as it would be read
    changed = [key for key in DECISIVE if found.get(key) != now.get(key)]
    if changed:
        said = {'form': 'of another form', 'fingerprint': 'of other data',
                'split': 'split in another way'}  # yapf: disable
        raise UserError(f'{folder} is a conversion {said[changed[0]]}: remove it, or name '
                        'another --data-out')


def describe_split(args: DataOptions) -> dict[str, Any]:
    """Return how one set of images becomes two, for the record of a conversion."""
    return dict(fraction=args.split, seed=args.split_seed, group=args.group)


def split_images(classes: Mapping[str, Collection[str]],
                 args: DataOptions) -> tuple[list[str], list[str]]:
    """Return the names of images for training and for validation, see :func:`~.splitting.split`.

    Args:
        classes: Names of images, and the classes in each.
        args: Options of a tool.

    Raises:
        ValueError: If ``--group`` does not match a name.
    """
    groups = None
    if args.group is not None:
        matches = {name: re.search(args.group, name) for name in classes}
        missing = [name for name, match in matches.items() if match is None or match[1] is None]
        if missing:
            raise UserError(f'--group {args.group} does not match {len(missing)} names of images: '
                            f'{format_names(missing)}')
        groups = {name: match[1] for name, match in matches.items() if match}
    assert args.split  # without it, there is nothing to split
    return split(classes, args.split, groups=groups, seed=args.split_seed)
