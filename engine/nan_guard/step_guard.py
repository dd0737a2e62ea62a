"""Steps of an optimizer that are skipped if a loss or a gradient is not finite."""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial, update_wrapper
from itertools import zip_longest
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

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
        self.total: Tensor | None = None  # norm of the gradients
        self.begin()
        self.replaced = {key: vars(wrapper)[key] for key in ('backward', 'step')
                         if key in vars(wrapper)}  # yapf: disable
        self.take_backward, self.take_step = wrapper.backward, wrapper.step
        wrapper.backward = self.backward
        # with the mark by which schedulers know the method that counts steps for them
        wrapper.step = update_wrapper(partial(self.step), wrapper.step)
        self.take_clip = getattr(wrapper, 'clip_func', None)
        if self.take_clip is clip_grad_norm_ and not isinstance(wrapper, AmpOptimWrapper):
            wrapper.clip_func = self.clip

    def release(self) -> None:
        """Give the wrapper its own methods back."""
        del self.wrapper.backward, self.wrapper.step
        vars(self.wrapper).update(self.replaced)
        if self.take_clip is not None:
            self.wrapper.clip_func = self.take_clip

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

    def spoil(self) -> None:
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

    def clip(self,
             parameters: list[Tensor],
             max_norm: float,
             norm_type: float = 2.,
             **kwargs: Any) -> Tensor:
        """As torch's ``clip_grad_norm_``, with the norm ``()`` that is known already."""
        total, own = self.total, self.trained()
        known = total is not None and norm_type == 2 and not kwargs and all(
            one is other and not isinstance(one.grad, DTensor)
            for one, other in zip_longest(parameters, own))  # yapf: disable
        if total is None or not known:
            return clip_grad_norm_(parameters, max_norm, norm_type, **kwargs)
        clip_grads_with_norm_(parameters, max_norm, total)
        return total

    def are_finite(self) -> tuple[bool, bool]:
        """Whether losses and gradients of a step are, in all processes."""
        total = self.total = norm(each.grad for each in self.trained())
        losses = [loss.float().mean().to(total.device) for loss in self.losses]
        *of_losses, gradient = torch.stack([*losses, total.float()]).isfinite().tolist()
        gradient = gradient or all(is_finite(each.grad) for each in self.trained())
        found = torch.tensor([all(of_losses), gradient], dtype=torch.float, device=total.device)
        if get_world_size() > 1:
            all_reduce(found, 'min')
        of_loss, of_gradient = found.tolist()
        return bool(of_loss), bool(of_gradient)

    def trained(self) -> Iterator[Tensor]:
        """Parameters with a gradient."""
        for group in self.wrapper.optimizer.param_groups:
            yield from (each for each in group['params'] if each.grad is not None)

    def scaler_adapts(self) -> bool:
        """Whether a scaler of losses may be the cause of an overflow, and lowers its factor."""
        wrapper = self.wrapper
        return isinstance(wrapper, AmpOptimWrapper) and wrapper._scale_update_param is None and \
            wrapper.loss_scaler.get_scale() > 1

    def abandon(self) -> None:
        """Count an iteration that ended in an error before its loss was there."""
        self.wrapper._inner_count += 1
        self.spoil()
        if self.wrapper.should_update():
            self.step()
        self.wrapper.zero_grad()
