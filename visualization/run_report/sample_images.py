"""Small images of annotations and predictions."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.storage import content
from colonnade.inference.drawing import Color
from colonnade.inference.ground_truth import build_instances, build_label_map
from colonnade.inference.results import Instances, LabelMap, Result
from colonnade.runtime.images import read_image

from ..html_pages.scenes import Scene
from .detections import MIN_SCORE, Detections
from .pixel_counts import PixelCounts

TILE = 272  # pixels of an image's longer side
JPEG_QUALITY = 85
FEW_CLASSES = 10  # with at most this many, colors suffice to distinguish them


@dataclass(frozen=True)
class Legend:
    """Kind and classes of a model, see :class:`~colonnade.inference.ground_truth.Known`."""
    kind: str
    classes: tuple[str, ...]
    palette: tuple[Color, ...]


def read_small_image(path: str) -> np.ndarray:
    """Return an image whose longer side has ``TILE`` pixels, ``(h, w, 3)``.

    Raises:
        ImageError: If it cannot be read.
    """
    image = Image.fromarray(read_image(content(path)))
    factor = TILE / max(image.size)
    size = [max(1, round(side * factor)) for side in image.size]
    method = Image.Resampling.LANCZOS if factor < 1 else Image.Resampling.NEAREST
    return np.asarray(image.resize((size[0], size[1]), method))


def draw_result(result: Result, pixels: np.ndarray, *, is_named: bool,
                has_scores: bool) -> Image.Image:
    """Return a drawing of a result over a smaller image.

    Args:
        result: Result.
        pixels: Image, ``(h, w, 3)``.
        is_named: Whether classes are named.
        has_scores: Whether their names have scores.
    """
    if isinstance(result, LabelMap):
        scene = Scene.from_result(result, pixels)
        return result.replace(
            size=pixels.shape[:2], labels=scene.label_map).draw(
                pixels, legend=is_named)
    result = result.filter_by_score(MIN_SCORE)
    captions = [f'{name} {score:.2f}' if has_scores else name
                for name, score in zip(result.names, result.scores, strict=True)]  # yapf: disable
    return Scene.from_result(result, pixels).draw(result.palette, captions if is_named else None)


def draw_truth_and_prediction(dataset: Any, image: Detections | PixelCounts,
                              legend: Legend) -> tuple[Image.Image, Image.Image]:
    """Return two drawings of an image: as it is annotated, and as it was predicted.

    Raises:
        OSError, ValueError: If the image or its annotation cannot be read.
    """
    info = dataset.get_data_info(image.index)
    path = info['img_path']
    pixels, is_named = read_small_image(path), len(legend.classes) > FEW_CLASSES
    truth: Result
    prediction: Result
    if isinstance(image, Detections):
        truth = build_instances(legend, info, path)
        prediction = Instances(image.size, legend.classes, legend.palette, image.boxes,
                               image.scores, image.labels, image.masks, path)
    else:
        truth = build_label_map(legend, info, path)
        prediction = LabelMap(image.shape, truth.classes, truth.palette, image.small, path)
    return (draw_result(truth, pixels, is_named=is_named, has_scores=False),
            draw_result(prediction, pixels, is_named=is_named, has_scores=True))


def write_jpeg(image: Image.Image, path: Path) -> None:
    """Write an image as JPEG."""
    image.convert('RGB').save(path, 'JPEG', quality=JPEG_QUALITY, optimize=True)


def read_tiles(tiles: Iterable[tuple[str, Path]]) -> list[tuple[str, Image.Image]]:
    """Return titles and images of the files that exist.

    Raises:
        OSError: If one cannot be read.
    """
    images = []
    for title, path in tiles:
        if path.is_file():
            with Image.open(path) as image:
                images.append((title, image.copy()))
    return images
