"""Sizes of images as OpenCV decodes them, and the labels in label maps as Pillow does.

mmdet and mmseg read images with the one and mmseg reads label maps with the other.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from colonnade.common.errors import FileError, UserError
from colonnade.runtime.bit_depth import depth_fault, tiff_fault
from colonnade.runtime.images import any_size
from colonnade.settings.findings import Finding

from ..bit_depth import Depths

ORIENTATION = 0x0112  # EXIF tag; cameras' 5 to 8 are on their side
UPRIGHT = 1
BYTE_ORDERS: tuple[Literal['little', 'big'], ...] = ('little', 'big')
KNOWN_TAGS = (b'Exif\0\0', b'http://ns.adobe.com/')  # EXIF, XMP
MOST_PIXELS = 2**30  # that OpenCV decodes
MOST_DECODED = 2**28  # pixels of an image that is decoded to be checked: 0.8 GB
SIGNATURES = (b'\xff\xd8\xff', b'\x89PNG')  # of JPEG and PNG
PNG = b'\x89PNG\r\n\x1a\n'  # begins the file
#: with these color_types of mmcv, OpenCV does not turn images as their EXIF data say
NOT_TURNED = ('color_ignore_orientation', 'grayscale_ignore_orientation', 'unchanged')


class NotDecodedError(FileError):
    """An image is whole, and OpenCV does not decode it, or decodes it to something else."""


class OtherSizeError(UserError):
    """A label map is not of its image's size."""


class OtherLabelsError(UserError):
    """A label map is read, with other labels than it was saved with."""


@contextmanager
def open_image(source: Path | BytesIO) -> Iterator[Image.Image]:
    """The image, whatever its size; Pillow has read its header alone.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it cannot be read, and for all that is raised within the context.
    """
    # a header needs no memory, and who decodes looks at the size
    with any_size:
        try:
            with Image.open(source) as image:
                yield image
        except OSError:
            raise
        except Exception as error:  # decoders raise whatever a damaged file leads them to
            raise FileError(f'{type(error).__name__}: {error}') from error


def image_size(path: Path,
               depths: Depths | None = None,
               *,
               color_type: str = 'color') -> tuple[int, int]:
    """Width and height as OpenCV will decode the image, from its header where that is enough.

    Args:
        path: Of the image.
        depths: Takes what it has beyond three channels of 8 bits.
        color_type: As mmcv loads it.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it is no image that OpenCV decodes to colours.
    """
    try:
        with open_image(path) as image:
            size, kind, exif = image.size, image.format, image.info.get('exif')
            if fault := depth_fault(image):
                raise NotDecodedError(fault)
            if depths is not None:
                depths.look(path, image)
    except UnidentifiedImageError as error:
        with path.open('rb') as file:
            raise FileError(tiff_fault(file) or 'its content is no image') from error
    if any('\ud800' <= letter <= '\udfff' for letter in str(path)):  # at which OpenCV crashes
        raise NotDecodedError('its name is not in UTF-8: rename it')
    if not cv2.haveImageReader(str(path)):
        raise NotDecodedError(f'OpenCV, which loads images, does not decode {kind}: save it '
                              'as JPEG or PNG')
    if size[0] * size[1] > MOST_PIXELS:
        raise NotDecodedError(f'it has {size[0]} x {size[1]} pixels, OpenCV decodes {MOST_PIXELS}')
    if color_type in NOT_TURNED:
        return size
    if kind == 'PNG':  # EXIF data may stand behind the pixels
        return decoded_size(path) if _has_exif(path) else size
    segments = image.applist if isinstance(image, JpegImageFile) else []
    if not exif and any(name == 'APP1' and not content.startswith(KNOWN_TAGS)
                        for name, content in segments):
        return decoded_size(path)  # OpenCV takes it for EXIF data
    orientation = _orientation(exif) if exif else UPRIGHT
    # OpenCV turns images of some formats and not of others
    if orientation is None or orientation >= 5 and kind not in ('JPEG', 'MPO'):
        return decoded_size(path)
    return size[::-1] if orientation >= 5 else size


def _has_exif(path: Path) -> bool:
    """Return True if a PNG has a chunk of EXIF data; only the heads of its chunks are read."""
    with path.open('rb', buffering=0) as file:
        file.seek(len(PNG))
        while len(head := file.read(8)) == 8 and head[4:] != b'IEND':  # length, type
            if head[4:] == b'eXIf':
                return True
            file.seek(int.from_bytes(head[:4], 'big') + 4, os.SEEK_CUR)  # content, checksum
    return False


def header_fault(path: Path,
                 said: tuple[int, int] | None,
                 depths: Depths | None = None,
                 *,
                 color_type: str = 'color') -> Finding | None:
    """What is wrong with an image as far as its header tells.

    Args:
        path: Of the image.
        said: Width and height that its annotations are for, if they say so.
        depths, color_type: See :func:`image_size`.
    """
    try:
        found = image_size(path, depths, color_type=color_type)
        return said and size_fault(path, found, said)
    except OSError as error:
        return reading_fault(path, error)


def decoded_fault(path: str,
                  content: bytes,
                  said: tuple[int, int] | None,
                  *,
                  color_type: str = 'color') -> Finding | None:
    """What is wrong with an image, all of it decoded.

    OpenCV decodes for training. Pillow also notices damage that OpenCV decodes to wrong colours.

    Args:
        path: For the message.
        content: Of the file.
        said: Width and height that its annotations are for, if they say so.
        color_type: As mmcv loads it.
    """
    complaint = ''
    try:
        with open_image(BytesIO(content)) as image:
            width, height = image.size
            if fault := depth_fault(image):
                return Finding('not-an-image', f'{path} cannot be used: {fault}')
            if width * height > MOST_DECODED:
                return Finding('large-image', f'{path} has {width} x {height} pixels')
    except OSError as error:
        if not content:
            return Finding('empty-file', f'{path} is empty: 0 bytes')
        if content.startswith(SIGNATURES):
            return Finding('damaged-image',
                           f'{path} is cut off or damaged: {_without_object(error)}')
        return Finding('not-an-image', f'{path} cannot be read: {_without_object(error)}')
    try:
        with open_image(BytesIO(content)) as image:
            image.draft('L', (width // 8, height // 8))  # JPEGs in a third of the time
            image.load()
    except OSError as error:
        complaint = str(error)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION * (color_type in NOT_TURNED)
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    if pixels is None:
        why = complaint or 'OpenCV cannot decode it'
        return Finding('damaged-image', f'{path} is cut off or damaged: {why}')
    if complaint:
        text = f'{path} is damaged, and read with wrong pixels: {complaint}'
        return Finding('damaged-image', text, effect='meaning')
    return said and size_fault(path, pixels.shape[1::-1], said)


def _without_object(error: OSError) -> str:
    """An error without the address or path of what was read."""
    if isinstance(error, UnidentifiedImageError):
        return 'its content is no image'
    return error.strerror or str(error)


def size_fault(path: Path | str, found: tuple[int, int], said: tuple[int, int]) -> Finding | None:
    """That an image has another width and height than its annotations say, if so."""
    if found == said:
        return None
    turned = ' (turned as its EXIF data say)' if found == said[::-1] else ''
    return Finding(
        'other-size', f'{path} has {found[0]} x {found[1]} pixels{turned}, the file says '
        f'{said[0]} x {said[1]}')


def reading_fault(path: Path | str, error: OSError) -> Finding:
    """Why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        if os.path.islink(path):
            return Finding('broken-link', f'{path} is a link to {os.readlink(path)}: there is none')
        return Finding('missing-file', f'there is no {path}')
    text = f'{path} cannot be read: {_without_object(error)}'
    if error.errno is not None:
        return Finding('unreadable-file', text)
    try:
        with open(path, 'rb') as file:
            start = file.read(8)
    except (OSError, ValueError):
        return Finding('not-an-image', text)
    if not start:
        return Finding('empty-file', f'{text}; it is empty: 0 bytes')
    if start.startswith(SIGNATURES) and not isinstance(error, NotDecodedError):
        return Finding('damaged-image', f'{path} is cut off or damaged: {_without_object(error)}')
    return Finding('not-an-image', text)


def _orientation(exif: bytes) -> int | None:
    """That of EXIF data, 1 to 8; None if they are damaged where OpenCV may find it all the same."""
    tags = Image.Exif()
    with suppress(Exception):  # Pillow raises whatever damaged tags lead it to
        tags.load(exif)
        if (found := tags.get(ORIENTATION)) in range(1, 9):
            return found
    may_hold_it = any(ORIENTATION.to_bytes(2, order) in exif[:1000] for order in BYTE_ORDERS)
    return None if may_hold_it else UPRIGHT


def decoded_size(path: Path) -> tuple[int, int]:
    """Width and height of the image that OpenCV decodes.

    Raises:
        OSError: If it decodes none.
    """
    try:
        image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise FileError(f'OpenCV cannot decode it: {error}') from error
    if image is None:
        raise FileError('OpenCV cannot decode it')
    height, width = image.shape[:2]
    return width, height


def read_labels(mask: Path, size: tuple[int, int]) -> np.ndarray:
    """Return the label map ``(H, W)``, uint8, of an image; raise what :func:`labels_of` does."""
    labels_of(mask, size)
    with open_image(mask) as image:
        return np.asarray(image).astype(np.uint8)


def labels_of(mask: Path | BytesIO, size: tuple[int, int] | None) -> frozenset[int]:
    """The values in the label map of an image of ``size`` (width, height), if that is known.

    Raises:
        OSError: If it cannot be read.
        OtherSizeError: If it is of another size.
        ValueError: If it is no label map.
    """
    with open_image(mask) as image:
        kind, (width, height) = image.format, image.size
    if isinstance(mask, BytesIO):
        mask.seek(0)
    if kind in ('JPEG', 'MPO'):
        raise OtherLabelsError('it is a JPEG, whose compression changes labels: save it as PNG')
    limit = 2 * (any_size.limit or MOST_PIXELS)
    if width * height > limit:
        raise UserError(f'the label map has {width} x {height} pixels, and Pillow, with which '
                        f'mmseg loads it, refuses more than {limit}: cut it into parts')
    content = mask if isinstance(mask, BytesIO) else BytesIO(mask.read_bytes())
    with open_image(content) as image:  # as mmseg: Pillow maps files otherwise
        label_map = np.asarray(image)
    if label_map.ndim != 2:
        raise UserError(f'a label map has one channel, this has {label_map.shape[2]}')
    height, width = label_map.shape
    if size not in (None, (width, height)):
        assert size is not None
        raise OtherSizeError(f'the label map has {width} x {height} pixels, the image {size[0]} x '
                             f'{size[1]}')
    values = np.unique(label_map)
    if not ((values >= 0) & (values <= 255)).all():
        raise OtherLabelsError(
            f'labels must be in 0 ... 255, got {values.min()} to {values.max()}. '
            'mmseg reads 8 bits and ignores 255: save classes as 0 to 254')
    if (values != values.astype(np.uint8)).any():
        raise OtherLabelsError('labels must be whole numbers')
    return frozenset(values.astype(np.uint8).tolist())
