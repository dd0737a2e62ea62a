"""Optimizer wrappers that skip a step if a loss or a gradient is not finite."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from math import inf
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from .diagnosis import compute_norm, is_finite

BAD_LOSS = 'the loss is NaN or Inf'
BAD_GRADIENT = 'the gradient is NaN or Inf'


class StepGuard(OptimWrapper):
    """An optimizer wrapper that skips steps on NaN and Inf, the same in all processes.

    A gradient that only overflows because of loss scaling is left to the scaler, which skips the
    step and lowers its factor. A factor of 1 or less, or a fixed one, does not count as the cause.

    Attributes:
        latest: Losses of this iteration, divided by the number of iterations per step.
        skipped: Why the step of this iteration was skipped, or an empty string.
        stepped: Whether this iteration has taken a step.
        has_loss: Whether the model has computed a loss in this iteration.
        bad_parameters: Parameters whose gradients caused the latest skip, if gradients did.
        norms: Norms of the gradients in this iteration before they were clipped, by their name in
            the log.
        is_deferred: Whether a fused optimizer skips the step on its own device, so that the host
            need not wait to know.
        verdicts: Whether the losses and the gradients of each deferred step are finite, ``(2,)``.
    """
    is_deferred = False
    losses: list[Tensor]  # since the last step
    bad_parameters: list[Tensor]

    @classmethod
    def wrap(cls, wrapper: OptimWrapper) -> StepGuard:
        """Return a guard of the wrapper's own type, which shares its optimizer and state."""
        wrapper_class = type(wrapper)
        bases = (cls, wrapper_class)
        if wrapper_class.update_params is not OptimWrapper.update_params:
            bases = (wrapper_class, cls)  # its super().update_params is that of the guard
            print_log(
                f'{wrapper_class.__name__} overrides update_params: steps with NaN or Inf are '
                'skipped only if it calls OptimWrapper.update_params',
                logger='current',
                level=logging.WARNING)
        own = wrapper_class._clip_grad
        members = {} if own is OptimWrapper._clip_grad else dict(_clip_grad=own)
        guard: StepGuard = object.__new__(type(wrapper_class.__name__, bases, members))
        guard.__dict__ = wrapper.__dict__  # schedulers count the steps of the wrapper
        if not all(group.get('fused') for group in guard.optimizer.param_groups):
            # of a checkpoint; torch's loss scaler asks only for the settings of the constructor
            guard.optimizer._step_supports_amp_scaling = False
        guard.losses, guard.bad_parameters = [], []
        guard.begin()
        return guard

    def begin(self) -> None:
        """Start an iteration."""
        self.latest: list[Tensor] = []
        self.skipped, self.stepped, self.has_loss = '', False, False
        self.norms: dict[str, Tensor] = {}
        self.verdicts: list[Tensor] = []

    @torch.compiler.disable
    def update_params(self, loss: Tensor, step_kwargs: dict | None = None,
                      zero_kwargs: dict | None = None) -> None:  # yapf: disable
        """Update parameters as mmengine does, unless the loss or a gradient is not finite."""
        loss = self.scale_loss(loss)
        self.has_loss = True
        self._add_loss(loss.detach())
        self.backward(loss)
        if self.should_update():
            with merge_groups(self.optimizer):  # step() may be a scheduler's
                if self.is_deferred:
                    self._step_if_finite(step_kwargs or {})
                elif self._can_step():
                    self.step(**(step_kwargs or {}))
            self.zero_grad(**(zero_kwargs or {}))

    def _clip_grad(self) -> None:
        """Clip gradients as mmengine does, but keep their norm on its device."""
        if trained := list(self._iter_trained()):
            norm = self.clip_func(trained, **self.clip_grad_kwargs)
            if norm is not None:
                is_sharded = isinstance(norm, DTensor)
                self.norms[self.grad_name] = norm.full_tensor() if is_sharded else norm

    def can_defer(self) -> bool:
        """Return True if torch's kernels on a GPU skip steps; loss scalers read only gradients."""
        groups = self.optimizer.param_groups
        return (type(self.optimizer) in (Adam, AdamW, SGD)
                and not isinstance(self, AmpOptimWrapper)
                and all(group.get('fused') for group in groups)
                and all(each.device.type == 'cuda' and not isinstance(each, DTensor)
                        for group in groups for each in group['params']))  # yapf: disable

    def _step_if_finite(self, step_kwargs: dict) -> None:
        """Take a step that a flag on the device skips."""
        verdict = self._flag_finite(inf)
        self.verdicts.append(verdict)
        self.losses = []
        self.optimizer.found_inf = 1 - verdict.min()
        try:
            self.step(**step_kwargs)
        finally:
            del self.optimizer.found_inf

    def find_fault(self, is_loss_finite: bool, is_gradient_finite: bool) -> str:
        """Return why a step is skipped, or an empty string."""
        if not is_loss_finite:
            return BAD_LOSS
        return '' if is_gradient_finite or self._is_scaler_adaptive() else BAD_GRADIENT

    def _add_loss(self, loss: Tensor) -> None:
        self.latest.append(loss)
        self.losses.append(loss)

    def mark_bad(self) -> None:
        """Skip the step that this iteration belongs to."""
        device = next((each.device for group in self.optimizer.param_groups
                       for each in group['params']), None)  # yapf: disable
        self._add_loss(torch.tensor(torch.nan, device=device))

    def _can_step(self) -> bool:
        """Return True if the step can be taken; otherwise record why it is skipped."""
        is_loss_finite, is_gradient_finite = map(bool, self._flag_finite().tolist())
        if not is_gradient_finite:  # or its norm is too large for a number
            is_gradient_finite = self._reduce(
                torch.tensor(all(is_finite(each.grad) for each in self._iter_trained()))).item() > 0
        self.losses = []
        self.skipped = self.find_fault(is_loss_finite, is_gradient_finite)
        self.stepped = is_gradient_finite and not self.skipped
        if self.skipped == BAD_GRADIENT:
            self.bad_parameters = [each for each in self._iter_trained()
                                   if not is_finite(each.grad)]  # yapf: disable
        return not self.skipped

    def _flag_finite(self, order: float = 2.) -> Tensor:
        """Return whether losses and gradients of a step are finite ``(2,)``, in all processes.

        The norm of the given order must be finite. That of order 2 may overflow.
        """
        total = compute_norm((each.grad for each in self._iter_trained()), order)
        losses = [loss.float().mean().to(total.device) for loss in self.losses]
        return self._reduce(torch.stack([torch.stack(losses).isfinite().all(), total.isfinite()]))

    @staticmethod
    def _reduce(flags: Tensor) -> Tensor:
        """Return 1 for flags that are true in all processes, else 0."""
        flags = flags.float()
        if get_world_size() > 1:
            all_reduce(flags, 'min')
        return flags

    def _iter_trained(self) -> Iterator[Tensor]:
        """Yield the parameters with a gradient."""
        for group in self.optimizer.param_groups:
            yield from (each for each in group['params'] if each.grad is not None)

    def _is_scaler_adaptive(self) -> bool:
        """Return True if a loss scaler may have caused an overflow, and lowers its factor."""
        return isinstance(self, AmpOptimWrapper) and self._scale_update_param is None and \
            self.loss_scaler.get_scale() > 1

    def abandon(self) -> None:
        """Count an iteration whose forward pass failed, and skip its step."""
        self._inner_count += 1
        self.mark_bad()
        if self.should_update():
            self._can_step()
        self.zero_grad()


@contextmanager
def merge_groups(optimizer: Optimizer) -> Iterator[None]:
    """Context manager within which groups of equal settings are one.

    mmengine makes a group of each parameter, and optimizers call a kernel for each group. States
    belong to parameters, so checkpoints do not change.
    """
    groups = optimizer.param_groups
    if type(optimizer) not in (Adam, AdamW, SGD):  # others may have states of groups
        yield
        return
    merged: dict[tuple, dict[str, Any]] = {}
    for group in groups:
        settings = {key: tuple(value) if isinstance(value, list) else value
                    for key, value in group.items() if key != 'params'}  # yapf: disable
        whole = merged.setdefault(tuple(settings.items()), settings | dict(params=[]))
        whole['params'] += group['params']
    optimizer.param_groups = list(merged.values())
    try:
        yield
    finally:
        optimizer.param_groups = groups


def guard_steps(wrapper: Any) -> Any:
    """Return a guarded wrapper of one or several optimizers; third-party ones are unchanged."""
    if isinstance(wrapper, OptimWrapperDict):
        guarded = copy(wrapper)
        guarded.optim_wrappers = {name: guard_steps(each) for name, each in wrapper.items()}
        return guarded
    return StepGuard.wrap(wrapper) if isinstance(wrapper, OptimWrapper) else wrapper
