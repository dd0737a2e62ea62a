"""Convert published weights to Colonnade's key names, and report every tensor.

    colonnade convert-checkpoint maskrcnn_xcit_small_12_p16.pth ours.pth --report
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.common.options import TRUST, UsageError, argument, option
from colonnade.tools.command_line import command


@dataclass
class ConvertOptions:
    """Options of ``colonnade convert-checkpoint``."""
    source: str | None = argument(
        'file or URL of weights, timm://NAME, or the work dir of a run; omit with --list',
        None,
        metavar='IN')
    out: Path | None = argument(
        '.pth or .safetensors file to write; omit with --list', None, metavar='OUT')
    base: str | None = option(
        'base weights, if IN omits them or stores only differences from them, such as those of '
        'DINOv3 for EoMT: file, URL or timm://NAME',
        metavar='FILE')
    trained_only: bool = option('write only the tensors that differ from those of --base', False)
    list: bool = option('list the known formats and what is dropped from their files', False)
    report: bool = option('print a line per tensor', False)
    dry_run: bool = option('report, but write nothing', False)
    force: bool = option('overwrite OUT', False)
    trust: bool = option(TRUST, False)

    def __post_init__(self) -> None:
        if self.list == (self.source is not None) or self.list == (self.out is not None):
            raise UsageError('pass IN and OUT, or only --list')


@command(ConvertOptions, 'colonnade.models.checkpoint_conversion')
@file_errors()
def main(options: ConvertOptions, checkpoint_conversion: ModuleType) -> None:
    """Convert and write the weights, or list the formats."""
    if options.list:
        checkpoint_conversion.print_formats()
        return
    source = options.source
    if source is not None and Path(source).is_dir():
        from colonnade.engine.work_dir import Run  # slow
        from colonnade.weights.sharded_files import is_checkpoint
        source = source if is_checkpoint(source) else str(Run(source).find_model()[1])
    checkpoint_conversion.convert(
        source,
        options.out,
        base=options.base,
        trained_only=options.trained_only,
        in_full=options.report,
        dry_run=options.dry_run,
        overwrite=options.force,
        trust=options.trust)


if __name__ == '__main__':
    main()
