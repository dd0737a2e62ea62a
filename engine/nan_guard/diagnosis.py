"""Finding NaN and Inf, and where they come from: the batch, the weights, or the first module."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import get_total_norm

from colonnade.common.errors import UserCodeError
from colonnade.common.name_lists import format_names

from ..distributed.sharded_tensors import gather_model, reshard_model
from ..runner.hooks import get_optim_wrappers

#: errors that NaN may lead to, such as in the matching of costs
NAN_ERRORS = (ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError)


class NonFiniteError(FloatingPointError, UserCodeError):
    """Training cannot continue, because weights, losses or gradients are NaN or Inf."""


def _walk(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yield a value and all that is in it, with paths: ``data_samples.0.gt_instances.bboxes``."""
    yield path, value
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (Mapping, BaseDataElement)):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif not isinstance(value, Tensor) and isinstance(getattr(value, 'tensor', None), Tensor):
        yield path, value.tensor  # mmdet's BaseBoxes
    for key, item in items:
        yield from _walk(item, f'{path}.{key}' if path else str(key))


def iter_tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors within containers, samples and boxes, with their paths."""
    return ((path, part) for path, part in _walk(value) if isinstance(part, Tensor))


def find_image_paths(batch: Any) -> list[str]:
    """Return the paths of a batch's images, or ``['?']`` if samples have none."""
    samples = [part for _, part in _walk(batch) if isinstance(part, BaseDataElement)]
    paths = [str(each.metainfo['img_path']) for each in samples if 'img_path' in each.metainfo]
    return [path if path.isprintable() else ascii(path) for path in paths] or ['?']


def _get_local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process keeps, without its gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def compute_norm(tensors: Iterable[Tensor], order: float = 2.) -> Tensor:
    """Return the norm ``()`` of all values, finite only if all are.

    The 2-norm is the fastest reduction on a CPU. For values beyond 1e18 it may overflow.
    """
    local = [_get_local(tensor) for tensor in tensors if tensor.is_floating_point()]
    return get_total_norm(local, order)


def is_finite(tensor: Tensor) -> bool:
    """Return True if a tensor has neither NaN nor Inf."""
    return not tensor.is_floating_point() or bool(_get_local(tensor).isfinite().all())


def find_non_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return the names of tensors with NaN or Inf."""
    named = list(tensors)
    if not named or bool(compute_norm(tensor for _, tensor in named).isfinite()):
        return []
    return [name for name, tensor in named if not is_finite(tensor)]


@dataclass
class Diagnosis:
    """Non-finite values in one process.

    Attributes:
        origin: Sentence on the first module, the losses or the gradient. Empty if not examined.
    """
    images: list[str]  # paths of the images of the batch
    batch: list[str]  # parts of the batch that are not finite
    weights: list[str]  # names of parameters and statistics of norms that are not finite
    origin: str = ''

    def __str__(self) -> str:
        lines = []
        if self.weights:
            lines.append(f'NaN or Inf in weights: {format_names(self.weights, 8)}')
        if self.batch:
            lines.append(f'NaN or Inf in the batch: {format_names(self.batch, 8)}')
        if self.origin:
            lines.append(self.origin)
        return '\n'.join([*lines, f'images of the batch: {format_names(self.images, 16)}'])


def inspect_inputs(model: nn.Module, batch: Any) -> Diagnosis:
    """Return what is not finite before a forward pass."""
    weights = find_non_finite(iter_weights(model))
    return Diagnosis(find_image_paths(batch), find_bad_parts(batch), weights)


def diagnose(runner: Runner, batch: Any, parameters: Collection[Tensor]) -> Diagnosis:
    """Find what is not finite by a second forward pass; all processes must call it."""
    model = unwrap_model(runner.model)
    result = inspect_inputs(model, batch)
    called: list[str] = []
    bad_module = ''
    losses: list[str] = []

    def check(name: str, module: nn.Module, args: Any, output: Any) -> None:
        nonlocal bad_module
        called.append(name)
        if not bad_module and not all(is_finite(each) for _, each in iter_tensors(output)):
            bad_module = f'{name or "the model"} ({type(module).__name__})'

    with _compute_locally(model), _hook_modules(model, check), suppress(*NAN_ERRORS):
        losses = find_non_finite(iter_tensors(_compute_losses(runner, model, batch)))
    owners = {name.rpartition('.')[0] for name, each in model.named_parameters()
              if any(each is other for other in parameters)}  # yapf: disable
    last = next((name for name in reversed(called) if name in owners), '')
    if bad_module:
        result.origin = f'first module with NaN or Inf in its output: {bad_module}'
    elif losses:
        result.origin = ('the outputs of all modules are finite, but these losses are NaN or Inf: '
                         f'{format_names(losses, 8)}')
    elif last:
        result.origin = ('the forward pass is finite, but the gradient of parameters up to '
                         f'{last} is not')
    else:
        result.origin = 'a second forward pass of the batch had no NaN or Inf'
    return result


def is_caused_by_nan(runner: Runner, batch: Any) -> bool:
    """Return True if weights are NaN, or a failed forward pass succeeds with 0 in place of NaN.

    Some modules output Inf on purpose, as for masked attention. An error that also occurs without
    NaN is one of the user's code.
    """
    model = unwrap_model(runner.model)
    own = {id(each) for each in (*model.parameters(), *model.buffers())}
    cleared: list[str] = []

    def clear(name: str, module: nn.Module | None, args: Any, output: Any) -> None:
        for _, tensor in iter_tensors(output):
            if id(tensor) not in own and not is_finite(tensor):  # a module may return a parameter
                tensor.nan_to_num_(0., 0., 0.)
                cleared.append(name)

    try:
        if find_non_finite(iter_weights(model)):
            return True
        batch = deepcopy(batch)
        clear('the batch', None, (), batch)
        with torch.no_grad(), _hook_modules(model, clear):
            _compute_losses(runner, model, batch)
    except NAN_ERRORS:  # also that of a GPU that has failed
        return False
    return bool(cleared)


def find_bad_parts(batch: Any) -> list[str]:
    """Return which parts of a batch are not finite, such as ``gt_instances.bboxes of a.jpg``."""
    images, parts = find_image_paths(batch), []
    for path in find_non_finite(iter_tensors(batch)):
        _, _, rest = path.partition('.')
        index, _, part = rest.partition('.')
        if index.isdecimal() and int(index) < len(images):
            path = f'{part or "the image"} of {images[int(index)]}'
        parts.append(path)
    return parts


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return a model without its distributed wrapper."""
    return model.module if is_model_wrapper(model) else model


def iter_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what must be finite in a model: parameters, and running means and variances."""
    yield from model.named_parameters()
    for name, module in model.named_modules():
        if isinstance(module, _NormBase):
            yield from ((f'{name}.{key}', value) for key, value in module.named_buffers())


@contextmanager
def _hook_modules(model: nn.Module, hook: Callable[..., None]) -> Iterator[None]:
    """Context manager that calls a hook with the name, inputs and output of each module."""
    handles = [module.register_forward_hook(partial(hook, name))
               for name, module in model.named_modules()]  # yapf: disable
    try:
        with torch.compiler.set_stance('force_eager'):  # compiled blocks would call no hooks
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _compute_locally(model: nn.Module) -> Iterator[None]:
    """Context manager in which a model computes without communication between processes."""
    synchronized = [module for module in model.modules()
                    if isinstance(module, nn.SyncBatchNorm) and module.training]  # yapf: disable
    gather_model(model)
    for module in synchronized:
        module.eval()
    yield
    for module in synchronized:
        module.train()
    reshard_model(model)


def _compute_losses(runner: Runner, model: nn.Module, batch: Any) -> Any:
    with get_optim_wrappers(runner.optim_wrapper)[0].optim_context(model):
        data = model.data_preprocessor(batch, True)
        if isinstance(data, dict):
            return model(**data, mode='loss')
        return model(*data, mode='loss')
