"""Rebuild the report of a run, WORK_DIR/report.html, from its records.

    colonnade build-report work_dirs/mask_rcnn/xcit_small_12_p16_3x_coco

Training writes the page itself. Use this if the page is lost, or the run was killed.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.common.options import argument
from colonnade.tools.command_line import command


@dataclass
class ReportOptions:
    """Options of ``colonnade build-report``."""
    run: Path = argument('work dir of a run', metavar='WORK_DIR')


@command(ReportOptions, 'colonnade.visualization.run_report.report_page')
@file_errors()
def main(options: ReportOptions, report_page: ModuleType) -> None:
    """Write the page, and print its URL."""
    page = report_page.write_report(options.run)
    print(f'written: {page.resolve().as_uri()}')


if __name__ == '__main__':
    main()
