"""Does the runtime find in whole images what the model finds in them?"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.datasets.shapes_dataset import draw_scene
from colonnade.inference import Model
from colonnade.inference.results import LabelMap
from colonnade.runtime import load

from .graphs import ExportError

SIDES = ((192, 144), (112, 192))  # height and width of the images
DIFFERENT = 0.02  # of objects or pixels may be: scores and logits that are equal to rounding
REFUSED = dict(objects=0.2, pixels=0.05)  # between the two is a warning
SCORE, PIXELS = 0.01, 1.  # by which an object is another


@dataclass(frozen=True)
class Agreement:
    """Of results on whole images.

    Attributes:
        what: ``pixels`` or ``objects``.
        number: Of these, in what the model found.
        different: How many the runtime has otherwise.
        warning: What is to be known before it is used; empty if nothing is.
    """
    what: str
    number: int
    different: int
    warning: str = ''

    def __str__(self) -> str:
        return (f'{len(SIDES)} whole images by the runtime: {self.different:,} of {self.number:,} '
                f'{self.what} are other than in torch')


def agreement(model: Model, folder: Path) -> Agreement:
    """Predict images of drawn shapes with a model and with what was exported of it."""
    exported, different, number = load(folder), 0, 0
    for image in scenes():
        expected, found = model.predict(image), exported.predict(image)
        if isinstance(expected, LabelMap):
            different += int((expected.labels != found.labels).sum())
            number += expected.labels.size
        else:
            different += num_different(expected, found)
            number += len(expected)
    what = 'pixels' if model.kind == 'labels' else 'objects'
    return Agreement(what, number, different)


def require_agreement(model: Model, folder: Path) -> Agreement:
    """:func:`agreement`, with a warning if more than a few are different.

    Raises:
        ExportError: If many are.
    """
    found = agreement(model, folder)
    if found.different <= DIFFERENT * found.number:
        return found
    if found.different > max(1, REFUSED[found.what] *
                             found.number):  # one of few may be on a threshold
        raise ExportError(
            f'{found}: more than {REFUSED[found.what]:.0%}, and nothing is written. The graphs '
            'agree with torch, so the steps around them differ: export the maps with --what '
            'features')
    return replace(
        found,
        warning=f'{found}. Compare predictions on your own images with those of '
        'colonnade predict')


def scenes() -> Iterator[np.ndarray]:
    """Images, RGB of type uint8."""
    for seed, (height, width) in enumerate(SIDES):
        yield draw_scene(np.random.default_rng(seed), max(height, width)).image[:height, :width]


def num_different(expected: Any, found: Any) -> int:
    """How many objects are in one of two results alone, by class, score and box."""
    left = list(range(len(found)))
    for label, score, box in zip(expected.labels, expected.scores, expected.boxes, strict=True):
        same = (
            index for index in left
            if found.labels[index] == label and abs(found.scores[index] -
                                                    score) < SCORE and np.abs(found.boxes[index] -
                                                                              box).max() < PIXELS)
        if (index := next(same, None)) is not None:
            left.remove(index)
    alike = len(found) - len(left)
    return max(len(expected), len(found)) - alike
