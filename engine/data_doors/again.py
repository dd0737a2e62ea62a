"""Conversions that are repeated because their sources have changed."""
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from colonnade.common.errors import MissingFileError, UserError

from ..atomic import replace_folder
from ..data_sources import find_datasets
from ..data_validation.conversions import RECORD, conversion_of, find_path
from ..data_validation.findings import Report
from ..launch import LaunchOptions, load_config
from .conversion import OPTIONS, PATHS
from .doors import opened


def convert_all_again(options: LaunchOptions) -> Report:
    """Repeat the conversions that a config reads; return what is wrong, and what they lose.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If the config reads no conversion, or one that cannot be repeated.
    """
    datasets = [dataset for _, dataset in find_datasets(load_config(options))]
    folders = dict.fromkeys(filter(None, map(conversion_of, datasets)))
    if not folders:
        raise UserError(f'--convert-again: {options.config} reads no dataset that '
                        'colonnade new_config has converted')
    report = Report()
    for folder in folders:
        convert_again(folder, report)
    return report


def convert_again(folder: Path, report: Report) -> None:
    """Repeat a conversion with the options of the first time, in its folder.

    Nothing changes if there are faults.

    Args:
        folder: Folder of the conversion.
        report: Takes what is wrong, and what the conversion loses.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If the folder does not record how it was made.
    """
    record = json.loads((folder / RECORD).read_bytes())
    if 'options' not in record:
        raise UserError(f'{folder} was converted by an earlier version, which has not recorded its '
                        'options: remove it, and write the config again with colonnade new_config')
    options: dict[str, Any] = {key: record['options'].get(key) for key in OPTIONS}
    for key in PATHS:
        if isinstance(given := options[key], list) and given:
            several = isinstance(given[0], list)
            paths = [_source(each, folder) for each in (given if several else [given])]
            options[key] = paths if several else paths[0]
    scratch = folder.with_name(f'{folder.name}-again')
    args = argparse.Namespace(**options, data_out=scratch, lists=None, palette=None)
    with opened(args, record['kind'], report):
        pass
    if not report.num_faults:
        replace_folder(scratch, folder)


def _source(recorded: list[str], folder: Path) -> Path:
    path = find_path(recorded, folder)
    if path is None:
        raise MissingFileError(f'{folder} was converted from {recorded[1]}, which does not exist')
    return path
