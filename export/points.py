"""RTMDet-Ins as two graphs with suppression between them: scores of points, and dynamic masks.

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

from .detector_graphs import MAP, image_graph, maps_graph, only, overlap_of
from .graphs import ExportError, Graph, ImageSizeLimits, Size


class Points(nn.Module):
    """From an image to what RTMDet-Ins says of each point of each level."""

    def __init__(self, model: RTMDet) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """For each level ``(1, channels, h, w)``, then prototypes of masks.

        Channels are scores of ``K`` classes, then 4 distances, then ``P`` parameters.
        """
        logits, distances, kernels, prototypes = self.model.bbox_head(
            self.model.extract_feat(image))
        return (*(each.sigmoid() for each in logits), *distances, *kernels, prototypes)


class DynamicMasks(nn.Module):
    """Masks by a small network for each object, whose parameters the point has predicted."""

    def __init__(self, head: RTMDetInsHead) -> None:
        super().__init__()
        self.stride = head.prior_generator.strides[0]
        self.offset = head.prior_generator.offset
        self.weights, self.biases = list(head.weight_nums), list(head.bias_nums)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Prototypes ``(1, C, h, w)``, parameters ``(n, P)`` and points: logits ``(n, h, w)``.

        Points are x, y and the stride of their level, ``(n, 3)``.
        """
        prototypes, kernels, points = tensors
        height, width = prototypes.shape[2:]
        x = (torch.arange(width) + self.offset) * self.stride[0]
        y = (torch.arange(height) + self.offset) * self.stride[1]
        grid = torch.stack((x.expand(height, -1), y[:, None].expand(-1, width))).flatten(1)
        near = (points[:, :2, None] - grid) / (points[:, 2:, None] * 8)  # (n, 2, h * w)
        values = torch.cat((near, prototypes.flatten(2).expand(points.shape[0], -1, -1)), 1)
        parameters = kernels.split(self.weights + self.biases, 1)
        num = len(self.weights)
        for layer, (weight,
                    bias) in enumerate(zip(parameters[:num], parameters[num:], strict=True)):
            weight = weight.unflatten(1, (self.biases[layer], -1))
            values = torch.baddbmm(bias[..., None], weight, values)
            if layer < num - 1:
                values = values.relu()
        return values.unflatten(2, (height, width))[:, 0]


def point_graphs(model: RTMDet, sides: ImageSizeLimits) -> tuple[list[Graph], dict[str, Any]]:
    """The graphs of RTMDet-Ins, and what the runtime does between and behind them.

    Raises:
        ExportError: If it has a part that does what the runtime does not.
    """
    head = model.bbox_head
    only(head, RTMDetInsHead, RTMDetInsSepBNHead)
    only(head.prior_generator, MlvlPointGenerator)
    only(head.bbox_coder, DistancePointBBoxCoder)
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
        overlap=overlap_of(test_cfg.nms, 'model.test_cfg'),
        threshold=float(test_cfg.mask_thr_binary))
    return [
        image_graph('points', Points(model), sides, [*outputs, 'prototypes']),
        masks_graph(head, sides)
    ], postprocess


def masks_graph(head: RTMDetInsHead, sides: ImageSizeLimits) -> Graph:
    """The graph of :class:`DynamicMasks`."""
    stride, objects = head.prior_generator.strides[0], {0: Dim('objects', min=1)}

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        _, height, width = size
        prototypes = torch.randn(1, head.num_prototypes, height // stride[1], width // stride[0])
        points = torch.tensor([[3., 5., 1.]]) * torch.arange(1, 6)[:, None] * stride[0]
        return prototypes, torch.randn(len(points), head.num_gen_params), points

    return maps_graph('masks', DynamicMasks(head), sides, make_inputs, [MAP, objects, objects],
                      ['prototypes', 'kernels', 'points'], ['masks'])
