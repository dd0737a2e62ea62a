"""Compare runs: metrics, curves, classes, settings and data.

    colonnade compare-runs work_dirs/first work_dirs/second --out compare.html
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class CompareOptions:
    """Options of ``colonnade compare-runs``."""
    runs: Sequence[Path] = argument('work dirs of runs, at least two', metavar='WORK_DIR')
    out: Path = option(
        'HTML file to write (default: %(default)s)', Path('compare.html'), metavar='FILE')


@command(CompareOptions, 'colonnade.visualization.run_report.comparison')
@file_errors()
def main(options: CompareOptions, comparison: ModuleType) -> None:
    """Write the page, and print a summary."""
    tables, warnings = comparison.compare_runs(options.runs, options.out)
    print('\n\n'.join([*warnings, *(table.format_text() for table in tables)]))
    print(f'\nwritten: {options.out.resolve().as_uri()}')


if __name__ == '__main__':
    main()
