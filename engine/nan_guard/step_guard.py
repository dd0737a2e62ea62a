"""Optimizer wrappers that skip a step if a loss or a gradient is not finite."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from torch import Tensor

from .finite import is_finite, norm

OF_LOSS = 'the loss is not finite'
OF_GRADIENT = 'the gradient is not finite'


class StepGuard(OptimWrapper):
    """A wrapper of an optimizer that takes no step on what is not finite.

    All processes skip the same steps. Gradients that only overflow because a scaler multiplies the
    loss are left to the scaler, which skips the step and lowers its factor. A factor of 1 or less,
    or a fixed one, is no cause.

    Attributes:
        latest: Losses of this iteration, divided by the number of iterations of a step.
        skipped: Why the step of this iteration was skipped; empty if it was not.
        stepped: Whether this iteration has taken a step.
        has_loss: Whether the model has computed a loss in this iteration.
        bad_parameters: Of the latest step that was skipped because of its gradients: those.
    """
    losses: list[Tensor]  # since the last step
    bad_parameters: list[Tensor]

    @classmethod
    def of(cls, wrapper: OptimWrapper) -> StepGuard:
        """Return a guard of the wrapper's own type, which has its optimizer and state in common."""
        kind = type(wrapper)
        bases = (cls, kind)
        if kind.update_params is not OptimWrapper.update_params:
            bases = (kind, cls)  # its own calls mmengine's, in whose place the guard's is
            print_log(
                f'{kind.__name__} has an update_params of its own: steps on NaN are skipped only '
                "if it calls OptimWrapper's",
                logger='current',
                level=logging.WARNING)
        guard: StepGuard = object.__new__(type(kind.__name__, bases, {}))
        guard.__dict__ = wrapper.__dict__  # schedulers count the steps of the wrapper
        guard.losses, guard.bad_parameters = [], []
        guard.begin()
        return guard

    def begin(self) -> None:
        """Begin an iteration."""
        self.latest: list[Tensor] = []
        self.skipped, self.stepped, self.has_loss = '', False, False

    @torch.compiler.disable
    def update_params(self,
                      loss: Tensor,
                      step_kwargs: dict | None = None,
                      zero_kwargs: dict | None = None) -> None:
        """As mmengine's; the loss is noted, and the step may be skipped."""
        loss = self.scale_loss(loss)
        self.has_loss = True
        self.note(loss.detach())
        self.backward(loss)
        if self.should_update():
            if self.may_step():
                self.step(**(step_kwargs or {}))
            self.zero_grad(**(zero_kwargs or {}))

    def note(self, loss: Tensor) -> None:
        """Note a loss ``()`` of this iteration."""
        self.latest.append(loss)
        self.losses.append(loss)

    def mark_bad(self) -> None:
        """Skip the step that this iteration belongs to."""
        self.note(torch.tensor(torch.nan))

    def may_step(self) -> bool:
        """Return True if the step is taken; otherwise note why it is skipped."""
        finite_loss, finite_gradient = self.are_finite()
        self.losses = []
        if not finite_loss:
            self.skipped = OF_LOSS
        elif not finite_gradient and not self.scaler_adapts():
            self.skipped = OF_GRADIENT
            self.bad_parameters = [each for each in self.trained() if not is_finite(each.grad)]
        else:
            self.stepped = finite_gradient
        return not self.skipped

    def are_finite(self) -> tuple[bool, bool]:
        """Return whether losses and gradients of a step are finite, in all processes."""
        total = norm(each.grad for each in self.trained())
        losses = [loss.float().mean().to(total.device) for loss in self.losses]
        *of_losses, gradient = torch.stack([*losses, total.float()]).isfinite().tolist()
        gradient = gradient or all(is_finite(each.grad) for each in self.trained())
        found = torch.tensor([all(of_losses), gradient], dtype=torch.float, device=total.device)
        if get_world_size() > 1:
            all_reduce(found, 'min')
        of_loss, of_gradient = found.tolist()
        return bool(of_loss), bool(of_gradient)

    def trained(self) -> Iterator[Tensor]:
        """Yield the parameters with a gradient."""
        for group in self.optimizer.param_groups:
            yield from (each for each in group['params'] if each.grad is not None)

    def scaler_adapts(self) -> bool:
        """Return True if a scaler of losses may cause an overflow, and lowers its factor."""
        return isinstance(self, AmpOptimWrapper) and self._scale_update_param is None and \
            self.loss_scaler.get_scale() > 1

    def abandon(self) -> None:
        """Count an iteration that ended in an error before its loss was there."""
        self._inner_count += 1
        self.mark_bad()
        if self.should_update():
            self.may_step()
        self.zero_grad()


def guard_steps(wrapper: Any) -> Any:
    """Return a wrapper of one optimizer or several whose steps are guarded.

    What is not mmengine's is returned as it is.
    """
    if isinstance(wrapper, OptimWrapperDict):
        guarded = copy(wrapper)
        guarded.optim_wrappers = {name: guard_steps(each) for name, each in wrapper.items()}
        return guarded
    if isinstance(wrapper, OptimWrapper):
        return StepGuard.of(wrapper)
    return wrapper
