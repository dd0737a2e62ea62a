"""End-to-end verification: predictions of the runtime, compared with those of the model."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.datasets.shapes_dataset import draw_scene
from colonnade.inference import Model
from colonnade.inference.results import Instances, LabelMap
from colonnade.runtime import PanopticMap, load

from .graphs import ExportError

SIDES = ((192, 144), (112, 192))  # height and width of the images
MAX_DIFFERENT = 0.02  # fraction of objects or pixels, since rounding can change close scores
REFUSED = dict(objects=0.2, pixels=0.05)  # fraction for an error; below is a warning
MAX_SCORE_DIFFERENCE, MAX_BOX_DIFFERENCE = 0.01, 1.  # limits for the same object


@dataclass(frozen=True)
class PredictionComparison:
    """Predictions of the runtime, compared with those of the model.

    Attributes:
        unit: ``pixels`` or ``objects``.
        number: Number of pixels or objects that the model predicted.
        different: Number of those that the runtime predicted differently.
        warning: Message to show to the user, or an empty string.
    """
    unit: str
    number: int
    different: int
    warning: str = ''

    def __str__(self) -> str:
        return (f'predictions of the runtime for {len(SIDES)} images: {self.different:,} of '
                f'{self.number:,} {self.unit} differ from torch')


def compare_predictions(model: Model, folder: Path) -> PredictionComparison:
    """Compare the predictions of a model and of its export for images of synthetic shapes."""
    exported, different, number = load(folder), 0, 0
    for image in map(partial(convert_to_bands, model), draw_images()):
        expected, actual = model.predict(image), exported.predict(image)
        if isinstance(expected, LabelMap):
            different += int((expected.labels != actual.labels).sum())
        elif isinstance(expected, PanopticMap):
            different += count_different_pixels(expected, actual)
        else:
            different += count_differences(expected, actual)
        has_objects = isinstance(expected, Instances)
        number += len(expected) if has_objects else math.prod(expected.size)
    return PredictionComparison('objects' if has_objects else 'pixels', number, different)


def verify_predictions(model: Model, folder: Path) -> PredictionComparison:
    """Call :func:`compare_predictions`, and warn if more than a few predictions differ.

    Raises:
        ExportError: If many differ.
    """
    result = compare_predictions(model, folder)
    if result.different <= MAX_DIFFERENT * result.number:
        return result
    limit = REFUSED[result.unit]
    if result.different > max(1, limit * result.number):  # one of few may be close to a threshold
        raise ExportError(
            f'{result}: more than {limit:.0%}, so nothing was written. The graphs match torch, so '
            'pre- or postprocessing differs: export the feature maps with --component features')
    return replace(
        result,
        warning=f'{result}. Compare predictions on your own images with those of colonnade predict')


def draw_images() -> list[np.ndarray]:
    """Return RGB images ``(H, W, 3)``, uint8."""
    return [
        draw_scene(np.random.default_rng(seed), max(height, width)).image[:height, :width]
        for seed, (height, width) in enumerate(SIDES)
    ]


def convert_to_bands(model: Model, image: np.ndarray) -> np.ndarray:
    """Return an RGB image with the number and range of the model's bands, if it has any."""
    if not model.bands:
        return image
    preprocessor = model.module.data_preprocessor
    repeated = image[..., np.arange(model.bands.num_bands) % 3]
    mean, std = (values.flatten().cpu().numpy() for values in (preprocessor.mean, preprocessor.std))
    return (repeated / np.float32(127.5) - 1) * std + mean


def count_differences(expected: Any, actual: Any) -> int:
    """Return the number of objects that are in only one of two results."""
    unmatched = list(range(len(actual)))
    for label, score, box in zip(expected.labels, expected.scores, expected.boxes, strict=True):
        for index in unmatched:
            if actual.labels[index] == label and \
                    abs(actual.scores[index] - score) < MAX_SCORE_DIFFERENCE and \
                    np.abs(actual.boxes[index] - box).max() < MAX_BOX_DIFFERENCE:
                unmatched.remove(index)
                break
    return max(len(expected), len(actual)) - (len(actual) - len(unmatched))


def count_different_pixels(expected: PanopticMap, actual: PanopticMap) -> int:
    """Return the number of pixels that are in other segments.

    The numbers of segments may differ: each corresponds to the segment of its class that it
    overlaps most.
    """
    shape = len(expected) + 1, len(actual) + 1
    pairs = np.ravel_multi_index((expected.segments, actual.segments), shape)
    overlaps = np.bincount(pairs.ravel(), minlength=math.prod(shape)).reshape(shape)
    labels, others = (np.append(-1, each.labels) for each in (expected, actual))  # -1 for none
    overlaps[labels[:, None] != others] = 0
    return pairs.size - int(min(overlaps.max(0).sum(), overlaps.max(1).sum()))
