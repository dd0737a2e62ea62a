"""Drawings of instances, label maps and segments over images."""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle, get_box
from colonnade.runtime.colors import GOLDEN_RATIO

Color = tuple[int, int, int]  # red, green, blue; 0 to 255
MIN_LEGEND_WIDTH = 320  # pixels


@lru_cache
def load_font(size: int) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans, which matplotlib contains."""
    from matplotlib import font_manager  # slow to import
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), size)


def get_font_size(shape: Sequence[int]) -> int:
    """Return a font size in pixels that is legible and small relative to the image."""
    return int(np.clip(round(min(shape[:2]) / 32), 10, 28))


def blend(pixels: np.ndarray, mask: np.ndarray, color: Sequence[int], opacity: float) -> None:
    """Blend a color into the masked pixels of ``(H, W, 3)``, in place."""
    mixed = pixels[mask] * (1 - opacity) + np.asarray(color) * opacity
    pixels[mask] = mixed.round().astype(np.uint8)


def check_opacity(opacity: float) -> None:
    """Raise a UserError if an opacity is not from 0 to 1."""
    if not 0 <= opacity <= 1:
        raise UserError(f'opacity must be between 0 and 1, got {opacity}')


def draw_instances(pixels: np.ndarray,
                   boxes: np.ndarray,
                   masks: Sequence[dict[str, Any]] | None,
                   colors: Sequence[Color],
                   captions: Sequence[str] | None,
                   *,
                   opacity: float = 0.5) -> Image.Image:
    """Draw boxes ``(N, 4)``, masks (RLEs) and captions over an image, the first of them on top.

    ``pixels`` are RGB values, ``(H, W, 3)``, uint8, and are not modified.
    """
    check_opacity(opacity)
    blended = pixels.copy()
    for rle, color in reversed(list(zip(masks or (), colors, strict=masks is not None))):
        left, top, width, height = map(int, get_box(rle))
        window = slice(top, top + height), slice(left, left + width)
        blend(blended[window], decode_rle(rle)[window], color, opacity)
    image = Image.fromarray(blended)
    draw, font_size = ImageDraw.Draw(image), get_font_size(pixels.shape)
    for box, color in reversed(list(zip(boxes, colors, strict=True))):
        draw.rectangle(tuple(box), outline=color, width=max(1, font_size // 8))
    if captions is not None:
        draw_captions(image, boxes, captions, colors, font_size)
    return image


def draw_captions(image: Image.Image, boxes: np.ndarray, captions: Sequence[str],
                  colors: Sequence[Color], font_size: int) -> None:
    """Draw each caption next to its box, where it hides as little as possible of all boxes."""
    draw, font = ImageDraw.Draw(image), load_font(font_size)
    captions = [' '.join(text.split()) for text in captions]  # Pillow cannot measure line breaks.
    taken = np.empty((0, 4))  # left, top, right, bottom of earlier captions
    for box, text in zip(boxes, captions, strict=True):
        left, top, right, bottom = map(float, box)
        width, height = draw.textlength(text, font=font) + 4, font_size + 4
        corners = np.array([
            (left, top - height), (left, bottom), (right - width, top - height),
            (right - width, bottom), (right, top), (left - width, top), (left, top),
            (right - width, bottom - height), (left, bottom - height), (left, top - 2 * height),
            (left, bottom + height), (left, top - 3 * height), (left, bottom + 2 * height)
        ])  # yapf: disable
        corners = (corners.clip(None, np.array(image.size) - (width, height))).clip(0)
        ends = corners + (width, height)
        is_taken = ((corners[:, None] < taken[:, 2:]) &
                    (taken[:, :2] < ends[:, None])).all(-1).any(1)
        chosen = np.flatnonzero(~is_taken) if not is_taken.all() else np.array([0])
        hidden = np.minimum(boxes[:, 2:], ends[chosen, None]) - np.maximum(
            boxes[:, :2], corners[chosen, None])
        fractions = hidden.clip(0) / np.maximum(boxes[:, 2:] - boxes[:, :2], 1)
        best = chosen[fractions.prod(-1).sum(-1).argmin()]
        taken = np.concatenate([taken, [[*corners[best], *ends[best]]]])
    for place, text, color in reversed(list(zip(taken.tolist(), captions, colors, strict=True))):
        draw_caption(draw, place, text, color, font)


def draw_caption(draw: ImageDraw.ImageDraw, place: Sequence[float], text: str, color: Color,
                 font: ImageFont.FreeTypeFont) -> None:
    """Draw a caption; ``place`` is its left, top, right and bottom."""
    draw.rectangle(tuple(place), fill=color)
    # The relative luminance (ITU-R BT.709) decides which text color is readable.
    red, green, blue = color
    fill = 'black' if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 110 else 'white'
    middle = (place[1] + place[3]) / 2
    draw.text((place[0] + 2, middle), text, font=font, fill=fill, anchor='lm')


def draw_label_map(pixels: np.ndarray,
                   labels: np.ndarray,
                   palette: Sequence[Color],
                   *,
                   opacity: float = 0.5) -> Image.Image:
    """Draw the colors of labels ``(H, W)`` over RGB values ``(H, W, 3)``, uint8."""
    check_opacity(opacity)
    colors = np.asarray(palette, dtype=np.float32)[labels]
    mixed = pixels * np.float32(1 - opacity) + colors * np.float32(opacity)
    return Image.fromarray(mixed.round().astype(np.uint8))


def shade_color(color: Color, index: int) -> Color:
    """Return a lighter or darker shade of a class color for its object ``index``, from 0."""
    shift = 0.8 * ((index * GOLDEN_RATIO + 0.5) % 1 - 0.5)  # from -0.4, darker, to 0.4; 0 first
    target = 255 if shift > 0 else 0
    red, green, blue = (round(value + (target - value) * abs(shift)) for value in color)
    return red, green, blue


def draw_segments(pixels: np.ndarray,
                  segments: np.ndarray,
                  boxes: np.ndarray,
                  colors: Sequence[Color],
                  captions: Sequence[str] | None,
                  *,
                  opacity: float = 0.5) -> Image.Image:
    """Draw segments with white contours and captions; pixels without a segment are darkened.

    Args:
        pixels: RGB values ``(H, W, 3)``, uint8, which are not modified.
        segments: Number of the segment of each pixel ``(H, W)``, from 1; 0 for none.
        boxes: Left, top, right and bottom of each segment, ``(S, 4)``.
        colors: Color of each segment.
        captions: Caption of each segment, or None.
        opacity: Opacity of segments and contours, from 0 to 1.
    """
    drawing = np.array(draw_label_map(pixels, segments, [(0, 0, 0), *colors], opacity=opacity))
    kernel = np.ones((1 + max(1, get_font_size(pixels.shape) // 8), ) * 2)
    numbers = segments.astype(np.float32)  # OpenCV cannot dilate integers of 32 bits.
    is_contour = cv2.dilate(numbers, kernel) != cv2.erode(numbers, kernel)
    blend(drawing, is_contour, (255, 255, 255), opacity)
    image = Image.fromarray(drawing)
    if captions is not None:
        draw_segment_captions(image, segments, boxes, captions, colors)
    return image


def draw_segment_captions(image: Image.Image, segments: np.ndarray, boxes: np.ndarray,
                          captions: Sequence[str], colors: Sequence[Color]) -> None:
    """Draw captions where segments are thickest, unless a caption is larger than its segment.

    Of captions that would overlap, only that of the largest segment is drawn.
    """
    draw, font_size = ImageDraw.Draw(image), get_font_size((image.height, image.width))
    font, taken = load_font(font_size), np.empty((0, 4))
    areas = np.bincount(segments.ravel(), minlength=len(captions) + 1)[1:]
    for index in np.argsort(-areas, kind='stable').tolist():
        text = ' '.join(captions[index].split())
        size = np.array([draw.textlength(text, font=font) + 4, font_size + 4])
        if size.prod() > areas[index]:
            continue
        left, top, right, bottom = map(int, boxes[index])
        mask = segments[top:bottom, left:right] == index + 1
        distances = cv2.distanceTransform(np.pad(mask.astype(np.uint8), 1), cv2.DIST_L2, 3)
        center = np.array(cv2.minMaxLoc(distances)[3]) + (left - 1, top - 1)
        start = (center - size / 2).clip(None, np.array(image.size) - size).clip(0)
        place = np.concatenate([start, start + size])
        if not ((place[:2] < taken[:, 2:]) & (taken[:, :2] < place[2:])).all(1).any():
            taken = np.concatenate([taken, [place]])
            draw_caption(draw, place.tolist(), text, colors[index], font)


def add_legend(image: Image.Image, entries: Sequence[tuple[str, Color]]) -> Image.Image:
    """Return an image with a legend below it, at least :data:`MIN_LEGEND_WIDTH` wide."""
    font_size = get_font_size((image.height, image.width))
    font, line_height = load_font(font_size), round(font_size * 1.6)
    width = max(image.width, MIN_LEGEND_WIDTH)
    positions, x, y = [], 0., 0.
    for text, color in ((' '.join(text.split()), color) for text, color in entries):
        entry_width = line_height + font.getlength(text) + font_size
        if x and x + entry_width > width:
            x, y = 0., y + line_height
        positions.append((x, y, text, color))
        x += entry_width
    canvas = Image.new('RGB', (width, image.height + round(y) + line_height), 'white')
    canvas.paste(image, (0, 0))
    draw, margin = ImageDraw.Draw(canvas), (line_height - font_size) / 2
    for x, y, text, color in positions:
        x, y = x + margin, y + image.height + margin
        draw.rectangle((x, y, x + font_size, y + font_size), fill=color, outline='gray')
        draw.text((x + line_height, y + font_size / 2), text, font=font, fill='black', anchor='lm')
    return canvas
