"""Train a detector of mmdet or a segmenter of mmseg.

    colonnade train configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data-root data/coco
"""
from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from colonnade.common.options import UsageError, option
from colonnade.configs import find_config
from colonnade.engine.options import TrainOptions
from colonnade.tools.command_line import STOPPED, check_model_arguments, command, report_user_errors

DOES_NOT_FIT = 3  # the status of such a plan
INTERRUPTED = 75  # the status of a training that goes on with --resume: EX_TEMPFAIL of sysexits.h


@dataclass
class TrainCommand(TrainOptions):
    """A training, or a plan of one."""
    plan: bool = option(
        'train nothing: print memory, steps, time and disk of the training, and what to change if '
        f'it does not fit (status {DOES_NOT_FIT})',
        False,
        group='plan')
    processes: int = option(
        'plan for N processes or GPUs (%(default)s)', 1, group='plan', metavar='N')
    plan_memory: float | None = option(
        'plan for a GPU of so many GiB, which need not be here', group='plan', metavar='GIB')
    plan_size: tuple[int, int] | None = option(
        'the largest images in pixels (what the train pipeline makes)',
        group='plan',
        metavar=('HEIGHT', 'WIDTH'))

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.processes, self.plan_memory, self.plan_size)
        if not self.plan and given != (1, None, None):
            raise UsageError('--processes, --plan-memory and --plan-size are for --plan')


def print_plan(options: TrainCommand) -> None:
    """Print the plan of a training; end with a status of its own if it does not fit."""
    from colonnade.engine.resource_estimation.plan import PlanOptions  # takes seconds
    from colonnade.engine.resource_estimation.plan import plan_training
    from colonnade.engine.resource_estimation.table import format_plan
    size = options.plan_size and tuple(options.plan_size)
    plan = plan_training(options, PlanOptions(options.processes, options.plan_memory, size))
    for line in format_plan(plan):
        print(line)
    if not (plan.fits_memory and plan.fits_disk):
        sys.exit(DOES_NOT_FIT)


def resume_hint(words: Sequence[str], launcher: str) -> str:
    """What to do to go on from the last checkpoint of this training.

    Args:
        words: Its command line.
        launcher: That has started it; its own command line is not known.
    """
    if launcher != 'none':
        return 'to go on, start it again as before, with --resume'
    return f'go on with: {build_resume_command(words)}'


def describe_saved_state(last: str, best: str, has_ended: bool, go_on: str) -> str:
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


def build_resume_command(words: Sequence[str]) -> str:
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


@command(TrainCommand)
def main(options: TrainCommand) -> None:
    """Train as the command line says, and end with status 75 if a signal interrupts."""
    options.config = find_config(options.config)
    if options.plan:
        return print_plan(options)
    check_model_arguments(options.config, options.load_from)
    from mmengine.dist import is_main_process

    from colonnade.engine.runner.signal_handling import Interrupted, handle_signals  # takes seconds
    from colonnade.engine.work_dir import Run
    from colonnade.reported_training import prepared_training
    go_on = resume_hint(sys.argv, options.launcher)
    try:
        with ExitStack() as stack, report_user_errors('train'):  # said first: another may be lost
            runner = stack.enter_context(prepared_training(options))
            with handle_signals(runner) as signals, report_user_errors('train'):
                try:
                    runner.train()
                except Interrupted as stop:  # said now: launchers end all when a process has left
                    if is_main_process():
                        again = f'; {go_on}' if stop.saved else ''
                        print(f'\ntrain: {stop}{again}', file=sys.stderr, flush=True)
                    raise
                except KeyboardInterrupt:
                    if is_main_process():
                        run = Run(runner.work_dir)
                        left = describe_saved_state(run.last, run.best, signals.has_ended, go_on)
                        print(f'\ntrain: stopped, {left}', file=sys.stderr)
                    sys.exit(STOPPED)
    except Interrupted as stop:
        sys.exit(INTERRUPTED if stop.saved else 128 + stop.signal)


if __name__ == '__main__':
    main()
