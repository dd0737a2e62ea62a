"""Images of any number of bands: TIFF files of any depth, and images of one file per band."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from .bit_depth import DECODER_ERRORS, has_16_bits
from .images import MAX_PIXELS, ImageError, TooLargeError, any_size, get_image_name

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPageSeries

TIFF_STARTS = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')
#: formats of other files, whose decoders run no other program
FORMATS = ('BMP', 'GIF', 'JPEG', 'JPEG2000', 'PNG', 'PPM', 'WEBP')
MAX_BANDS = 1000
NODATA = 42113  # tag of GDAL: the value of pixels without data
STRETCH = (2, 98)  # percentiles that become black and white in pictures

#: path of a file, its content, or values (H, W, N)
Source: TypeAlias = str | Path | bytes | np.ndarray


def read_bands(source: Source,
               suffixes: Sequence[str] = (),
               *,
               read: Callable[[str], bytes] | None = None,
               num_bands: int | None = None,
               max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Read all bands of an image, ``(H, W, N)``: uint8 as it is, other types as float32.

    Values that are not finite become 0, and in TIFF files those that mean no data, except in 8
    bits. Georeferences, color spaces and EXIF are ignored.

    Args:
        source: See :data:`Source`. TIFF files may have planes or pages as bands. Other files are
            read with the channels that they have.
        suffixes: Ends of the names of the files of an image, of which ``source`` is the first, such
            as ``('_B02.tif', '_B03.tif')``. Files that are smaller by an integer factor are
            enlarged.
        read: Function that returns the content of a path. Defaults to reading a local file.
        num_bands: Expected number N of bands. Files with more are not decoded.
        max_pixels: Largest number of pixels that is decoded.

    Raises:
        ImageError: If it is not an image, is truncated, has more than ``max_pixels`` pixels, or
            another number of bands.
    """
    image = _read_all(source, suffixes, read, num_bands or MAX_BANDS, max_pixels)
    if num_bands is not None and image.shape[2] != num_bands:
        raise ImageError(f'{get_image_name(source)} has {image.shape[2]} bands, expected '
                         f'{num_bands}')
    return image


def _read_all(source: Source, suffixes: Sequence[str], read: Callable[[str], bytes] | None,
              max_bands: int, max_pixels: int) -> np.ndarray:
    """Read all bands of an image, at most ``max_bands`` of a file."""
    if isinstance(source, np.ndarray):
        return to_finite(source, 'the image')
    name, read = get_image_name(source), read or (lambda path: Path(path).read_bytes())
    if not suffixes:
        content = source if isinstance(source, bytes) else _read(read, name)
        return _decode(content, name, max_bands, max_pixels)
    if isinstance(source, bytes):
        raise ImageError(f'an image of {len(suffixes)} files, {", ".join(suffixes)}, can only be '
                         'read from its path')
    paths = find_band_files(name, suffixes)
    bands = [_decode(_read(read, path), path, max_bands, max_pixels) for path in paths]
    height, width = (max(band.shape[axis] for band in bands) for axis in (0, 1))
    return np.concatenate(
        _to_common_type(
            [_enlarge(band, height, width, path) for band, path in zip(bands, paths, strict=True)]),
        axis=2)


def find_band_files(path: str, suffixes: Sequence[str]) -> list[str]:
    """Return the paths of all files of an image, given that of the first.

    Raises:
        ImageError: If the path does not end with the first suffix.
    """
    if not path.endswith(suffixes[0]):
        raise ImageError(f'{path} does not end with {suffixes[0]}, the suffix of the first of '
                         f'the {len(suffixes)} files of an image')
    return [path[:-len(suffixes[0])] + suffix for suffix in suffixes]


def read_band_size(content: bytes | BinaryIO | Path) -> tuple[int, int, int] | None:
    """Return width, height and number of bands from the header of a TIFF; None for other files."""
    from tifffile import TiffFile  # takes 0.2 s
    file: Any = BytesIO(content) if isinstance(content, bytes) else content
    try:
        with TiffFile(file) as tiff:
            return _find_series(tiff)[1]
    except DECODER_ERRORS:
        return None


def to_rgb(bands: np.ndarray, shown: Sequence[int] = (0, 1, 2)) -> np.ndarray:
    """Return three bands as colors of a picture, ``(H, W, 3)``, uint8.

    Bands that are not uint8 are stretched: their 2nd and 98th percentiles become 0 and 255.

    Args:
        bands: Image ``(H, W, N)``.
        shown: Indices of the bands for red, green and blue; the last band replaces missing ones.
    """
    picked = bands[..., [min(index, bands.shape[2] - 1) for index in shown]]
    if bands.dtype == np.uint8:
        return np.ascontiguousarray(picked)
    low, high = np.percentile(picked, STRETCH, axis=(0, 1))
    scaled = (picked - low) * (255 / np.maximum(high - low, 1e-12))
    return scaled.clip(0, 255).round().astype(np.uint8)


def to_finite(values: np.ndarray, name: str) -> np.ndarray:
    """Return values ``(H, W, N)`` as uint8 or finite float32.

    Raises:
        ImageError: If they have another shape, or are no numbers.
    """
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or not values.size or values.dtype.kind not in 'buif':
        raise ImageError(f'{name}: expected a numeric array of shape (H, W, N), got shape '
                         f'{values.shape} and dtype {values.dtype}')
    if values.dtype == np.uint8:
        return values
    with np.errstate(over='ignore'):  # of float64
        return np.nan_to_num(values.astype(np.float32), nan=0, posinf=0, neginf=0)


def _read(read: Callable[[str], bytes], path: str) -> bytes:
    try:
        return read(path)
    except FileNotFoundError:
        raise ImageError(f'{path}: no such file') from None
    except OSError as error:
        raise ImageError(f'{path}: {error.strerror or error}') from error


def _decode(content: bytes, name: str, max_bands: int, max_pixels: int) -> np.ndarray:
    """Decode a file to values ``(H, W, N)``."""
    if not content:
        raise ImageError(f'{name} is empty: 0 bytes')
    decode = _decode_tiff if content.startswith(TIFF_STARTS) else _decode_others
    try:
        values = decode(content, max_bands, max_pixels)
    except ImageError as error:
        raise type(error)(f'{name}: {error}') from None
    except UnidentifiedImageError:
        raise ImageError(f'{name} is not a readable image') from None
    except DECODER_ERRORS as error:
        hint = ' (pip install imagecodecs)' if 'imagecodecs' in str(error) else ''
        raise ImageError(f'{name} cannot be decoded: {error}{hint}') from error
    return to_finite(values, name)


def _decode_tiff(content: bytes, max_bands: int, max_pixels: int) -> np.ndarray:
    from tifffile import TiffFile
    with TiffFile(BytesIO(content)) as tiff:
        parts, (width, height, number) = _find_series(tiff)
        check_size(height, width, max_pixels)
        rows, columns = parts[0].axes.index('Y'), parts[0].axes.index('X')
        if number > max_bands:
            most = 'at most ' * (max_bands == MAX_BANDS)
            raise ImageError(f'it has {number} bands, expected {most}{max_bands}')
        values = [np.moveaxis(part.asarray(), (rows, columns), (0, 1)) for part in parts]
        nodata = tiff.pages.first.tags.valueof(NODATA, '')
    image = np.concatenate([part.reshape(height, width, -1) for part in values], axis=2)
    with suppress(TypeError, ValueError), np.errstate(over='ignore'):  # if it is not a number
        missing = float(nodata)
        if image.dtype != np.uint8:
            image[image == (image.dtype.type(missing) if image.dtype.kind == 'f' else missing)] = 0
    return image


def _find_series(tiff: TiffFile) -> tuple[list[TiffPageSeries], tuple[int, int, int]]:
    """Return the parts of a TIFF that hold its bands, and width, height and number of bands.

    Pages that were written apart are parts of their own; others, such as thumbnails, differ.
    """
    first = tiff.series[0]
    if not {'Y', 'X'} <= set(first.axes):
        raise ImageError(f'its axes are {first.axes}, not rows and columns')
    parts = [each for each in tiff.series
             if (each.shape, each.axes) == (first.shape, first.axes)]  # yapf: disable
    height, width = (first.shape[first.axes.index(axis)] for axis in 'YX')
    return parts, (width, height, len(parts) * math.prod(first.shape) // max(1, height * width))


def _decode_others(content: bytes, max_bands: int, max_pixels: int) -> np.ndarray:
    """Decode an image of at most four channels."""
    with any_size, Image.open(BytesIO(content), formats=FORMATS) as image:
        check_size(image.height, image.width, max_pixels)
        if has_16_bits(image) and not image.mode.startswith('I'):  # Pillow drops the lower 8
            raise ImageError(f'it is a 16-bit image in {image.mode}: save it as TIFF')
        return np.array(image.convert('RGB') if image.mode == 'P' else image)


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Raise a TooLargeError for an image with more than ``max_pixels`` pixels."""
    if height * width > max_pixels:
        raise TooLargeError(f'it has {height * width:,} pixels, more than the limit of '
                            f'{max_pixels:,}: split it into tiles')


def _enlarge(band: np.ndarray, height: int, width: int, path: str) -> np.ndarray:
    """Repeat the pixels of a coarser band."""
    factor = height // band.shape[0]
    if (factor * band.shape[0], factor * band.shape[1]) != (height, width):
        raise ImageError(
            f'{path} has {band.shape[1]} x {band.shape[0]} pixels, which is not an integer '
            f'fraction of the {width} x {height} of another band')
    return band if factor == 1 else band.repeat(factor, 0).repeat(factor, 1)


def _to_common_type(bands: list[np.ndarray]) -> list[np.ndarray]:
    if len({band.dtype for band in bands}) == 1:
        return bands
    return [band.astype(np.float32) for band in bands]
