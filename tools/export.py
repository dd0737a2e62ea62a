"""Export a trained model to ONNX or torch.export, verified, with a small runtime.

    colonnade export CONFIG epoch_36.pth --out exported
    colonnade export work_dirs/shapes/iter_500.pth --out exported
    colonnade export my_package --out features --component features --format pt2
"""
from __future__ import annotations

import sys
from dataclasses import MISSING, dataclass
from pathlib import Path

from colonnade.common.errors import UserError
from colonnade.common.options import (CHECKPOINT, CONFIG_OR_MODEL, TRUST, ConfigOptions, argument,
                                      option)
from colonnade.export.options import ExportOptions
from colonnade.tools.command_line import check_model_arguments, command


@dataclass
class ExportCommand(ExportOptions, ConfigOptions):
    """Options of ``colonnade export``."""
    config: Path = argument(CONFIG_OR_MODEL)
    checkpoint: str | None = argument(CHECKPOINT, None)
    out: Path = option('folder to create', MISSING, metavar='DIR')
    trust: bool = option(TRUST, False)


@command(ExportCommand, full_help=True)
def main(options: ExportCommand) -> None:
    """Export and verify, and print the deviation of the results."""
    check_model_arguments(options.config, options.checkpoint)
    if options.out.exists():
        raise UserError(f'{options.out} already exists: choose another --out')
    from colonnade.settings.reading import import_without_warnings
    import_without_warnings('colonnade.export.exporter')  # slow
    from colonnade.export.exporter import RUNTIME, export
    from colonnade.inference import load
    model = load(
        options.config,
        options.checkpoint,
        device='cpu',
        cfg_options=options.cfg_options,
        trust=options.trust)
    for comparison in export(model, model.cfg, options.out, options):
        print(comparison)
        if comparison.warning:
            print(f'warning: {comparison.warning}', file=sys.stderr)
    print(f'written: {options.out}')
    if options.format != 'pt2':
        print(f'run with: cd {options.out} && python -m {RUNTIME} . IMAGE --out DIR')


if __name__ == '__main__':
    main()
