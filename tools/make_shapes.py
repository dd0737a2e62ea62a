"""Create a small dataset of synthetic shapes in COCO and ADE20K format.

    colonnade make-shapes data/shapes

Discs, striped squares and triangles of many sizes overlap on a textured background; masks are
exact, including occlusion. ``OUT/coco`` has the structure of COCO 2017 with instances and panoptic
segments, ``OUT/ade`` that of ADE20K scene parsing (labels: 0 unlabeled, unused; 1 background,
2 disc, 3 square, 4 triangle).
The same seed gives the same dataset; an image does not depend on the number of images.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class ShapesOptions:
    """Options of ``colonnade make-shapes``."""
    out: Path = argument('folder to create')
    num_train: int = option('number of training images (default: %(default)s)', 400)
    num_val: int = option('number of validation images (default: %(default)s)', 100)
    size: int = option('height and width in pixels (default: %(default)s)', 128)
    seed: int = option('random seed (default: %(default)s)', 0)


@command(ShapesOptions, 'colonnade.datasets.shapes_dataset')
@file_errors()
def main(options: ShapesOptions, shapes_dataset: ModuleType) -> None:
    """Write the dataset."""
    shapes_dataset.make_shapes(**vars(options))
    print(f'{options.num_train} + {options.num_val} images in {options.out}/coco and '
          f'{options.out}/ade')


if __name__ == '__main__':
    main()
