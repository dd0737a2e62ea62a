"""Export a trained model to ONNX or an archive of torch.export, verified, with a small runtime.

    python tools/export.py CONFIG epoch_36.pth --out exported
    python tools/export.py work_dirs/shapes/iter_500.pth --out exported
    python tools/export.py my_package --out features --what features --format archive
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.tools.command_line import (CHECKPOINT, CONFIG_OR_MODEL, add_config_arguments,
                                          add_trust, print_any_name, stoppable, user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_config_arguments(parser, meaning=CONFIG_OR_MODEL)
    parser.add_argument('checkpoint', nargs='?', help=CHECKPOINT)
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='folder to write')
    parser.add_argument(
        '--format',
        choices=['onnx', 'openvino', 'archive'],
        default='onnx',
        help='onnx, for onnxruntime and others (default), openvino, or an\n'
        'archive for torch')
    parser.add_argument(
        '--what',
        choices=['model', 'features'],
        default='model',
        help='the whole model (default), or the maps of its trunk and pyramid')
    parser.add_argument(
        '--precision',
        choices=['float32', 'int8'],
        default='float32',
        help='float32 (default), or int8: smaller, calibrated on images')
    parser.add_argument(
        '--calibrate', type=Path, metavar='DIR', help='folder of images, for --precision int8')
    parser.add_argument(
        '--num-images', type=int, default=100, metavar='N', help='of DIR to calibrate on (100)')
    parser.add_argument(
        '--tolerance',
        type=float,
        default=1e-4,
        help='largest deviation from torch, by the largest value of an output (1e-4)')
    add_trust(parser)
    return parser.parse_args()


@stoppable('export')
def main() -> None:
    """Export, verify and say how much results deviate."""
    print_any_name()
    args = parse_args()
    with user_errors('export'):
        from colonnade.engine.launch import import_quietly
        import_quietly('colonnade.engine.exporting.command')  # takes seconds
        from colonnade.engine.exporting import command
        command.run(args)


if __name__ == '__main__':
    main()
