"""Draw a small dataset of synthetic shapes in the layouts of COCO and ADE20K.

    colonnade make_shapes data/shapes

Discs, striped squares and triangles of many sizes lie over each other on a textured background;
masks are exact, occlusion included. ``OUT/coco`` is laid out as COCO 2017 instances, ``OUT/ade`` as
ADE20k scene parsing (0 unlabelled, which does not occur, 1 background, 2 disc, 3 square, 4
triangle). The same seed gives the same data set; a scene does not depend on how many there are.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class ShapesOptions:
    """What is drawn."""
    out: Path = argument('folder to make')
    num_train: int = option('training images', 400)
    num_val: int = option('validation images', 100)
    size: int = option('height and width in pixels', 128)
    seed: int = option('of all that is drawn (%(default)s)', 0)


@command(ShapesOptions)
@file_errors()
def main(options: ShapesOptions) -> None:
    """Write the data set that the command line asks for."""
    from colonnade.datasets.shapes_dataset import make_shapes  # takes seconds
    make_shapes(**vars(options))
    print(f'{options.num_train} + {options.num_val} images in {options.out}/coco and '
          f'{options.out}/ade')


if __name__ == '__main__':
    main()
