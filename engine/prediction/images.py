"""Image files of any kind, as the networks see images."""
from __future__ import annotations

import warnings
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

#: a path, an image of Pillow's, RGB values (H, W, 3), a file's content or an open file
Source: TypeAlias = str | Path | Image.Image | np.ndarray | bytes | BinaryIO
SUFFIXES = ('.bmp', '.gif', '.jfif', '.jpeg', '.jpg', '.pgm', '.png', '.pnm', '.ppm', '.tif',
            '.tiff', '.webp')
MAX_PIXELS = 1 << 28  # 16,384 x 16,384


class ImageError(ValueError):
    """An image that cannot be read; the message names it."""


def read_image(source: Source) -> np.ndarray:
    """An image as an array of RGB values.

    The first frame of a file, turned as its EXIF says. Gray values and palettes become colours,
    transparency is dropped, 16 bits become 8. JPEGs and PNGs have the values that mmcv reads.

    Args:
        source: See :data:`Source`.

    Returns:
        ``(H, W, 3)``, uint8.

    Raises:
        ImageError: If it is no image, is cut off, or has more than ``MAX_PIXELS`` pixels.
    """
    if isinstance(source, np.ndarray):
        return checked_array(source)
    name = name_of(source)
    try:
        if isinstance(source, Image.Image):
            return rgb_of(source)
        if isinstance(source, bytes):
            source = BytesIO(source)
        with warnings.catch_warnings():  # Pillow's limit is lower than ours and a warning at first
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)
            with Image.open(source) as image:
                return rgb_of(image)
    except ImageError as error:
        raise ImageError(f'{name}: {error}') from None
    except FileNotFoundError:
        raise ImageError(f'{name}: there is no such file') from None
    except IsADirectoryError:
        raise ImageError(f'{name} is a folder') from None
    except PermissionError:
        raise ImageError(f'{name}: reading it is not permitted') from None
    except UnidentifiedImageError:
        raise ImageError(f'{name} is no image that can be read') from None
    except Exception as error:  # decoders raise of all kinds
        raise ImageError(f'{name} cannot be decoded: {error}') from error


def name_of(source: Any) -> str:
    """What messages call an image: its path where it has one."""
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, BufferedReader):
        return str(source.name)
    return getattr(source, 'filename', '') or 'the image'


def checked_array(array: np.ndarray) -> np.ndarray:
    """Raise an ImageError for an array that holds no RGB values."""
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise ImageError('an image given as an array has shape (H, W, 3), RGB, and type uint8, '
                         f'got {array.shape} and {array.dtype}')
    return array


def rgb_of(image: Image.Image) -> np.ndarray:
    """The first frame as RGB values."""
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(f'{image.width} x {image.height} pixels are more than {MAX_PIXELS}')
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith('I;16') or image.mode == 'I':
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode == 'F':
        raise ImageError('its values are floating-point numbers, of no known range')
    return np.array(image.convert('RGB'))
