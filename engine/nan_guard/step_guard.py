"""Steps of an optimizer that are skipped if a loss or a gradient is not finite."""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial, update_wrapper
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor

from .finite import is_finite, norm

OF_LOSS = 'the loss is not finite'
OF_GRADIENT = 'the gradient is not finite'


class StepGuard:
    """Keeps mmengine's wrapper of an optimizer from steps on what is not finite.

    It takes the place of the wrapper's ``backward`` and ``step``. All processes skip the same
    steps. Gradients that only overflow because a scaler multiplies the loss are left to the scaler,
    which skips the step and lowers its factor. A factor of 1 or less, or a fixed one, is no cause.

    Args:
        wrapper: Of one optimizer, of any subclass.

    Attributes:
        latest: Losses of this iteration, divided by the number of iterations of a step.
        skipped: Why the step of this iteration was skipped; empty if it was not.
        stepped: Whether this iteration has taken a step.
        has_loss: Whether the model has computed a loss in this iteration.
        parameters: Of the latest step that was skipped because of its gradients: those parameters.
    """

    def __init__(self, wrapper: OptimWrapper) -> None:
        self.wrapper = wrapper
        self.losses: list[Tensor] = []  # since the last step
        self.parameters: list[Tensor] = []
        self.begin()
        self.take_backward, self.take_step = wrapper.backward, wrapper.step
        wrapper.backward = self.backward
        # with the mark by which schedulers know the method that counts steps for them
        wrapper.step = update_wrapper(partial(self.step), wrapper.step)

    def release(self) -> None:
        """Give the wrapper its own methods back."""
        self.wrapper.backward, self.wrapper.step = self.take_backward, self.take_step

    def begin(self) -> None:
        """Begin an iteration."""
        self.latest: list[Tensor] = []
        self.skipped, self.stepped, self.has_loss = '', False, False

    @torch.compiler.disable
    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """As the wrapper's; the loss is noted."""
        self.has_loss = True
        self.note(loss.detach())
        self.take_backward(loss, **kwargs)

    def note(self, loss: Tensor) -> None:
        """Note a loss ``()`` of this iteration."""
        self.latest.append(loss)
        self.losses.append(loss)

    def mark_bad(self) -> None:
        """Let the step that this iteration belongs to be skipped."""
        self.note(torch.tensor(torch.nan))

    @torch.compiler.disable
    def step(self, **kwargs: Any) -> None:
        """As the wrapper's, or nothing."""
        finite_loss, finite_gradient = self.are_finite()
        self.losses = []
        if not finite_loss:
            self.skipped = OF_LOSS
        elif not finite_gradient and not self.scaler_adapts():
            self.skipped = OF_GRADIENT
            self.parameters = [each for each in self.trained() if not is_finite(each.grad)]
        else:
            self.stepped = finite_gradient
            self.take_step(**kwargs)

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
        for group in self.wrapper.optimizer.param_groups:
            yield from (each for each in group['params'] if each.grad is not None)

    def scaler_adapts(self) -> bool:
        """Return True if a scaler of losses may cause an overflow, and lowers its factor."""
        wrapper = self.wrapper
        return isinstance(wrapper, AmpOptimWrapper) and wrapper._scale_update_param is None and \
            wrapper.loss_scaler.get_scale() > 1

    def abandon(self) -> None:
        """Count an iteration that ended in an error before its loss was there."""
        self.wrapper._inner_count += 1
        self.mark_bad()
        if self.wrapper.should_update():
            self.step()
        self.wrapper.zero_grad()
