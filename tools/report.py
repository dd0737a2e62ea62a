"""Rebuild the report of a run, WORK_DIR/report.html, from what it has recorded.

    colonnade report work_dirs/mask_rcnn/xcit_small_12_p16_3x_coco

Training writes the page itself. This is for a page that was lost, or a run that was killed.
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import print_any_name, stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('run', type=Path, metavar='WORK_DIR', help='the work dir of a run')
    return parser.parse_args()


@stoppable('report')
def main() -> None:
    """Write the page, and print where it is."""
    print_any_name()
    args = parse_args()
    with user_errors('report'), file_errors():
        from colonnade.visualization.run_report.report_page import write_report  # takes seconds
        page = write_report(args.run)
    print(f'written: {page.resolve().as_uri()}')


if __name__ == '__main__':
    main()
