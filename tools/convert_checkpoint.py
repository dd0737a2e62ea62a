"""Convert published weights to the key names used here, and report every tensor.

    colonnade convert_checkpoint maskrcnn_xcit_small_12_p16.pth ours.pth --report
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('source', metavar='IN', help='file, URL or timm://NAME')
    parser.add_argument('out', metavar='OUT', type=Path, help='.pth or .safetensors')
    parser.add_argument('--report', action='store_true', help='print a line for each tensor')
    parser.add_argument('--dry-run', action='store_true', help='write nothing')
    parser.add_argument('--force', action='store_true', help='overwrite OUT')
    parser.add_argument('--trust', action='store_true', help='run what is pickled in IN')
    return parser.parse_args()


@stoppable('convert_checkpoint')
def main() -> None:
    """Read, convert, report and write as the command line says."""
    args = parse_args()
    with user_errors('convert_checkpoint'), file_errors():
        from colonnade.models.checkpoint_conversion import convert  # takes seconds
        convert(
            args.source,
            args.out,
            in_full=args.report,
            dry_run=args.dry_run,
            overwrite=args.force,
            trust=args.trust)


if __name__ == '__main__':
    main()
