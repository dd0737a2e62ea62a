"""Image files of any kind, as the networks see images."""
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
from PIL import EpsImagePlugin, Image, ImageOps, UnidentifiedImageError

from .bit_depth import (DARK, FORMATS_OF_PAGES, NO_RANGE, advice, depth_fault, has_16_bits,
                        tiff_fault)

#: a path, an image of Pillow's, RGB values (H, W, 3), a file's content or an open file
Source: TypeAlias = str | Path | Image.Image | np.ndarray | bytes | BinaryIO
#: how names of image files end, in lower case, for training and prediction
SUFFIXES = ('.avif', '.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.pgm', '.png', '.pnm',
            '.ppm', '.tif', '.tiff', '.webp')
MAX_PIXELS = 178_956_970  # Pillow refuses larger ones: they could be made to fill the memory

# Pillow warns from half of that on; a filter for the time of a call would not be safe in threads
warnings.filterwarnings('ignore', category=Image.DecompressionBombWarning)

# Pillow would have Ghostscript run the program that an EPS file is, also of label maps in training
EpsImagePlugin.gs_binary = False


class ImageError(ValueError):
    """An image that cannot be read; the message names it."""


class _AnySize:
    """Context manager that makes Pillow open images of any size while threads are in it."""

    def __init__(self) -> None:
        self.lock, self.inside, self.limit = Lock(), 0, Image.MAX_IMAGE_PIXELS

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                Image.MAX_IMAGE_PIXELS = self.limit


any_size = _AnySize()


def read_image(source: Source, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """An image as an array of RGB values.

    The first frame of a file, turned as its EXIF says. Gray values and palettes become colours,
    transparency and colour profiles are dropped, 16 bits become 8. JPEGs and PNGs have the values
    that mmcv reads, those of CMYK to within 1.

    Args:
        source: See :data:`Source`.
        max_pixels: Largest width times height that is decoded.

    Returns:
        ``(H, W, 3)``, uint8.

    Raises:
        ImageError: If it is no image, is cut off, or has more than ``max_pixels`` pixels.
    """
    if isinstance(source, np.ndarray):
        return checked_array(source)
    name = name_of(source)
    try:
        if isinstance(source, Image.Image):
            return rgb_of(source)
        file = BytesIO(source) if isinstance(source, bytes) else source
        with any_size if max_pixels > MAX_PIXELS else nullcontext():  # reads the header only
            image = Image.open(file)
        with image:
            if image.width * image.height > max_pixels:
                raise ImageError(f'it has {image.width * image.height:,} pixels, more than '
                                 f'{max_pixels:,}: cut it up')
            return rgb_of(image)
    except ImageError as error:
        raise ImageError(f'{name}: {error}') from None
    except Image.DecompressionBombError as error:
        found = re.search(r'\((\d+) pixels\)', str(error))
        has = f'has {int(found[1]):,} pixels, more than' if found else 'has more pixels than'
        raise ImageError(f'{name} {has} {MAX_PIXELS:,}: cut it up') from None
    except FileNotFoundError:
        reason = 'images are not downloaded' if '://' in name else 'there is no such file'
        raise ImageError(f'{name}: {reason}') from None
    except IsADirectoryError:
        raise ImageError(f'{name} is a folder') from None
    except PermissionError:
        raise ImageError(f'{name}: reading it is not permitted') from None
    except UnidentifiedImageError:
        if _is_empty(source):
            raise ImageError(f'{name} is empty: 0 bytes') from None
        fault = _fault_of_tiff(source)
        if fault:
            raise ImageError(f'{name}: {fault}') from None
        raise ImageError(f'{name} is no image that can be read') from None
    except Exception as error:  # decoders raise of all kinds
        raise ImageError(f'{name} cannot be decoded: {error}') from error


def _is_empty(source: Any) -> bool:
    """Whether a file or its content has no bytes."""
    if isinstance(source, (str, Path)):
        return not Path(source).stat().st_size
    return isinstance(source, bytes) and not source


def _fault_of_tiff(source: Any) -> str | None:
    """Why a file is not read that may be a TIFF."""
    if isinstance(source, bytes):
        return tiff_fault(BytesIO(source))
    if not isinstance(source, (str, Path)):
        return None
    with open(source, 'rb') as file:
        return tiff_fault(file)


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
    """The first frame as RGB values.

    Raises:
        ImageError: If its values have no known range, or one that is far below that of 16 bits.
    """
    if fault := depth_fault(image):
        raise ImageError(fault)
    is_deep = has_16_bits(image)
    colours = eight_bits_of(turned(image))
    if is_deep and colours.max() < DARK:
        raise ImageError('its values are of 16 bits, but below 4096: as 8 bits, the image would be '
                         'black. Save it as the images of training were saved, e.g. '
                         f'{advice(4095)}')
    return colours


def eight_bits_of(image: Image.Image) -> np.ndarray:
    """RGB values of an image, the upper 8 bits of those of 16.

    Raises:
        ImageError: If its values have no known range.
    """
    if image.mode.startswith('I'):  # I;16 and its like, or I: 32 bits, of which PGM uses 16
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ImageError('its values are not of 8 or 16 bits')
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == 'F':
        raise ImageError(NO_RANGE)
    if 'transparency' in image.info:  # of single colours; Pillow has no direct way
        image = image.convert('RGBA')
    return np.array(image.convert('RGB'))


def turned(image: Image.Image) -> Image.Image:
    """An image as its EXIF says that it is to be seen; as it is, if EXIF is damaged."""
    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, struct.error, KeyError, TypeError, ValueError):
        image.load()
        return image


def num_frames(path: Path) -> int:
    """How many frames or pages a file has, of which :func:`read_image` reads the first.

    1 if those behind the first are damaged.
    """
    try:
        with Image.open(path) as image:
            if image.format in FORMATS_OF_PAGES:
                return getattr(image, 'n_frames', 1)
    except Exception:  # decoders raise of all kinds
        pass
    return 1
