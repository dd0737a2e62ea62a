"""What ``tools/export.py`` does."""
from __future__ import annotations

import argparse
import sys

from colonnade.common.errors import UserError
from colonnade.inference import load

from .exporter import RUNTIME, ExportOptions, export


def run(args: argparse.Namespace) -> None:
    """Export a model, verify it, and print how much results deviate.

    Args:
        args: Of ``tools/export.py``.

    Raises:
        OSError: If a file is missing, or the folder exists or cannot be written.
        ValueError: If config, weights and options do not fit each other, or the model cannot be
            exported, or gives other results.
    """
    if args.out.exists():
        raise UserError(f'{args.out} exists: name another folder')
    options = ExportOptions(
        format=args.format,
        what=args.what,
        precision=args.precision,
        calibrate=args.calibrate,
        num_images=args.num_images,
        tolerance=args.tolerance)
    model = load(
        args.config, args.checkpoint, device='cpu', cfg_options=args.cfg_options, trust=args.trust)
    for comparison in export(model, model.cfg, args.out, options):
        print(comparison)
        if comparison.warning:
            print(f'warning: {comparison.warning}', file=sys.stderr)
    print(f'written: {args.out}')
    if args.format != 'archive':
        print(f'run with: cd {args.out} && python -m {RUNTIME} . IMAGE --out DIR')
