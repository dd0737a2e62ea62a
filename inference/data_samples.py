"""Predictions of mmdet and mmseg as results of ours."""
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import nn

from colonnade.common.errors import UserError
from colonnade.datasets.rle import encode_masks, make_json_rle

from .results import Instances


def kind_of(module: nn.Module) -> str:
    """Return what a model predicts: ``'masks'``, ``'boxes'`` or ``'labels'``.

    Raises:
        ValueError: If it predicts panoptic segments without instances.
    """
    parts = dict(module.named_children())
    if 'decode_head' in parts:
        return 'labels'
    if 'panoptic_fusion_head' in parts:
        if not parts['panoptic_fusion_head'].test_cfg.get('instance_on', False):
            raise UserError('the model answers things and stuff (panoptic), and no instances')
        return 'masks'
    names = [*parts]
    for name in ('roi_head', 'bbox_head'):
        names += [key for key, _ in parts[name].named_children()] if name in parts else []
    return 'masks' if any('mask_head' in name for name in names) else 'boxes'


def to_instances(sample: BaseDataElement, *, with_masks: bool, **shared: Any) -> Instances:
    """Return mmdet's instances as ours, by descending score.

    Args:
        sample: Sample with ``pred_instances``.
        with_masks: Whether the model predicts masks.
        **shared: Further attributes of the instances.

    Raises:
        ImageError: If there are boxes or scores that are NaN or infinite.
    """
    predicted = sample.pred_instances
    masks = None
    if with_masks:
        codes = predicted.masks
        if isinstance(codes, torch.Tensor):
            codes = encode_masks(codes.cpu().numpy())
        masks = tuple(map(make_json_rle, codes))
    return Instances(
        size=tuple(sample.ori_shape[:2]),
        boxes=predicted.bboxes.float().cpu().numpy().reshape(-1, 4),
        scores=predicted.scores.float().cpu().numpy(),
        labels=predicted.labels.cpu().numpy().astype(np.int64),
        masks=masks,
        **shared).sorted()
