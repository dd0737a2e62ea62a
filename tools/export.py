"""Export a trained model to ONNX or torch.export, verified, with a small runtime.

    colonnade export CONFIG epoch_36.pth --out exported
    colonnade export work_dirs/shapes/iter_500.pth --out exported
    colonnade export my_package --out features --what features --format archive
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.tools.command_line import (CHECKPOINT, CONFIG_OR_MODEL, add_config_arguments,
                                          add_trust, check_model_arguments, print_any_name,
                                          stoppable, user_errors)


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
        default=10,
        metavar='FACTOR',
        help='by how many times more than torch the graphs may deviate from\n'
        'float64 (10); up to 10 times that is a warning, more an error')
    add_trust(parser)
    return parser.parse_args()


@stoppable('export')
def main() -> None:
    """Export, verify and say how much results deviate."""
    print_any_name()
    args = parse_args()
    with user_errors('export'):
        check_model_arguments(args.config, args.checkpoint)
        from colonnade.settings.reading import import_quietly
        import_quietly('colonnade.export.export_command')  # takes seconds
        from colonnade.export import export_command
        export_command.run(args)


if __name__ == '__main__':
    main()
