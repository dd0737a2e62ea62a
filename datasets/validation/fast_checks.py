"""A proof that annotations in COCO's form keep the rules, by columns: seconds for a million."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from .coco_files import LARGEST_ID, Usage
from .segmentations import are_numbers, segmentation_fault

KEYS = ('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd')
CHUNK = 10_000  # polygons whose numbers are looked at together


def are_sound(content: dict[str, list], usage: Usage) -> bool:
    """Return True only if no annotation stops training or changes its meaning.

    Then :func:`~.coco_files.check_instances` finds nothing about annotations that has another
    effect than ``'none'``: each condition here implies the rules there, and no entry is skipped.
    What has no effect, such as a box outside of its image, is not looked for; nor are rules on
    images and categories.

    Args:
        content: Lists of the file, from :func:`~.coco_files.load_coco`.
        usage: What the file is used for.
    """
    annotations = content['annotations']
    try:
        images = {image['id']: image for image in content['images']}
        categories = {category['id'] for category in content['categories']}
        ids, of_images, of_categories, boxes, areas, crowds = ([each[key] for each in annotations]
                                                               for key in KEYS)
        return (has_types(ids + of_images + of_categories, int) and len(set(ids)) == len(ids)
                and are_numbers(ids, LARGEST_ID) and not (usage.evaluated and 0 in ids)
                and set(of_images) <= images.keys() and set(of_categories) <= categories
                and has_types(crowds, int, bool) and set(crowds) <= {0, 1}
                and has_types(boxes, list) and set(map(len, boxes)) <= {4}
                and are_numbers([*chain.from_iterable(boxes), *areas], LARGEST_ID)
                and (not usage.masks or are_masks(annotations, images, usage)))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return False


def has_types(values: Sequence[Any], *types: type) -> bool:
    """Return True if all values are exactly of one of these types."""
    return set(map(type, values)) <= set(types)


def are_masks(annotations: Sequence[dict[str, Any]], images: dict[int, Any], usage: Usage) -> bool:
    """Return True if each annotation has a segmentation, and all are sound."""
    masks = [each['segmentation'] for each in annotations]
    polygons = list(chain.from_iterable(mask for mask in masks if type(mask) is list))
    codes = [(mask, images[each['image_id']])
             for each, mask in zip(annotations, masks, strict=True) if type(mask) is dict]
    return (all(masks) and has_types(masks, list, dict) and has_types(polygons, list)
            and not (usage.scores_polygons and any(n < 6 or n % 2 for n in set(map(len, polygons))))
            and all(are_numbers(list(chain.from_iterable(polygons[start:start + CHUNK])))
                    for start in range(0, len(polygons), CHUNK))
            and not any(segmentation_fault(mask, [image['height'], image['width']], False)
                        for mask, image in codes))  # yapf: disable
