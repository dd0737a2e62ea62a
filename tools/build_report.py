"""Rebuild the report of a run, WORK_DIR/report.html, from what it has recorded.

    colonnade build_report work_dirs/mask_rcnn/xcit_small_12_p16_3x_coco

Training writes the page itself. This is for a page that was lost, or a run that was killed.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.common.options import argument
from colonnade.tools.command_line import command


@dataclass
class ReportOptions:
    """Which run is reported."""
    run: Path = argument('the work dir of a run', metavar='WORK_DIR')


@command(ReportOptions)
@file_errors()
def main(options: ReportOptions) -> None:
    """Write the page, and print where it is."""
    from colonnade.visualization.run_report.report_page import write_report  # takes seconds
    page = write_report(options.run)
    print(f'written: {page.resolve().as_uri()}')


if __name__ == '__main__':
    main()
