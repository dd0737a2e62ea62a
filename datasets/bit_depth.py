"""How many bits and channels images have: the networks see three channels of 8 bits."""
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cv2
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from colonnade.runtime.bit_depth import (COLOUR, DARK, FORMATS_OF_PAGES, PHOTOMETRIC, SAMPLES,
                                         advice, has_16_bits)


@dataclass
class Depths:
    """What the images of a data set have beyond three channels of 8 bits."""
    deep: dict[Path, int] = field(default_factory=dict)  # of 16 bits, with the highest value
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
        values = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if values is not None and values.itemsize == 2:
            self.deep[path] = int(values.max())

    @property
    def _dark(self) -> list[Path]:
        """Images of 16 bits that are dark as 8 bits, but for those that are black as they are."""
        are_all_dark = max(self.deep.values(), default=0) <= 0x7fff
        limit = 0x7fff if are_all_dark else (DARK << 8) - 1  # what prediction refuses by itself
        return [path for path, highest in self.deep.items() if 0 < highest <= limit]

    def faults(self) -> list[str]:
        """What training would hardly see."""
        dark = self._dark
        if not dark:
            return []
        highest = max(self.deep[path] for path in dark)
        return [
            f'{len(dark)} images have values of 16 bits, but up to {highest} alone: '
            f'{_first(dark)}. Training sees the upper 8 bits, 0 to {highest >> 8} of 255, which '
            f'is dark or black. Save them as 8 bits: {advice(highest)}'
        ]

    def remarks(self) -> list[str]:
        """What training does not see."""
        said, dark = [], set(self._dark)
        if deep := [path for path in self.deep if path not in dark]:
            said.append(f'{len(deep)} images have 16 bits, of which training and prediction see '
                        f'the upper 8: {_first(deep)}')
        if self.more_channels:
            said.append(f'{len(self.more_channels)} images have a channel of transparency or '
                        f'another one, which is not used: {_first(self.more_channels)}')
        if self.more_pages:
            said.append(f'{len(self.more_pages)} files have several pages or frames, of which the '
                        f'first is used: {_first(self.more_pages)}')
        return said


def _first(paths: list[Path]) -> str:
    return f'{paths[0]}' + (' and others' if len(paths) > 1 else '')
