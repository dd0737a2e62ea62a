"""Export a trained model to ONNX or torch.export, verified, with a small runtime.

    colonnade export CONFIG epoch_36.pth --out exported
    colonnade export work_dirs/shapes/iter_500.pth --out exported
    colonnade export my_package --out features --component features --format pt2
"""
from __future__ import annotations

import sys
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import UserError
from colonnade.common.options import (CHECKPOINT, CONFIG_OR_MODEL, TRUST, ConfigOptions, argument,
                                      option)
from colonnade.export.options import ExportOptions
from colonnade.tools.command_line import command


@dataclass
class ExportCommand(ExportOptions, ConfigOptions):
    """Options of ``colonnade export``."""
    config: Path = argument(CONFIG_OR_MODEL)
    checkpoint: str | None = argument(CHECKPOINT, None)
    out: Path = option('folder to create', MISSING, metavar='DIR')
    trust: bool = option(TRUST, False)


@command(ExportCommand, 'colonnade.export.exporter', 'colonnade.inference.loading', full_help=True)
def main(options: ExportCommand, exporter: ModuleType, loading: ModuleType) -> None:
    """Export and verify, and print the deviation of the results."""
    if options.out.exists():
        raise UserError(f'{options.out} already exists: choose another --out')
    model = loading.load(
        options.config,
        options.checkpoint,
        device='cpu',
        cfg_options=options.cfg_options,
        trust=options.trust)
    for comparison in exporter.export(model, model.cfg, options.out, options):
        print(comparison)
        if comparison.warning:
            print(f'warning: {comparison.warning}', file=sys.stderr)
    print(f'written: {options.out}')
    if options.format != 'pt2':
        print(f'run with: cd {options.out} && python -m {exporter.RUNTIME} . IMAGE --out DIR')


if __name__ == '__main__':
    main()
