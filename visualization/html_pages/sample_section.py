"""Annotations and predictions of some images, side by side."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from colonnade.inference import Instances, load
from colonnade.inference.ground_truth import iter_ground_truth

from .page import Section, Table
from .scenes import join_images

MAX_NAMES = 30  # in a legend
MIN_SIDE = 256  # pixels; smaller images are enlarged


def sample_section(title: str,
                   config: str | Path,
                   weights: str | Path,
                   *,
                   rows: Sequence[tuple[str, str]] = (),
                   commands: Sequence[str] = (),
                   limit: int = 8,
                   **options: Any) -> Section:
    """Return a section with test images: annotations left, predictions right.

    Args:
        title: Heading.
        config: Config of the model.
        weights: Checkpoint of the model.
        rows: Names and values, as a table.
        commands: Lines to type.
        limit: Maximum number of images.
        **options: Options of :func:`~colonnade.inference.load`.

    Raises:
        OSError, ValueError: As :func:`~colonnade.inference.load`, and if an image or
            annotation is missing.
    """
    model, images = load(config, weights, **options), []
    for path, truth in iter_ground_truth(model, limit):
        drawings = []
        for result in (truth, model.predict(path)):
            captions = isinstance(result, Instances) and min(result.size) >= MIN_SIDE
            drawings.append(enlarge(result.draw(legend=captions)))
        images.append((Path(path).name, join_images(drawings)))
    legend = list(zip(model.classes, model.palette, strict=True))[:MAX_NAMES]
    tables = [Table((), rows)] if rows else []
    return Section(title, tables=tables, legend=legend, images=images, commands=commands)


def enlarge(image: Image.Image) -> Image.Image:
    """Return an image of at least ``MIN_SIDE`` pixels a side."""
    factor = max(1, -(-MIN_SIDE // min(image.size)))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
