"""Files that strangers send, decoded within limits."""
from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from colonnade.runtime.images import rgb_of

from .. import ImageError

FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')  # none that starts other programs
MEGABYTE = 10**6


class UploadError(ImageError):
    """A file that is broken.

    Attributes:
        status: Of HTTP.
    """
    status = 400


class TooLarge(UploadError):
    """A file or image that is too large."""
    status = 413


class OtherKind(UploadError):
    """A file of a kind that is not accepted."""
    status = 415


@dataclass(frozen=True)
class Limits:
    """What an upload may be.

    Attributes:
        max_bytes: Of the file.
        max_pixels: Of the image.
    """
    max_bytes: int = 20 * MEGABYTE
    max_pixels: int = 25 * 10**6


def read_upload(content: bytes, limits: Limits) -> np.ndarray:
    """The image in a file; size and type are looked at before anything is decoded.

    Args:
        content: Of the file.
        limits: What is accepted.

    Returns:
        RGB values, ``(H, W, 3)``, uint8.

    Raises:
        UploadError: If it is broken; as :class:`TooLarge` or :class:`OtherKind` if it is that.
    """
    if not content:
        raise UploadError('the file is empty')
    if len(content) > limits.max_bytes:
        raise TooLarge(too_many_bytes(limits.max_bytes))
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            check_pixels(image.width, image.height, limits)
            return rgb_of(image)
    except UnidentifiedImageError:
        raise OtherKind(f'no image that can be read ({", ".join(FORMATS)})') from None
    except Image.DecompressionBombError:
        raise TooLarge(f'the image has more than {limits.max_pixels} pixels') from None
    except UploadError:
        raise
    except ImageError as error:
        raise UploadError(f'the image cannot be used: {error}') from error
    except Exception as error:  # decoders raise of all kinds
        raise UploadError(f'the image cannot be decoded: {error}') from error


def too_many_bytes(most: int) -> str:
    """What to say of a file with more bytes than are accepted."""
    return f'the file has more than the {most / MEGABYTE:g} MB that are accepted'


def check_pixels(width: int, height: int, limits: Limits) -> None:
    """Raise TooLarge for more pixels than are accepted."""
    if width * height > limits.max_pixels:
        raise TooLarge(f'the image has {width} x {height} pixels, more than the '
                       f'{limits.max_pixels} that are accepted')
