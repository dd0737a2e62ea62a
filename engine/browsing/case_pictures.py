"""Pictures of what looks wrong: the place in the image, and what is around it."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from ..prediction.drawing import Colour
from ..prediction.images import read_image
from .faults import Case
from .objects import Mask
from .scenes import TILE, Scene, annotated, mask_at, resized, shown_size
from .sets import ImageSet

CONTEXT = 1.5  # sides of a box that are shown around it
LEAST_CONTEXT = 24  # pixels of the image around a box
GROUND = 235  # gray of what is outside of an image
MARKS: tuple[Colour, Colour] = ((255, 0, 255), (0, 220, 255))  # of the objects of a case
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
    left, top, right, bottom = window_of(boxes, full)
    canvas = np.full((bottom - top, right - left, 3), GROUND, np.uint8)
    place, source = overlap((left, top, right, bottom), full)
    canvas[place] = pixels[source]
    masks: list[np.ndarray | None] = []
    for index in chosen:
        mask = mask_at(data.objects.masks[index], full, full)
        if mask is not None:
            whole = np.zeros(canvas.shape[:2], bool)
            whole[place], mask = mask[source], whole
        masks.append(mask)
    size = shown_size(canvas.shape, TILE, exact=True)
    factor = np.array([size[1] / canvas.shape[1], size[0] / canvas.shape[0]])
    shown = (boxes - [left, top, left, top]) * np.tile(factor, 2)
    scene = Scene(
        resized(canvas, size, smooth=True), sorted_sides(shown), np.arange(len(chosen)),
        [mask if mask is None else resized(mask, size) for mask in masks])
    picture = scene.draw(['', ''], MARKS, opacity=0.25)
    for index, colour in zip(chosen, MARKS, strict=False):
        outline(picture, data.objects.masks[index], np.array([left, top]), factor, colour)
    return picture


def outline(picture: Image.Image, mask: Mask, start: np.ndarray, factor: np.ndarray,
            colour: Colour) -> None:
    """Draw the polygons of a mask, of which a picture shows what lies behind ``start``."""
    for polygon in mask if isinstance(mask, list) else ():
        points = (np.concatenate([polygon, polygon[:1]]) - start) * factor
        ImageDraw.Draw(picture).line([tuple(point) for point in points.tolist()], colour)


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


def overlap(window: tuple[int, int, int, int],
            size: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Where the image is in a window, and where the window is in the image: rows and columns."""
    left, top, right, bottom = window
    x, y = max(left, 0), max(top, 0)
    end_x, end_y = max(x, min(right, size[1])), max(y, min(bottom, size[0]))
    inside = slice(y - top, end_y - top), slice(x - left, end_x - left)
    return inside, (slice(y, end_y), slice(x, end_x))
