"""Uploaded images, decoded within limits."""
from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from colonnade.datasets.bands import LoadBands
from colonnade.runtime.bit_depth import DECODER_ERRORS
from colonnade.runtime.images import TooLargeError, convert_to_rgb

from .. import ImageError

FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')  # none runs another program
MEGABYTE = 10**6


class UploadError(ImageError):
    """A broken upload; ``status`` is the HTTP status code."""
    status = 400


class UploadTooLargeError(UploadError):
    """An upload with too many bytes or pixels."""
    status = 413


class UnsupportedFormatError(UploadError):
    """An upload of another format."""
    status = 415


@dataclass(frozen=True)
class Limits:
    """Largest accepted file in bytes and image in pixels."""
    max_bytes: int = 20 * MEGABYTE
    max_pixels: int = 25 * 10**6

    def build_size_error(self) -> UploadTooLargeError:
        """Return the error for a file with more bytes."""
        return UploadTooLargeError(
            f'the file is larger than the limit of {self.max_bytes / MEGABYTE:g} MB')


def read_bands_upload(content: bytes, limits: Limits, bands: LoadBands) -> np.ndarray:
    """Decode an uploaded file to all its bands, see :func:`read_upload`."""
    try:
        return bands.read(content, limits.max_pixels)
    except TooLargeError as error:
        raise UploadTooLargeError(str(error)) from error
    except ImageError as error:
        if isinstance(error.__context__, UnidentifiedImageError):
            raise UnsupportedFormatError(
                f'the file is not a readable image ({", ".join(FORMATS)})') from None
        raise


def read_upload(content: bytes, limits: Limits, bands: LoadBands | None = None) -> np.ndarray:
    """Decode an uploaded file to RGB values, ``(H, W, 3)``, uint8, or to all its bands.

    Size and format are checked before decoding.

    Raises:
        UploadError: If the file is broken, too large or in another format.
    """
    if not content:
        raise UploadError('the file is empty')
    if len(content) > limits.max_bytes:
        raise limits.build_size_error()
    try:
        if bands:
            return read_bands_upload(content, limits, bands)
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > limits.max_pixels:
                raise UploadTooLargeError(f'the image has {image.width} x {image.height} pixels, '
                                          f'more than the limit of {limits.max_pixels}')
            return convert_to_rgb(image)
    except UnidentifiedImageError:
        raise UnsupportedFormatError(
            f'the file is not a readable image ({", ".join(FORMATS)})') from None
    except Image.DecompressionBombError:
        raise UploadTooLargeError(f'the image has more than {limits.max_pixels} pixels') from None
    except UploadError:
        raise
    except ImageError as error:
        raise UploadError(f'the image cannot be used: {error}') from error
    except DECODER_ERRORS as error:
        raise UploadError(f'the image cannot be decoded: {error}') from error
