"""List everything that is wrong with a config, before anything is loaded or trained.

    colonnade check-config configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py --data-root data

The exit status is 1 if training would fail.
"""
from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count
from colonnade.common.options import DATA_ROOT, ConfigOptions, option
from colonnade.tools.command_line import command


@dataclass
class CheckConfigOptions(ConfigOptions):
    """Options of ``colonnade check-config``."""
    data_root: str | None = option(
        f'{DATA_ROOT}; without it, missing data is not an error', metavar='DIR')
    json: Path | None = option('also write all findings to this JSON file', metavar='FILE')
    step: bool = option(
        'also run a training step on two synthetic images, with one block of the backbone', False)


@command(CheckConfigOptions, 'colonnade.recipes.config_report')
def main(options: CheckConfigOptions, config_report: ModuleType) -> None:
    """Print a line for each error, warning and note."""
    findings = config_report.examine(
        options.config,
        data_root=options.data_root,
        cfg_options=options.cfg_options,
        step=options.step)
    if options.json:
        config_report.write_findings(options.json, options.config, findings)
    for finding in findings:
        if finding.cause is not None and not isinstance(finding.cause, UserError):
            traceback.print_exception(finding.cause)
        print(f'{finding.severity}: {finding}')
    severities = [finding.severity for finding in findings]
    counts = [format_count(severities.count(name), name) for name in ('error', 'warning')]
    print(f'{options.config}: {", ".join(counts)}')
    if 'error' in severities:
        sys.exit(1)


if __name__ == '__main__':
    main()
