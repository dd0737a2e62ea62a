"""How well a trained trunk's features agree between sizes of an image, and between image and crop.

    colonnade feature_agreement configs/sem_fpn/resmlp_nano_12_slim_shapes.py iter_500.pth \
        --images work_dirs/demo/shapes/ade/images/validation --sizes 64 96 192 256

The reference are the maps of the images at the size that the trunk is for. Those of other sizes are
resized to it; of images of twice that size, each quarter is compared with a run on it alone. The
numbers are correlations over tokens and images, the mean of all channels and taps: 1 is agreement,
0 is none. ResMLP gives a row for each token mixing.
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.configs import find_config
from colonnade.tools.command_line import stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'config', type=Path, help='config of the trained model, or the name of one of ours')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--images', type=Path, required=True, help='folder of .jpg or .png')
    parser.add_argument('--limit', type=int, default=32, help='images to read (32)')
    parser.add_argument('--sizes', nargs='+', type=int, default=[64, 96, 192, 256])
    return parser.parse_args()


@stoppable('feature_agreement')
def main() -> None:
    """Print a row of correlations for each way of mixing tokens."""
    args = parse_args()
    with user_errors('feature_agreement'):
        args.config = find_config(args.config)
        from colonnade.evaluation.feature_consistency import agreement_table, load  # takes seconds
        backbone, images = load(args.config, args.checkpoint, args.images, args.limit, args.sizes)
    for line in agreement_table(backbone, images, args.sizes):
        print(line, flush=True)


if __name__ == '__main__':
    main()
