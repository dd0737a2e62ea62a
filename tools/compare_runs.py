"""Compare runs: metrics, curves, classes, settings and data.

    colonnade compare_runs work_dirs/first work_dirs/second --out compare.html
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class CompareOptions:
    """Which runs are compared."""
    runs: Sequence[Path] = argument('work dirs of runs, at least two', metavar='WORK_DIR')
    out: Path = option('page to write (%(default)s)', Path('compare.html'))


@command(CompareOptions)
@file_errors()
def main(options: CompareOptions) -> None:
    """Write the page, and print what sums it up."""
    from colonnade.visualization.run_report.comparison import compare  # takes seconds
    tables, warnings = compare(options.runs, options.out)
    print('\n\n'.join([*warnings, *(table.format_text() for table in tables)]))
    print(f'\nwritten: {options.out.resolve().as_uri()}')


if __name__ == '__main__':
    main()
