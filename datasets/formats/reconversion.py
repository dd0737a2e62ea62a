"""Conversions that are repeated because their sources have changed."""
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict

from colonnade.common.atomic_files import replace_folder
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.settings.dataset_paths import (categories_of, classes_of, find_datasets,
                                              paths_of_setting)
from colonnade.settings.findings import Finding
from colonnade.settings.reading import LaunchOptions, load_config

from ..options import CheckDataOptions, DataOptions
from ..validation.conversion_sources import RECORD, conversion_of, find_path
from ..validation.validation_report import Report
from .conversion import OPTIONS, PATHS
from .format_detection import open_dataset
from .instance_formats import SIDES


def convert_all_again(options: CheckDataOptions) -> Report:
    """Repeat the conversions that a config reads; return what is wrong, and what they lose.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If the config reads no conversion, or one that cannot be repeated.
    """
    datasets: dict[Path, list[ConfigDict]] = {}
    launch = LaunchOptions(
        options.config, cfg_options=options.cfg_options, data_root=options.data_root)
    for _, dataset in find_datasets(load_config(launch)):
        if folder := conversion_of(dataset):
            datasets.setdefault(folder, []).append(dataset)
    if not datasets:
        raise UserError(f'--convert-again: {options.config} reads no dataset that '
                        'colonnade create_config has converted')
    report = Report()
    for folder, readers in datasets.items():
        convert_again(folder, readers, report)
    return report


@file_errors()
def convert_again(folder: Path, datasets: Sequence[ConfigDict], report: Report) -> None:
    """Repeat a conversion with the options of the first time, in its folder.

    Nothing changes if there are faults, or if the datasets of the config would no longer fit.

    Args:
        folder: Folder of the conversion.
        datasets: Settings of the datasets that read it.
        report: Takes what is wrong, and what the conversion loses.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If the folder does not record how it was made.
    """
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except ValueError as error:
        raise UserError(f'{folder / RECORD} is damaged ({error}): remove {folder}, and write the '
                        'config again with colonnade create_config') from error
    if 'options' not in record:
        raise UserError(
            f'{folder} was converted by an earlier version, which has not recorded its '
            'options: remove it, and write the config again with colonnade create_config')
    options: dict[str, Any] = {key: record['options'].get(key) for key in OPTIONS}
    for key in PATHS:
        if isinstance(given := options[key], list) and given:
            several = isinstance(given[0], list)
            paths = [_source(each, folder) for each in (given if several else [given])]
            options[key] = paths if several else paths[0]
    scratch = folder.with_name(f'{folder.name}-again')
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    args = DataOptions(
        **{
            key: value
            for key, value in options.items() if value is not None
        }, data_out=scratch)
    with open_dataset(args, record['kind'], report):
        if not report.num_faults and (changed := _find_misfit(datasets, args, folder)):
            text = f'{changed}: nothing was changed. Write the config again with colonnade ' \
                   'create_config, to another --out'
            report.add(Finding('stale-conversion', text, (str(folder), )))
    if report.num_faults:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        replace_folder(scratch, folder)


def _find_misfit(datasets: Sequence[ConfigDict], args: DataOptions, folder: Path) -> str:
    """Return what of a repeated conversion does not fit the config, or an empty string."""
    for dataset in datasets:
        file = Path(paths_of_setting(dataset.ann_file, dataset)[0])
        if file.stem not in SIDES:  # a file that somebody has added
            continue
        side = SIDES.index(file.stem)
        was, now = classes_of(dataset), args.classes
        if args.coco:
            now = categories_of(args.coco[side])
            if now == categories_of(file):  # of which the config may train a part
                now = None
        if was and now and list(was) != list(now):
            return f'the classes are now {", ".join(now)}, and those of the config {", ".join(was)}'
        prefix = dataset.get('data_prefix') or {}
        images = paths_of_setting(prefix.get('img', prefix.get('img_path')), dataset)
        if images and args.images and not _is_same(images[0], args.images[side]):
            return (f'the images are now in {args.images[side]}, and those of the config in '
                    f'{images[0]}')
    return ''


def _is_same(one: str, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _source(recorded: list[str], folder: Path) -> Path:
    path = find_path(recorded, folder)
    if path is None:
        raise MissingFileError(f'{folder} was converted from {recorded[1]}, which does not exist')
    return path
