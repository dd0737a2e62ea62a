"""Options of training; importing them takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from colonnade.common.errors import UserError
from colonnade.common.options import Amp, LaunchOptions, amp_option, option

CHECKPOINTS = ('whole', 'sharded')
ON_BAD_DATA = ('stop', 'skip')
TRACKERS = ('tensorboard', 'wandb', 'mlflow', 'clearml', 'neptune', 'aim', 'dvclive')


@dataclass
class TrainOptions(LaunchOptions):
    """What a training is told, as ``colonnade train --help`` says it."""
    resume: str | None = option(
        'go on from this checkpoint, or from the latest in the work dir',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT')
    load_from: str | None = option(
        'start from this whole model: a file, a URL or a published detector or segmenter; beside '
        '--resume, as long as there is no checkpoint to go on from',
        metavar='CHECKPOINT')
    amp: Amp = amp_option()
    fsdp: bool = option('share out parameters, gradients and optimizer states over the processes',
                        False)
    checkpoints: Literal['whole', 'sharded'] = option(
        'with --fsdp: what training goes on from is one file (the default), or a folder to which '
        'each process writes its part', 'whole')
    auto_scale_lr: bool = option(
        "scale the learning rate by the batch size over the config's", False, exclusive='batch')
    accumulate: int | None = option(
        "sum the gradients of N iterations per step, or of as many as make up the config's batch "
        'size',
        exclusive='batch',
        nargs='?',
        const=0,
        metavar='N')
    total_batch: int | None = option(
        'images of all processes in an iteration, however many processes there are', metavar='N')
    new_classes: bool = option(
        'with --load-from: the file is of other classes; layers that depend on them start '
        'untrained, but for classes that both have by name', False)
    patience: int | None = option(
        'stop after N evaluations in which the metric of the best checkpoint got no better',
        metavar='N')
    min_delta: float | None = option(
        'with --patience: only what exceeds the best by more than D is better (0)', metavar='D')
    tracker: Sequence[str] = option(
        'show the curves of the run in %(choices)s too', (), choices=TRACKERS, metavar='NAME')
    report: bool = option('write no record of the run and no report.html', True)
    on_bad_data: Literal['stop', 'skip'] = option(
        'what to do with a training sample that breaks: stop and name it (the default), or take '
        'the next one, with a list at the end', 'stop')
    max_bad_steps: int = option(
        'stop after N steps in a row that were skipped, as a loss or a gradient was NaN or '
        'infinite (%(default)s)',
        5,
        metavar='N')

    def __post_init__(self) -> None:
        if self.max_bad_steps < 1:
            raise UserError(f'--max-bad-steps must be at least 1, got {self.max_bad_steps}')
        if isinstance(self.tracker, str):  # of a Python call
            self.tracker = (self.tracker, )
