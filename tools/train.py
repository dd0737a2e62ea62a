"""Train a detector of mmdet or a segmenter of mmseg.

    colonnade train configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data-root data/coco
"""
from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from colonnade.configs import find_config
from colonnade.tools.command_line import (STOPPED, add_amp, add_launch_arguments,
                                          check_model_arguments, stoppable, user_errors)

TRACKERS = ('tensorboard', 'wandb', 'mlflow', 'clearml', 'neptune', 'aim', 'dvclive')
OF_PLANS = ('plan', 'processes', 'plan_memory', 'plan_size')
DOES_NOT_FIT = 3  # the status of such a plan
INTERRUPTED = 75  # the status of a training that goes on with --resume: EX_TEMPFAIL of sysexits.h


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_launch_arguments(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from this checkpoint, or from the latest in the work dir')
    parser.add_argument(
        '--load-from',
        metavar='CHECKPOINT',
        help='start from this whole model: a file, a URL or a published detector or segmenter; '
        'beside --resume, as long as there is no checkpoint to go on from')
    add_amp(parser)
    parser.add_argument(
        '--fsdp',
        action='store_true',
        help='share out parameters, gradients and optimizer states over the processes')
    parser.add_argument(
        '--checkpoints',
        choices=('whole', 'sharded'),
        default='whole',
        help='with --fsdp: what training goes on from is one file (the default), or a folder to '
        'which each process writes its part')
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
    parser.add_argument(
        '--on-bad-data',
        choices=('stop', 'skip'),
        default='stop',
        help='what to do with a training sample that breaks: stop and name it (the default), or '
        'take the next one, with a list at the end')
    parser.add_argument(
        '--max-bad-steps',
        type=int,
        default=5,
        metavar='N',
        help='stop after N steps in a row that were skipped, as a loss or a gradient was NaN or '
        'infinite (%(default)s)')
    add_plan(parser)
    args = parser.parse_args()
    if not args.plan and (args.processes, args.plan_memory, args.plan_size) != (1, None, None):
        parser.error('--processes, --plan-memory and --plan-size are for --plan')
    return args


def add_plan(parser: argparse.ArgumentParser) -> None:
    """What a training takes, in place of training."""
    plan = parser.add_argument_group('plan')
    plan.add_argument(
        '--plan',
        action='store_true',
        help='train nothing: print memory, steps, time and disk of the training, and what to '
        f'change if it does not fit (status {DOES_NOT_FIT})')
    plan.add_argument(
        '--processes', type=int, default=1, metavar='N', help='plan for N processes or GPUs (1)')
    plan.add_argument(
        '--plan-memory',
        type=float,
        metavar='GIB',
        help='plan for a GPU of so many GiB, which need not be here')
    plan.add_argument(
        '--plan-size',
        nargs=2,
        type=int,
        metavar=('HEIGHT', 'WIDTH'),
        help='the largest images in pixels (what the train pipeline makes)')


def plan_of(args: argparse.Namespace) -> int:
    """Print the plan of a training; returns the status to end with."""
    with user_errors('train'):
        args.config = find_config(args.config)
        from colonnade.engine.resource_estimation.plan import PlanOptions  # takes seconds
        from colonnade.engine.resource_estimation.plan import plan_training
        from colonnade.engine.resource_estimation.table import format_plan
        from colonnade.engine.training import TrainOptions
        settings = {name: value for name, value in vars(args).items() if name not in OF_PLANS}
        size = tuple(args.plan_size) if args.plan_size else None
        plan = plan_training(
            TrainOptions(**settings), PlanOptions(args.processes, args.plan_memory, size))
    for line in format_plan(plan):
        print(line)
    return 0 if plan.fits_memory and plan.fits_disk else DOES_NOT_FIT


def how_to_go_on(words: Sequence[str], launcher: str) -> str:
    """What to do to go on from the last checkpoint of this training.

    Args:
        words: Its command line.
        launcher: That has started it; its own command line is not known.
    """
    if launcher != 'none':
        return 'to go on, start it again as before, with --resume'
    return f'go on with: {command_to_go_on(words)}'


def what_is_left(last: str, best: str, has_ended: bool, go_on: str) -> str:
    """What a training has that was ended at once.

    Args:
        last: Its last checkpoint; empty if there is none.
        best: Its best checkpoint; empty if there is none.
        has_ended: Whether nothing was left to train.
        go_on: What to do to go on from the checkpoint.
    """
    if not last:
        return f'its best checkpoint is {best}' if best else 'nothing was saved'
    if has_ended:
        return f'after training had ended; its last checkpoint is {last}'
    return f'nothing was saved since {last}; {go_on}'


def command_to_go_on(words: Sequence[str]) -> str:
    """The command line of this training as one that goes on from its last checkpoint."""
    kept, drops = [], False
    for word in words:
        if word.startswith(('--res', '--lo', '--new')):  # as short as argparse takes them
            drops = '=' not in word and not word.startswith('--new')
        elif drops and not word.startswith('-'):
            drops = False  # a checkpoint
        else:
            drops = False
            kept.append(word)
    return shlex.join(['colonnade', 'train', *kept[1:], '--resume'])


@stoppable('train')
def main() -> None:
    """Train as the command line says, and end with status 75 if a signal interrupts."""
    args = parse_args()
    if args.plan:
        sys.exit(plan_of(args))
    for name in OF_PLANS:
        delattr(args, name)
    with user_errors('train'):
        args.config = find_config(args.config)
        check_model_arguments(args.config, args.load_from)
        from mmengine.dist import is_main_process

        from colonnade.engine.runner.signal_handling import Interrupted  # takes seconds
        from colonnade.engine.runner.signal_handling import interruptible
        from colonnade.engine.training import TrainOptions
        from colonnade.engine.work_dir import Run
        from colonnade.reported_training import prepared_training
    try:
        with user_errors('train'), ExitStack() as stack:  # also if another process was lost
            with user_errors('train'):
                runner = stack.enter_context(prepared_training(TrainOptions(**vars(args))))
            with interruptible(runner) as signals, user_errors('train'):
                try:
                    runner.train()
                except Interrupted as stop:  # said now: launchers end all when a process has left
                    if is_main_process():
                        again = f'; {how_to_go_on(sys.argv, args.launcher)}' if stop.saved else ''
                        print(f'\ntrain: {stop}{again}', file=sys.stderr, flush=True)
                    raise
                except KeyboardInterrupt:
                    if is_main_process():
                        run = Run(runner.work_dir)
                        left = what_is_left(run.last, run.best, signals.has_ended,
                                            how_to_go_on(sys.argv, args.launcher))
                        print(f'\ntrain: stopped, {left}', file=sys.stderr)
                    sys.exit(STOPPED)
    except Interrupted as stop:
        sys.exit(INTERRUPTED if stop.saved else 128 + stop.signal)


if __name__ == '__main__':
    main()
