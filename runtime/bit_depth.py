"""Images that are not three channels of 8 bits: which can be read so, and why others cannot."""
from __future__ import annotations

from collections.abc import Callable
from typing import IO, BinaryIO

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile

DARK = 16  # of 256: what 12 bits become in 8 if they are taken for 16
BITS, COMPRESSION, PHOTOMETRIC, SAMPLES, PLANES = 258, 259, 262, 277, 284  # tags of TIFF
EXTRA, FORMAT = 338, 339
JPEG = (6, 7)  # values of COMPRESSION
INVERTED, GRAY, COLOUR, YCBCR = 0, (0, 1), 2, 6  # values of PHOTOMETRIC
READ = (*GRAY, COLOUR, 3, 5)  # with palettes and CMYK
SEPARATE = 2  # value of PLANES
ALPHA = (1, 2)  # values of EXTRA
SIGNED, FLOAT = 2, 3  # values of FORMAT
CODESTREAM = b'\xff\x4f\xff\x51'  # begins the pixels of JPEG 2000
NUM_CHANNELS, DEPTHS = 36, 38  # places behind it
FORMATS_OF_PAGES = ('GIF', 'PNG', 'TIFF', 'WEBP')  # in others, what follows are previews
EIGHT_BITS = 'save it as 8 bits, by the same range for all images'
NO_RANGE = f'its values are floating-point numbers, of no known range: {EIGHT_BITS}'


def advice(highest: int) -> str:
    """How to save images whose values end at ``highest`` as 8 bits."""
    top = (1 << highest.bit_length()) - 1
    return ("cv2.imwrite('new.png', cv2.convertScaleAbs(cv2.imread('old.png', -1), "
            f'alpha=255/{top})), with the same range for all images')


def depth_fault(image: Image.Image) -> str | None:
    """Why training and prediction would not see the same colours of 8 bits; None if they do.

    Args:
        image: As Pillow opens it, not loaded yet.
    """
    if isinstance(image, TiffImageFile):
        return _fault_of_tags(lambda: image.tag_v2)
    if not isinstance(image, ImageFile) or not image.tile:
        return None
    settings = image.tile[0][3]
    if image.mode == 'F':
        return NO_RANGE
    if image.format == 'PPM' and isinstance(settings, tuple) and settings[-1] not in (255, 65535):
        return f'its values end at {settings[-1]}, not at 255 or 65535: {EIGHT_BITS}'
    if image.format == 'JPEG2000' and image.fp and (bits := _bits_of_jpeg_2000(image.fp)) > 8:
        return f'it is a JPEG 2000 of {bits} bits: {EIGHT_BITS}'
    return None


def _bits_of_jpeg_2000(file: IO[bytes]) -> int:
    """The most bits that a channel has; 0 if the header does not tell."""
    place = file.tell()
    file.seek(0)
    _, found, header = file.read().partition(CODESTREAM)
    file.seek(place)
    number = int.from_bytes(header[NUM_CHANNELS:DEPTHS], 'big') if found else 0
    return max(((depth & 127) + 1 for depth in header[DEPTHS:DEPTHS + 3 * number:3]), default=0)


def tiff_fault(file: BinaryIO) -> str | None:
    """As :func:`depth_fault`, for a file that Pillow may not know; None if it is no TIFF."""
    return _fault_of_tags(lambda: _tags(file))


def _fault_of_tags(read_tags: Callable[[], ImageFileDirectory_v2 | dict]) -> str | None:
    try:
        tags = read_tags()
        return _fault_of_values(tags) or _fault_of_colours(tags) if tags else None
    except Exception:  # damaged tags lead Pillow to errors of any kind; its decoder reports them
        return None


def _fault_of_values(tags: ImageFileDirectory_v2 | dict) -> str | None:
    """Why values are not of three channels of 8 bits, and cannot become so."""
    bits, samples = max(tags.get(BITS) or (1, )), tags.get(SAMPLES, 1)
    kinds, colours = tags.get(FORMAT) or (1, ), tags.get(PHOTOMETRIC)
    most = 4 if colours == COLOUR else 1 if colours in GRAY else samples
    if samples > most:
        return (f'it has {samples} channels, and three or one are read: save three of them as an '
                'image of RGB')
    if FLOAT in kinds:
        return NO_RANGE
    if SIGNED in kinds:
        return f'its values have a sign: {EIGHT_BITS}'
    if bits > 16:
        return f'its values are not of 8 or 16 bits, but of {bits}: {EIGHT_BITS}'
    return None


def _fault_of_colours(tags: ImageFileDirectory_v2 | dict) -> str | None:
    """Why OpenCV and Pillow would read other colours."""
    colours, is_deep = tags.get(PHOTOMETRIC, COLOUR), max(tags.get(BITS) or (1, )) > 8
    if set(ALPHA) & set(tags.get(EXTRA) or ()):
        return ('its last channel is transparency, by which OpenCV multiplies the others: save it '
                'without, as an image of RGB')
    if colours not in READ and not (colours == YCBCR and tags.get(COMPRESSION) in JPEG):
        return f'its colours are of a kind that is not read ({colours}): save it as RGB'
    if is_deep and tags.get(SAMPLES, 1) > 1 and tags.get(PLANES) == SEPARATE:
        return 'its channels of 16 bits are one behind the other: save them pixel by pixel'
    if is_deep and colours == INVERTED:
        return 'its values of 16 bits are inverted, 0 is white: save it with 0 as black'
    return None


def _tags(file: BinaryIO) -> ImageFileDirectory_v2 | dict:
    """The tags of a TIFF's first page; none if the file is no TIFF."""
    file.seek(0)
    header = file.read(8)
    if header[:4] not in (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+'):
        return {}
    if b'+' in header[:4]:  # of more than 4 GB
        header += file.read(8)
    tags = ImageFileDirectory_v2(header)
    file.seek(tags.next)
    tags.load(file)
    return tags


def has_16_bits(image: Image.Image) -> bool:
    """Whether the file of an image that is not loaded yet has 16 bits a value."""
    return isinstance(image, ImageFile) and any(';16' in str(tile[3]) for tile in image.tile)
