"""Check every file that a config trains and evaluates on, and list everything that is wrong.

    colonnade check_data mine.py
    colonnade check_data mine.py --split train --json faults.json

    colonnade check_data mine.py --convert-again

Images and label maps are decoded. Training looks at annotations and some headers alone. The status
is 1 if training or evaluation would stop at the data.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from colonnade.configs import find_config
from colonnade.tools.command_line import (add_allow_outside, add_config_arguments, print_any_name,
                                          print_report, stoppable, user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    add_config_arguments(parser)
    parser.add_argument(
        '--data-root', metavar='DIR', help='where the data set lies: a folder, shards or a URL')
    parser.add_argument(
        '--split',
        nargs='+',
        choices=['train', 'val', 'test'],
        default=['train', 'val', 'test'],
        help='whose files are looked at (all)')
    parser.add_argument(
        '--json', type=Path, metavar='FILE', help='write the whole report to this file too')
    add_allow_outside(parser)
    parser.add_argument(
        '--convert-again',
        action='store_true',
        help='first repeat the conversions of new_config.py that the config reads')
    parser.add_argument(
        '--workers', type=int, metavar='N', help='threads that decode (one a core, at most 8)')
    return parser.parse_args()


def main() -> None:
    """Check the data, and print what was found."""
    print_any_name()
    args = parse_args()
    with stoppable('check_data'), user_errors('check_data'):
        args.config = find_config(args.config)
        from colonnade.settings.reading import import_quietly
        import_quietly('colonnade.datasets.validation')  # takes seconds
        from colonnade.datasets.validation import dataset_report
        options = vars(args)
        if options.pop('convert_again'):
            from colonnade.datasets.formats.reconversion import convert_all_again
            report = convert_all_again(dataset_report.CheckOptions(**options))
            print_report(report, 'check_data', 'nothing was converted')
        sources = dataset_report.check_data_sets(dataset_report.CheckOptions(**options))
    for source in sources:
        print('\n'.join(dataset_report.format_report(source)))
    if number := dataset_report.stops_training(sources):
        found = '1 finding stops' if number == 1 else f'{number} findings stop'
        sys.exit(f'check_data: {found} training or evaluation')
    print('check_data: nothing stops training or evaluation')


if __name__ == '__main__':
    main()
