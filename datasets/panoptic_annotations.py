"""Loading of COCO's panoptic annotations."""
from __future__ import annotations

from typing import Any

from mmdet.datasets.transforms import LoadAnnotations, LoadPanopticAnnotations
from mmengine.registry import TRANSFORMS

from .segment_maps import read_segment_ids


@TRANSFORMS.register_module()
class LoadPanopticSegments(LoadPanopticAnnotations):
    """mmdet's ``LoadPanopticAnnotations`` without panopticapi, which PyPI does not have.

    Args:
        **kwargs: Arguments of mmdet's ``LoadAnnotations``, without ``with_keypoints``.
    """

    def __init__(self, **kwargs: Any) -> None:
        LoadAnnotations.__init__(self, **dict(with_mask=True, with_seg=True) | kwargs)
        self.rgb2id = read_segment_ids
