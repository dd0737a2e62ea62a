"""Annotations of mmdet's datasets in COCO format."""
from __future__ import annotations

from typing import Any


def build_coco_content(dataset: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the annotations of a dataset as a COCO file.

    IDs of images and categories are indices. Segmentations are those of the dataset, polygons or
    RLEs.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        images.append(dict(id=index, height=info.get('height'), width=info.get('width'),
                           file_name=info['img_path']))  # yapf: disable
        for item in info.get('instances') or ():
            left, top, right, bottom = map(float, item['bbox'])
            width, height = right - left, bottom - top
            annotation = dict(id=len(annotations) + 1, image_id=index, area=width * height,
                              category_id=int(item['bbox_label']), bbox=[left, top, width, height],
                              iscrowd=int(item.get('ignore_flag', 0)))  # yapf: disable
            if 'mask' in item:
                annotation['segmentation'] = item['mask']
            annotations.append(annotation)
    categories = [
        dict(id=i, name=name) for i, name in enumerate(dataset.metainfo.get('classes') or ())
    ]
    return dict(images=images, annotations=annotations, categories=categories)
