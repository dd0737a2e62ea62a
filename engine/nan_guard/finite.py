"""Which tensors hold NaN or infinity."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmengine.dist import all_gather_object, get_world_size
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from colonnade.common.errors import UserCodeError


class NonFiniteError(FloatingPointError, UserCodeError):
    """Training cannot go on, because weights, losses or gradients are NaN or infinite."""


def tensors_in(value: Any, path: str = '') -> Iterator[tuple[str, Tensor]]:
    """Tensors within containers, samples and boxes, with their paths: ``data_samples.0.bboxes``."""
    if isinstance(value, Tensor):
        yield path, value
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (Mapping, BaseDataElement)):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(boxes := getattr(value, 'tensor', None), Tensor):  # mmdet's BaseBoxes
        yield path, boxes
    for key, item in items:
        yield from tensors_in(item, f'{path}.{key}' if path else str(key))


def local(tensor: Tensor) -> Tensor:
    """What this process keeps of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """The 2-norm ``()`` of all values, finite only if all are; 0 of none.

    It is the fastest reduction on a CPU. Of values beyond 1e18 it may overflow.
    """
    own = [local(tensor.detach()) for tensor in tensors if tensor.is_floating_point()]
    return get_total_norm(own)


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity."""
    return not tensor.is_floating_point() or bool(local(tensor.detach()).isfinite().all())


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    named = list(tensors)
    if bool(norm(tensor for _, tensor in named).isfinite()):
        return []
    return [name for name, tensor in named if not is_finite(tensor)]


def shortened(names: list[str], number: int = 4) -> str:
    """The first names, and how many others there are."""
    rest = f' and {len(names) - number} others' if len(names) > number else ''
    return ', '.join(names[:number]) + rest


def boxes_on_cpu(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """The boxes of a batch that lie on the CPU, where looking at them takes no time."""
    for path, tensor in tensors_in(batch):
        if path.endswith('bboxes') and tensor.device.type == 'cpu':
            yield path, tensor


def number(value: Any) -> float:
    """A loss ``()`` or a number as a number."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def gathered(value: Any) -> list[Any]:
    """A value of every process, which all call this."""
    if get_world_size() == 1:
        return [value]
    return all_gather_object(value)
