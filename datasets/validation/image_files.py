"""Sizes of images as OpenCV decodes them, and values of label maps as Pillow does.

mmdet and mmseg load images with OpenCV, and mmseg loads label maps with Pillow.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from colonnade.common.errors import FileError, UserError
from colonnade.runtime.bands import find_band_files, read_band_size
from colonnade.runtime.bit_depth import DECODER_ERRORS, find_depth_problem, find_tiff_problem
from colonnade.runtime.images import ImageError, any_size
from colonnade.settings.findings import Finding

from ..bands import LoadBands
from ..bit_depth import ImageDepths

ORIENTATION = 0x0112  # EXIF tag; values 5 to 8 exchange width and height
UPRIGHT = 1
KNOWN_TAGS = (b'Exif\0\0', b'http://ns.adobe.com/')  # EXIF, XMP
MAX_PIXELS = 2**30  # limit of OpenCV
MAX_DECODED = 2**28  # pixels of an image that is decoded for a check, 0.8 GB
SIGNATURES = (b'\xff\xd8\xff', b'\x89PNG')  # JPEG, PNG
PNG = b'\x89PNG\r\n\x1a\n'
#: color_types of mmcv with which OpenCV ignores the EXIF orientation
UNROTATED = ('color_ignore_orientation', 'grayscale_ignore_orientation', 'unchanged')


class NotDecodedError(FileError):
    """An intact image that OpenCV does not decode, or decodes to something else."""


class OtherSizeError(UserError):
    """A label map whose size differs from its image."""


class OtherLabelsError(UserError):
    """A label map that is read with other labels than it was saved with."""


@contextmanager
def open_image(source: Path | BytesIO) -> Iterator[Image.Image]:
    """Context manager that opens an image of any size, of which Pillow has read only the header."""
    with any_size:  # a header needs no memory, and callers that decode check the size
        try:
            with Image.open(source) as image:
                yield image
        except OSError:
            raise
        except DECODER_ERRORS as error:
            raise FileError(f'{type(error).__name__}: {error}') from error


def read_image_size(path: Path,
                    depths: ImageDepths | None = None,
                    *,
                    color_type: str = 'color',
                    num_bands: int | None = None) -> tuple[int, int]:
    """Return width and height as OpenCV decodes an image, from its header where possible.

    Args:
        depths: Records bit depth and channels.
        color_type: ``color_type`` of mmcv's loading step.
        num_bands: Number of bands that :class:`.LoadBands` loads, of any depth, or 0 for any
            number. Defaults to loading it as RGB.
    """
    if any('\ud800' <= letter <= '\udfff' for letter in str(path)):  # OpenCV would crash
        raise NotDecodedError('its name is not valid UTF-8: rename it')
    if num_bands is not None:
        return _read_band_size(path, num_bands)
    try:
        with open_image(path) as image:
            size, format_name, exif = image.size, image.format, image.info.get('exif')
            if fault := find_depth_problem(image):
                raise NotDecodedError(fault)
            if depths is not None:
                depths.add(path, image)
    except UnidentifiedImageError as error:
        with path.open('rb') as file:
            raise FileError(find_tiff_problem(file) or 'it is not an image') from error
    if not cv2.haveImageReader(str(path)):
        raise NotDecodedError(f'OpenCV, which loads the images, cannot decode {format_name}: save '
                              'it as JPEG or PNG')
    if size[0] * size[1] > MAX_PIXELS:
        raise NotDecodedError(f'it has {size[0]} x {size[1]} pixels, more than the {MAX_PIXELS} '
                              'that OpenCV decodes')
    if color_type in UNROTATED:
        return size
    if format_name == 'PNG':  # EXIF data can follow the pixels
        return _decode_size(path) if _has_exif(path) else size
    segments = image.applist if isinstance(image, JpegImageFile) else []
    if not exif and any(name == 'APP1' and not content.startswith(KNOWN_TAGS)
                        for name, content in segments):
        return _decode_size(path)  # OpenCV takes this segment for EXIF data
    orientation = _read_orientation(exif) if exif else UPRIGHT
    # OpenCV rotates images of some formats only.
    if orientation is None or orientation >= 5 and format_name not in ('JPEG', 'MPO'):
        return _decode_size(path)
    return size[::-1] if orientation >= 5 else size


def read_size_of_any(path: Path) -> tuple[int, int]:
    """Return width and height of an RGB image, or else of one with any number of bands."""
    try:
        return read_image_size(path)
    except OSError:
        with suppress(OSError):
            return read_image_size(path, num_bands=0)
        raise


def _read_band_size(path: Path, num_bands: int) -> tuple[int, int]:
    with path.open('rb') as file:
        found = read_band_size(file)
    if found is None:
        try:
            with open_image(path) as image:
                number = 3 if image.mode == 'P' else len(image.getbands())
                found = (*image.size, number)
        except UnidentifiedImageError as error:
            raise FileError('it is not an image') from error
    if num_bands and found[2] != num_bands:
        raise NotDecodedError(f'it has {found[2]} bands, expected {num_bands}')
    return found[:2]


def _has_exif(path: Path) -> bool:
    """Return True if a PNG has an EXIF chunk; reads only the headers of chunks."""
    with path.open('rb', buffering=0) as file:
        file.seek(len(PNG))
        while len(head := file.read(8)) == 8 and head[4:] != b'IEND':  # length, type
            if head[4:] == b'eXIf':
                return True
            file.seek(int.from_bytes(head[:4], 'big') + 4, os.SEEK_CUR)  # content, checksum
    return False


def _read_orientation(exif: bytes) -> int | None:
    """Return the orientation, or None if the data are damaged but OpenCV may find one."""
    tags = Image.Exif()
    with suppress(Exception):  # Pillow raises errors of any type for damaged tags
        tags.load(exif)
        if (orientation := tags.get(ORIENTATION)) in range(1, 9):
            return orientation
    little, big = ORIENTATION.to_bytes(2, 'little'), ORIENTATION.to_bytes(2, 'big')
    return None if little in exif[:1000] or big in exif[:1000] else UPRIGHT


def _decode_size(path: Path) -> tuple[int, int]:
    try:
        image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise FileError(f'OpenCV cannot decode it: {error}') from error
    if image is None:
        raise FileError('OpenCV cannot decode it')
    height, width = image.shape[:2]
    return width, height


def check_header(path: Path,
                 declared: tuple[int, int] | None,
                 depths: ImageDepths | None = None,
                 *,
                 color_type: str = 'color',
                 num_bands: int | None = None) -> Finding | None:
    """Return what is wrong with an image according to its header, or None.

    Args:
        declared: Width and height in its annotations, or None.
        depths, color_type, num_bands: See :func:`read_image_size`.
    """
    try:
        size = read_image_size(path, depths, color_type=color_type, num_bands=num_bands)
        return _compare_size(path, size, declared)
    except OSError as error:
        return describe_read_error(path, error)


def check_decoded_image(path: str,
                        content: bytes,
                        declared: tuple[int, int] | None,
                        *,
                        color_type: str = 'color') -> Finding | None:
    """Return what is wrong with an image after decoding all of it, or None.

    Training decodes with OpenCV. Pillow also detects damage that OpenCV decodes to wrong colors.

    Args:
        path: Path for the message.
        declared, color_type: See :func:`check_header`.
    """
    try:
        with open_image(BytesIO(content)) as image:
            width, height = image.size
            if fault := find_depth_problem(image):
                return Finding('not-an-image', f'{path} cannot be used: {fault}')
            if width * height > MAX_DECODED:
                return Finding('large-image', f'{path} has {width} x {height} pixels')
    except OSError as error:
        if not content:
            return Finding('empty-file', f'{path} is empty: 0 bytes')
        if content.startswith(SIGNATURES):
            return Finding('damaged-image',
                           f'{path} is truncated or damaged: {_format_error(error)}')
        return Finding('not-an-image', f'{path} cannot be read: {_format_error(error)}')
    problem = ''
    try:
        with open_image(BytesIO(content)) as image:
            image.draft('L', (width // 8, height // 8))  # takes a third of the time for JPEG
            image.load()
    except OSError as error:
        problem = str(error)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION * (color_type in UNROTATED)
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    if pixels is None:
        reason = problem or 'OpenCV cannot decode it'
        return Finding('damaged-image', f'{path} is truncated or damaged: {reason}')
    if problem:
        text = f'{path} is damaged and decodes to wrong pixels: {problem}'
        return Finding('damaged-image', text, effect='meaning')
    return _compare_size(path, pixels.shape[1::-1], declared)


def check_bands(path: str, declared: tuple[int, int] | None, bands: LoadBands, *,
                is_full: bool) -> Finding | None:
    """Return what is wrong with an image of several bands, or None.

    Args:
        declared: Width and height in its annotations, or None.
        bands: Step that loads it.
        is_full: Whether to decode it; otherwise only the header of a local file is read.
    """
    try:
        if is_full or '://' in path:
            height, width = bands.read(path).shape[:2]
        else:
            expected = 0 if bands.suffixes else bands.num_bands
            for file in find_band_files(path, bands.suffixes) if bands.suffixes else [path]:
                width, height = _read_band_size(Path(file), expected)
    except OSError as error:
        return describe_read_error(path if error.filename is None else error.filename, error)
    except ImageError as error:
        is_missing = isinstance(error.__context__, FileNotFoundError)
        return Finding('missing-file' if is_missing else 'damaged-image', str(error))
    return None if bands.suffixes else _compare_size(path, (width, height), declared)


def _compare_size(path: Path | str, size: tuple[int, int],
                  declared: tuple[int, int] | None) -> Finding | None:
    if declared is None or size == declared:
        return None
    rotated = ' (rotated by its EXIF orientation)' if size == declared[::-1] else ''
    return Finding(
        'other-size', f'{path} has {size[0]} x {size[1]} pixels{rotated}, but its annotations say '
        f'{declared[0]} x {declared[1]}')


def _format_error(error: OSError) -> str:
    """Return the message of an error without the address or path of the file."""
    if isinstance(error, UnidentifiedImageError):
        return 'it is not an image'
    return error.strerror or str(error)


def describe_read_error(path: Path | str, error: OSError) -> Finding:
    """Return why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        if os.path.islink(path):
            target = os.readlink(path)
            return Finding('broken-link', f'{path} is a link to {target}, which does not exist')
        return Finding('missing-file', f'{path} does not exist')
    text = f'{path} cannot be read: {_format_error(error)}'
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
        return Finding('damaged-image', f'{path} is truncated or damaged: {_format_error(error)}')
    return Finding('not-an-image', text)


def read_labels(mask: Path, size: tuple[int, int]) -> np.ndarray:
    """Return the label map ``(H, W)``, uint8, of an image; see :func:`read_label_values`."""
    read_label_values(mask, size)
    with open_image(mask) as image:
        return np.asarray(image).astype(np.uint8)


def read_label_values(mask: Path | BytesIO, size: tuple[int, int] | None) -> frozenset[int]:
    """Return the values in a label map.

    Args:
        mask: Path or content of the label map.
        size: Width and height of its image, or None if unknown.
    """
    with open_image(mask) as image:
        format_name, (width, height) = image.format, image.size
    if format_name in ('JPEG', 'MPO'):
        raise OtherLabelsError('it is a JPEG, whose compression changes labels: save it as PNG')
    limit = 2 * (any_size.limit or MAX_PIXELS)
    if width * height > limit:
        raise UserError(f'the label map has {width} x {height} pixels, more than the {limit} that '
                        'Pillow loads for mmseg: cut it into tiles')
    if isinstance(mask, Path):
        mask = BytesIO(mask.read_bytes())  # Pillow would memory-map a file, unlike mmseg
    mask.seek(0)
    with open_image(mask) as image:
        label_map = np.asarray(image)
    if label_map.ndim != 2:
        raise UserError(f'a label map must have one channel, got {label_map.shape[2]}')
    height, width = label_map.shape
    if size is not None and size != (width, height):
        raise OtherSizeError(f'the label map has {width} x {height} pixels, but the image '
                             f'has {size[0]} x {size[1]}')
    values = np.unique(label_map)
    if not ((values >= 0) & (values <= 255)).all():
        raise OtherLabelsError(f'labels must be 0 to 255, got {values.min()} to {values.max()}: '
                               'save classes as 0 to 254, since mmseg reads 8 bits and ignores 255')
    if (values != values.astype(np.uint8)).any():
        raise OtherLabelsError('labels must be integers')
    return frozenset(values.astype(np.uint8).tolist())
