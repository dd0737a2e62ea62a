"""Check every file that a config trains and evaluates on, and list all errors.

    colonnade check-dataset mine.py
    colonnade check-dataset mine.py --split train --json errors.json
    colonnade check-dataset mine.py --reconvert

Images and label maps are decoded, while training only checks annotations and some image headers.
The exit status is 1 if training or evaluation would fail.
"""
from __future__ import annotations

import sys
from types import ModuleType

from colonnade.datasets.options import CheckDataOptions
from colonnade.tools.command_line import command, print_report


@command(CheckDataOptions, 'colonnade.datasets.validation.dataset_report',
         'colonnade.datasets.formats.reconversion')
def main(options: CheckDataOptions, dataset_report: ModuleType, reconversion: ModuleType) -> None:
    """Check the data, and print the findings."""
    if options.reconvert:
        print_report(reconversion.reconvert_all(options), 'check-dataset', 'nothing was converted')
    sources = dataset_report.check_datasets(options)
    for source in sources:
        print('\n'.join(dataset_report.format_report(source)))
    if count := dataset_report.count_stopping_findings(sources):
        subject = '1 finding' if count == 1 else f'{count} findings'
        sys.exit(f'check-dataset: {subject} would make training or evaluation fail')
    print('check-dataset: no finding would make training or evaluation fail')


if __name__ == '__main__':
    main()
