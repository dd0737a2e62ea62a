"""Images with their annotations as the files have them."""
from __future__ import annotations

import numpy as np

from colonnade.runtime.images import read_image

from ..html_pages.scenes import Scene, clip_boxes, fit_size, resize_values
from .dataset_reader import ImageSet
from .objects import Mask, decode_mask

LARGE, TILE = 540, 260  # pixels in a page: two and four images side by side


def read_scene(data: ImageSet, index: int, max_side: int) -> Scene:
    """Return an image with all its annotations.

    Args:
        data: Set of the image.
        index: Index of the image.
        max_side: Maximum pixels of the scene's sides.

    Raises:
        OSError, ValueError: If image or label map cannot be read.
    """
    pixels = read_image(data.paths[index])
    full: tuple[int, int] = pixels.shape[:2]
    size = fit_size(full, max_side)
    small = resize_values(pixels, size, smooth=True)
    if data.objects is None:
        labels = np.minimum(data.maps[index].read(), len(data.classes))
        return Scene(small, label_map=resize_values(labels, size))
    chosen = data.objects.find_in_image(index)
    factor = np.tile([size[1] / full[1], size[0] / full[0]], 2)
    masks = [resize_mask(data.objects.masks[i], full, size) for i in chosen]
    boxes = clip_boxes(data.objects.boxes[chosen] * factor, size)
    return Scene(small, boxes, data.objects.labels[chosen], masks)


def resize_mask(mask: Mask, full: tuple[int, int], size: tuple[int, int]) -> np.ndarray | None:
    """Return a mask at another size than its image's; polygons are drawn at that size."""
    if mask is None:
        return None
    if isinstance(mask, list):
        factor = np.array([size[1] / full[1], size[0] / full[0]])
        return decode_mask([polygon * factor for polygon in mask], size)
    return resize_values(decode_mask(mask, full), size)
