"""Evaluate a checkpoint: box and mask mAP of a detector, mIoU of a segmenter.

    python tools/test.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py epoch_36.pth
"""
from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from colonnade.configs import find_config
from colonnade.tools.command_line import add_amp, add_launch_arguments, stoppable, user_errors


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
    with user_errors('test', ConnectionError), ExitStack() as stack:  # to other processes
        with user_errors('test'):
            args.config = find_config(args.config)
            from colonnade.engine import evaluation  # takes seconds
            options = evaluation.TestOptions(**vars(args))
            runner = stack.enter_context(evaluation.prepared_runner(options))
        from colonnade.engine.samples import SampleError
        from colonnade.weights import WeightsError

        # of runners that load only now, and of storage that data are read from
        with user_errors('test', WeightsError, SampleError, FileNotFoundError, ConnectionError,
                         PermissionError):
            metrics = runner.test()
    with user_errors('test', OSError):
        evaluation.report(metrics, runner, options)


if __name__ == '__main__':
    main()
