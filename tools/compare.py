"""Compare runs: metrics, curves, classes, settings and data.

    colonnade compare work_dirs/first work_dirs/second --out compare.html
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import print_any_name, stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'runs', nargs='+', type=Path, metavar='WORK_DIR', help='work dirs of runs, at least two')
    parser.add_argument(
        '--out', type=Path, default=Path('compare.html'), help='page to write (compare.html)')
    return parser.parse_args()


@stoppable('compare')
def main() -> None:
    """Write the page, and print what sums it up."""
    print_any_name()
    args = parse_args()
    with user_errors('compare'), file_errors():
        from colonnade.visualization.run_report.comparison import compare  # takes seconds
        tables, warnings = compare(args.runs, args.out)
    print('\n\n'.join([*warnings, *(table.format_text() for table in tables)]))
    print(f'\nwritten: {args.out.resolve().as_uri()}')


if __name__ == '__main__':
    main()
