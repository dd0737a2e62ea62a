"""Check every file that a config trains and evaluates on, and list everything that is wrong.

    colonnade check_dataset mine.py
    colonnade check_dataset mine.py --split train --json faults.json

    colonnade check_dataset mine.py --convert-again

Images and label maps are decoded. Training looks at annotations and some headers alone. The status
is 1 if training or evaluation would stop at the data.
"""
from __future__ import annotations

import sys

from colonnade.configs import find_config
from colonnade.datasets.options import CheckDataOptions
from colonnade.tools.command_line import command, print_report


@command(CheckDataOptions)
def main(options: CheckDataOptions) -> None:
    """Check the data, and print what was found."""
    options.config = find_config(options.config)
    from colonnade.settings.reading import import_without_warnings
    import_without_warnings('colonnade.datasets.validation')  # takes seconds
    from colonnade.datasets.validation import dataset_report
    if options.convert_again:
        from colonnade.datasets.formats.reconversion import convert_all_again
        report = convert_all_again(options)
        print_report(report, 'check_dataset', 'nothing was converted')
    sources = dataset_report.check_data_sets(options)
    for source in sources:
        print('\n'.join(dataset_report.format_report(source)))
    if number := dataset_report.stops_training(sources):
        found = '1 finding stops' if number == 1 else f'{number} findings stop'
        sys.exit(f'check_dataset: {found} training or evaluation')
    print('check_dataset: nothing stops training or evaluation')


if __name__ == '__main__':
    main()
