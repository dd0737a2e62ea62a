"""A hook that skips steps on what is not finite, and stops training after too many."""
from __future__ import annotations

from collections import Counter
from contextlib import suppress
from math import isfinite
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.runner import Runner

from colonnade.common.errors import UserError

from ..runner.hooks import wrappers_of
from ..work_dir.metrics_table import SKIPPED
from .buffers import Buffers
from .diagnosis import (OF_NAN, Findings, bare, described, fails_when_finite, images_of, search,
                        weights_of)
from .finite import NonFiniteError, boxes_on_cpu, gathered, not_finite, number, shortened
from .good_checkpoints import FiniteCheckpoints, GoodCheckpoint
from .loss_spikes import LossWatch
from .step_guard import StepGuard


def skip_bad_steps(runner: Runner, max_bad_steps: int) -> None:
    """Let a training skip steps on what is not finite, and stop after so many in a row.

    mmdet's CheckInvalidLossHook, which would end it at some of them, is left out.

    Args:
        runner: That will train.
        max_bad_steps: How many.
    """
    for hook in [hook for hook in runner.hooks if type(hook).__name__ == 'CheckInvalidLossHook']:
        runner.hooks.remove(hook)
        runner.logger.info('CheckInvalidLossHook of the config is left out: steps on losses that '
                           f'are not finite are skipped, and {max_bad_steps} in a row stop '
                           'training (--max-bad-steps)')
    good = GoodCheckpoint()
    for hook in (FiniteSteps(max_bad_steps, good), LossWatch(good), FiniteCheckpoints(good)):
        runner.register_hook(hook)


class FiniteSteps(Hook):
    """Skips the optimizer's step where a loss, a gradient or a box is NaN or infinite.

    The weights stay, and buffers get the values they had before. The schedule goes on. Processes
    agree on what they skip. With accumulated gradients, one such iteration drops the whole step.

    Args:
        max_bad_steps: After how many skipped steps in a row training stops.
        good: Which is told of good and bad iterations.

    Attributes:
        num_skipped: Steps that were skipped since training started.
        in_a_row: Of these the latest, without a step in between.
        images: How often images were in a skipped step, by path.
    """

    priority = 'HIGH'  # behind what notes losses, before what averages weights

    def __init__(self, max_bad_steps: int, good: GoodCheckpoint) -> None:
        self.max_bad_steps, self.good = max_bad_steps, good
        self.num_skipped = self.in_a_row = 0
        self.is_said = False
        self.images: Counter[str] = Counter()
        self.guards: list[StepGuard] = []
        self.seen: list[str] = []  # images since the last step
        self.bad_batch: Any = None  # the first since the last step
        self.reason = ''  # of that, where it is neither its loss nor a gradient
        self.cause: Exception | None = None  # error of the latest forward pass that failed

    def before_train(self, runner: Runner) -> None:
        """Guard the optimizers.

        Raises:
            NonFiniteError: If weights are not finite.
        """
        model = bare(runner.model)
        found = gathered(not_finite(weights_of(model)))
        if names := next(filter(None, found), None):
            source = f', loaded from {runner._load_from}' if runner._load_from else ''
            raise NonFiniteError(
                f'{len(names)} weights are not finite before training{source}: {shortened(names)}')
        self.guards = [StepGuard(each) for each in wrappers_of(runner.optim_wrapper)]
        self.buffers = Buffers(model)
        self.good.watch(runner)
        self.train_step = runner.model.train_step
        runner.model.train_step = Attempt(self, runner)

    def after_train(self, runner: Runner) -> None:
        """Give the optimizers their methods back, and say how many steps were skipped."""
        for guard in self.guards:
            guard.release()
        del runner.model.train_step
        self.say(runner)

    def say(self, runner: Runner) -> None:
        """Say how many steps were skipped, if any were and that was not done."""
        if self.num_skipped and not self.is_said:
            self.is_said = True
            were = 'step was' if self.num_skipped == 1 else 'steps were'
            most = [f'{name} ({times})' for name, times in self.images.most_common(5)]
            runner.logger.warning(
                f'{self.num_skipped} {were} skipped, as a loss or a gradient was not finite; '
                f'images, those of the most such steps first: {", ".join(most)}')

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Look at the boxes, which a loss may ignore if they are NaN."""
        self.good.begin_iteration()
        for guard in self.guards:
            guard.begin()
        if not self.guards:
            return
        self.seen += images_of(data_batch)
        if faults := not_finite(boxes_on_cpu(data_batch)):
            self.note(data_batch, f'not finite: {shortened(described(data_batch, faults))}')
            for guard in self.guards:
                guard.spoil()

    def note(self, batch: Any, reason: str = '') -> None:
        """Note a batch whose step will be skipped."""
        if self.bad_batch is None:
            self.bad_batch, self.reason = batch, reason

    def try_step(self, runner: Runner, data: Any, optim_wrapper: Any) -> dict[str, Any]:
        """Return what the model's step does; an error that NaN leads to is a step to skip.

        Some modules give infinity on purpose, as where attention is masked. What fails without it
        too is no matter of NaN. Processes cannot skip what only one of them cannot compute.

        Raises:
            NonFiniteError: In one of several processes.
        """
        try:
            return self.train_step(data, optim_wrapper)
        except (torch.OutOfMemoryError, UserError):
            raise
        except OF_NAN as error:
            alone, found = get_world_size() == 1, None
            if self.guards and not any(guard.has_loss for guard in self.guards):
                with suppress(RuntimeError):  # of a GPU that has failed
                    found = search(runner, data, run=alone)
            if not found or not found.weights and fails_when_finite(runner, data):
                raise
            if not alone:
                raise NonFiniteError(f'{error}\n{found}') from error
            self.note(data, f'the forward pass ended with {type(error).__name__}: {error}')
            self.cause = error
            for guard in self.guards:
                guard.abandon()
            return {}

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: dict | None = None) -> None:
        """Count skipped steps, undo what their forward pass did, and stop after too many.

        Raises:
            NonFiniteError: To stop.
        """
        is_finite = all(isfinite(loss) for guard in self.guards for loss in guard.latest)
        if not is_finite:
            self.note(data_batch)
            forget_not_finite(runner, outputs or {})
        skipped = next((guard.skipped for guard in self.guards if guard.skipped), '')
        stepped = any(guard.stepped for guard in self.guards)
        if is_finite and not skipped:
            self.buffers.keep()
            self.good.confirm()
        else:
            self.buffers.restore()
        if skipped:
            self.count(runner, skipped)
            if self.in_a_row >= self.max_bad_steps:
                self.stop(runner, data_batch if self.bad_batch is None else self.bad_batch)
        elif stepped:
            self.in_a_row = 0
        if skipped or stepped:
            self.seen, self.bad_batch = [], None
            self.good.suspect = bool(skipped)
        if self.num_skipped:
            runner.message_hub.update_scalar(f'train/{SKIPPED}', self.num_skipped)

    def count(self, runner: Runner, skipped: str) -> None:
        """Count a skipped step, and log the 1st, 2nd, 4th, 8th ..."""
        self.num_skipped += 1
        self.in_a_row += 1
        is_here = self.bad_batch is not None
        found = gathered((is_here, self.reason
                          or skipped, images_of(self.bad_batch) if is_here else self.seen))
        found = [each for each in found if each[0]] or found
        images = list(dict.fromkeys(path for _, _, paths in found for path in paths))
        self.images.update(images)
        if not self.num_skipped & (self.num_skipped - 1):
            runner.logger.warning(f'iteration {runner.iter + 1}: the step is skipped, as '
                                  f'{found[0][1]}; {self.num_skipped} skipped so far; images: '
                                  f'{shortened(images, 8)}')

    def stop(self, runner: Runner, batch: Any) -> None:
        """Raise a NonFiniteError that says what is not finite, and how to go on."""
        is_here = self.bad_batch is not None
        parameters = [each for guard in self.guards for each in guard.parameters]
        found: list[tuple[bool, Findings]] = gathered((is_here, search(runner, batch, parameters)))
        findings = next((each for is_bad, each in found if is_bad), found[0][1])
        how = self.good.how_to_go_on(bool(findings.batch) and not findings.weights)
        raise NonFiniteError(
            f'training stops at iteration {runner.iter + 1} of {runner.max_iters}: {self.in_a_row} '
            'steps in a row were skipped, as a loss or a gradient was not finite '
            f'(--max-bad-steps {self.max_bad_steps})\n{findings}\n{how}') from self.cause


class Attempt:
    """A model's ``train_step`` within :meth:`FiniteSteps.try_step`.

    Copies of the model share it, and do not copy the runner.
    """

    def __init__(self, hook: FiniteSteps, runner: Runner) -> None:
        self.hook, self.runner = hook, runner

    def __call__(self, data: Any, optim_wrapper: Any) -> dict[str, Any]:
        return self.hook.try_step(self.runner, data, optim_wrapper)

    def __deepcopy__(self, memo: dict[int, Any]) -> Attempt:
        return self


def forget_not_finite(runner: Runner, outputs: dict[str, Any]) -> None:
    """Take numbers that are not finite out of what will be logged, where means are made of them.

    Args:
        runner: Whose latest numbers are those of ``outputs``.
        outputs: Of this iteration.
    """
    scalars = runner.message_hub.log_scalars
    for key, value in outputs.items():
        name = f'train/{key}'
        if name not in scalars or isfinite(number(value)):
            continue
        values, counts = scalars[name].data
        if len(values) > 1:
            scalars[name] = HistoryBuffer(values[:-1], counts[:-1], scalars[name].max_length)
        else:
            del scalars[name]
