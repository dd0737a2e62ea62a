"""What is written of each image: a picture, the entries of a list of results, a label map."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.atomic_files import atomic_write

from .inputs import Input
from .model import Answer
from .results import Instances, LabelMap, Result

LARGEST_JPEG = 65500  # pixels of a side


@dataclass(frozen=True)
class Outputs:
    """Where and how predictions are written; several threads may write.

    Attributes:
        folder: Of predictions.
        kinds: Some of ``KINDS``.
        categories: The id of each class in results and label maps.
        threshold: Instances of lower scores are left out of pictures.
        opacity: Of masks and label maps in pictures, from 0 to 1.
    """
    folder: Path
    kinds: Sequence[str]
    categories: Sequence[int]
    threshold: float
    opacity: float

    def write(self, item: Input, answer: Answer) -> dict[str, Any] | None:
        """Write the files of an image.

        Returns:
            Its record; None if it could not be read.

        Raises:
            OSError: If a file cannot be written.
        """
        result = answer.result
        if result is None:
            return None
        if 'pictures' in self.kinds:
            assert answer.image is not None  # where there is a result
            self.write_picture(self.draw(result, answer.image), item.stem)
        if 'labels' in self.kinds and isinstance(result, LabelMap):
            self.write_labels(result, item.stem)
        record = dict(name=item.name, size=list(result.size))
        return {**record, 'entries': self.entries(result)} if 'results' in self.kinds else record

    def entries(self, result: Result) -> list[dict[str, Any]]:
        """A result as entries of JSON: one for each instance, or the shares of classes."""
        if isinstance(result, LabelMap):
            return [dict(shares=result.shares())]
        entries = result.to_coco(0, self.categories)
        return [{key: entry[key] for key in entry if key != 'image_id'} for entry in entries]

    def draw(self, result: Result, image: np.ndarray, *, legend: bool = True) -> Image.Image:
        """A result over its image.

        Args:
            result: What was found.
            image: RGB values, ``(H, W, 3)``.
            legend: Whether to list the classes of a label map beneath the image.
        """
        if isinstance(result, Instances):
            return result.draw(image, threshold=self.threshold, opacity=self.opacity)
        return result.draw(image, opacity=self.opacity, legend=legend)

    def write_picture(self, picture: Image.Image, stem: str) -> None:
        """Write a JPEG, or a PNG where the picture is too large for one."""
        suffix = 'jpg' if max(picture.size) <= LARGEST_JPEG else 'png'
        with atomic_write(self.folder / 'pictures' / f'{stem}.{suffix}') as scratch:
            picture.save(scratch, quality=90)

    def write_labels(self, result: LabelMap, stem: str) -> None:
        """Write a label map as a PNG."""
        with atomic_write(self.folder / 'labels' / f'{stem}.png') as scratch:
            result.as_image(self.categories[0]).save(scratch)
