"""How many bits and channels images have: the networks see three channels of 8 bits."""
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import cv2
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile

DARK = 16  # of 256: what 12 bits become in 8 if they are taken for 16
BITS, PHOTOMETRIC, SAMPLES, FORMAT = 258, 262, 277, 339  # tags of TIFF
GRAY, COLOUR = (0, 1), 2  # values of PHOTOMETRIC
SIGNED, FLOAT = 2, 3  # values of FORMAT
FORMATS_OF_PAGES = ('GIF', 'PNG', 'TIFF', 'WEBP')  # in others, what follows are previews
EIGHT_BITS = 'save it as 8 bits, by the same range for all images'


def advice(highest: int) -> str:
    """How to save images whose values end at ``highest`` as 8 bits."""
    top = (1 << highest.bit_length()) - 1
    return ("cv2.imwrite('new.png', cv2.convertScaleAbs(cv2.imread('old.png', -1), "
            f'alpha=255/{top})), with the same range for all images')


def tiff_fault(file: BinaryIO) -> str | None:
    """Why a TIFF cannot be seen as colours of 8 bits; None if it can, or the file is no TIFF."""
    try:
        tags = _tags(file)
        bits, samples = max(tags.get(BITS) or (1, )), tags.get(SAMPLES, 1)
        kinds, colours = tags.get(FORMAT) or (1, ), tags.get(PHOTOMETRIC)
    except Exception:  # damaged tags lead Pillow to errors of any kind; its decoder reports them
        return None
    if not tags:
        return None
    most = 4 if colours == COLOUR else 1 if colours in GRAY else samples
    if samples > most:
        return (f'it has {samples} channels, and three or one are read: save three of them as an '
                'image of RGB')
    if FLOAT in kinds:
        return f'its values are floating-point numbers, of no known range: {EIGHT_BITS}'
    if SIGNED in kinds:
        return f'its values have a sign: {EIGHT_BITS}'
    if bits > 16:
        return f'its values are not of 8 or 16 bits, but of {bits}: {EIGHT_BITS}'
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


@dataclass
class Depths:
    """What the images of a data set have beyond three channels of 8 bits."""
    deep: list[Path] = field(default_factory=list)  # of 16 bits
    highest: int = 0  # of their values, as far as they were read
    more_channels: list[Path] = field(default_factory=list)
    more_pages: list[Path] = field(default_factory=list)

    def look(self, path: Path, image: Image.Image) -> None:
        """Take an image into account, of which Pillow has read the header."""
        if image.format in FORMATS_OF_PAGES and getattr(image, 'n_frames', 1) > 1:
            self.more_pages.append(path)
        extra = isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == COLOUR \
            and image.tag_v2.get(SAMPLES, 1) > 3
        if image.mode in ('LA', 'PA', 'RGBA', 'RGBX', 'La', 'RGBa') or extra:
            self.more_channels.append(path)
        if has_16_bits(image) or image.format == 'PPM':
            self._look_at_values(path)

    def _look_at_values(self, path: Path) -> None:
        if self.highest > 0x7fff:  # nothing more to learn
            return self.deep.append(path)
        values = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if values is not None and values.itemsize == 2:
            self.deep.append(path)
            self.highest = max(self.highest, int(values.max()))
        return None

    def faults(self) -> list[str]:
        """What training would hardly see."""
        if not self.deep or self.highest > 0x7fff:
            return []
        return [
            f'{len(self.deep)} images have values of 16 bits, but up to {self.highest} alone: '
            f'{_first(self.deep)}. Training sees the upper 8 bits, 0 to {self.highest >> 8} of '
            f'255, which is dark or black. Save them as 8 bits: {advice(max(self.highest, 1))}'
        ]

    def remarks(self) -> list[str]:
        """What training does not see."""
        said = []
        if self.deep and self.highest > 0x7fff:
            said.append(f'{len(self.deep)} images have 16 bits, of which training and prediction '
                        f'see the upper 8: {_first(self.deep)}')
        if self.more_channels:
            said.append(f'{len(self.more_channels)} images have a channel of transparency or '
                        f'another one, which is not used: {_first(self.more_channels)}')
        if self.more_pages:
            said.append(f'{len(self.more_pages)} files have several pages or frames, of which the '
                        f'first is used: {_first(self.more_pages)}')
        return said


def _first(paths: list[Path]) -> str:
    return f'{paths[0]}' + (' and others' if len(paths) > 1 else '')
