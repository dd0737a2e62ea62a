"""Fast vectorized check that COCO annotations are valid: seconds for a million."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from .coco_files import MAX_ID, Usage
from .segmentations import are_numbers, find_segmentation_error

KEYS = ('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd')
CHUNK = 10_000  # polygons whose coordinates are checked together


def are_annotations_valid(content: dict[str, list], usage: Usage) -> bool:
    """Return True only if no annotation stops training or changes its meaning.

    If True, :func:`~.coco_files.check_instances` finds nothing about annotations with another
    effect than ``'none'``. Images, categories and findings without effect are not checked.

    Args:
        content: Lists of the file, from :func:`~.coco_files.load_coco`.
        usage: Use of the file.
    """
    annotations = content['annotations']
    try:
        images = {image['id']: image for image in content['images']}
        categories = {category['id'] for category in content['categories']}
        ids, image_ids, category_ids, boxes, areas, crowds = ([each[key] for each in annotations]
                                                              for key in KEYS)
        return (_have_types(ids + image_ids + category_ids, int) and len(set(ids)) == len(ids)
                and are_numbers(ids, MAX_ID) and not (usage.evaluated and 0 in ids)
                and set(image_ids) <= images.keys() and set(category_ids) <= categories
                and _have_types(crowds, int, bool) and set(crowds) <= {0, 1}
                and _have_types(boxes, list) and set(map(len, boxes)) <= {4}
                and are_numbers([*chain.from_iterable(boxes), *areas], MAX_ID)
                and (not usage.masks or _are_masks_valid(annotations, images, usage)))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return False


def _have_types(values: Sequence[Any], *types: type) -> bool:
    return set(map(type, values)) <= set(types)


def _are_masks_valid(annotations: Sequence[dict[str, Any]], images: dict[int, Any],
                     usage: Usage) -> bool:
    masks = [each['segmentation'] for each in annotations]
    polygons = list(chain.from_iterable(mask for mask in masks if type(mask) is list))
    rles = [(mask, images[each['image_id']]) for each, mask in zip(annotations, masks, strict=True)
            if type(mask) is dict]
    return (all(masks) and _have_types(masks, list, dict) and _have_types(polygons, list)
            and not (usage.scores_polygons and any(n < 6 or n % 2 for n in set(map(len, polygons))))
            and all(are_numbers(list(chain.from_iterable(polygons[start:start + CHUNK])))
                    for start in range(0, len(polygons), CHUNK))
            and not any(find_segmentation_error(mask, [image['height'], image['width']], False)
                        for mask, image in rles))  # yapf: disable
