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
    """What a model answers: ``'masks'``, ``'boxes'`` or ``'labels'``.

    Raises:
        ValueError: If it is a panoptic one.
    """
    if hasattr(module, 'decode_head'):
        return 'labels'
    fusion = getattr(module, 'panoptic_fusion_head', None)
    if fusion is not None:
        if not fusion.test_cfg.get('instance_on', False):
            raise UserError('the model answers things and stuff (panoptic), and no instances')
        return 'masks'
    for holder in (module, getattr(module, 'roi_head', None)):
        if getattr(holder, 'mask_head', None) is not None:
            return 'masks'
    head = getattr(module, 'bbox_head', None)
    return 'masks' if any('mask_head' in name for name, _ in named_children(head)) else 'boxes'


def named_children(module: nn.Module | None) -> list[tuple[str, nn.Module]]:
    return [] if module is None else list(module.named_children())


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
