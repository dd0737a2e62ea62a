"""Results over the images that they are of."""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle, get_box

Colour = tuple[int, int, int]  # red, green, blue: 0 to 255
LEGEND_WIDTH = 320  # a legend is at least as wide


@lru_cache
def font_of(size: int) -> ImageFont.FreeTypeFont:
    """The font of labels: DejaVu Sans, which comes with matplotlib."""
    from matplotlib import font_manager  # takes a while
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), size)


def text_size(shape: Sequence[int]) -> int:
    """The height of letters on an image, in pixels: legible, and small beside the image."""
    return int(np.clip(round(min(shape[:2]) / 32), 10, 28))


def readable_on(colour: Sequence[int]) -> str:
    """Black or white, whichever stands out (relative luminance, ITU-R BT.709)."""
    red, green, blue = colour
    return 'black' if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 110 else 'white'


def blend(pixels: np.ndarray, where: np.ndarray, colour: Sequence[int], opacity: float) -> None:
    """Lay a colour over some pixels of ``(H, W, 3)``, in place."""
    mixed = pixels[where] * (1 - opacity) + np.asarray(colour) * opacity
    pixels[where] = mixed.round().astype(np.uint8)


def check_opacity(opacity: float) -> None:
    """Raise a ValueError for what is no share."""
    if not 0 <= opacity <= 1:
        raise UserError(f'opacity is from 0 to 1, got {opacity}')


def draw_instances(pixels: np.ndarray,
                   boxes: np.ndarray,
                   masks: Sequence[dict[str, Any]] | None,
                   colours: Sequence[Colour],
                   captions: Sequence[str] | None,
                   *,
                   opacity: float = 0.5) -> Image.Image:
    """Boxes, masks and captions over an image; the first lie on top.

    Args:
        pixels: RGB values, ``(H, W, 3)``, uint8; not changed.
        boxes: Left, top, right and bottom, ``(N, 4)``.
        masks: ``N`` in COCO's run-length code; None if there are none.
        colours: ``N``.
        captions: ``N``; None if there are none.
        opacity: Of masks, from 0 to 1.

    Raises:
        ValueError: If ``opacity`` is no share.
    """
    check_opacity(opacity)
    drawn = pixels.copy()
    for code, colour in reversed(list(zip(masks or (), colours, strict=masks is not None))):
        left, top, wide, high = map(int, get_box(code))
        where = slice(top, top + high), slice(left, left + wide)
        blend(drawn[where], decode_rle(code)[where], colour, opacity)
    image = Image.fromarray(drawn)
    pen, size = ImageDraw.Draw(image), text_size(pixels.shape)
    for box, colour in reversed(list(zip(boxes, colours, strict=True))):
        pen.rectangle(tuple(box), outline=colour, width=max(1, size // 8))
    if captions is not None:
        write_captions(pen, boxes, captions, colours, size, image.size)
    return image


def write_captions(pen: ImageDraw.ImageDraw, boxes: np.ndarray, captions: Sequence[str],
                   colours: Sequence[Colour], size: int, limits: tuple[int, int]) -> None:
    """Write a caption at each box, where it hides least of the objects; the first lie on top."""
    taken: list[tuple[float, float, float, float]] = []
    font = font_of(size)
    captions = [' '.join(text.split()) for text in captions]  # Pillow cannot measure lines
    for box, text in zip(boxes, captions, strict=True):
        left, top, right, bottom = map(float, box)
        wide, high = pen.textlength(text, font=font) + 4, size + 4
        places = [(left, top - high), (left, bottom), (right - wide, top - high),
                  (right - wide, bottom), (right, top), (left - wide, top), (left, top),
                  (right - wide, bottom - high), (left, bottom - high), (left, top - 2 * high),
                  (left, bottom + high), (left, top - 3 * high), (left, bottom + 2 * high)]
        inside = [within(place, wide, high, limits) for place in places]
        free = [place for place in inside if not meets(place, wide, high, taken)] or inside[:1]
        x, y = min(free, key=lambda place: hidden_share(place, wide, high, boxes))
        taken.append((x, y, x + wide, y + high))
    for place, text, colour in reversed(list(zip(taken, captions, colours, strict=True))):
        pen.rectangle(place, fill=colour)
        middle = (place[1] + place[3]) / 2
        pen.text((place[0] + 2, middle), text, font=font, fill=readable_on(colour), anchor='lm')


def within(place: tuple[float, float], wide: float, high: float,
           limits: tuple[int, int]) -> tuple[float, float]:
    """A place moved so that a label lies on the image, its beginning above all."""
    return (max(0., min(place[0], limits[0] - wide)), max(0., min(place[1], limits[1] - high)))


def meets(place: tuple[float, float], wide: float, high: float,
          taken: Sequence[tuple[float, float, float, float]]) -> bool:
    """Whether a label would cover one of the others."""
    x, y = place
    return any(x < right and left < x + wide and y < bottom and top < y + high
               for left, top, right, bottom in taken)


def hidden_share(place: tuple[float, float], wide: float, high: float, boxes: np.ndarray) -> float:
    """Return the shares of the boxes that a label would hide, added up.

    Args:
        place: Left and top edge of the label, in pixels.
        wide: Width of the label, in pixels.
        high: Height of the label, in pixels.
        boxes: Left, top, right and bottom of each object, ``(N, 4)``.
    """
    begin = np.maximum(boxes[:, :2], place)
    end = np.minimum(boxes[:, 2:], (place[0] + wide, place[1] + high))
    sizes = np.maximum(boxes[:, 2:] - boxes[:, :2], 1)
    return float((np.maximum(end - begin, 0) / sizes).prod(axis=1).sum())


def draw_label_map(pixels: np.ndarray,
                   labels: np.ndarray,
                   palette: Sequence[Colour],
                   *,
                   opacity: float = 0.5) -> Image.Image:
    """The colours of classes over an image.

    Args:
        pixels: RGB values, ``(H, W, 3)``, uint8; not changed.
        labels: The class of each pixel, ``(H, W)``.
        palette: A colour of each class.
        opacity: Of the colours, from 0 to 1.

    Raises:
        ValueError: If ``opacity`` is no share.
    """
    check_opacity(opacity)
    colours = np.asarray(palette, dtype=np.float32)[labels]
    mixed = pixels * np.float32(1 - opacity) + colours * np.float32(opacity)
    return Image.fromarray(mixed.round().astype(np.uint8))


def with_legend(image: Image.Image, entries: Sequence[tuple[str, Colour]]) -> Image.Image:
    """An image with names beneath it, each beside its colour; taller, and wider if it is narrow."""
    size = text_size((image.height, image.width))
    font, line = font_of(size), round(size * 1.6)
    width = max(image.width, LEGEND_WIDTH)
    places, x, y = [], 0., 0.
    for text, colour in ((' '.join(text.split()), colour) for text, colour in entries):
        wide = line + font.getlength(text) + size
        if x and x + wide > width:
            x, y = 0., y + line
        places.append((x, y, text, colour))
        x += wide
    whole = Image.new('RGB', (width, image.height + round(y) + line), 'white')
    whole.paste(image, (0, 0))
    pen, edge = ImageDraw.Draw(whole), (line - size) / 2
    for x, y, text, colour in places:
        x, y = x + edge, y + image.height + edge
        pen.rectangle((x, y, x + size, y + size), fill=colour, outline='gray')
        pen.text((x + line, y + size / 2), text, font=font, fill='black', anchor='lm')
    return whole
