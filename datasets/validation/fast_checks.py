"""Whether a file in COCO's form is sound, by whole columns: seconds for a million annotations."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from .coco_files import FIELDS, LARGEST_ID, Usage
from .image_files import MOST_PIXELS
from .segmentations import NUMBERS, are_numbers, segmentation_fault

STEP = 20  # of so many segmentations, one's numbers are looked at


def is_sound(content: dict[str, list], usage: Usage) -> bool:
    """Whether no entry stops training or changes its meaning, as far as is seen fast.

    Args:
        content: Of the file, from :func:`~.coco_files.load_coco`.
        usage: What the file is used for.
    """
    try:
        images = {image['id']: image for image in content['images']}
        return (are_ids(content['images']) and are_ids(content['categories'])
                and are_ids(content['annotations']) and are_images(content['images'])
                and are_names([each['name'] for each in content['categories']])
                and are_annotations(content, images)
                and not (usage.evaluated and any(each['id'] == 0
                                                 for each in content['annotations']))
                and (not usage.masks or are_masks(content['annotations'], images, usage)))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return False


def are_ids(entries: Sequence[dict[str, Any]]) -> bool:
    """Whether all have an id of their own."""
    ids = [entry['id'] for entry in entries]
    return len(set(ids)) == len(ids) and are_whole(ids, -LARGEST_ID, LARGEST_ID)


def are_whole(values: Sequence[Any], least: int, most: int) -> bool:
    """Whether all are integers within limits."""
    return not values or (set(map(type, values)) == {int} and min(values) >= least
                          and max(values) <= most)  # yapf: disable


def are_names(values: Sequence[Any]) -> bool:
    """Whether all are texts, none empty, and each differs."""
    return set(map(type, values)) <= {str} and all(values) and len(set(values)) == len(values)


def are_images(images: Sequence[dict[str, Any]]) -> bool:
    """Whether images have names and sizes."""
    names = [image['file_name'] for image in images]
    sides = [image[side] for side in ('width', 'height') for image in images]
    return set(map(type, names)) <= {str} and all(names) and are_whole(sides, 1, MOST_PIXELS)


def are_annotations(content: dict[str, list], images: dict[int, Any]) -> bool:
    """Whether annotations have all keys, and belong to images and categories of the file."""
    found = content['annotations']
    columns = {key: [each[key] for each in found] for key in FIELDS['annotations'] if key != 'id'}
    boxes, areas = columns['bbox'], columns['area']
    categories = {each['id'] for each in content['categories']}
    return (set(columns['image_id']) <= images.keys() and set(columns['category_id']) <= categories
            and set(map(type, columns['iscrowd'])) <= {int, bool}
            and set(columns['iscrowd']) <= {0, 1} and set(map(type, boxes)) <= {list}
            and set(map(len, boxes)) <= {4} and are_finite(list(chain.from_iterable(boxes)))
            and are_finite(areas))


def are_finite(values: list[Any]) -> bool:
    """Whether all are numbers that are neither NaN nor infinite."""
    return set(map(type, values)) <= NUMBERS and bool(np.isfinite(np.array(values, float)).all())


def are_masks(annotations: Sequence[dict[str, Any]], images: dict[int, Any], usage: Usage) -> bool:
    """Whether all have segmentations of the right form, and some of them the right numbers."""
    masks = [each['segmentation'] for each in annotations]
    polygons = list(chain.from_iterable(mask for mask in masks if type(mask) is list))
    codes = [(each, mask) for each, mask in zip(annotations, masks, strict=True)
             if type(mask) is dict]  # yapf: disable
    sizes = [[images[each['image_id']][side] for side in ('height', 'width')] for each, _ in codes]
    return (all(masks) and set(map(type, masks)) <= {list, dict}
            and set(map(type, polygons)) <= {list}
            and not (usage.scores_polygons and any(n < 6 or n % 2 for n in set(map(len, polygons))))
            and all(map(are_numbers, polygons[::STEP]))
            and all(mask['size'] == size
                    for (_, mask), size in zip(codes, sizes, strict=True)) and not any(
                        segmentation_fault(mask, size, usage.scores_polygons)
                        for (_, mask), size in list(zip(codes, sizes, strict=True))[::STEP]))
