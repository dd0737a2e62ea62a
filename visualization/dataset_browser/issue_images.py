"""Pictures of what looks wrong: the place in the image, and what is around it."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from colonnade.inference.drawing import Colour, blend
from colonnade.runtime.images import read_image

from .dataset_reader import ImageSet
from .issues import Case
from .objects import extent_of
from .thumbnails import TILE, annotated, mask_at, resized, shown_size

CONTEXT = 1.5  # sides of a box that are shown around it
LEAST_CONTEXT = 24  # pixels of the image around a box
GROUND = 235  # gray of what is outside of an image
MARKS: tuple[Colour, Colour] = ((255, 0, 255), (0, 220, 255))  # of the objects of a case
OPACITY = 0.25  # of masks
GAP = 6  # pixels between two images of a picture


def picture_of(case: Case) -> Image.Image:
    """A case as a picture; in its place, what keeps it from being drawn."""
    try:
        if case.beside is not None:
            return side_by_side([plain_picture(case.data, case.image), plain_picture(*case.beside)])
        if case.objects:
            return objects_picture(case)
        scene = annotated(case.data, case.image, TILE)
        picture = scene.draw(case.data.classes, case.data.palette)
        return marked(picture, case) if case.points else picture
    except (OSError, ValueError):
        return Image.new('RGB', (TILE, TILE // 3), (GROUND, ) * 3)  # the reason is in the list


def plain_picture(data: ImageSet, index: int) -> Image.Image:
    """An image without annotations."""
    pixels = read_image(data.paths[index])
    size = shown_size(pixels.shape, TILE)
    return Image.fromarray(resized(pixels, size, smooth=True))


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures in a row."""
    width = sum(picture.width + GAP for picture in pictures) - GAP
    whole = Image.new('RGB', (width, max(picture.height for picture in pictures)), 'white')
    x = 0
    for picture in pictures:
        whole.paste(picture, (x, 0))
        x += picture.width + GAP
    return whole


def marked(picture: Image.Image, case: Case) -> Image.Image:
    """A picture with circles around points."""
    height, width = read_image(case.data.paths[case.image]).shape[:2]
    pen = ImageDraw.Draw(picture)
    for x, y in case.points:
        x, y = x * picture.width / width, y * picture.height / height
        pen.ellipse((x - 5, y - 5, x + 5, y + 5), outline=MARKS[0], width=2)
    return picture


def objects_picture(case: Case) -> Image.Image:
    """Objects of a case with what is around them; what is outside of the image is gray."""
    data, chosen = case.data, np.array(case.objects)
    assert data.objects is not None
    pixels = read_image(data.paths[case.image])
    full: tuple[int, int] = pixels.shape[:2]
    boxes = data.objects.boxes[chosen]
    masked = [extent_of(data.objects.masks[index]) for index in chosen]
    extents = np.stack([*boxes, *(extent for extent in masked if extent is not None)])
    left, top, right, bottom = window = window_of(extents, full)
    canvas = cut_out(pixels, window, GROUND)
    masks = [mask_at(data.objects.masks[index], full, full) for index in chosen]
    size = shown_size(canvas.shape, TILE, exact=True)
    factor = np.array([size[1] / canvas.shape[1], size[0] / canvas.shape[0]])
    shown = (boxes - [left, top, left, top]) * np.tile(factor, 2)
    small = resized(canvas, size, smooth=True)
    for mask, colour in zip(masks, MARKS, strict=False):
        if mask is not None:
            blend(small, resized(cut_out(mask, window, 0), size), colour, OPACITY)
    picture, start = Image.fromarray(small), np.array([left, top])
    for index, box, colour in zip(chosen, sorted_sides(shown), MARKS, strict=False):
        mask = data.objects.masks[index]
        for polygon in mask if isinstance(mask, list) else ():
            line(picture, (np.concatenate([polygon, polygon[:1]]) - start) * factor, colour, 1)
        line(picture, box[[0, 1, 2, 1, 2, 3, 0, 3, 0, 1]].reshape(-1, 2), colour, 2)
    return picture


def line(picture: Image.Image, points: np.ndarray, colour: Colour, width: int) -> None:
    """Draw a line ``(P, 2)`` with white edges, which is seen on any ground."""
    pen, path = ImageDraw.Draw(picture), [tuple(point) for point in points.tolist()]
    pen.line(path, (255, 255, 255), width + 2)
    pen.line(path, colour, width)


def sorted_sides(boxes: np.ndarray) -> np.ndarray:
    """Boxes that Pillow draws: left before right, top before bottom."""
    return np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]),
         np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


def window_of(boxes: np.ndarray, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The part of an image around boxes: left, top, right, bottom; it may be larger than that.

    Args:
        boxes: ``(N, 4)``.
        size: Height and width of the image, of which at most one side more is shown around it.
    """
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    around = np.maximum((CONTEXT - 1) * (high - low), LEAST_CONTEXT)
    limits = np.array(size[::-1])
    first, last = (low - around).clip(-limits, limits - 1), (high + around).clip(1, 2 * limits)
    first = np.where(low >= 0, np.maximum(first, 0), first)  # gray only where a box reaches
    last = np.where(high <= limits, np.minimum(last, limits), last)
    last = np.maximum(last, first + 1)
    return int(first[0]), int(first[1]), int(np.ceil(last[0])), int(np.ceil(last[1]))


def cut_out(values: np.ndarray, window: tuple[int, int, int, int], ground: int) -> np.ndarray:
    """A window of an image ``(H, W)`` or ``(H, W, 3)``.

    Args:
        values: The image.
        window: Left, top, right and bottom, which may lie outside.
        ground: What is outside.
    """
    left, top, right, bottom = window
    canvas = np.full((bottom - top, right - left, *values.shape[2:]), ground, values.dtype)
    x, y = max(left, 0), max(top, 0)
    part = values[y:max(y, bottom), x:max(x, right)]
    canvas[y - top:y - top + part.shape[0], x - left:x - left + part.shape[1]] = part
    return canvas
