"""Images and label maps of a user's own data, as mmseg and mmdet would train with them."""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from mmdet.datasets import CocoDataset
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations

from colonnade.common.errors import UserError
from colonnade.datasets.custom.instance_datasets import CustomDataset
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.datasets.rle import decode_rle, encode_segmentation

MOST_CLASSES = IGNORED - 1  # of instances, beside the background
BACKGROUND = 'background'  # of instances: the class of all pixels without one
Item = TypeVar('Item')


@dataclass(frozen=True)
class Sample:
    """An image and its label map.

    Attributes:
        image: File of the image.
        label_map: Reads or paints the label map ``(H, W)``, uint8, of the image's own size.
            Label 255 is left out.
    """
    image: Path
    label_map: Callable[[], np.ndarray]


def samples_of(data: CustomDataset) -> tuple[tuple[str, ...], list[Sample], list[Sample]]:
    """Classes, training samples and validation samples of a data set.

    Of a COCO file, instances are painted into label maps. The background is a class of its own,
    the first. Small instances lie over large ones; crowds are left out.

    Raises:
        ValueError: If it has more categories than labels.
    """
    if data.ann_file and len(data.classes) > MOST_CLASSES:
        raise UserError(f'label maps have room for {MOST_CLASSES} categories, the files have '
                        f'{len(data.classes)}: name some with --classes')
    train, val = (_samples_of_split(settings, data) for settings in data.datasets)
    return ((BACKGROUND, *data.classes) if data.ann_file else data.classes), train, val


def _samples_of_split(settings: dict[str, Any], data: CustomDataset) -> list[Sample]:
    is_coco = settings['type'] == 'CocoDataset'
    kind = CocoDataset if is_coco else BaseSegDataset
    dataset = kind(
        **{
            key: value
            for key, value in settings.items() if key != 'type'
        },
        data_root=str(data.root),
        metainfo=dict(classes=data.classes),
        pipeline=[])
    read = partial(paint, masks=data.masks) if is_coco else read_label_map
    infos = map(dataset.get_data_info, range(len(dataset)))
    return [Sample(Path(info['img_path']), partial(read, info)) for info in infos]


def subset(items: Sequence[Item], most: int, seed: int) -> list[Item]:
    """At most so many of the items, drawn by the seed, in their order."""
    if len(items) <= most:
        return list(items)
    chosen = random.Random(seed).sample(range(len(items)), most)
    return [items[index] for index in sorted(chosen)]


def read_label_map(info: dict[str, Any]) -> np.ndarray:
    """The label map ``(H, W)`` of what mmseg's data set says of an image."""
    return LoadAnnotations()(dict(info))['gt_seg_map']


def paint(info: dict[str, Any], *, masks: bool) -> np.ndarray:
    """The label map ``(H, W)`` of the instances that mmdet's data set says of an image.

    Args:
        info: Size of the image and its instances.
        masks: Whether segmentations are painted, or boxes.
    """
    height, width = info['height'], info['width']
    labels = np.zeros((height, width), np.uint8)
    painted = [(_mask_of(each, height, width, masks), each) for each in info['instances']]
    painted.sort(key=lambda pair: (not pair[1]['ignore_flag'], -int(pair[0].sum())))
    for mask, instance in painted:
        labels[mask] = IGNORED if instance['ignore_flag'] else instance['bbox_label'] + 1
    return labels


def _mask_of(instance: dict[str, Any], height: int, width: int, masks: bool) -> np.ndarray:
    """Where an instance is: ``(height, width)``, bool."""
    segmentation = instance.get('mask') if masks else None
    if isinstance(segmentation, list):
        polygons = [p for p in segmentation if len(p) >= 6 and len(p) % 2 == 0]
        segmentation = polygons or None
    if segmentation is not None:
        return decode_rle(encode_segmentation(segmentation, (height, width)))
    left, top, right, bottom = (max(0, round(side)) for side in instance['bbox'])
    mask = np.zeros((height, width), bool)
    mask[top:bottom, left:right] = True
    return mask
