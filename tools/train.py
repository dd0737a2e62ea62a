"""Train a detector of mmdet or a segmenter of mmseg.

    python tools/train.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data-root data/coco
"""
from __future__ import annotations

import argparse
from contextlib import ExitStack

from colonnade.configs import find_config
from colonnade.tools.command_line import add_amp, add_launch_arguments, stoppable, user_errors

TRACKERS = ('tensorboard', 'wandb', 'mlflow', 'clearml', 'neptune', 'aim', 'dvclive')


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_launch_arguments(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from this checkpoint, or from the latest in the work dir')
    start.add_argument(
        '--load-from',
        metavar='CHECKPOINT',
        help='start from this whole model: a file, a URL or a published detector or segmenter')
    add_amp(parser)
    parser.add_argument(
        '--fsdp',
        action='store_true',
        help='share out parameters, gradients and optimizer states over the processes')
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by the batch size over the config's")
    batch.add_argument(
        '--accumulate',
        nargs='?',
        const=0,
        type=int,
        metavar='N',
        help="sum the gradients of N iterations per step, or of as many as make up the config's "
        'batch size')
    parser.add_argument(
        '--total-batch',
        type=int,
        metavar='N',
        help='images of all processes in an iteration, however many processes there are')
    parser.add_argument(
        '--new-classes',
        action='store_true',
        help='with --load-from: the file is of other classes; layers that depend on them start '
        'untrained, but for classes that both have by name')
    parser.add_argument(
        '--patience',
        type=int,
        metavar='N',
        help='stop after N evaluations in which the metric of the best checkpoint got no better')
    parser.add_argument(
        '--min-delta',
        type=float,
        metavar='D',
        help='with --patience: only what exceeds the best by more than D is better (0)')
    parser.add_argument(
        '--tracker',
        nargs='+',
        default=(),
        choices=TRACKERS,
        metavar='NAME',
        help='show the curves of the run in %(choices)s too')
    parser.add_argument(
        '--no-report',
        dest='report',
        action='store_false',
        help='write no record of the run and no report.html')
    return parser.parse_args()


def main() -> None:
    """Train as the command line says."""
    args = parse_args()
    with stoppable('train'), ExitStack() as stack:
        with user_errors('train'):
            args.config = find_config(args.config)
            from colonnade.engine.training import TrainOptions, prepared_runner  # takes seconds
            runner = stack.enter_context(prepared_runner(TrainOptions(**vars(args))))
        from colonnade.weights import WeightsError
        # of runners that load only now, and of storage that data are read from
        with user_errors('train', WeightsError, FileNotFoundError, ConnectionError,
                         PermissionError):
            runner.train()


if __name__ == '__main__':
    main()
