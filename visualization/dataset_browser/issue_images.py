"""Drawings of images with their annotations, and close-ups of suspected issues."""
from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from colonnade.inference.drawing import Color, blend

from ..html_pages.scenes import Scene, clip_boxes, fit_size, join_images, resize_values, scale_boxes
from .dataset_reader import ImageSet
from .issues import Example
from .objects import Mask, decode_mask, find_extent

LARGE, TILE = 540, 260  # pixels of images in a page: two and four per row
CONTEXT = 0.5  # margin around a box, relative to its sides
MIN_CONTEXT = 24  # pixels of the margin
OUTSIDE = 235  # gray value outside of an image
MARKS: tuple[Color, Color] = ((255, 0, 255), (0, 220, 255))  # colors of marked objects
MASK_OPACITY = 0.25


def read_scene(data: ImageSet, index: int, max_side: int) -> Scene:
    """Return an image of at most ``max_side`` pixels per side, with all its annotations."""
    pixels = data.read_image(index)
    full: tuple[int, int] = pixels.shape[:2]
    size = fit_size(full, max_side)
    small = resize_values(pixels, size, smooth=True)
    if data.objects is None:
        labels = np.minimum(data.maps[index].read(), len(data.classes))
        return Scene(small, label_map=resize_values(labels, size))
    chosen = data.objects.find_in_image(index)
    masks = [resize_mask(data.objects.masks[i], full, size) for i in chosen]
    boxes = clip_boxes(scale_boxes(data.objects.boxes[chosen], full, size), size)
    return Scene(small, boxes, data.objects.labels[chosen], masks,
                 is_panoptic=data.num_things is not None)  # yapf: disable


def resize_mask(mask: Mask, full: tuple[int, int], size: tuple[int, int]) -> np.ndarray | None:
    """Return a mask at another size; polygons are rasterized at that size."""
    if mask is None:
        return None
    if isinstance(mask, list):
        factor = np.array([size[1] / full[1], size[0] / full[0]])
        return decode_mask([polygon * factor for polygon in mask], size)
    return resize_values(decode_mask(mask, full), size)


def draw_example(example: Example) -> Image.Image:
    """Return the drawing of an example, or a gray image if it cannot be drawn."""
    data, index = example.data, example.image
    try:
        if example.other is not None:
            return join_images([draw_plain(data, index), draw_plain(*example.other)])
        if example.objects:
            return draw_objects(example)
        image = read_scene(data, index, TILE).draw(data.palette)
        if example.points:
            height, width = data.read_image(index).shape[:2]
            pen = ImageDraw.Draw(image)
            for x, y in example.points:
                x, y = x * image.width / width, y * image.height / height
                pen.ellipse((x - 5, y - 5, x + 5, y + 5), outline=MARKS[0], width=2)
        return image
    except (OSError, ValueError):  # The error is listed among unreadable files.
        return Image.new('RGB', (TILE, TILE // 3), (OUTSIDE, ) * 3)


def draw_plain(data: ImageSet, index: int) -> Image.Image:
    """Return an image without annotations."""
    pixels = data.read_image(index)
    return Image.fromarray(resize_values(pixels, fit_size(pixels.shape, TILE), smooth=True))


def draw_objects(example: Example) -> Image.Image:
    """Return a close-up of the objects of an example."""
    objects, chosen = example.data.objects, np.array(example.objects)
    assert objects is not None
    pixels = example.data.read_image(example.image)
    full: tuple[int, int] = pixels.shape[:2]
    masks: list[Mask] = [objects.masks[index] for index in chosen]
    extents = [extent for extent in map(find_extent, masks) if extent is not None]
    window = find_window(np.stack([*objects.boxes[chosen], *extents]), full)
    canvas = crop(pixels, window, OUTSIDE)
    size = fit_size(canvas.shape, TILE, exact=True)
    start, factor = np.array(window[:2]), np.divide(size[::-1], canvas.shape[1::-1])
    small = resize_values(canvas, size, smooth=True)
    for mask, color in zip(masks, MARKS, strict=False):
        decoded = resize_mask(mask, full, full)
        if decoded is not None:
            blend(small, resize_values(crop(decoded, window, 0), size), color, MASK_OPACITY)
    image = Image.fromarray(small)
    for mask, box, color in zip(masks, objects.boxes[chosen], MARKS, strict=False):
        for polygon in mask if isinstance(mask, list) else ():
            draw_line(image, (np.concatenate([polygon, polygon[:1]]) - start) * factor, color, 1)
        corners = box[[0, 1, 2, 1, 2, 3, 0, 3, 0, 1]].reshape(-1, 2)
        draw_line(image, (corners - start) * factor, color, 2)
    return image


def draw_line(image: Image.Image, points: np.ndarray, color: Color, width: int) -> None:
    """Draw a line ``(P, 2)`` with white edges, visible on any background."""
    pen, path = ImageDraw.Draw(image), [tuple(point) for point in points.tolist()]
    pen.line(path, (255, 255, 255), width + 2)
    pen.line(path, color, width)


def find_window(boxes: np.ndarray, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a window around boxes ``(N, 4)``.

    It exceeds the image by at most one image side.
    """
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    margin = np.maximum(CONTEXT * (high - low), MIN_CONTEXT)
    limits = np.array(size[::-1])
    first = (low - margin).clip(-limits, limits - 1)
    last = (high + margin).clip(1, 2 * limits)
    # The margin of a box inside of the image ends with the image.
    first = np.where(low >= 0, np.maximum(first, 0), first)
    last = np.where(high <= limits, np.minimum(last, limits), last)
    last = np.maximum(last, first + 1)
    return int(first[0]), int(first[1]), int(np.ceil(last[0])), int(np.ceil(last[1]))


def crop(values: np.ndarray, window: tuple[int, int, int, int], fill: int) -> np.ndarray:
    """Return a window of ``(H, W)`` or ``(H, W, 3)``, filled outside of the image."""
    left, top, right, bottom = window
    canvas = np.full((bottom - top, right - left, *values.shape[2:]), fill, values.dtype)
    x, y = max(left, 0), max(top, 0)
    part = values[y:max(y, bottom), x:max(x, right)]
    canvas[y - top:y - top + part.shape[0], x - left:x - left + part.shape[1]] = part
    return canvas
