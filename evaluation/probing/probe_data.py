"""Images and label maps of a custom dataset, as mmseg and mmdet would train with them.

Shapes: ``H, W`` height and width of a label map, ``h, w`` the grid of patches, ``K`` classes.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from mmdet.datasets import CocoDataset
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from torch import Tensor

from colonnade.common.errors import UserError
from colonnade.datasets.custom.instance_datasets import CustomDataset
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.datasets.rle import decode_rle, encode_segmentation

MAX_CLASSES = IGNORED - 1  # instance classes, without the background
BACKGROUND = 'background'  # class of all pixels without an instance
Item = TypeVar('Item')


@dataclass(frozen=True)
class Sample:
    """Image file, and a function that reads or paints its label map."""
    image: Path
    label_map: Callable[[], np.ndarray]  # returns (H, W), uint8; 255 is ignored


def build_samples(data: CustomDataset) -> tuple[tuple[str, ...], list[Sample], list[Sample]]:
    """Return classes, training samples and validation samples of a dataset.

    Instances are painted into label maps, small ones over large ones. The background is the first
    class, and crowds are ignored.
    """
    if data.ann_file and len(data.classes) > MAX_CLASSES:
        raise UserError(f'label maps support at most {MAX_CLASSES} categories, but there are '
                        f'{len(data.classes)}: select fewer with --classes')
    train, val = (_build_split(settings, data) for settings in data.datasets)
    return ((BACKGROUND, *data.classes) if data.ann_file else data.classes), train, val


def _build_split(settings: dict[str, Any], data: CustomDataset) -> list[Sample]:
    is_coco = settings['type'] == 'CocoDataset'
    dataset_class = CocoDataset if is_coco else BaseSegDataset
    options = {key: value for key, value in settings.items() if key != 'type'}
    dataset = dataset_class(
        **options, data_root=str(data.root), metainfo=dict(classes=data.classes), pipeline=[])
    read = partial(paint_instances, masks=data.masks) if is_coco else read_label_map
    infos = map(dataset.get_data_info, range(len(dataset)))
    return [Sample(Path(info['img_path']), partial(read, info)) for info in infos]


def draw_subset(items: Sequence[Item], max_items: int, seed: int) -> list[Item]:
    """Return at most ``max_items`` random items, in their order."""
    if len(items) <= max_items:
        return list(items)
    chosen = random.Random(seed).sample(range(len(items)), max_items)
    return [items[index] for index in sorted(chosen)]


def read_label_map(info: dict[str, Any]) -> np.ndarray:
    """Return the label map ``(H, W)`` of an image, given mmseg's ``get_data_info``."""
    return LoadAnnotations()(dict(info))['gt_seg_map']


def paint_instances(info: dict[str, Any], *, masks: bool) -> np.ndarray:
    """Return the label map ``(H, W)`` of an image's segmentations or boxes."""
    height, width = info['height'], info['width']
    labels = np.zeros((height, width), np.uint8)
    painted = [(_decode_mask(each, height, width, masks), each) for each in info['instances']]
    painted.sort(key=lambda pair: (not pair[1]['ignore_flag'], -int(pair[0].sum())))
    for mask, instance in painted:
        labels[mask] = IGNORED if instance['ignore_flag'] else instance['bbox_label'] + 1
    return labels


def _decode_mask(instance: dict[str, Any], height: int, width: int, masks: bool) -> np.ndarray:
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


@dataclass(frozen=True)
class SoftLabels:
    """Share of each patch that each class covers; zeros are not stored."""
    num_patches: int  # h w
    num_classes: int  # K
    places: Tensor  # patch times K plus class, (n)
    shares: Tensor  # share of that patch, (n); less than 1 in total if pixels are unlabeled

    def to_dense(self) -> Tensor:
        """Return all shares, ``(h w, K)``."""
        shares = torch.zeros(self.num_patches * self.num_classes)
        shares[self.places] = self.shares
        return shares.view(self.num_patches, self.num_classes)

    def find_labeled(self) -> Tensor:
        """Return the indices of patches with a labeled pixel."""
        return self.places.div(self.num_classes, rounding_mode='floor').unique()


def compute_soft_labels(label_map: np.ndarray, grid: tuple[int, int],
                        num_classes: int) -> SoftLabels:
    """Return the shares of classes in each patch of a label map ``(H, W)``.

    Pixels belong to patches by their centers, and label 255 is ignored.
    """
    rows, columns = (((2 * np.arange(pixels) + 1) * patches) // (2 * pixels)
                     for pixels, patches in zip(label_map.shape, grid, strict=True))
    patch = rows[:, None] * grid[1] + columns
    is_labeled = label_map != IGNORED
    num_patches = grid[0] * grid[1]
    counts = np.bincount(
        patch[is_labeled] * num_classes + label_map[is_labeled],
        minlength=num_patches * num_classes)
    pixels = np.bincount(patch.ravel(), minlength=num_patches)
    places = counts.nonzero()[0]
    shares = counts[places] / pixels[places // num_classes]
    return SoftLabels(num_patches, num_classes, torch.from_numpy(places),
                      torch.from_numpy(shares).float())
