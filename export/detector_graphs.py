"""What the graphs of detectors have in common. They take one image at a time."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from .graphs import ExportError, Graph, ImageSizeLimits, Size, images_of

MOVING = Dim.DYNAMIC
MAP = {2: MOVING, 3: MOVING}  # dynamic height and width


def image_graph(name: str,
                module: nn.Module,
                sides: ImageSizeLimits,
                outputs: Sequence[str],
                sized: bool = False) -> Graph:
    """A graph of a normalised image ``(1, 3, H, W)``.

    Args:
        name: Of the graph.
        module: That takes it.
        sides: Which heights and widths it takes.
        outputs: Names of what it gives.
        sized: Whether it also takes height and width of what is not padded, ``(2,)``.
    """

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        images = images_of(size)
        return (*images, torch.tensor([size[1] - 3, size[2] - 5])) if sized else images

    dims = sides.dims()
    shapes = [{2: dims[2], 3: dims[3]}, *[None] * sized]
    inputs = ['image', *['size'] * sized]
    return Graph(name, module.eval(), make_inputs, tuple(shapes), tuple(inputs), tuple(outputs),
                 sizes_of(sides))


def maps_graph(name: str, module: nn.Module, sides: ImageSizeLimits,
               make_inputs: Callable[[Size], tuple[Tensor, ...]], shapes: Sequence[Any],
               inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """A graph of the outputs of another; its module takes any number of tensors."""
    return Graph(name, module.eval(), make_inputs, (tuple(shapes), ), tuple(inputs), tuple(outputs),
                 sizes_of(sides))


def sizes_of(sides: ImageSizeLimits) -> tuple[Size, ...]:
    """Those to verify, of one image each."""
    return tuple(size for size in sides.sizes() if size[0] == 1)


def only(what: Any, *kinds: type) -> None:
    """Refuse what is none of these classes: methods of subclasses may be others.

    Raises:
        ExportError: With the names of both.
    """
    if type(what) not in kinds:
        names = ', '.join(kind.__name__ for kind in kinds)
        raise ExportError(f'{type(what).__name__} cannot be exported: the runtime has {names}')


def overlap_of(nms: Mapping[str, Any] | None, owner: str) -> float:
    """The threshold of a suppression that the runtime has.

    Args:
        nms: As the config has it.
        owner: Where, for errors.

    Raises:
        ExportError: If it is another.
    """
    further = {'type', 'iou_threshold', 'split_thr'}  # the last changes the order of work alone
    if not nms or nms.get('type', 'nms') != 'nms' or set(nms) - further:
        raise ExportError(f"{owner}.nms cannot be exported: the runtime has dict(type='nms', "
                          f'iou_threshold=...), got {nms}')
    return float(nms['iou_threshold'])
