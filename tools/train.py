"""Train a detector of mmdet or a segmenter of mmseg.

    colonnade train configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data-root data/coco
"""
from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType

from colonnade.common.options import UsageError, option
from colonnade.engine.options import TrainOptions
from colonnade.tools.command_line import STOPPED, command, report_user_errors

DOES_NOT_FIT = 3  # exit status of an estimate that does not fit
INTERRUPTED = 75  # exit status of a training that --resume continues: EX_TEMPFAIL of sysexits.h


@dataclass
class TrainCommand(TrainOptions):
    """Options of a training, or of an estimate of one."""
    estimate: bool = option(
        'do not train; print the estimated memory, steps, time and disk space, and what to '
        f'change if it does not fit (exit status {DOES_NOT_FIT})',
        False,
        group='estimate')
    num_processes: int = option(
        'number of processes or GPUs to estimate for (default: %(default)s)',
        1,
        group='estimate',
        metavar='N')
    gpu_memory: float | None = option(
        'memory of the target GPU in GiB; the GPU need not be present (default: this machine)',
        group='estimate',
        metavar='GIB')
    image_size: tuple[int, int] | None = option(
        'size of the largest images in pixels (default: as in the training pipeline)',
        group='estimate',
        metavar=('HEIGHT', 'WIDTH'))

    def __post_init__(self) -> None:
        super().__post_init__()
        values = (self.num_processes, self.gpu_memory, self.image_size)
        if not self.estimate and values != (1, None, None):
            raise UsageError('--num-processes, --gpu-memory and --image-size need --estimate')


def print_estimate(options: TrainCommand, estimates: ModuleType, table: ModuleType) -> None:
    """Print the estimate of a training, and exit with a status of its own if it does not fit."""
    size = options.image_size and (options.image_size[0], options.image_size[1])
    estimate = estimates.estimate_training(
        options, estimates.EstimateOptions(options.num_processes, options.gpu_memory, size))
    for line in table.format_estimate(estimate):
        print(line)
    if not (estimate.fits_memory and estimate.fits_disk):
        sys.exit(DOES_NOT_FIT)


def describe_saved_state(last: str, best: str, has_ended: bool, hint: str) -> str:
    """Describe what was saved before training was aborted.

    Args:
        last: Last checkpoint, or an empty string.
        best: Best checkpoint, or an empty string.
        has_ended: Whether nothing was left to train.
        hint: How to resume.
    """
    if not last:
        return f'the best checkpoint is {best}' if best else 'nothing was saved'
    if has_ended:
        return f'training had already ended, and the last checkpoint is {last}'
    return f'progress since {last} is lost; {hint}'


def build_resume_command(words: Sequence[str]) -> str:
    """Return the command that resumes the training of a command line."""
    kept, drops = [], False
    for word in words:
        if word.startswith(('--res', '--lo', '--new')):  # argparse accepts abbreviations
            drops = '=' not in word and not word.startswith('--new')
        elif drops and not word.startswith('-'):
            drops = False  # the checkpoint of the option
        else:
            drops = False
            kept.append(word)
    return shlex.join(['colonnade', 'train', *kept[1:], '--resume'])


@command(TrainCommand, 'colonnade.training', 'colonnade.engine.runner.signal_handling',
         'colonnade.engine.resource_estimation.estimate',
         'colonnade.engine.resource_estimation.table')
def main(options: TrainCommand, training: ModuleType, signal_handling: ModuleType, *estimation:
         ModuleType) -> None:
    """Train, and exit with status 75 if a signal interrupts."""
    if options.estimate:
        return print_estimate(options, *estimation)
    interrupted = signal_handling.Interrupted
    hint = f'resume with: {build_resume_command(sys.argv)}'
    if options.launcher != 'none':  # the launcher's own command line is not known
        hint = 'to resume, run the same command again with --resume'
    try:
        with ExitStack() as stack, report_user_errors('train'):
            runner = stack.enter_context(training.prepare_training(options))
            with signal_handling.handle_signals(runner) as signals, report_user_errors('train'):
                try:
                    runner.train()
                except interrupted as stop:  # printed now: launchers end all when a process exits
                    if runner.rank == 0:
                        again = f'; {hint}' if stop.saved else ''
                        print(f'\ntrain: {stop}{again}', file=sys.stderr, flush=True)
                    raise
                except KeyboardInterrupt:
                    if runner.rank == 0:
                        run = training.Run(runner.work_dir)
                        left = describe_saved_state(run.last, run.best, signals.has_ended, hint)
                        print(f'\ntrain: stopped; {left}', file=sys.stderr)
                    sys.exit(STOPPED)
    except interrupted as stop:
        sys.exit(INTERRUPTED if stop.saved else 128 + stop.signal)


if __name__ == '__main__':
    main()
