"""Configs for custom datasets, for Python and notebooks."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count
from colonnade.datasets.validation.validation_report import Report
from colonnade.recipes.custom_data import config_creation
from colonnade.recipes.custom_data.data_options import complete_options
from colonnade.recipes.options import NewConfigOptions


def create_config(base_config: str | Path, **options: Any) -> Path:
    """Write a config that trains on your own data, as ``colonnade create-config`` does.

    Args:
        base_config: Config file, or name of a shipped config, to start from.
        **options: Options of the command, with underscores: ``data``, ``classes``,
            ``val_fraction``, ``out`` (default: ``BASE_CONFIG_own.py`` in the current folder) and
            others. Where it takes several paths, one may be passed alone.

    Returns:
        Path of the config.

    Raises:
        OSError: If a file does not exist or cannot be written.
        TypeError: If an option does not exist.
        ValueError: If options contradict each other, or the data have errors, which are listed.
    """
    settings = NewConfigOptions(base_config=Path(base_config), **options)
    out, report = complete_options(settings), Report()
    data = config_creation.create_config(settings, report)
    for warning in report.warnings:
        print_log(warning, logger='current')
    if data is None or report.num_errors:
        count = format_count(report.num_errors, 'error')
        raise UserError('\n'.join([f'{count}, no config was written:', *report.errors]))
    print_log('{} training and {} validation images'.format(*data.num_images), logger='current')
    for line in (f'{len(data.classes)} classes: {", ".join(data.classes)}', *data.reasons):
        print_log(line, logger='current')
    return out
