"""List everything that is wrong with a config, before anything is loaded or trained.

    colonnade check_config configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py --data-root data

The status is 1 if a training would end with an error.
"""
from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from colonnade.common.errors import UserError
from colonnade.common.options import ConfigOptions, option
from colonnade.configs import find_config
from colonnade.tools.command_line import command


@dataclass
class CheckConfigOptions(ConfigOptions):
    """How a config is checked."""
    data_root: str | None = option(
        'where the data set lies; without it, what needs data is left out if there are none',
        metavar='DIR')
    json: Path | None = option('write what was found as JSON', metavar='FILE')
    step: bool = option(
        'also take a step of training on two drawn images, with one block of the backbone', False)


@command(CheckConfigOptions)
def main(options: CheckConfigOptions) -> None:
    """Print a line for each error, warning and what could not be checked."""
    config = find_config(options.config)
    from colonnade.datasets.validation.dataset_report import format_count
    from colonnade.recipes.config_report import examine, write  # takes seconds
    found = examine(
        config, data_root=options.data_root, cfg_options=options.cfg_options, step=options.step)
    if options.json:
        write(options.json, config, found)
    for finding in found:
        if finding.cause is not None and not isinstance(finding.cause, UserError):
            traceback.print_exception(finding.cause)
        print(f'{finding.severity}: {finding}')
    errors = sum(finding.severity == 'error' for finding in found)
    warnings = sum(finding.severity == 'warning' for finding in found)
    print(f'{config}: {format_count(errors, "error")}, {format_count(warnings, "warning")}')
    if errors:
        sys.exit(1)


if __name__ == '__main__':
    main()
