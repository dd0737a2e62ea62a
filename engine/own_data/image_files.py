"""Sizes of images as OpenCV decodes them, and the labels in label maps as Pillow does.

mmdet and mmseg read images with the one and mmseg reads label maps with the other.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from colonnade.runtime.depths import depth_fault, tiff_fault

from ..image_depths import Depths

ORIENTATION = 0x0112  # EXIF tag; cameras' 5 to 8 are on their side
MOST_PIXELS = 2**30  # that OpenCV decodes


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """The image, whatever its size; Pillow has read its header alone.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it cannot be read, and for all that is raised within the context.
    """
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None  # a header needs no memory, and who decodes looks at the size
    try:
        with Image.open(path) as image:
            yield image
    except OSError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise OSError(f'{type(error).__name__}: {error}') from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def image_size(path: Path, depths: Depths | None = None) -> tuple[int, int]:
    """Width and height as OpenCV will decode the image, from its header where that is enough.

    Args:
        path: Of the image.
        depths: Takes what it has beyond three channels of 8 bits.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it is no image that OpenCV decodes to colours.
    """
    try:
        with opened(path) as image:
            size, kind, exif = image.size, image.format, image.info.get('exif')
            if fault := depth_fault(image):
                raise OSError(fault)
            if depths is not None:
                depths.look(path, image)
    except UnidentifiedImageError as error:
        with path.open('rb') as file:
            raise OSError(tiff_fault(file) or str(error)) from error
    if any('\ud800' <= letter <= '\udfff' for letter in str(path)):  # at which OpenCV crashes
        raise OSError('its name is not in UTF-8: rename it')
    if not cv2.haveImageReader(str(path)):
        raise OSError(f'OpenCV, which loads images, does not decode {kind}')
    if size[0] * size[1] > MOST_PIXELS:
        raise OSError(f'it has {size[0]} x {size[1]} pixels, OpenCV decodes {MOST_PIXELS}')
    if kind == 'PNG':  # EXIF data may stand behind the pixels
        return decoded_size(path) if b'eXIf' in path.read_bytes() else size
    if not exif or not _is_sideways(exif):
        return size
    # OpenCV turns images of some formats and not of others
    return size[::-1] if kind in ('JPEG', 'MPO') else decoded_size(path)


def _is_sideways(exif: bytes) -> bool:
    tags = Image.Exif()
    try:
        tags.load(exif)
        return tags.get(ORIENTATION) in (5, 6, 7, 8)
    except Exception:  # Pillow raises whatever damaged tags lead it to; OpenCV passes over them
        return False


def decoded_size(path: Path) -> tuple[int, int]:
    """Width and height of the image that OpenCV decodes.

    Raises:
        OSError: If it decodes none.
    """
    try:
        image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise OSError(f'OpenCV cannot decode it: {error}') from error
    if image is None:
        raise OSError('OpenCV cannot decode it')
    height, width = image.shape[:2]
    return width, height


def labels_of(mask: Path, size: tuple[int, int]) -> frozenset[int]:
    """The values in the label map of an image of ``size`` (width, height).

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no label map of that size.
    """
    with opened(mask) as image:
        kind, (width, height) = image.format, image.size
    if kind in ('JPEG', 'MPO'):
        raise ValueError('it is a JPEG, whose compression changes labels: save it as PNG')
    limit = 2 * (Image.MAX_IMAGE_PIXELS or MOST_PIXELS)
    if width * height > limit:
        raise ValueError(f'the label map has {width} x {height} pixels, and Pillow, with which '
                         f'mmseg loads it, refuses more than {limit}: cut it into parts')
    with opened(mask) as image:
        label_map = np.asarray(image)
    if label_map.ndim != 2:
        raise ValueError(f'a label map has one channel, this has {label_map.shape[2]}')
    height, width = label_map.shape
    if (width, height) != size:
        raise ValueError(f'the label map has {width} x {height} pixels, the image {size[0]} x '
                         f'{size[1]}')
    values = np.unique(label_map)
    if not ((values >= 0) & (values <= 255)).all():
        raise ValueError(f'labels must be in 0 ... 255, got {values.min()} to {values.max()}. '
                         'mmseg reads 8 bits and ignores 255: save classes as 0 to 254')
    if (values != values.astype(np.uint8)).any():
        raise ValueError('labels must be whole numbers')
    return frozenset(values.astype(np.uint8).tolist())
