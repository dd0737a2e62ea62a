"""Common parts of detector graphs, which take one image at a time."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from .graphs import ExportError, Graph, ImageSizeLimits, Size, make_images

DYNAMIC = Dim.DYNAMIC
MAP = {2: DYNAMIC, 3: DYNAMIC}  # dynamic height and width


def build_image_graph(name: str,
                      module: nn.Module,
                      limits: ImageSizeLimits,
                      outputs: Sequence[str],
                      takes_size: bool = False) -> Graph:
    """Return a graph that takes a normalized image ``(1, 3, H, W)``.

    Args:
        name: Name of the graph.
        module: Module that takes the image.
        limits: Valid image sizes.
        outputs: Names of the outputs.
        takes_size: Whether it also takes height and width without padding, ``(2,)``.
    """

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        images = make_images(size)
        return (*images, torch.tensor([size[1] - 3, size[2] - 5])) if takes_size else images

    dims = limits.get_dims()
    shapes = [{2: dims[2], 3: dims[3]}, *[None] * takes_size]
    inputs = ['image', *['size'] * takes_size]
    return Graph(name, module.eval(), make_inputs, tuple(shapes), tuple(inputs), tuple(outputs),
                 limits.list_sizes(batch_sizes=(1, )))


def build_maps_graph(name: str, module: nn.Module, limits: ImageSizeLimits,
                     make_inputs: Callable[[Size], tuple[Tensor, ...]], shapes: Sequence[Any],
                     inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Return a graph that takes outputs of another; its module takes any number of tensors."""
    return Graph(name, module.eval(), make_inputs, (tuple(shapes), ), tuple(inputs), tuple(outputs),
                 limits.list_sizes(batch_sizes=(1, )))


def require_type(value: Any, *classes: type) -> None:
    """Raise an ExportError unless the exact type is supported; subclasses may differ."""
    if type(value) not in classes:
        names = ', '.join(cls.__name__ for cls in classes)
        raise ExportError(
            f'{type(value).__name__} cannot be exported: the runtime supports only {names}')


def get_nms_threshold(nms: Mapping[str, Any] | None, section: str) -> float:
    """Return the IoU threshold of an NMS in a config section.

    Raises:
        ExportError: If the runtime does not support the NMS.
    """
    supported = {'type', 'iou_threshold', 'split_thr'}  # split_thr changes only the order of work
    if not nms or nms.get('type', 'nms') != 'nms' or set(nms) - supported:
        raise ExportError(f'{section}.nms cannot be exported: the runtime supports only '
                          f"dict(type='nms', iou_threshold=...), got {nms}")
    return float(nms['iou_threshold'])
