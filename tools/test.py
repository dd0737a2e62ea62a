"""Evaluate a checkpoint: box and mask mAP of a detector, mIoU of a segmenter.

    colonnade test configs/mask_rcnn/xcit_small_12_p16_3x_coco.py epoch_36.pth
"""
from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from colonnade.configs import find_config
from colonnade.tools.command_line import (add_amp, add_launch_arguments, check_model_arguments,
                                          stoppable, user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_launch_arguments(parser)
    parser.add_argument('checkpoint', help='file or URL, also of a published detector or segmenter')
    parser.add_argument(
        '--out', type=Path, help='JSON file for the metrics (WORK_DIR/TIMESTAMP/metrics.json)')
    parser.add_argument('--tta', action='store_true', help='merge six scales, flipped and not')
    add_amp(parser)
    parser.add_argument(
        '--fuse',
        action=argparse.BooleanOptionalAction,
        help='fold and merge layers, the same to rounding (where it can be)')
    return parser.parse_args()


@stoppable('test')
def main() -> None:
    """Evaluate, print the metrics and write them."""
    args = parse_args()
    with user_errors('test'), ExitStack() as stack:  # also if another process was lost
        with user_errors('test'):
            args.config = find_config(args.config)
            check_model_arguments(args.config, args.checkpoint)
            from colonnade.evaluation import testing  # takes seconds
            options = testing.TestOptions(**vars(args))
            runner = stack.enter_context(testing.prepared_runner(options))
        with user_errors('test'):
            metrics = runner.test()
    with user_errors('test'):
        testing.report(metrics, runner, options)


if __name__ == '__main__':
    main()
