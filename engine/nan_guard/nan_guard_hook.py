"""A hook that skips steps on what is not finite, and stops training after too many."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from mmengine.dist import all_gather_object, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

from ..runner.hooks import wrappers_of
from ..runner.loops import GuardedLoop
from ..upstream import get_start
from ..work_dir.metrics_table import SKIPPED
from .diagnosis import (OF_NAN, Diagnosis, bad_parts, bare, comes_of_nan, diagnose, inspect_inputs,
                        weights_of)
from .finite import NonFiniteError, images_of, is_finite, not_finite, tensors_in
from .good_checkpoints import GoodCheckpoints, resume_hint
from .step_guard import StepGuard, guard_steps


def register_nan_guard(runner: Runner, max_bad_steps: int) -> None:
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
    good = GoodCheckpoints()
    runner.register_hook(NanGuard(max_bad_steps, good))
    runner.register_hook(good)


class NanGuard(Hook):
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

    def __init__(self, max_bad_steps: int, good: GoodCheckpoints) -> None:
        self.max_bad_steps, self.good = max_bad_steps, good
        self.num_skipped = self.in_a_row = 0
        self.is_said = False
        self.images: Counter[str] = Counter()
        self.guards: list[StepGuard] = []
        self.unguarded: Any = None  # wrapper of optimizers
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
        found = all_gather_object(not_finite(weights_of(model)))
        if names := next(filter(None, found), None):
            start = get_start(runner)
            source = f', loaded from {start}' if start else ''
            raise NonFiniteError(f'{len(names)} weights are not finite before training{source}: '
                                 f'{format_names(names, 8)}')
        self.unguarded = runner.optim_wrapper
        runner.optim_wrapper = guard_steps(runner.optim_wrapper)
        self.guards = [
            each for each in wrappers_of(runner.optim_wrapper) if isinstance(each, StepGuard)
        ]
        self.buffers = BufferCopies(model)
        if isinstance(runner.train_loop, GuardedLoop):
            runner.train_loop.guard = self.try_step

    def after_train(self, runner: Runner) -> None:
        """Give the runner its optimizers back, and say how many steps were skipped."""
        runner.optim_wrapper = self.unguarded
        if isinstance(runner.train_loop, GuardedLoop):
            runner.train_loop.guard = None
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
        if not self.guards:
            return
        for guard in self.guards:
            guard.begin()
        self.seen += images_of(data_batch)
        if not_finite((path, tensor) for path, tensor in tensors_in(data_batch)
                      if path.endswith('bboxes') and tensor.device.type == 'cpu'):
            self.note(data_batch, f'not finite: {format_names(bad_parts(data_batch), 8)}')
            for guard in self.guards:
                guard.mark_bad()

    def note(self, batch: Any, reason: str = '') -> None:
        """Note a batch whose step will be skipped."""
        if self.bad_batch is None:
            self.bad_batch, self.reason = batch, reason

    def try_step(self, runner: Runner, data: Any, step: Callable[[], dict]) -> dict[str, Any]:
        """Return the finite outputs of the model's step; skip it at an error that NaN leads to.

        Processes cannot skip what only one of them cannot compute.

        Raises:
            NonFiniteError: In one of several processes.
        """
        try:
            outputs = step()
            if not self.has_finite_losses():  # means are made of what is logged
                outputs = {key: value for key, value in outputs.items()
                           if is_finite(torch.as_tensor(value))}  # yapf: disable
            return outputs
        except (torch.OutOfMemoryError, UserError):
            raise
        except OF_NAN as error:
            if not self.guards or any(guard.has_loss for guard in self.guards):
                raise  # not of the forward pass
            if get_world_size() > 1:
                found = inspect_inputs(bare(runner.model), data)
                if found.batch or found.weights:
                    raise NonFiniteError(f'{error}\n{found}') from error
                raise
            if not comes_of_nan(runner, data):
                raise
            self.note(data, f'the forward pass ended with {type(error).__name__}: {error}')
            self.cause = error
            for guard in self.guards:
                guard.abandon()
            return {}

    def has_finite_losses(self) -> bool:
        """Return True if the losses of this iteration are finite in this process."""
        return all(isfinite(loss) for guard in self.guards for loss in guard.latest)

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: dict | None = None) -> None:
        """Count skipped steps, undo what their forward pass did, and stop after too many.

        Raises:
            NonFiniteError: To stop.
        """
        is_good = self.has_finite_losses()
        if not is_good:
            self.note(data_batch)
        skipped = next((guard.skipped for guard in self.guards if guard.skipped), '')
        stepped = any(guard.stepped for guard in self.guards)
        if is_good and not skipped:
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
            self.good.let_wait(bool(skipped))
        if self.num_skipped:
            runner.message_hub.update_scalar(f'train/{SKIPPED}', self.num_skipped)

    def count(self, runner: Runner, skipped: str) -> None:
        """Count a skipped step, and log the 1st, 2nd, 4th, 8th ..."""
        self.num_skipped += 1
        self.in_a_row += 1
        is_here = self.bad_batch is not None
        images = images_of(self.bad_batch) if is_here else self.seen
        found = all_gather_object((is_here, self.reason or skipped, images))
        found = [each for each in found if each[0]] or found
        images = list(dict.fromkeys(path for _, _, paths in found for path in paths))
        self.images.update(images)
        if not self.num_skipped & (self.num_skipped - 1):
            runner.logger.warning(f'iteration {runner.iter + 1}: the step is skipped, as '
                                  f'{found[0][1]}; {self.num_skipped} skipped so far; images: '
                                  f'{format_names(images, 8)}')

    def stop(self, runner: Runner, batch: Any) -> None:
        """Raise a NonFiniteError that says what is not finite, and how to go on."""
        parameters = [each for guard in self.guards for each in guard.bad_parameters]
        found: list[tuple[bool, Diagnosis]] = all_gather_object(
            (self.bad_batch is not None, diagnose(runner, batch, parameters)))
        what = next((each for is_bad, each in found if is_bad), found[0][1])
        are_data = bool(what.batch) and not what.weights  # and not the latest weights
        raise NonFiniteError(
            f'training stops at iteration {runner.iter + 1} of {runner.max_iters}: {self.in_a_row} '
            'steps in a row were skipped, as a loss or a gradient was not finite '
            f'(--max-bad-steps {self.max_bad_steps})\n{what}\n'
            f'{resume_hint(self.good.latest if are_data else self.good.path)}') from self.cause


class BufferCopies:
    """Copies of a model's buffers, to undo what a forward pass did to them.

    A batch that is not finite would spoil running means and variances for good, although no step
    is taken on it.

    Args:
        model: Of a training.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owners = [module for module in model.modules() if [*module.buffers(recurse=False)]]
        self.copies: list[Tensor] = []
        self.keep()

    def buffers(self) -> list[Tensor]:
        """Return the buffers of all modules, which may have been exchanged."""
        return [each.detach() for owner in self.owners for each in owner.buffers(recurse=False)]

    def keep(self) -> None:
        """Copy all buffers."""
        buffers = self.buffers()
        if self.copies and [each.shape for each in self.copies] == [each.shape for each in buffers]:
            torch._foreach_copy_(self.copies, buffers)
        else:
            self.copies = [each.clone() for each in buffers]

    def restore(self) -> None:
        """Give the buffers that have changed the values of their copies again."""
        buffers = self.buffers()
        if len(buffers) != len(self.copies):  # a module has got one, or lost it
            return
        for buffer, copy in zip(buffers, self.copies, strict=True):
            if copy.shape == buffer.shape and not torch.equal(buffer, copy):
                buffer.copy_(copy)
