"""A backbone and its pyramid as one graph: from images to maps.

Shapes: ``B`` images, ``H, W`` their height and width.
"""
from __future__ import annotations

import torch
from mmengine.config import Config
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone
from colonnade.inference import Model
from colonnade.models.columnar_parts import parts_of_ours
from colonnade.necks import Pyramid

from .exporter import ExportOptions, Plan
from .graphs import EXAMPLE, ExportError, Graph, ImageSizeLimits, images_of
from .preprocessing import preprocess_of


class Features(nn.Module):
    """Backbone and neck of a detector or segmenter; without a neck, the backbone alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.neck = getattr(model, 'neck', None)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Images ``(B, 3, H, W)`` to maps, from fine to coarse as the heads get them."""
        maps = self.backbone(image)
        return tuple(maps if self.neck is None else self.neck(maps))


def plan(model: Model, cfg: Config, options: ExportOptions) -> Plan:
    """The graph of a model's backbone and pyramid.

    Raises:
        ExportError: If the model has no backbone of ours, or it gives prefix tokens beside its maps.
    """
    module = model.module
    sides = sides_of(module)
    if getattr(module.backbone, 'return_prefix_tokens', False):
        raise ExportError('return_prefix_tokens must be False: pairs of maps and tokens are not '
                          'exported')
    features = Features(module).eval()
    graph = Graph('features', features, images_of, (sides.dims(), ), ('image', ),
                  names_of_maps(features), sides.sizes())  # yapf: disable
    return Plan('features', (graph, ), preprocess_of(model, sides))


def sides_of(module: nn.Module) -> ImageSizeLimits:
    """Which heights and widths graphs of a detector or segmenter take.

    Backbones pad images to whole patches within the graph. The coarsest level that is resampled needs
    two rows and columns: graphs are not general for one.

    Raises:
        ExportError: If the model has no backbone of ours, or its layers are packed.
    """
    backbone = getattr(module, 'backbone', None)
    if not isinstance(backbone, ColumnarBackbone):
        raise ExportError(
            f'{type(module).__name__} has no backbone of colonnade: its backbone is a '
            f'{type(backbone).__name__}')
    if fused := [type(part).__name__ for part in parts_of_ours(module) if part.fused]:
        raise ExportError(f'{", ".join(fused)} is fused, and packed weights cannot be exported: '
                          'load the model without fuse')
    strides = [part.out_strides for part in module.modules() if isinstance(part, Pyramid)]
    coarsest = max((stride for each in strides for stride in each), default=backbone.patch_size)
    coarsest = max(int(coarsest), backbone.patch_size)
    return ImageSizeLimits(multiple=1, least=2 * coarsest - backbone.patch_size + 1)


def names_of_maps(features: Features) -> tuple[str, ...]:
    """``map1``, ``map2`` ...: as many as one run gives, from fine to coarse."""
    with torch.no_grad():
        number = len(features(*images_of((1, EXAMPLE, EXAMPLE))))
    return tuple(f'map{index + 1}' for index in range(number))
