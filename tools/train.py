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

DOES_NOT_FIT = 3  # exit status if the estimate exceeds memory or disk
INTERRUPTED = 75  # exit status if training can resume: EX_TEMPFAIL of sysexits.h


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
    from colonnade.engine.resource_estimation.plan import PlanOptions  # slow
    from colonnade.engine.resource_estimation.plan import plan_training
    from colonnade.engine.resource_estimation.table import format_plan
    size = options.plan_size and tuple(options.plan_size)
    plan = plan_training(options, PlanOptions(options.processes, options.plan_memory, size))
    for line in format_plan(plan):
        print(line)
    if not (plan.fits_memory and plan.fits_disk):
        sys.exit(DOES_NOT_FIT)


def resume_hint(words: Sequence[str], launcher: str) -> str:
    """Return a hint on how to resume this training.

    Args:
        words: Command line of the training.
        launcher: Launcher of the processes, whose own command line is unknown.
    """
    if launcher != 'none':
        return 'to resume, repeat the command with --resume'
    return f'resume with: {build_resume_command(words)}'


def describe_saved_state(last: str, best: str, has_ended: bool, hint: str) -> str:
    """Describe what was saved before training was aborted.

    Args:
        last: Last checkpoint; empty if there is none.
        best: Best checkpoint; empty if there is none.
        has_ended: Whether training was complete.
        hint: Hint on how to resume.
    """
    if not last:
        return f'its best checkpoint is {best}' if best else 'nothing was saved'
    if has_ended:
        return f'after the end of training; the last checkpoint is {last}'
    return f'progress since {last} is lost; {hint}'


def build_resume_command(words: Sequence[str]) -> str:
    """Return the command line that resumes this training from its last checkpoint."""
    resumed, is_value = [], False
    for word in words:
        if word.startswith(('--res', '--lo', '--new')):  # argparse accepts abbreviations
            is_value = '=' not in word and not word.startswith('--new')
        elif is_value and not word.startswith('-'):
            is_value = False  # a checkpoint
        else:
            is_value = False
            resumed.append(word)
    return shlex.join(['colonnade', 'train', *resumed[1:], '--resume'])


@command(TrainCommand)
def main(options: TrainCommand) -> None:
    """Train, and exit with status 75 if a signal interrupts."""
    options.config = find_config(options.config)
    if options.plan:
        return print_plan(options)
    check_model_arguments(options.config, options.load_from)
    from mmengine.dist import is_main_process

    from colonnade.engine.runner.signal_handling import Interrupted, handle_signals  # slow
    from colonnade.engine.work_dir import Run
    from colonnade.reported_training import prepare_training
    hint = resume_hint(sys.argv, options.launcher)
    try:
        # Report errors before the stack closes, which waits for other processes.
        with ExitStack() as stack, report_user_errors('train'):
            runner = stack.enter_context(prepare_training(options))
            with handle_signals(runner) as signals, report_user_errors('train'):
                try:
                    runner.train()
                except Interrupted as stop:
                    # Print now, since launchers kill all processes when one has exited.
                    if is_main_process():
                        advice = f'; {hint}' if stop.saved else ''
                        print(f'\ntrain: {stop}{advice}', file=sys.stderr, flush=True)
                    raise
                except KeyboardInterrupt:
                    if is_main_process():
                        run = Run(runner.work_dir)
                        state = describe_saved_state(run.last, run.best, signals.has_ended, hint)
                        print(f'\ntrain: stopped, {state}', file=sys.stderr)
                    sys.exit(STOPPED)
    except Interrupted as stop:
        sys.exit(INTERRUPTED if stop.saved else 128 + stop.signal)


if __name__ == '__main__':
    main()
