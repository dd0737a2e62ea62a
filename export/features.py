"""Export of a backbone and its pyramid as one graph: from images to feature maps.

Shapes: ``B`` images, ``H, W`` their height and width.
"""
from __future__ import annotations

import torch
from mmengine.config import Config
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone, PlainViT
from colonnade.inference import Model
from colonnade.models.fusion.full_model import find_columnar_modules
from colonnade.necks import Pyramid, ViTAdapter

from .exporter import ExportOptions, ExportPlan
from .graphs import EXAMPLE_SIDE, ExportError, Graph, ImageSizeLimits
from .preprocessing import build_preprocess


class Features(nn.Module):
    """Backbone and neck of a detector or segmenter, or only the backbone if there is no neck."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.neck = getattr(model, 'neck', None)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the feature maps that heads get for images ``(B, 3, H, W)``, finest first."""
        maps = self.backbone(image)
        return tuple(maps if self.neck is None else self.neck(maps))


def build_plan(model: Model, cfg: Config, options: ExportOptions) -> ExportPlan:
    """Return the plan of :func:`build_features_graph` for a model."""
    graph = build_features_graph(model.module)
    return ExportPlan('features', (graph, ), build_preprocess(model, get_size_limits(model.module)))


def build_features_graph(module: nn.Module) -> Graph:
    """Return the graph of the backbone and neck of a detector or segmenter.

    Raises:
        ExportError: If it has no columnar backbone, or one that returns prefix tokens.
    """
    limits, backbone = get_size_limits(module), module.backbone
    if isinstance(backbone, PlainViT) and backbone.return_prefix_tokens:
        raise ExportError('return_prefix_tokens must be False: prefix tokens cannot be exported')
    if backbone.num_query_blocks:
        raise ExportError('num_query_blocks must be 0: the last blocks of this backbone run '
                          'in the head, so the backbone outputs no feature maps')
    features = Features(module).eval()
    return Graph('features', features, limits.make_images, (limits.get_dims(), ), ('image', ),
                 list_map_names(features, limits), limits.list_sizes())  # yapf: disable


def get_size_limits(module: nn.Module) -> ImageSizeLimits:
    """Return the valid image sizes of graphs of a detector or segmenter.

    Backbones pad images to full patches within the graph. The coarsest level that is resampled
    needs two rows and columns, since graphs specialize for one.

    Raises:
        ExportError: If the model has no columnar backbone, or is fused.
    """
    backbone = getattr(module, 'backbone', None)
    if not isinstance(backbone, ColumnarBackbone):
        raise ExportError(f'{type(module).__name__} cannot be exported: expected a Colonnade '
                          f'backbone, got {type(backbone).__name__}')
    if fused := [type(part).__name__ for part in find_columnar_modules(module) if part.fused]:
        raise ExportError(f'{", ".join(fused)} is fused, and packed weights cannot be exported: '
                          'load the model without fusing it')
    necks = [part for part in module.modules() if isinstance(part, (Pyramid, ViTAdapter))]
    strides = [part.out_strides for part in necks]
    coarsest = max((stride for each in strides for stride in each), default=backbone.patch_size)
    coarsest = max(int(coarsest), backbone.patch_size)
    return ImageSizeLimits(
        multiple=1, minimum=2 * coarsest - backbone.patch_size + 1, channels=backbone.in_channels)


def list_map_names(features: Features, limits: ImageSizeLimits) -> tuple[str, ...]:
    """Return ``map1``, ``map2`` … for the feature maps, finest first."""
    with torch.no_grad():
        number = len(features(*limits.make_images((1, EXAMPLE_SIDE, EXAMPLE_SIDE))))
    return tuple(f'map{index + 1}' for index in range(number))
