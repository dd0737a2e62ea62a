"""ADE20k's panoptic annotations."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmdet.datasets.ade20k import ADE20KPanopticDataset
from mmdet.datasets.api_wrappers import COCOPanoptic
from mmengine.registry import DATASETS

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

#: names of mmdet's classes in the annotations
NAMES = {'window': 'window ', 'airplane': 'plane'}


class ThingsFirst(COCOPanoptic):
    """Panoptic annotations whose categories are numbered as mmdet's heads do: things first."""

    def get_cat_ids(self, cat_names: Sequence[str] = (), **kwargs: Any) -> list[int]:
        """Return the IDs of the categories of the given names.

        Raises:
            ValueError: If a category is missing.
        """
        ids = super().get_cat_ids(cat_names, **kwargs)
        names = {self.cats[each]['name'] for each in ids}
        if missing := [each for each in cat_names if each not in names]:
            raise UserError(
                f'the panoptic annotations of ADE20K lack categories ({format_names(missing)}): '
                'create the annotations with datasets/prepare_ade20k_pan_seg.py from Mask2Former')
        return sorted(ids, key=lambda each: not self.cats[each]['isthing'])


@DATASETS.register_module()
class ADE20KPanopticSegments(ADE20KPanopticDataset):
    """Annotations of Mask2Former's ``prepare_ade20k_pan_seg.py``.

    Files of mmdet's converter, for its ``ADE20KPanopticDataset``, have wrong boxes.
    """
    METAINFO = {
        key: tuple(NAMES.get(each, each) for each in values)
        for key, values in ADE20KPanopticDataset.METAINFO.items()
    }
    COCOAPI = ThingsFirst
