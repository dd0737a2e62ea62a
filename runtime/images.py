"""Image files of any type as RGB values."""
from __future__ import annotations

import re
import struct
import warnings
from contextlib import nullcontext
from io import BufferedReader, BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from PIL import EpsImagePlugin, Image, ImageFile, ImageOps, UnidentifiedImageError

from .bit_depth import (DARK, DECODER_ERRORS, FORMATS_OF_PAGES, NO_RANGE, find_depth_problem,
                        find_tiff_problem, has_16_bits, suggest_8_bits)

#: a path, a Pillow image, RGB values (H, W, 3), the content of a file, or an open file
Source: TypeAlias = str | Path | Image.Image | np.ndarray | bytes | BinaryIO
#: suffixes of image files in lower case, for training and prediction
SUFFIXES = ('.avif', '.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.pgm', '.png', '.pnm',
            '.ppm', '.tif', '.tiff', '.webp')
MAX_PIXELS = 178_956_970  # Pillow rejects larger images, which could fill the memory.

# Pillow warns from half of that size. A temporary filter would not be thread-safe.
warnings.filterwarnings('ignore', category=Image.DecompressionBombWarning)

# EPS files are programs, which Pillow runs with Ghostscript. Disable that, for label maps too.
EpsImagePlugin.gs_binary = False


class ImageError(ValueError):
    """An image that cannot be read; the message contains its name."""


class TooLargeError(ImageError):
    """An image with too many pixels."""


class _AnySize:
    """Context manager that lets Pillow open images of any size; threads can share it."""

    def __init__(self) -> None:
        self.lock, self.num_users, self.limit = Lock(), 0, Image.MAX_IMAGE_PIXELS

    def __enter__(self) -> None:
        with self.lock:
            if not self.num_users:
                self.limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self.num_users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.num_users -= 1
            if not self.num_users:
                Image.MAX_IMAGE_PIXELS = self.limit


any_size = _AnySize()


def read_image(source: Source, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Read an image as RGB values, ``(H, W, 3)``, uint8.

    The first frame is read and rotated according to EXIF. Gray values and palettes become colors,
    transparency and color profiles are dropped, 16 bits become 8. JPEG and PNG have the same values
    as in mmcv; CMYK differs by up to 1.

    Args:
        source: See :data:`Source`.
        max_pixels: Largest number of pixels that is decoded.

    Raises:
        ImageError: If it is not an image, is truncated, or has more than ``max_pixels`` pixels.
    """
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
            raise ImageError('expected a uint8 array of RGB values (H, W, 3), got shape '
                             f'{source.shape} and dtype {source.dtype}')
        return source
    name = get_image_name(source)
    try:
        if isinstance(source, Image.Image):
            return convert_to_rgb(source)
        file = BytesIO(source) if isinstance(source, bytes) else source
        with any_size if max_pixels > MAX_PIXELS else nullcontext(), Image.open(file) as image:
            if image.width * image.height > max_pixels:
                raise TooLargeError(f'it has {image.width * image.height:,} pixels, more than the '
                                    f'limit of {max_pixels:,}: split it into tiles')
            return convert_to_rgb(image)
    except ImageError as error:
        raise type(error)(f'{name}: {error}') from None
    except Image.DecompressionBombError as error:
        match = re.search(r'\((\d+) pixels\)', str(error))
        size = f'{int(match[1]):,} pixels, more' if match else 'more pixels'
        raise TooLargeError(f'{name} has {size} than the limit of {MAX_PIXELS:,}: split it into '
                            'tiles') from None
    except FileNotFoundError:
        reason = 'URLs are not supported' if '://' in name else 'no such file'
        raise ImageError(f'{name}: {reason}') from None
    except IsADirectoryError:
        raise ImageError(f'{name} is a folder') from None
    except PermissionError:
        raise ImageError(f'{name}: permission denied') from None
    except UnidentifiedImageError:
        raise ImageError(_explain_unidentified(source, name)) from None
    except DECODER_ERRORS as error:
        raise ImageError(f'{name} cannot be decoded: {error}') from error


def _explain_unidentified(source: Any, name: str) -> str:
    """Return an error message for a file that Pillow cannot identify."""
    problem = None
    if isinstance(source, (str, Path, bytes)):
        with BytesIO(source) if isinstance(source, bytes) else open(source, 'rb') as file:
            if not file.read(1):
                return f'{name} is empty: 0 bytes'
            problem = find_tiff_problem(file)
    return f'{name}: {problem}' if problem else f'{name} is not a readable image'


def get_image_name(source: Any) -> str:
    """Return the path of an image, or a name for messages."""
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, BufferedReader):
        return str(source.name)
    if isinstance(source, ImageFile.ImageFile) and source.filename:
        return str(source.filename)
    return 'the image'


def convert_to_rgb(image: Image.Image) -> np.ndarray:
    """Return the first frame as RGB values, the upper 8 bits of 16.

    Raises:
        ImageError: If the range of values is unknown, or far below 16 bits.
    """
    if problem := find_depth_problem(image):
        raise ImageError(problem)
    is_deep = has_16_bits(image)
    try:
        image = ImageOps.exif_transpose(image)
    except (SyntaxError, struct.error, KeyError, TypeError, ValueError):  # damaged EXIF
        image.load()
    if image.mode.startswith('I'):  # I;16, or I: 32 bits, of which PGM uses 16
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ImageError(
                f'expected pixel values from 0 to 65535, got {values.min()} to {values.max()}')
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == 'F':
        raise ImageError(NO_RANGE)
    if 'transparency' in image.info:  # Pillow cannot convert transparent palettes directly.
        image = image.convert('RGBA')
    pixels = np.array(image.convert('RGB'))
    if is_deep and pixels.max() < DARK:
        raise ImageError('its 16-bit values are all below 4096, so the image would be black '
                         'in 8 bits. Save it the same way as the training images, for example with '
                         f'{suggest_8_bits(4095)}')
    return pixels


def num_frames(path: Path) -> int:
    """Return the number of frames or pages of a file; 1 if those after the first are damaged."""
    try:
        with any_size, Image.open(path) as image:
            if image.format in FORMATS_OF_PAGES:
                return getattr(image, 'n_frames', 1)
    except DECODER_ERRORS:
        pass
    return 1
