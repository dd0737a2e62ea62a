"""Models and results as values for JSON."""
from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from colonnade.datasets.rle import encode_mask, make_json_rle

from .. import Instances, LabelMap, Model
from ..packages.package import WEIGHTS
from ..results import Result
from .service import Served

Values = dict[str, Any]


def describe(model: Model) -> Values:
    """What a model is, as ``GET /api/model`` says it; no folders of this machine."""
    trunk = getattr(model.module, 'backbone', None)
    return dict(
        model=type(model.module).__name__,
        trunk=type(trunk).__name__,
        arch=(model.cfg.model.get('backbone') or {}).get('arch'),
        kind=model.kind,
        classes=list(model.classes),
        palette=[list(colour) for colour in model.palette],
        parameters=model.num_parameters,
        weights=name_of_weights(model.source),
        device=str(model.device))


def name_of_weights(source: str) -> str:
    """The name of a file, or of the folder of a package, whose files all have the same names."""
    path = Path(source)
    return path.absolute().parent.name if path.name == WEIGHTS else path.name


def answer_of(served: Served, *, threshold: float, masks: bool) -> Values:
    """What was found in an image, as ``POST /api/predict`` says it.

    Args:
        served: What was found.
        threshold: Instances of lower scores are left out.
        masks: Whether to add masks, in COCO's run-length code.
    """
    found = values_of(served.result, threshold=threshold, masks=masks)
    seconds = dict(decoding=served.decoding, waiting=served.waiting, model=served.computing)
    return dict(
        height=served.result.size[0],
        width=served.result.size[1],
        **found,
        seconds={
            name: round(value, 4)
            for name, value in seconds.items()
        })


def values_of(result: Result, *, threshold: float, masks: bool) -> Values:
    """The instances of a detector, or the classes that occur in a label map."""
    if isinstance(result, LabelMap):
        return dict(classes=list(class_values(result, masks=masks)))
    return dict(instances=list(instance_values(result.above(threshold), masks=masks)))


def instance_values(result: Instances, *, masks: bool) -> list[Values]:
    """Class, score, box and mask of each instance."""
    found = []
    for index, name in enumerate(result.names):
        entry: Values = {
            'class': name,
            'score': round(float(result.scores[index]), 4),
            'box': [round(float(value), 2) for value in result.boxes[index]],
        }
        if masks and result.masks is not None:
            entry['mask'] = result.masks[index]
        found.append(entry)
    return found


def class_values(result: LabelMap, *, masks: bool) -> list[Values]:
    """Class, share of the pixels and mask of each class that occurs."""
    found = []
    for name, share in result.shares().items():
        entry: Values = {'class': name, 'share': round(share, 6)}
        if masks:
            where = result.labels == result.classes.index(name)
            entry['mask'] = make_json_rle(encode_mask(where))
        found.append(entry)
    return found


def drawing_of(served: Served, *, threshold: float, opacity: float) -> Image.Image:
    """The image with what was found in it."""
    if isinstance(served.result, LabelMap):
        return served.result.draw(served.image, opacity=opacity)
    return served.result.draw(served.image, threshold=threshold, opacity=opacity)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """An image as the content of a file, of Pillow's kind ``'PNG'`` or ``'JPEG'``."""
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
