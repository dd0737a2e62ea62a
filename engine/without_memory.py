"""Models whose tensors have shapes and no memory."""
from __future__ import annotations

import copy
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import nn


def build_without_memory(model: dict[str, Any]) -> nn.Module:
    """The model of a config on torch's meta device.

    Swin, Segmenter and others look at values while they are built; these get memory for a while.

    Raises:
        TypeError: If the model cannot be built, as the registry says it; also ``KeyError`` and
            ``ValueError``.
    """
    try:
        with torch.device('meta'):
            return MODELS.build(copy.deepcopy(model))
    except RuntimeError:
        return MODELS.build(copy.deepcopy(model)).to('meta')
