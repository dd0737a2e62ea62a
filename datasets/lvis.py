"""LVIS v1 (`arXiv 1908.03195 <https://arxiv.org/abs/1908.03195>`_), read without its package."""
from __future__ import annotations

from mmdet.datasets import CocoDataset
from mmdet.datasets.lvis import LVISV1Dataset
from mmengine.registry import DATASETS

PREFIX = 'http://images.cocodataset.org/'


@DATASETS.register_module()
class LVISInstances(CocoDataset):
    """Instances of LVIS v1, whose files name the URLs of COCO's images.

    mmdet's ``LVISV1Dataset`` needs the package ``lvis``, which does not run with NumPy 2.
    """
    METAINFO = LVISV1Dataset.METAINFO

    def parse_data_info(self, raw_data_info: dict) -> dict | list[dict]:
        """Return the data of an image; its file is below ``train2017`` or ``val2017``."""
        image = raw_data_info['raw_img_info']
        image.setdefault('file_name', image.get('coco_url', '').removeprefix(PREFIX))
        return super().parse_data_info(raw_data_info)
