"""Images that are not three channels of 8 bits, and why some cannot be converted."""
from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import IO, BinaryIO

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile

DARK = 16  # largest value, of 255, of 12-bit images that are read as 16 bits
BITS, COMPRESSION, PHOTOMETRIC, SAMPLES, PLANES = 258, 259, 262, 277, 284  # TIFF tags
EXTRA, FORMAT = 338, 339  # TIFF tags
JPEG = (6, 7)  # values of COMPRESSION
INVERTED, GRAY, COLOR, YCBCR = 0, (0, 1), 2, 6  # values of PHOTOMETRIC
READABLE = (*GRAY, COLOR, 3, 5)  # also with palettes and CMYK
SEPARATE = 2  # value of PLANES
ALPHA = (1, 2)  # values of EXTRA
SIGNED, FLOAT = 2, 3  # values of FORMAT
CODESTREAM = b'\xff\x4f\xff\x51'  # start of the pixels of JPEG 2000
NUM_CHANNELS, DEPTHS = 36, 38  # offsets after CODESTREAM
FORMATS_OF_PAGES = ('GIF', 'PNG', 'TIFF', 'WEBP')  # In other formats, further pages are previews.
#: what Pillow raises for damaged files, whose values its decoders use unchecked
DECODER_ERRORS = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError,
                  MemoryError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
                  Image.DecompressionBombError, struct.error, zlib.error)
EIGHT_BITS = 'save it as 8 bits, with the same value range for all images'
NO_RANGE = f'its values are floating-point numbers of unknown range: {EIGHT_BITS}'

Tags = ImageFileDirectory_v2 | dict


def suggest_8_bits(highest: int) -> str:
    """Return code that saves images with values up to ``highest`` as 8 bits."""
    top = (1 << highest.bit_length()) - 1
    return ("cv2.imwrite('new.png', cv2.convertScaleAbs(cv2.imread('old.png', -1), "
            f'alpha=255/{top})), using the same intensity range for all images')


def find_depth_problem(image: Image.Image) -> str | None:
    """Return why training and prediction would see different 8-bit colors; None if they do not.

    Args:
        image: Image that Pillow has opened, but not loaded.
    """
    if isinstance(image, TiffImageFile):
        return _find_tag_problem(lambda: image.tag_v2)
    if not isinstance(image, ImageFile) or not image.tile:
        return None
    settings = image.tile[0][3]
    if image.mode == 'F':
        return NO_RANGE
    if image.format == 'PPM' and isinstance(settings, tuple) and settings[-1] not in (255, 65535):
        return f'its largest value is {settings[-1]}, not 255 or 65535: {EIGHT_BITS}'
    if image.format == 'JPEG2000' and image.fp and (bits := _count_jpeg_2000_bits(image.fp)) > 8:
        return f'it is a JPEG 2000 of {bits} bits: {EIGHT_BITS}'
    return None


def _count_jpeg_2000_bits(file: IO[bytes]) -> int:
    """Return the largest number of bits of a channel; 0 if the header does not contain it."""
    position = file.tell()
    file.seek(0)
    _, codestream, header = file.read().partition(CODESTREAM)
    file.seek(position)
    channels = int.from_bytes(header[NUM_CHANNELS:DEPTHS], 'big') if codestream else 0
    return max(((depth & 127) + 1 for depth in header[DEPTHS:DEPTHS + 3 * channels:3]), default=0)


def find_tiff_problem(file: BinaryIO) -> str | None:
    """Return the depth problem of a file that Pillow cannot open; None if it is not a TIFF."""
    return _find_tag_problem(lambda: _read_tags(file))


def _read_tags(file: BinaryIO) -> Tags:
    """Read the tags of a TIFF's first page; none if the file is not a TIFF."""
    file.seek(0)
    header = file.read(8)
    if header[:4] not in (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+'):
        return {}
    if b'+' in header[:4]:  # BigTIFF, for more than 4 GB
        header += file.read(8)
    tags = ImageFileDirectory_v2(header)
    file.seek(tags.next)
    tags.load(file)
    return tags


def _find_tag_problem(read_tags: Callable[[], Tags]) -> str | None:
    try:
        tags = read_tags()
        return _find_value_problem(tags) or _find_color_problem(tags) if tags else None
    except DECODER_ERRORS:  # The decoder will report them.
        return None


def _find_value_problem(tags: Tags) -> str | None:
    """Return why values are not three channels of 8 bits, and cannot be converted."""
    bits, samples = max(tags.get(BITS) or (1, )), tags.get(SAMPLES, 1)
    formats, colors = tags.get(FORMAT) or (1, ), tags.get(PHOTOMETRIC)
    max_samples = 4 if colors == COLOR else 1 if colors in GRAY else samples
    if samples > max_samples:
        return (f'it has {samples} channels instead of one or three: save three of them as RGB, or '
                f'train on all, with create-config --in-channels {samples}')
    if FLOAT in formats:
        return NO_RANGE
    if SIGNED in formats:
        return f'its values are signed: {EIGHT_BITS}'
    if bits > 16:
        return f'its values have {bits} bits instead of 8 or 16: {EIGHT_BITS}'
    return None


def _find_color_problem(tags: Tags) -> str | None:
    """Return why OpenCV and Pillow would read different colors."""
    colors, is_deep = tags.get(PHOTOMETRIC, COLOR), max(tags.get(BITS) or (1, )) > 8
    if set(ALPHA) & set(tags.get(EXTRA) or ()):
        return ('its last channel is transparency, by which OpenCV multiplies the others: save it '
                'as RGB or, if it is a band such as infrared, use a model of four bands')
    if colors not in READABLE and not (colors == YCBCR and tags.get(COMPRESSION) in JPEG):
        return f'its color space ({colors}) is not supported: save it as RGB'
    if is_deep and tags.get(SAMPLES, 1) > 1 and tags.get(PLANES) == SEPARATE:
        return 'its channels of 16 bits are stored separately: save them pixel by pixel'
    if is_deep and colors == INVERTED:
        return 'its values of 16 bits are inverted, 0 is white: save it with 0 as black'
    return None


def has_16_bits(image: Image.Image) -> bool:
    """Return True if the file of an image that is not loaded yet has 16 bits per value."""
    return isinstance(image, ImageFile) and any(';16' in str(tile[3]) for tile in image.tile)
