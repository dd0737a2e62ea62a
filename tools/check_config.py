"""List everything that is wrong with a config, before anything is loaded or trained.

    colonnade check_config configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py --data-root data

The status is 1 if a training would end with an error.
"""
from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.tools.command_line import add_config_arguments, print_any_name, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_config_arguments(parser)
    parser.add_argument(
        '--data-root',
        metavar='DIR',
        help='where the data set lies; without it, what needs data is left out if there are none')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write what was found as JSON')
    parser.add_argument(
        '--step',
        action='store_true',
        help='also take a step of training on two drawn images, with one block of the trunk')
    return parser.parse_args()


def main() -> None:
    """Print a line for each error, warning and what could not be checked."""
    print_any_name()
    args = parse_args()
    with user_errors('check_config'):
        args.config = find_config(args.config)
        from colonnade.datasets.validation.dataset_report import format_count
        from colonnade.recipes.config_report import examine, write  # takes seconds
        found = examine(
            args.config, data_root=args.data_root, cfg_options=args.cfg_options, step=args.step)
        if args.json:
            write(args.json, args.config, found)
    for finding in found:
        if finding.cause is not None and not isinstance(finding.cause, UserError):
            traceback.print_exception(finding.cause)
        print(f'{finding.severity}: {finding}')
    errors = sum(finding.severity == 'error' for finding in found)
    warnings = sum(finding.severity == 'warning' for finding in found)
    print(f'{args.config}: {format_count(errors, "error")}, {format_count(warnings, "warning")}')
    if errors:
        sys.exit(1)


if __name__ == '__main__':
    main()
