"""Where NaN or infinity comes from: the batch, the weights, or the first module that gives it."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from colonnade.common.name_lists import format_names

from ..distributed.sharded_tensors import keep_shards, keep_whole
from ..runner.hooks import wrappers_of
from .finite import images_of, is_finite, not_finite, tensors_in

#: errors that NaN leads to, as where costs are matched
OF_NAN = (ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError)


@dataclass
class Diagnosis:
    """What is not finite in one process.

    Attributes:
        images: Files of the batch.
        batch: Parts of the batch that are not finite.
        weights: Names of parameters and statistics of norms that are not finite.
        origin: A sentence on the first module, the losses or the gradient; empty if not looked for.
    """
    images: list[str]
    batch: list[str]
    weights: list[str]
    origin: str = ''

    def __str__(self) -> str:
        lines = []
        if self.weights:
            lines.append(f'weights that are not finite: {format_names(self.weights, 8)}')
        if self.batch:
            lines.append(f'in the batch: {format_names(self.batch, 8)}')
        if self.origin:
            lines.append(self.origin)
        return '\n'.join([*lines, f'images of the batch: {format_names(self.images, 16)}'])


def inspect_inputs(model: nn.Module, batch: Any) -> Diagnosis:
    """Return what is not finite before a forward pass."""
    return Diagnosis(images_of(batch), bad_parts(batch), not_finite(weights_of(model)))


def diagnose(runner: Runner, batch: Any, parameters: Collection[Tensor]) -> Diagnosis:
    """Find what is not finite by a second forward pass; all processes must call it.

    Args:
        runner: In training.
        batch: As the data loader gave it.
        parameters: Those whose gradients were not finite.
    """
    model = bare(runner.model)
    found = inspect_inputs(model, batch)
    ran: list[str] = []
    bad = ''
    losses: list[str] = []

    def look(name: str, module: nn.Module, args: Any, output: Any) -> None:
        nonlocal bad
        ran.append(name)
        if not bad and not all(is_finite(each) for _, each in tensors_in(output)):
            bad = f'{name or "the model"} ({type(module).__name__})'

    with computing_alone(model), forward_hooks(model, look), suppress(*OF_NAN):
        losses = not_finite(tensors_in(losses_of(runner, model, batch)))
    owners = {name.rpartition('.')[0] for name, each in model.named_parameters()
              if any(each is other for other in parameters)}  # yapf: disable
    last = next((name for name in reversed(ran) if name in owners), '')
    if bad:
        found.origin = f'first module whose output is not finite: {bad}'
    elif losses:
        found.origin = f'outputs of all modules are finite, not so {format_names(losses, 8)}'
    elif last:
        found.origin = f'the forward pass is finite, not so the gradient of parameters up to {last}'
    else:
        found.origin = 'a second forward pass of the batch was finite'
    return found


def comes_of_nan(runner: Runner, batch: Any) -> bool:
    """Return True if weights are NaN, or a failed forward pass succeeds with 0 in place of NaN.

    Some modules give infinity on purpose, as where attention is masked: an error that comes up
    without it too is one of the user's code.

    Args:
        runner: In training, the only process.
        batch: As the data loader gave it.
    """
    model = bare(runner.model)
    kept = {id(each) for each in (*model.parameters(), *model.buffers())}
    cleared: list[str] = []

    def clear(name: str, module: nn.Module | None, args: Any, output: Any) -> None:
        for _, tensor in tensors_in(output):
            if id(tensor) not in kept and not is_finite(tensor):  # a module may return its own
                tensor.nan_to_num_(0., 0., 0.)
                cleared.append(name)

    try:
        if not_finite(weights_of(model)):
            return True
        batch = deepcopy(batch)
        clear('the batch', None, (), batch)
        with torch.no_grad(), forward_hooks(model, clear):
            losses_of(runner, model, batch)
    except OF_NAN:  # also of a GPU that has failed
        return False
    return bool(cleared)


def bad_parts(batch: Any) -> list[str]:
    """Return what of a batch is not finite: ``gt_instances.bboxes of a.jpg``."""
    images, found = images_of(batch), []
    for path in not_finite(tensors_in(batch)):
        _, _, rest = path.partition('.')
        number, _, part = rest.partition('.')
        if number.isdecimal() and int(number) < len(images):
            path = f'{part or "the image"} of {images[int(number)]}'
        found.append(path)
    return found


def bare(model: nn.Module) -> nn.Module:
    """Return a model without what distributes it."""
    return model.module if is_model_wrapper(model) else model


def weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what of a model must be finite: parameters, and running means and variances."""
    yield from model.named_parameters()
    for name, module in model.named_modules():
        if isinstance(module, _NormBase):
            yield from ((f'{name}.{key}', value) for key, value in module.named_buffers())


@contextmanager
def forward_hooks(model: nn.Module, hook: Callable[..., None]) -> Iterator[None]:
    """Context manager that calls a hook with the name, inputs and output of each module."""
    handles = [module.register_forward_hook(partial(hook, name))
               for name, module in model.named_modules()]  # yapf: disable
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def computing_alone(model: nn.Module) -> Iterator[None]:
    """Context manager that lets backbone, neck and layers compute without other processes."""
    synchronised = [module for module in model.modules()
                    if isinstance(module, nn.SyncBatchNorm) and module.training]  # yapf: disable
    keep_whole(model)
    for module in synchronised:
        module.eval()
    yield
    for module in synchronised:
        module.train()
    keep_shards(model)


def losses_of(runner: Runner, model: nn.Module, batch: Any) -> Any:
    """Return the losses of a batch, as in training."""
    with wrappers_of(runner.optim_wrapper)[0].optim_context(model):
        data = model.data_preprocessor(batch, True)
        if isinstance(data, dict):
            return model(**data, mode='loss')
        return model(*data, mode='loss')
