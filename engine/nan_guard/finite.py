"""Which tensors hold NaN or infinity."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from colonnade.common.errors import UserCodeError


class NonFiniteError(FloatingPointError, UserCodeError):
    """Training cannot go on, because weights, losses or gradients are NaN or infinite."""


def walk(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
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
        yield from walk(item, f'{path}.{key}' if path else str(key))


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors within containers, samples and boxes, with their paths."""
    return ((path, part) for path, part in walk(value) if isinstance(part, Tensor))


def images_of(batch: Any) -> list[str]:
    """Return the paths of a batch's images, ``'?'`` for those of samples that name none."""
    samples = [part for _, part in walk(batch) if isinstance(part, BaseDataElement)]
    paths = [str(each.metainfo['img_path']) for each in samples if 'img_path' in each.metainfo]
    return [path if path.isprintable() else ascii(path) for path in paths] or ['?']


def local(tensor: Tensor) -> Tensor:
    """Return what this process keeps of a tensor, without its gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm ``()`` of all values, finite only if all are; 0 of none.

    It is the fastest reduction on a CPU. Of values beyond 1e18 it may overflow.
    """
    return get_total_norm([local(tensor) for tensor in tensors if tensor.is_floating_point()])


def is_finite(tensor: Tensor) -> bool:
    """Return True if a tensor holds neither NaN nor infinity."""
    return not tensor.is_floating_point() or bool(local(tensor).isfinite().all())


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return the names of tensors that hold NaN or infinity."""
    named = list(tensors)
    if bool(norm(tensor for _, tensor in named).isfinite()):
        return []
    return [name for name, tensor in named if not is_finite(tensor)]
