"""Small pictures of annotations and predictions."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.storage import content
from colonnade.datasets.rle import decode_rle, encode_mask
from colonnade.inference.drawing import Colour, draw_instances
from colonnade.inference.ground_truth import instances, label_map
from colonnade.inference.results import Instances, LabelMap
from colonnade.runtime.images import read_image

from .detections import SCORE, Found
from .label_counts import Labelled

TILE = 272  # pixels of a picture's longer side
QUALITY = 85  # of JPEG
FEW_CLASSES = 10  # up to that many, colours are enough to tell them


@dataclass(frozen=True)
class Legend:
    """Kind and classes of a model, see :class:`~colonnade.inference.ground_truth.Known`."""
    kind: str
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]

    @property
    def named(self) -> bool:
        """Whether pictures name classes."""
        return len(self.classes) > FEW_CLASSES


def small_image(path: str) -> np.ndarray:
    """An image whose longer side has ``TILE`` pixels, ``(h, w, 3)``.

    Raises:
        ImageError: If it cannot be read.
    """
    image = Image.fromarray(read_image(content(path)))
    factor = TILE / max(image.size)
    size = [max(1, round(side * factor)) for side in image.size]
    how = Image.Resampling.LANCZOS if factor < 1 else Image.Resampling.NEAREST
    return np.asarray(image.resize((size[0], size[1]), how))


def resized(labels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Labels or a mask with fewer or more pixels, each one of those that there were."""
    rows = (np.arange(height) + 0.5) * labels.shape[0] / height
    columns = (np.arange(width) + 0.5) * labels.shape[1] / width
    return labels[rows.astype(int)[:, None], columns.astype(int)]


def small_instances(shown: Instances, pixels: np.ndarray) -> Instances:
    """Instances at the size of a smaller image."""
    height, width = pixels.shape[:2]
    shown = shown.above(SCORE)
    masks = None if shown.masks is None else tuple(
        encode_mask(resized(decode_rle(mask), height, width)) for mask in shown.masks)
    factors = np.array([width / shown.size[1], height / shown.size[0]] * 2, dtype=np.float32)
    return shown.changed(size=(height, width), boxes=shown.boxes * factors, masks=masks)


def draw(shown: Instances | LabelMap, pixels: np.ndarray, legend: Legend, *,
         scored: bool) -> Image.Image:
    """Instances or a label map over an image of any size.

    Args:
        shown: What is drawn.
        pixels: The image, ``(h, w, 3)``.
        legend: Says whether classes are named.
        scored: Whether scores stand behind the names.
    """
    if isinstance(shown, LabelMap):
        labels = resized(shown.labels, *pixels.shape[:2])
        shown = shown.changed(size=pixels.shape[:2], labels=labels)
        return shown.draw(pixels, legend=legend.named)
    shown = small_instances(shown, pixels)
    captions = list(shown.names)
    if scored:
        captions = [f'{n} {s:.2f}' for n, s in zip(captions, shown.scores, strict=True)]
    colours = [legend.palette[label] for label in shown.labels]
    return draw_instances(pixels, shown.boxes, shown.masks, colours,
                          captions if legend.named else None)


def truth_and_prediction(dataset: Any, found: Found | Labelled,
                         legend: Legend) -> tuple[Image.Image, Image.Image]:
    """Two pictures of an image: as it is annotated, and as it was predicted.

    Raises:
        OSError, ValueError: If the image or its annotation cannot be read.
    """
    info = dataset.get_data_info(found.index)
    path = info['img_path']
    pixels = small_image(path)
    shown: Instances | LabelMap
    if isinstance(found, Found):
        truth: Instances | LabelMap = instances(legend, info, path)
        shown = Instances(found.size, legend.classes, legend.palette, found.boxes, found.scores,
                          found.labels, found.masks, path)
    else:
        truth = label_map(legend, info, path)
        shown = LabelMap(found.shape, truth.classes, truth.palette, found.small, path)
    return draw(truth, pixels, legend, scored=False), draw(shown, pixels, legend, scored=True)


def save(image: Image.Image, path: Path) -> None:
    """Write a picture as JPEG."""
    image.convert('RGB').save(path, 'JPEG', quality=QUALITY, optimize=True)


def opened(tiles: Iterable[tuple[str, Path]]) -> list[tuple[str, Image.Image]]:
    """Titles and pictures of the files that are there.

    Raises:
        OSError: If one cannot be read.
    """
    found = []
    for title, path in tiles:
        if path.is_file():
            with Image.open(path) as image:
                found.append((title, image.copy()))
    return found
