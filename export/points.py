"""Graphs of RTMDet-Ins: predictions at points, and dynamic masks after NMS.

Shapes: ``K`` classes, ``P`` parameters of a dynamic mask head, ``n`` objects.
"""
from __future__ import annotations

from typing import Any

import torch
from mmdet.models.dense_heads import RTMDetInsHead, RTMDetInsSepBNHead
from mmdet.models.detectors import RTMDet
from mmdet.models.task_modules.coders import DistancePointBBoxCoder
from mmdet.models.task_modules.prior_generators import MlvlPointGenerator
from torch import Tensor, nn
from torch.export import Dim

from .graphs import (MAP, ExportError, Graph, ImageSizeLimits, Size, build_image_graph,
                     build_maps_graph, get_nms_threshold, require_type)


class Points(nn.Module):
    """Predictions of RTMDet-Ins at each point of each level."""

    def __init__(self, model: RTMDet) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return scores, distances and mask parameters of each level, then mask prototypes.

        They have ``K``, 4 and ``P`` channels, ``(1, channels, h, w)``.
        """
        logits, distances, kernels, prototypes = self.model.bbox_head(
            self.model.extract_feat(image))
        return (*(each.sigmoid() for each in logits), *distances, *kernels, prototypes)


class DynamicMasks(nn.Module):
    """Masks from a small network per object, whose parameters were predicted at its point."""

    def __init__(self, head: RTMDetInsHead) -> None:
        super().__init__()
        self.stride = head.prior_generator.strides[0]
        self.offset = head.prior_generator.offset
        self.weights, self.biases = list(head.weight_nums), list(head.bias_nums)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return mask logits ``(n, h, w)`` for prototypes, parameters and points.

        Args:
            *tensors: Prototypes ``(1, C, h, w)``, parameters ``(n, P)``, and points ``(n, 3)``: x,
                y and the stride of their level.
        """
        prototypes, kernels, points = tensors
        height, width = prototypes.shape[2:]
        x = (torch.arange(width) + self.offset) * self.stride[0]
        y = (torch.arange(height) + self.offset) * self.stride[1]
        grid = torch.stack((x.expand(height, -1), y[:, None].expand(-1, width))).flatten(1)
        offsets = (points[:, :2, None] - grid) / (points[:, 2:, None] * 8)  # (n, 2, h * w)
        values = torch.cat((offsets, prototypes.flatten(2).expand(points.shape[0], -1, -1)), 1)
        parameters = kernels.split(self.weights + self.biases, 1)
        num_layers = len(self.weights)
        for layer in range(num_layers):
            weight = parameters[layer].unflatten(1, (self.biases[layer], -1))
            values = torch.baddbmm(parameters[num_layers + layer][..., None], weight, values)
            if layer < num_layers - 1:
                values = values.relu()
        return values.unflatten(2, (height, width))[:, 0]


def build_point_graphs(model: RTMDet,
                       limits: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """Return the graphs of RTMDet-Ins, and the postprocessing of the runtime.

    Raises:
        ExportError: If the runtime does not support a component.
    """
    head = model.bbox_head
    require_type(head, RTMDetInsHead, RTMDetInsSepBNHead)
    require_type(head.prior_generator, MlvlPointGenerator)
    require_type(head.bbox_coder, DistancePointBBoxCoder)
    if not head.use_sigmoid_cls:
        raise ExportError('RTMDet-Ins with softmax cannot be exported')
    strides, test_cfg = head.prior_generator.strides, head.test_cfg
    levels = range(len(strides))
    outputs = [f'{kind}{level}' for kind in ('scores', 'distances', 'kernels') for level in levels]
    postprocess = dict(
        kind='points',
        levels=[dict(stride=list(map(float, stride))) for stride in strides],
        offset=float(head.prior_generator.offset),
        clip_border=bool(head.bbox_coder.clip_border),
        nms_pre=int(test_cfg.get('nms_pre', -1)),
        least_score=float(test_cfg.get('score_thr', 0)),
        min_size=float(test_cfg.get('min_bbox_size', -1)),
        max_per_image=int(test_cfg.max_per_img),
        overlap=get_nms_threshold(test_cfg.nms, 'model.test_cfg'),
        threshold=float(test_cfg.mask_thr_binary))
    return [
        build_image_graph('points', Points(model), limits, [*outputs, 'prototypes']),
        _build_masks_graph(head, limits)
    ], postprocess


def _build_masks_graph(head: RTMDetInsHead, limits: ImageSizeLimits) -> Graph:
    stride, objects = head.prior_generator.strides[0], {0: Dim('objects', min=1)}

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        _, height, width = size
        prototypes = torch.randn(1, head.num_prototypes, height // stride[1], width // stride[0])
        points = torch.tensor([[3., 5., 1.]]) * torch.arange(1, 6)[:, None] * stride[0]
        return prototypes, torch.randn(len(points), head.num_gen_params), points

    return build_maps_graph('masks', DynamicMasks(head), limits, make_inputs,
                            [MAP, objects, objects], ['prototypes', 'kernels', 'points'], ['masks'])
