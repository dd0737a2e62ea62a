"""Convert published weights to the key names used here, and report every tensor.

    colonnade convert_checkpoint maskrcnn_xcit_small_12_p16.pth ours.pth --report
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class ConvertOptions:
    """What is converted."""
    source: str = argument('file, URL or timm://NAME', metavar='IN')
    out: Path = argument('.pth or .safetensors', metavar='OUT')
    report: bool = option('print a line for each tensor', False)
    dry_run: bool = option('write nothing', False)
    force: bool = option('overwrite OUT', False)
    trust: bool = option('run what is pickled in IN', False)


@command(ConvertOptions)
@file_errors()
def main(options: ConvertOptions) -> None:
    """Read, convert, report and write as the command line says."""
    from colonnade.models.checkpoint_conversion import convert  # takes seconds
    convert(
        options.source,
        options.out,
        in_full=options.report,
        dry_run=options.dry_run,
        overwrite=options.force,
        trust=options.trust)


if __name__ == '__main__':
    main()
