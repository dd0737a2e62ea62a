"""Draw a small dataset of synthetic shapes in the layouts of COCO and ADE20K.

    colonnade make_shapes data/shapes

Discs, striped squares and triangles of many sizes lie over each other on a textured background;
masks are exact, occlusion included. ``OUT/coco`` is laid out as COCO 2017 instances, ``OUT/ade`` as
ADE20k scene parsing (0 unlabelled, which does not occur, 1 background, 2 disc, 3 square, 4
triangle). The same seed gives the same data set; a scene does not depend on how many there are.
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path, help='folder to make')
    parser.add_argument('--num-train', type=int, default=400, help='training images')
    parser.add_argument('--num-val', type=int, default=100, help='validation images')
    parser.add_argument('--size', type=int, default=128, help='height and width in pixels')
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


@stoppable('make_shapes')
def main() -> None:
    """Write the data set that the command line asks for."""
    args = parse_args()
    with user_errors('make_shapes'), file_errors():
        from colonnade.datasets.shapes_dataset import make_shapes  # takes seconds
        make_shapes(
            args.out,
            num_train=args.num_train,
            num_val=args.num_val,
            size=args.size,
            seed=args.seed)
    print(f'{args.num_train} + {args.num_val} images in {args.out}/coco and {args.out}/ade')


if __name__ == '__main__':
    main()
