"""Where NaN or infinity comes from: the batch, the weights, or the first module that gives it."""
from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..distributed.sharded_tensors import keep_shards, keep_whole
from ..runner.hooks import wrappers_of
from .finite import is_finite, not_finite, shortened, tensors_in

#: errors that NaN leads to, as where costs are matched
OF_NAN = (ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError)


@dataclass
class Findings:
    """What is not finite in one process.

    Attributes:
        images: Files of the batch.
        batch: What of the batch.
        weights: Names of parameters and of statistics of norms.
        module: Name and class of the first module with such an output, in order of execution.
        losses: Names of losses, where all modules gave finite outputs.
        gradient: Name of the last module, in order of execution, with such a gradient.
    """
    images: list[str]
    batch: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    module: str = ''
    losses: list[str] = field(default_factory=list)
    gradient: str = ''

    def __str__(self) -> str:
        lines = []
        if self.weights:
            lines.append(f'weights that are not finite: {shortened(self.weights)}')
        if self.batch:
            lines.append(f'in the batch: {shortened(self.batch)}')
        if self.module:
            lines.append(f'first module whose output is not finite: {self.module}')
        elif self.losses:
            lines.append(f'outputs of all modules are finite, not so {shortened(self.losses)}')
        elif self.gradient:
            lines.append('the forward pass is finite, not so the gradient of parameters up to '
                         f'{self.gradient}')
        else:
            lines.append('a second forward pass of the batch was finite')
        return '\n'.join([*lines, f'images of the batch: {shortened(self.images, 16)}'])

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.batch or self.weights or self.module or self.losses or self.gradient)


def samples_in(value: Any) -> Iterator[BaseDataElement]:
    """The data samples of a batch."""
    if isinstance(value, BaseDataElement):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from samples_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from samples_in(item)


def images_of(batch: Any) -> list[str]:
    """The paths of a batch's images, as far as its samples name them."""
    paths = [str(sample.metainfo.get('img_path', '?')) for sample in samples_in(batch)]
    return [path if path.isprintable() else ascii(path) for path in paths]


def described(batch: Any, paths: list[str]) -> list[str]:
    """Parts of a batch with the images that they are of: ``gt_instances.bboxes of a.jpg``."""
    images, found = images_of(batch), []
    for path in paths:
        top, _, rest = path.partition('.')
        number, _, part = rest.partition('.')
        if number.isdecimal() and int(number) < len(images):
            found.append(f'{part or "the image"} of {images[int(number)]}')
        else:
            found.append(path)
    return found


def bare(model: nn.Module) -> nn.Module:
    """A model without what distributes it."""
    return model.module if is_model_wrapper(model) else model


def weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What of a model must be finite: parameters, and running means and variances."""
    yield from model.named_parameters()
    for name, module in model.named_modules():
        if isinstance(module, _NormBase):
            yield from ((f'{name}.{key}', value) for key, value in module.named_buffers())


class Watch:
    """Remembers, while a model computes, which modules ran and which first gave what is not finite.

    Args:
        model: Hooks are added to all of its modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self.first, self.ran = '', []  # type: str, list[str]
        self.handles = [
            module.register_forward_hook(partial(self.look, name))
            for name, module in model.named_modules()
        ]

    def look(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Look at the output of a module."""
        self.ran.append(name)
        if not self.first and not all(is_finite(each) for _, each in tensors_in(output)):
            self.first = f'{name or "the model"} ({type(module).__name__})'

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()


def search(runner: Runner,
           batch: Any,
           parameters: Collection[Tensor] = (),
           *,
           run: bool = True) -> Findings:
    """Find what is not finite, by a second forward pass; all processes must call it then.

    Args:
        runner: In training.
        batch: As the data loader gave it.
        parameters: Those whose gradients were not finite.
        run: Whether to look for the first module.
    """
    model = bare(runner.model)
    found = Findings(images_of(batch))
    found.batch = described(batch, not_finite(tensors_in(batch)))
    found.weights = not_finite(weights_of(model))
    if not run:
        return found
    with gathered_without_waiting(model):
        watch = Watch(model)
        with suppress(*OF_NAN):
            found.losses = not_finite(tensors_in(losses_of(runner, model, batch)))
        watch.remove()
    found.module = watch.first
    owners = {name.rpartition('.')[0] for name, each in model.named_parameters()
              if any(each is other for other in parameters)}  # yapf: disable
    found.gradient = next((name for name in reversed(watch.ran) if name in owners), '')
    return found


def fails_when_finite(runner: Runner, batch: Any) -> bool:
    """Return True if the forward pass also fails with a finite batch and finite outputs.

    Args:
        runner: In training, alone.
        batch: As the data loader gave it.
    """
    model = bare(runner.model)
    batch = deepcopy(batch)
    for _, tensor in tensors_in(batch):
        clear_non_finite(tensor)
    kept = {id(each) for each in (*model.parameters(), *model.buffers())}
    handles = [module.register_forward_hook(partial(make_finite, kept))
               for module in model.modules()]  # yapf: disable
    try:
        with torch.no_grad():
            losses_of(runner, model, batch)
    except OF_NAN:
        return True
    finally:
        for handle in handles:
            handle.remove()
    return False


def make_finite(kept: Collection[int], module: nn.Module, args: Any, output: Any) -> None:
    """Replace NaN and infinity by 0 in the output of a module, as a forward hook.

    Args:
        kept: IDs of the model's own tensors, which a module may return.
        module: Module that was called.
        args: Its arguments.
        output: Its output, changed in place.
    """
    for _, tensor in tensors_in(output):
        if id(tensor) not in kept:
            clear_non_finite(tensor)


def clear_non_finite(tensor: Tensor) -> None:
    """Replace NaN and infinity by 0 in place."""
    if not is_finite(tensor):
        tensor.nan_to_num_(0., 0., 0.)


@contextmanager
def gathered_without_waiting(model: nn.Module) -> Iterator[None]:
    """While open, trunk, neck and layers of a model compute without other processes."""
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
    """The losses of a batch, as in training."""
    with wrappers_of(runner.optim_wrapper)[0].optim_context(model):
        data = model.data_preprocessor(batch, True)
        return model._run_forward(data, mode='loss')
