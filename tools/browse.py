"""Write a page about a dataset: annotations, model inputs, statistics, suspected issues.

    colonnade browse mine.py --out browse.html
    colonnade browse mine.py --class dog --num 12 --draws 5 --out dogs.html
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.tools.command_line import (add_config_arguments, print_any_name, stoppable,
                                          user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.RawTextHelpFormatter)
    add_config_arguments(parser)
    parser.add_argument(
        '--out', type=Path, default=Path('browse.html'), help='file to write (browse.html)')
    parser.add_argument(
        '--split',
        choices=['train', 'val', 'test'],
        default='train',
        help='whose images are shown (train)')
    parser.add_argument('--num', type=int, default=24, metavar='N', help='images to show (24)')
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        '--index', nargs='+', type=int, default=(), metavar='N', help='show these images, from 0')
    chosen.add_argument(
        '--image', nargs='+', default=(), metavar='NAME', help='show the images of these names')
    parser.add_argument(
        '--class', dest='class_name', metavar='NAME', help='show only images that have this class')
    parser.add_argument(
        '--draws',
        type=int,
        default=3,
        metavar='N',
        help='of the training pipeline, each image (3)')
    parser.add_argument(
        '--limit',
        type=int,
        default=5000,
        metavar='N',
        help='images of a split that are decoded for duplicates and label maps,\n'
        'drawn at random (5000); annotations of objects are all looked at')
    parser.add_argument('--seed', type=int, default=0, help='of all that is drawn at random (0)')
    parser.add_argument('--data-root', type=Path, help='where the data set lies')
    return parser.parse_args()


@stoppable('browse')
def main() -> None:
    """Write the page, and print what was found."""
    print_any_name()
    args = parse_args()
    with user_errors('browse'):
        from colonnade.settings.reading import import_quietly
        import_quietly('colonnade.visualization.dataset_browser')  # takes seconds
        from colonnade.visualization.dataset_browser import browse
        print('reading annotations ...', flush=True)
        found = browse(**vars(args))
    print(f'{found}\nwritten: {found.page}')


if __name__ == '__main__':
    main()
