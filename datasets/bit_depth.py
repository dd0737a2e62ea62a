"""Bit depth, channels and pages of images, of which networks see three channels of 8 bits."""
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cv2
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from colonnade.runtime.bit_depth import (COLOR, DARK, FORMATS_OF_PAGES, PHOTOMETRIC, SAMPLES,
                                         has_16_bits, suggest_8_bits)


@dataclass
class ImageDepths:
    """Images of a dataset with more than three channels of 8 bits."""
    deep: dict[Path, int] = field(default_factory=dict)  # 16-bit image -> highest value
    more_channels: list[Path] = field(default_factory=list)
    more_pages: list[Path] = field(default_factory=list)

    def add(self, path: Path, image: Image.Image) -> None:
        """Record an image whose header Pillow has read."""
        if image.format in FORMATS_OF_PAGES and getattr(image, 'n_frames', 1) > 1:
            self.more_pages.append(path)
        is_tiff_with_extra_channel = isinstance(
            image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == COLOR and image.tag_v2.get(
                SAMPLES, 1) > 3
        if image.mode in ('LA', 'PA', 'RGBA', 'RGBX', 'La', 'RGBa') or is_tiff_with_extra_channel:
            self.more_channels.append(path)
        if has_16_bits(image) or image.format == 'PPM':
            values = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            if values is not None and values.itemsize == 2:
                self.deep[path] = int(values.max())

    @property
    def _dark(self) -> list[Path]:
        """16-bit images that are dark after conversion to 8 bits, unless they are all black."""
        are_all_dark = max(self.deep.values(), default=0) <= 0x7fff
        limit = 0x7fff if are_all_dark else (DARK << 8) - 1  # prediction refuses such images
        return [path for path, highest in self.deep.items() if 0 < highest <= limit]

    def find_errors(self) -> list[str]:
        """Return messages about images that training would hardly see."""
        dark = self._dark
        if not dark:
            return []
        highest = max(self.deep[path] for path in dark)
        return [
            f'{len(dark)} images have 16-bit values of at most {highest}: {_format_first(dark)}. '
            f'Training sees the upper 8 bits, 0 to {highest >> 8} of 255, which is dark or black. '
            f'Save them with 8 bits: {suggest_8_bits(highest)}'
        ]

    def find_warnings(self) -> list[str]:
        """Return messages about image content that training does not see."""
        dark = set(self._dark)
        deep = [path for path in self.deep if path not in dark]
        notes = ((deep, 'images have 16 bits, of which training and prediction see the upper 8'),
                 (self.more_channels, 'images have an alpha or other extra channel, which is not '
                  'used'), (self.more_pages, 'files have several pages or frames, of which only '
                            'the first is used'))  # yapf: disable
        return [f'{len(paths)} {note}: {_format_first(paths)}' for paths, note in notes if paths]


def _format_first(paths: list[Path]) -> str:
    return f'{paths[0]}' + (' and others' if len(paths) > 1 else '')
