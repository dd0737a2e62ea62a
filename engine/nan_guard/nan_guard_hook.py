"""Hooks that skip steps on NaN and Inf, stop after too many, and know the last good checkpoint."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any, NamedTuple

import torch
from mmengine.dist import all_gather_object, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count, format_names

from ..runner.hooks import get_optim_wrappers
from ..runner.loops import GuardedLoop
from ..runner.scalars import defer_scalars, is_due
from ..upstream import get_start
from ..work_dir.last_checkpoint import RunCheckpoints, find_checkpoint_hook
from ..work_dir.metrics_table import SKIPPED
from ..work_dir.run import Run
from .diagnosis import (NAN_ERRORS, Diagnosis, NonFiniteError, diagnose, find_bad_parts,
                        find_image_paths, find_non_finite, inspect_inputs, is_caused_by_nan,
                        is_finite, iter_tensors, iter_weights, unwrap_model)
from .step_guard import StepGuard, guard_steps

STATES = ('state_dict', 'ema_state_dict', 'optimizer')  # keys of checkpoints that must be finite


def register_nan_guard(runner: Runner, max_skipped_steps: int) -> None:
    """Make a training skip steps on NaN and Inf, and stop after too many in a row.

    mmdet's CheckInvalidLossHook, which would end training instead, is removed.
    """
    for hook in [hook for hook in runner.hooks if type(hook).__name__ == 'CheckInvalidLossHook']:
        runner.hooks.remove(hook)
        runner.logger.info('ignoring the CheckInvalidLossHook in the config: steps with NaN or Inf '
                           f'losses are skipped, and {max_skipped_steps} in a row stop training '
                           '(--max-skipped-steps)')
    good = GoodCheckpoints()
    is_recording_norms = defer_scalars(runner)
    runner.register_hook(NanGuard(max_skipped_steps, good, is_recording_norms))
    runner.register_hook(good)


class GoodCheckpoints(Hook):
    """A hook that keeps NaN and Inf out of checkpoints, and knows the last good one.

    A step may make weights so large that the next loss is Inf. The checkpoint of that step is
    useless, although its weights are finite. While steps are skipped, checkpoints wait, so that
    none replaces a good one; at the end of training there always is one.

    Attributes:
        path: Last checkpoint whose weights gave a finite loss, or an empty string.
        latest: Last checkpoint before this iteration.
        saving: Hook that saves checkpoints, or None.
    """

    priority = 'LOWEST'  # after the hook that swaps EMA weights in

    def __init__(self) -> None:
        self.path = self.latest = ''
        self.saving: RunCheckpoints | None = None
        self.infinite: tuple[str, ...] = ()  # buffers with Inf on purpose, as attention masks

    def before_train(self, runner: Runner) -> None:
        self.infinite = tuple(find_non_finite(unwrap_model(runner.model).named_buffers()))
        self.saving = find_checkpoint_hook(runner)
        self.path = self.latest = Run(runner.work_dir).last if self.saving else ''

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self.latest = self.saving and self.saving.last_ckpt or self.latest

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check weights, EMA weights and the optimizer's state."""
        states = {key: checkpoint[key] for key in STATES if key in checkpoint}
        tensors = {name: value for name, value in iter_tensors(states)
                   if not (self.infinite and name.endswith(self.infinite))}  # yapf: disable
        names = find_non_finite(tensors.items())
        if any(isinstance(value, DTensor) for value in tensors.values()):  # all processes save
            names = next(filter(None, all_gather_object(names)), [])
        if names:
            iteration = checkpoint['meta']['iter']
            raise NonFiniteError(
                f'training stops at iteration {iteration} of {runner.max_iters}: no checkpoint is '
                f'saved, because of NaN or Inf in {format_names(names, 8)}\n'
                f'{_format_hint(self.path)}')


def _format_hint(path: str) -> str:
    """Return how to continue from the last good checkpoint, if there is one."""
    advice = ('fix the data, lower optim_wrapper.optimizer.lr, or clip gradients with '
              'optim_wrapper.clip_grad.max_norm')
    if not path:
        return f'no good checkpoint was saved: {advice}, and train again'
    return f'the last good checkpoint is {path}: {advice}, and resume with --resume {path}'


class NanGuard(Hook):
    """A hook that skips the optimizer's step if a loss, a gradient or a box is NaN or Inf.

    Weights and buffers stay as they are, and the schedule continues. All processes skip the same
    steps. With accumulated gradients, one such iteration drops the whole step.

    Fused optimizers skip steps on accelerators, and the host learns of it when losses are logged.
    From then on until the next good step, it waits in each iteration, to find the cause.
    """

    priority = 'HIGH'  # after the hook that records losses, before EMA

    def __init__(self, max_skipped_steps: int, good: GoodCheckpoints,
                 is_recording_norms: bool) -> None:  # yapf: disable
        self.max_skipped_steps, self.good = max_skipped_steps, good
        self.is_recording_norms = is_recording_norms  # whether another hook does that
        self.num_skipped = self.in_a_row = 0  # in total, and without a step in between
        self.is_logged = False
        self.images: Counter[str] = Counter()  # paths of images in skipped steps
        self.guards: list[StepGuard] = []
        self.unguarded: Any = None  # optimizer wrapper
        self.seen: list[str] = []  # images since the last step
        self.bad_batch: Any = None  # first bad batch since the last step
        self.reason = ''  # why it is bad, if neither its loss nor a gradient is
        self.cause: Exception | None = None  # error of the latest forward pass that failed
        self.deferred: list[DeferredStep] = []  # iterations whose flags are not fetched yet

    def before_train(self, runner: Runner) -> None:
        """Guard the optimizers."""
        model = unwrap_model(runner.model)
        bad_weights = all_gather_object(find_non_finite(iter_weights(model)))
        if names := next(filter(None, bad_weights), None):
            start = get_start(runner)
            source = f' loaded from {start}' if start else ''
            raise NonFiniteError(f'NaN or Inf in {format_count(len(names), "weight")}{source} '
                                 f'before training: {format_names(names, 8)}')
        self.unguarded = runner.optim_wrapper
        runner.optim_wrapper = guard_steps(runner.optim_wrapper)
        self.guards = [each for each in get_optim_wrappers(runner.optim_wrapper)
                       if isinstance(each, StepGuard)]  # yapf: disable
        self.can_defer = bool(self.guards) and all(each.can_defer() for each in self.guards)
        self.buffers = BufferCopies(model)
        if isinstance(runner.train_loop, GuardedLoop):
            runner.train_loop.guard = self.try_step

    def before_val(self, runner: Runner) -> None:
        self.settle(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.settle(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self.settle(runner)

    def after_train(self, runner: Runner) -> None:
        self.settle(runner)
        runner.optim_wrapper = self.unguarded
        if isinstance(runner.train_loop, GuardedLoop):
            runner.train_loop.guard = None
        self.log_skips(runner)

    def log_skips(self, runner: Runner) -> None:
        """Log the number of skipped steps, once and if there are any."""
        if get_world_size() == 1:  # others may have failed
            with suppress(RuntimeError):  # of a GPU that has failed
                self.settle(runner)
        if self.num_skipped and not self.is_logged:
            self.is_logged = True
            were = 'step was' if self.num_skipped == 1 else 'steps were'
            most = [f'{name} ({times})' for name, times in self.images.most_common(5)]
            runner.logger.warning(
                f'{self.num_skipped} {were} skipped because a loss or a gradient was NaN or Inf; '
                f'most frequent images: {", ".join(most)}')

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if not self.guards:
            return
        for guard in self.guards:
            guard.begin()
            guard.is_deferred = self.can_defer and not self.in_a_row
        self.seen += find_image_paths(data_batch)
        if find_non_finite((path, tensor) for path, tensor in iter_tensors(data_batch)
                           if path.endswith('bboxes') and tensor.device.type == 'cpu'):
            parts = format_names(find_bad_parts(data_batch), 8)
            self._set_bad_batch(data_batch, f'the batch contains NaN or Inf: {parts}')
            for guard in self.guards:
                guard.mark_bad()

    def _set_bad_batch(self, batch: Any, reason: str = '') -> None:
        if self.bad_batch is None:
            self.bad_batch, self.reason = batch, reason

    def try_step(self, runner: Runner, data: Any, step: Callable[[], dict]) -> dict[str, Any]:
        """Return the outputs of the model's step; skip it after an error caused by NaN.

        Several processes cannot skip a forward pass that fails in one of them.
        """
        try:
            outputs = step()
            if not self.is_recording_norms:  # mmengine's hook records them for means
                outputs = {key: value for key, value in outputs.items()
                           if is_finite(torch.as_tensor(value))}  # yapf: disable
            return outputs
        except (torch.OutOfMemoryError, UserError):
            raise
        except NAN_ERRORS as error:
            if not self.guards or any(guard.has_loss for guard in self.guards):
                raise  # not an error of the forward pass
            if get_world_size() > 1:
                inputs = inspect_inputs(unwrap_model(runner.model), data)
                if inputs.batch or inputs.weights:
                    raise NonFiniteError(f'{error}\n{inputs}') from error
                raise
            if not is_caused_by_nan(runner, data):
                raise
            self._set_bad_batch(data, f'the forward pass raised {type(error).__name__}: {error}')
            self.cause = error
            for guard in self.guards:
                guard.abandon()
            return {}

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: dict | None = None) -> None:  # yapf: disable
        """Count skipped steps, restore buffers, and stop after too many."""
        if not self.is_recording_norms:
            for guard in self.guards:
                for key, norm in guard.norms.items():
                    runner.message_hub.update_scalar(f'train/{key}', norm)
        if any(guard.is_deferred and guard.latest and not guard.skipped for guard in self.guards):
            self._defer(runner)
            if is_due(runner, batch_idx):
                self.settle(runner)
            if self.in_a_row >= self.max_skipped_steps and runner.iter + 1 >= runner.max_iters:
                self._stop(runner, data_batch)  # no iteration is left to find the cause
            return
        self.settle(runner)
        is_good = all(isfinite(loss) for guard in self.guards for loss in guard.latest)
        if not is_good:
            self._set_bad_batch(data_batch)
        skipped = next((guard.skipped for guard in self.guards if guard.skipped), '')
        if is_good and not skipped:
            self.buffers.save()
        else:
            self.buffers.restore()
        if skipped:
            self._count_skip(runner, skipped)
            if self.in_a_row >= self.max_skipped_steps:
                self._stop(runner, data_batch if self.bad_batch is None else self.bad_batch)
        stepped = any(guard.stepped for guard in self.guards)
        self._end_step(is_good, skipped, stepped)
        if skipped or stepped:
            self.seen, self.bad_batch, self.reason = [], None, ''
        if self.num_skipped:
            runner.message_hub.update_scalar(f'train/{SKIPPED}', self.num_skipped)

    def _end_step(self, is_good: bool, skipped: str, stepped: bool) -> None:
        """Note the end of an iteration whose step was skipped or taken, or still accumulates."""
        if is_good and not skipped:
            self.good.path = self.good.latest
        if stepped and not skipped:
            self.in_a_row = 0
        if (skipped or stepped) and self.good.saving is not None:
            self.good.saving.is_suspect = bool(skipped)

    def _defer(self, runner: Runner) -> None:
        """Keep the flags of an iteration on their device, and restore buffers there."""
        losses = [loss.float().mean() for guard in self.guards for loss in guard.latest]
        device = losses[-1].device
        is_good = torch.stack([loss.to(device) for loss in losses]).isfinite().all()
        steps = [(guard, verdict) for guard in self.guards for verdict in guard.verdicts]
        flags = torch.cat([is_good.float()[None], *(each.to(device) for _, each in steps)])
        self.buffers.keep(flags.min() > 0)
        guards = [guard for guard, _ in steps]
        self.deferred.append(DeferredStep(runner.iter, flags, guards, self.seen, self.reason))
        if guards:
            self.seen, self.bad_batch, self.reason = [], None, ''

    def settle(self, runner: Runner) -> None:
        """Fetch the flags of all deferred iterations, and count the steps that were skipped."""
        deferred, self.deferred = self.deferred, []
        if not deferred:
            return
        flags = map(bool, torch.cat([each.flags for each in deferred]).tolist())
        for each in deferred:
            is_good = next(flags)
            faults = [guard.find_fault(next(flags), next(flags)) for guard in each.guards]
            skipped = next(filter(None, faults), '')
            if skipped:
                self._count_skip(runner, each.reason or skipped, each.iteration, each.images)
            self._end_step(is_good, skipped, '' in faults)
        if self.num_skipped:
            runner.message_hub.update_scalar(f'train/{SKIPPED}', self.num_skipped)

    def _count_skip(self, runner: Runner, skipped: str, iteration: int | None = None,
                    seen: list[str] | None = None) -> None:  # yapf: disable
        """Count a skipped step, and log the 1st, 2nd, 4th, 8th ...

        Args:
            runner: Runner that is training.
            skipped: Why the step was skipped.
            iteration: Iteration of the step. Defaults to the present one.
            seen: Paths of the images of the step. Defaults to those since the previous step.
        """
        self.num_skipped += 1
        self.in_a_row += 1
        is_local_path = seen is None and self.bad_batch is not None
        images = find_image_paths(self.bad_batch) if is_local_path else seen or self.seen
        reason = self.reason or skipped if seen is None else skipped
        skips = all_gather_object((is_local_path, reason, images))
        skips = [each for each in skips if each[0]] or skips
        images = list(dict.fromkeys(path for _, _, paths in skips for path in paths))
        self.images.update(images)
        if not self.num_skipped & (self.num_skipped - 1):
            number = runner.iter if iteration is None else iteration
            runner.logger.warning(f'iteration {number + 1}: step skipped because '
                                  f'{skips[0][1]}; {self.num_skipped} skipped so far; images: '
                                  f'{format_names(images, 8)}')

    def _stop(self, runner: Runner, batch: Any) -> None:
        """Raise a NonFiniteError that names the cause and how to continue."""
        parameters = [each for guard in self.guards for each in guard.bad_parameters]
        diagnoses: list[tuple[bool, Diagnosis]] = all_gather_object(
            (self.bad_batch is not None, diagnose(runner, batch, parameters)))
        cause = next((each for is_bad, each in diagnoses if is_bad), diagnoses[0][1])
        is_only_data = bool(cause.batch) and not cause.weights  # the latest weights are good
        raise NonFiniteError(
            f'training stops at iteration {runner.iter + 1} of {runner.max_iters}: skipped '
            f'{format_count(self.in_a_row, "step")} in a row because a loss or a gradient was NaN '
            f'or Inf (--max-skipped-steps {self.max_skipped_steps})\n{cause}\n'
            f'{_format_hint(self.good.latest if is_only_data else self.good.path)}') from self.cause


class DeferredStep(NamedTuple):
    """An iteration whose flags are still on their device.

    Attributes:
        iteration: Iteration, from 0.
        flags: Whether its losses are finite, then the verdicts of its steps.
        guards: Guards of these steps.
        images: Paths of the images since the previous step.
        reason: Why its batch is bad, if that is known.
    """
    iteration: int
    flags: Tensor
    guards: list[StepGuard]
    images: list[str]
    reason: str


class BufferCopies:
    """Copies of a model's buffers, to undo what a forward pass did to them.

    A batch that is not finite would corrupt running means and variances for good, although its step
    is skipped.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owners = [module for module in model.modules() if [*module.buffers(recurse=False)]]
        self.copies: list[Tensor] = []
        self.save()

    def _get_buffers(self) -> list[Tensor]:
        """Return the current buffers, which may be other tensors than before."""
        return [each.detach() for owner in self.owners for each in owner.buffers(recurse=False)]

    def save(self) -> None:
        """Copy all buffers."""
        buffers = self._get_buffers()
        if self.copies and [each.shape for each in self.copies] == [each.shape for each in buffers]:
            for copy, buffer in zip(self.copies, buffers, strict=True):
                copy.copy_(buffer)
        else:
            self.copies = [each.clone() for each in buffers]

    def keep(self, is_good: Tensor) -> None:
        """Copy all buffers if a flag ``()`` is true, and otherwise restore them, on its device."""
        buffers = self._get_buffers()
        if [each.shape for each in self.copies] != [each.shape for each in buffers]:
            self.save()
            return
        for copy, buffer in zip(self.copies, buffers, strict=True):
            buffer.copy_(copy.copy_(torch.where(is_good, buffer, copy)))

    def restore(self) -> None:
        """Restore the buffers that have changed."""
        buffers = self._get_buffers()
        if len(buffers) != len(self.copies):  # a module has got one, or lost it
            return
        for buffer, copy in zip(buffers, self.copies, strict=True):
            if copy.shape == buffer.shape and not torch.equal(buffer, copy):
                buffer.copy_(copy)
