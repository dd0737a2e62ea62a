"""Configs for custom datasets, for Python and notebooks."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.datasets.validation.validation_report import Report
from colonnade.recipes.custom_data import config_creation
from colonnade.recipes.custom_data.data_options import complete_options
from colonnade.recipes.options import NewConfigOptions


def create_config(base_config: str | Path, **options: Any) -> Path:
    """Write a config that trains on your own data, as ``colonnade create-config`` does.

    Args:
        base_config: Config file, or name of a shipped config, to start from.
        **options: Attributes of :class:`NewConfigOptions`, such as ``data``. Where a command takes
            several paths, one may be passed alone.

    Returns:
        Path of the config.

    Raises:
        OSError: If a file does not exist or cannot be written.
        TypeError: If an option does not exist.
        ValueError: If options contradict each other, or the data have errors, which are listed.
    """
    settings = NewConfigOptions(base_config=find_config(base_config), **options)
    out, report = complete_options(settings), Report()
    config_creation.create_config(settings, report)
    for warning in report.warnings:
        print_log(warning, logger='current')
    if report.num_errors:
        raise UserError('\n'.join([f'{report.num_errors} errors, no config was written:',
                                   *report.errors]))  # yapf: disable
    return out
