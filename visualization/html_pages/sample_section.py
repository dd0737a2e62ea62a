"""Annotations and predictions of some images, side by side."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from colonnade.inference import Instances, load
from colonnade.inference.ground_truth import truth_of

from .page import Section

GAP = 8  # pixels between the two
MOST_NAMES = 30  # in a legend
SMALLEST = 256  # smaller pictures are enlarged


def sample_section(title: str,
                   config: str | Path,
                   weights: str | Path,
                   *,
                   rows: Sequence[tuple[str, str]] = (),
                   commands: Sequence[str] = (),
                   limit: int = 8,
                   **options: Any) -> Section:
    """A section with test images: annotations left, predictions right.

    Args:
        title: Its heading.
        config, weights: As of :func:`~colonnade.inference.load`.
        rows, commands: As of :class:`~.page.Section`.
        limit: Images at most.
        **options: As of :func:`~colonnade.inference.load`.

    Raises:
        OSError, ValueError: As :func:`~colonnade.inference.load`, and if an image or
            annotation is missing.
    """
    model, pictures = load(config, weights, **options), []
    for path, truth in truth_of(model, limit):
        drawn = []
        for shown in (truth, model.predict(path)):
            captions = isinstance(shown, Instances) and min(shown.size) >= SMALLEST
            drawn.append(enlarged(shown.draw(legend=captions)))
        pictures.append((Path(path).name, side_by_side(*drawn)))
    legend = list(zip(model.classes, model.palette, strict=True))[:MOST_NAMES]
    return Section(title, rows=rows, legend=legend, pictures=pictures, commands=commands)


def enlarged(image: Image.Image) -> Image.Image:
    """A picture of at least ``SMALLEST`` pixels a side."""
    factor = max(1, -(-SMALLEST // min(image.size)))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two pictures of one size with a gap between them."""
    whole = Image.new('RGB', (left.width + GAP + right.width, left.height), 'white')
    whole.paste(left, (0, 0))
    whole.paste(right, (left.width + GAP, 0))
    return whole
