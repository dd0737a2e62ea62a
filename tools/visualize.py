"""Visualize what a model looks at: attention, features, and what its predictions depend on.

    colonnade visualize sem_fpn/xcit_small_12_p16_80k_ade20k iter_80000.pth street.jpg \\
        --out pictures
    colonnade visualize mask_rcnn/xcit_small_12_p16_3x_coco epoch_36.pth street.jpg \\
        --what grad-cam --target person --out pictures --format pdf
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.tools.command_line import (CHECKPOINT, add_model_arguments, check_model_arguments,
                                          print_any_name, stoppable, user_errors)

WHAT = ('class-attention', 'attention', 'query-key', 'channel-attention', 'mixing', 'features',
        'grad-cam')


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.RawTextHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument('checkpoint', help=CHECKPOINT)
    parser.add_argument(
        'images',
        nargs='*',
        metavar='image',
        help='images, folders of them, and patterns in quotes')
    parser.add_argument(
        '--what',
        nargs='+',
        choices=WHAT,
        metavar='NAME',
        help=f'of {", ".join(WHAT[:4])},\n{", ".join(WHAT[4:])} (all that the model has)')
    parser.add_argument('--out', type=Path, required=True, help='folder for IMAGE.NAME.png')
    parser.add_argument(
        '--format', nargs='+', choices=['png', 'pdf'], default=['png'], help='of files (png)')
    parser.add_argument('--dpi', type=int, default=150, help='pixels of an inch, 10 to 1200 (150)')
    parser.add_argument(
        '--size',
        nargs=2,
        type=int,
        metavar=('H', 'W'),
        help='resize images to this, instead of what the test pipeline does')
    add_choices(parser)
    return parser.parse_intermixed_args()  # images may stand behind options


def add_choices(parser: argparse.ArgumentParser) -> None:
    """What is chosen of a picture."""
    parser.add_argument(
        '--blocks', nargs='+', type=int, metavar='N', help='from 0, negative from the last (-1)')
    parser.add_argument('--heads', nargs='+', type=int, metavar='N', help='from 0 (all)')
    parser.add_argument(
        '--point',
        nargs=2,
        type=float,
        metavar=('X', 'Y'),
        help='attention of the token at this pixel of the image\n'
        '(the class token, or the middle of the image where there is none)')
    parser.add_argument(
        '--classifier',
        help='file, URL or timm://NAME of the trunk as a classifier, for class-attention')
    parser.add_argument(
        '--target',
        help='for grad-cam: a class, or for detectors a detection, 0 is the most certain\n'
        '(the three most certain detections or most frequent classes)')
    parser.add_argument(
        '--nearest', action='store_true', help='show each token as a square (interpolate)')


@stoppable('visualize')
def main() -> None:
    """Draw and write the pictures."""
    print_any_name()
    args = parse_args()
    with user_errors('visualize'):
        check_model_arguments(args.config, args.checkpoint)
        from colonnade.settings.reading import import_quietly
        import_quietly('colonnade.visualization.figures.figure_files')  # takes seconds
        from colonnade.visualization.figures.figure_files import visualize
        for path in visualize(args):
            print(path, flush=True)


if __name__ == '__main__':
    main()
