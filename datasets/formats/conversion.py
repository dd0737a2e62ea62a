"""Conversions: written once, to a folder that records how, so that they can be repeated."""
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
from ..validation.conversion_sources import RECORD, SOURCES, record_path, record_sources
from .splitting import split_dataset

SIDES = ('train', 'val')  # names of converted splits
#: keys of the record that identify a conversion, and how another value is called
IDENTITY = dict(form='from a different format', fingerprint='of different data',
                split='with a different split')  # yapf: disable
#: recorded options of a conversion that are paths, and all of them: key of the record -> field
PATHS = dict(
    data='data', coco='coco', images='images', masks='masks', stuff='stuff', colours='color_map')
OPTIONS = PATHS | dict(
    split='val_fraction', split_seed='split_seed', group='group_regex', classes='classes',
    stuff_classes='stuff_classes', zero='label_zero', suffixes='suffixes', ignore_255='ignore_255',
    boxes='boxes_only', on_bad_data='on_bad_data', datumaro='datumaro_format')  # yapf: disable


def get_folder(args: DataOptions) -> Path:
    """Return the folder of a conversion."""
    if args.converted_dir is not None:
        return args.converted_dir
    assert args.out is not None  # set by all commands
    return args.out.with_name(f'{args.out.stem}_data')


def convert_once(
    args: DataOptions,
    record: Mapping[str, Any],
    write: Callable[[Path], Mapping[str, Any]],
    *,
    tables: Collection[Path] = (),
    labels: Collection[Path] = (),
    listed: Collection[Path] = ()
) -> tuple[Path, bool]:
    """Write a conversion to its folder, unless the folder has the same one already.

    Args:
        record: JSON content with ``kind``, ``source``, ``form``, ``fingerprint`` and ``split``.
        write: Writes all files to a folder, and returns more content for the record.
        tables, labels, listed: See :func:`~.conversion_sources.record_sources`.

    Returns:
        The folder, and whether it was written now.
    """
    folder = get_folder(args)
    if os.path.lexists(folder):
        _check_identity(folder, record)
        return folder, False
    with new_folder(folder) as scratch:
        content = write(scratch)
        write_text(scratch / SOURCES, record_sources(folder, tables, labels, listed))
        options = {key: vars(args)[name] for key, name in OPTIONS.items()}
        for key in PATHS:
            if isinstance(options[key], (list, tuple)):
                options[key] = [record_path(path, folder) for path in options[key]]
            elif options[key]:
                options[key] = record_path(options[key], folder)
        write_json(scratch / RECORD, {**record, **content, 'options': options})
    return folder, True


def _check_identity(folder: Path, record: Mapping[str, Any]) -> None:
    advice = 'remove the folder, or choose another --converted-dir'
    try:
        existing = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        existing = None
    if not isinstance(existing, dict):
        raise UserError(f'{folder} already exists and is not a converted dataset: choose another '
                        '--converted-dir')
    expected = json.loads(json.dumps(record))
    for key, description in IDENTITY.items():
        if existing.get(key) != expected.get(key):
            raise UserError(f'{folder} is a conversion {description}: {advice}')


def describe_split(args: DataOptions) -> dict[str, Any]:
    """Return the options of a random split for the record."""
    return dict(fraction=args.val_fraction, seed=args.split_seed, group=args.group_regex)


def split_images(classes: Mapping[str, Collection[str]],
                 args: DataOptions) -> tuple[list[str], list[str]]:
    """Return the names of images for training and for validation.

    Args:
        classes: Image name -> classes in the image.
    """
    groups = None
    if args.group_regex is not None:
        matches = {name: re.search(args.group_regex, name) for name in classes}
        missing = [name for name, match in matches.items() if match is None or match[1] is None]
        if missing:
            raise UserError(f'--group-regex {args.group_regex!r} does not match {len(missing)} '
                            f'image names: {format_names(missing)}')
        groups = {name: match[1] for name, match in matches.items() if match}
        if len(values := set(groups.values())) == 1 < len(groups):
            raise UserError(f'--group-regex {args.group_regex!r} puts all {len(groups)} images '
                            f'into one group, {values.pop()!r}, but a split needs two')
    assert args.val_fraction  # checked by the callers
    return split_dataset(classes, args.val_fraction, groups=groups, seed=args.split_seed)
