"""Images of what looks wrong: the place in the image, and what is around it."""
from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from colonnade.inference.drawing import Color, blend
from colonnade.runtime.images import read_image

from ..html_pages.scenes import fit_size, join_images, resize_values
from .annotated_images import TILE, read_scene, resize_mask
from .dataset_reader import ImageSet
from .issues import Case
from .objects import Mask, find_extent

CONTEXT = 0.5  # sides of a box that are shown around it
MIN_CONTEXT = 24  # pixels of the image around a box
OUTSIDE = 235  # gray of what is outside of an image
MARKS: tuple[Color, Color] = ((255, 0, 255), (0, 220, 255))  # colors of the objects of a case
OPACITY = 0.25  # of masks


def draw_case(case: Case) -> Image.Image:
    """Return the image of a case; a gray one if it cannot be drawn, whose reason is listed."""
    try:
        if case.other is not None:
            return join_images([draw_plain(case.data, case.image), draw_plain(*case.other)])
        if case.objects:
            return draw_objects(case)
        image = read_scene(case.data, case.image, TILE).draw(case.data.palette)
        return mark_points(image, case) if case.points else image
    except (OSError, ValueError):
        return Image.new('RGB', (TILE, TILE // 3), (OUTSIDE, ) * 3)


def draw_plain(data: ImageSet, index: int) -> Image.Image:
    """Return an image without annotations."""
    pixels = read_image(data.paths[index])
    return Image.fromarray(resize_values(pixels, fit_size(pixels.shape, TILE), smooth=True))


def mark_points(image: Image.Image, case: Case) -> Image.Image:
    """Draw circles around points, and return the image."""
    height, width = read_image(case.data.paths[case.image]).shape[:2]
    pen = ImageDraw.Draw(image)
    for x, y in case.points:
        x, y = x * image.width / width, y * image.height / height
        pen.ellipse((x - 5, y - 5, x + 5, y + 5), outline=MARKS[0], width=2)
    return image


def draw_objects(case: Case) -> Image.Image:
    """Return the objects of a case with what is around them; outside of the image is gray."""
    objects, chosen = case.data.objects, np.array(case.objects)
    assert objects is not None
    pixels = read_image(case.data.paths[case.image])
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
            blend(small, resize_values(crop(decoded, window, 0), size), color, OPACITY)
    image = Image.fromarray(small)
    for mask, box, color in zip(masks, objects.boxes[chosen], MARKS, strict=False):
        for polygon in mask if isinstance(mask, list) else ():
            draw_line(image, (np.concatenate([polygon, polygon[:1]]) - start) * factor, color, 1)
        corners = box[[0, 1, 2, 1, 2, 3, 0, 3, 0, 1]].reshape(-1, 2)
        draw_line(image, (corners - start) * factor, color, 2)
    return image


def draw_line(image: Image.Image, points: np.ndarray, color: Color, width: int) -> None:
    """Draw a line ``(P, 2)`` with white edges, which is visible on any background."""
    pen, path = ImageDraw.Draw(image), [tuple(point) for point in points.tolist()]
    pen.line(path, (255, 255, 255), width + 2)
    pen.line(path, color, width)


def find_window(boxes: np.ndarray, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the part of an image around boxes: left, top, right, bottom; it may exceed the image.

    Args:
        boxes: ``(N, 4)``.
        size: Height and width of the image, of which at most one side more is shown around it.
    """
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    margin = np.maximum(CONTEXT * (high - low), MIN_CONTEXT)
    limits = np.array(size[::-1])
    first = (low - margin).clip(-limits, limits - 1)
    last = (high + margin).clip(1, 2 * limits)
    first = np.where(low >= 0, np.maximum(first, 0), first)  # gray only where a box reaches
    last = np.where(high <= limits, np.minimum(last, limits), last)
    last = np.maximum(last, first + 1)
    return int(first[0]), int(first[1]), int(np.ceil(last[0])), int(np.ceil(last[1]))


def crop(values: np.ndarray, window: tuple[int, int, int, int], fill: int) -> np.ndarray:
    """Return a window of an image ``(H, W)`` or ``(H, W, 3)``.

    Args:
        values: Image.
        window: Left, top, right and bottom, which may exceed the image.
        fill: Value outside of the image.
    """
    left, top, right, bottom = window
    canvas = np.full((bottom - top, right - left, *values.shape[2:]), fill, values.dtype)
    x, y = max(left, 0), max(top, 0)
    part = values[y:max(y, bottom), x:max(x, right)]
    canvas[y - top:y - top + part.shape[0], x - left:x - left + part.shape[1]] = part
    return canvas
