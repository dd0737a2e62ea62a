"""What detectors do with regions of images, in the form for evaluation."""
from __future__ import annotations

import sys

from torch import nn


def fuse_regions(model: nn.Module) -> list[str]:
    """Let a detector that is to be evaluated align, classify and paste regions fast.

    What it predicts stays the same to rounding. Layers that were replaced or hooked stay as they
    are.

    Args:
        model: A built model with weights, changed in place; without regions it stays as it is.

    Returns:
        A line for each kind of change.
    """
    if 'mmdet' not in sys.modules:  # which every detector has imported, and segmenters may lack
        return []
    from .region_heads import fuse_region_heads
    return fuse_region_heads(model)


def in_default_order(model: nn.Module) -> set[nn.Module]:
    """All modules of RoI heads that get regions in the default order, and may need it later on.

    Convolutions give maps in channels-last order also if their weights alone are in it.
    """
    if 'mmdet' not in sys.modules:
        return set()
    from .region_heads import needs_default_order
    return {
        module
        for head in filter(needs_default_order, model.modules())
        for module in head.modules()
    }
