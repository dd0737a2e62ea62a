"""Loading of COCO's panoptic annotations."""
from __future__ import annotations

from typing import Any

import numpy as np
from mmdet.datasets.transforms import LoadAnnotations, LoadPanopticAnnotations
from mmengine.registry import TRANSFORMS

NUM_COLORS = 256  # values of each channel


def read_segment_ids(image: np.ndarray) -> np.ndarray:
    """Convert colors ``(H, W, 3)``, RGB, to IDs of segments ``(H, W)``, int32."""
    red, green, blue = np.moveaxis(image.astype(np.int32), -1, 0)
    return red + NUM_COLORS * (green + NUM_COLORS * blue)


@TRANSFORMS.register_module()
class LoadPanopticSegments(LoadPanopticAnnotations):
    """mmdet's ``LoadPanopticAnnotations`` without panopticapi, which PyPI does not have.

    Args:
        **kwargs: Arguments of mmdet's ``LoadAnnotations``, without ``with_keypoints``.
    """

    def __init__(self, **kwargs: Any) -> None:
        LoadAnnotations.__init__(self, **dict(with_mask=True, with_seg=True) | kwargs)
        self.rgb2id = read_segment_ids
