"""Predict images and videos: visualizations, COCO results, label maps.

    colonnade predict mask_rcnn/xcit_small_12_p16_3x_coco epoch_36.pth images --out found
    colonnade predict mine.py run/iter_500.pth 'shots/*.png' film.mp4 --out found
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from colonnade.tools.command_line import (CHECKPOINT, STOPPED, add_amp, add_model_arguments,
                                          check_model_arguments, print_any_name, user_errors)

UNREADABLE = 3  # the status that inputs which could not be read end the program with


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=f'Ends with status {UNREADABLE} if inputs could not be read, {STOPPED} if stopped.')
    add_model_arguments(parser)
    parser.add_argument('checkpoint', help=CHECKPOINT)
    parser.add_argument(
        'inputs',
        nargs='*',
        metavar='INPUT',
        help='images, videos, folders of them, and patterns in quotes')
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='folder to write')
    parser.add_argument(
        '--resume', action='store_true', help='go on in DIR where an earlier call stopped')
    parser.add_argument(
        '--outputs',
        nargs='+',
        choices=['pictures', 'results', 'labels'],
        help='what to write (all that there is; label maps of videos only if named)')
    parser.add_argument(
        '--annotations',
        type=Path,
        metavar='FILE',
        help="COCO's JSON with the ids of images and categories, for results")
    parser.add_argument(
        '--first-label',
        type=int,
        metavar='N',
        help='label of the first class in label maps (0); 1 where 0 is unlabelled')
    add_picture_arguments(parser)
    add_speed_arguments(parser)
    parser.add_argument('--limit', type=int, metavar='N', help='the first N inputs alone')
    return parser.parse_intermixed_args()  # images may stand behind options


def add_picture_arguments(parser: argparse.ArgumentParser) -> None:
    """How pictures look."""
    parser.add_argument(
        '--threshold', type=float, help='instances of lower scores are not drawn (0.3)')
    parser.add_argument(
        '--opacity', type=float, default=0.5, help='of masks and classes, from 0 to 1 (0.5)')
    parser.add_argument('--every', type=int, metavar='N', help='each N-th frame of videos (1)')


def add_speed_arguments(parser: argparse.ArgumentParser) -> None:
    """How predictions are computed."""
    parser.add_argument(
        '--tile', type=int, metavar='PIXELS', help='predict larger images in tiles of this size')
    parser.add_argument('--overlap', type=float, help='share that tiles have in common (0.25)')
    parser.add_argument(
        '--batch-size', type=int, metavar='N', help='images at a time (1, with a GPU 8)')
    add_amp(parser)
    parser.add_argument(
        '--fuse',
        action=argparse.BooleanOptionalAction,
        help='fold and merge layers, the same to rounding (where it can be)')


def main() -> None:
    """Predict all inputs, and end with status 3 if some could not be read."""
    print_any_name()
    args = parse_args()
    try:
        with user_errors('predict'):
            check_model_arguments(args.config, args.checkpoint)
            from colonnade.settings.reading import import_quietly
            import_quietly('colonnade.inference.prediction_run')  # takes seconds
            from colonnade.inference import prediction_run
            inputs = prediction_run.complete(args)
            errors = prediction_run.run(args, inputs)
    except KeyboardInterrupt:
        print('\npredict: stopped; the same command with --resume goes on', file=sys.stderr)
        sys.exit(STOPPED)
    if len(errors) < len(inputs):
        print(f'written: {args.out}')
    if errors:
        print(f'predict: {len(errors)} of {len(inputs)} inputs could not be read: '
              f'{args.out / "errors.txt"}', file=sys.stderr)  # yapf: disable
        sys.exit(UNREADABLE)


if __name__ == '__main__':
    main()
