"""Label maps of one channel, to be numbered anew."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from ..validation.image_files import labels_of, opened


def read_labels(source: Path, size: tuple[int, int]) -> np.ndarray:
    """A label map ``(H, W)``, uint8.

    Args:
        source: Its file.
        size: Of its image, width and height.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no label map of that size.
    """
    labels_of(source, size)
    with opened(source) as image:
        return np.asarray(image).astype(np.uint8)
