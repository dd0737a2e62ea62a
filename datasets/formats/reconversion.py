"""Conversions that are repeated because their sources have changed."""
from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict

from colonnade.common.atomic_files import replace_folder
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.settings.dataset_paths import (find_datasets, get_dataset_classes, get_setting_paths,
                                              read_category_names)
from colonnade.settings.findings import Finding
from colonnade.settings.reading import LaunchOptions, load_config

from ..data_index import DataIndex, LabelSet
from ..options import CheckDataOptions, DataOptions
from ..validation.conversion_sources import RECORD, find_conversion, find_path
from ..validation.validation_report import Report
from .conversion import OPTIONS, PATHS, SIDES
from .format_detection import open_dataset


def reconvert_all(options: CheckDataOptions) -> Report:
    """Repeat the conversions that a config reads; return errors, and what is dropped.

    Raises:
        OSError: If a file cannot be read or written.
        ValueError: If the config reads no conversion, or one that cannot be repeated.
    """
    datasets: dict[Path, list[ConfigDict]] = {}
    launch = LaunchOptions(
        options.config, cfg_options=options.cfg_options, data_root=options.data_root)
    for _, dataset in find_datasets(load_config(launch)):
        if folder := find_conversion(dataset):
            datasets.setdefault(folder, []).append(dataset)
    if not datasets:
        raise UserError(f'--reconvert: {options.config} uses no dataset that colonnade '
                        'create-config has converted. If its folder was deleted, run colonnade '
                        f'create-config {shlex.quote(str(options.config))} --update')
    report = Report()
    for folder, readers in datasets.items():
        _reconvert(folder, readers, report, options.config)
    return report


@file_errors()
def _reconvert(folder: Path, datasets: Sequence[ConfigDict], report: Report, config: Path) -> None:
    """Repeat a conversion in its folder, unless there are errors or its datasets would not fit."""
    again = (
        f'create the config again: colonnade create-config {shlex.quote(str(config))} --update, '
        'or its original command with another --out')
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except ValueError as error:
        raise UserError(f'{folder / RECORD} is damaged ({error}): remove {folder}, and '
                        f'{again}') from error
    if 'options' not in record:
        raise UserError(f'{folder} was converted by an earlier version, which did not record its '
                        f'options: remove the folder, and {again}')
    options: dict[str, Any] = {}
    for key, name in OPTIONS.items():
        value = record['options'].get(key)
        if key in PATHS and value:
            value = [_find_source(each, folder) for each in value] if isinstance(
                value[0], list) else _find_source(value, folder)
        if value is not None:
            options[name] = value
    scratch = folder.with_name(f'{folder.name}-again')
    shutil.rmtree(scratch, ignore_errors=True)  # from a process that was killed
    args = DataOptions(**options, converted_dir=scratch)
    with open_dataset(args, record['kind'], report) as data:
        if data and (change := _find_misfit(datasets, data, args, folder)):
            text = f'{change}: nothing was changed. {again[0].upper()}{again[1:]}'
            report.add(Finding('stale-conversion', text, (str(folder), )))
    if report.num_errors:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        replace_folder(scratch, folder)


def _find_misfit(datasets: Sequence[ConfigDict], data: Sequence[DataIndex] | LabelSet,
                 args: DataOptions, folder: Path) -> str:
    """Return how a repeated conversion does not fit the config, or an empty string."""
    splits = data.splits if isinstance(data, LabelSet) else data
    for dataset in datasets:
        file = Path(get_setting_paths(dataset.ann_file, dataset)[0])
        if file.stem not in SIDES:  # a file that the user has added
            continue
        split, old = splits[SIDES.index(file.stem)], get_dataset_classes(dataset)
        if isinstance(data, LabelSet):
            new = data.classes if data.classes is not None else args.classes
        else:  # the config may train on some of the classes
            new = None if split.classes == read_category_names(file) else split.classes
        if old and new and list(old) != list(new):
            return f'the classes are now {", ".join(new)}, and those of the config {", ".join(old)}'
        prefix = dataset.get('data_prefix') or {}
        images = get_setting_paths(prefix.get('img', prefix.get('img_path')), dataset)
        if images and os.path.realpath(images[0]) != os.path.realpath(split.images):
            return f'the images are now in {split.images}, and those of the config in {images[0]}'
    return ''


def _find_source(recorded: list[str], folder: Path) -> Path:
    path = find_path(recorded, folder)
    if path is None:
        raise MissingFileError(f'{folder} was converted from {recorded[1]}, which no longer exists')
    return path
