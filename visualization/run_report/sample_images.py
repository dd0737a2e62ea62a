"""Sample images, worst and best images: drawn at evaluations, and shown in reports."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.storage import content
from colonnade.datasets.bands import LoadBands, read_picture
from colonnade.datasets.rle import decode_rle, encode_mask
from colonnade.inference.drawing import draw_instances
from colonnade.inference.ground_truth import build_instances, build_label_map, build_panoptic_map
from colonnade.inference.results import Instances, LabelMap, PanopticMap, Result
from colonnade.runtime.images import read_image

from ..html_pages import Section
from ..html_pages.scenes import fit_size, resize_values, scale_boxes
from .predictions import MIN_SCORE, Detections, ImageRecord, Legend, Segments
from .record_folder import RECORD, Evaluation, RecordedRun, get_evaluation_folder

TILE = 272  # pixels of an image's longer side
JPEG_QUALITY = 85
MAX_UNNAMED = 10  # classes that colors suffice to distinguish
MAX_EVALUATIONS = 7  # evaluations with samples
MAX_NAMES = 30  # classes in a legend


def draw_result(result: Result, pixels: np.ndarray, *, is_named: bool,
                has_scores: bool) -> Image.Image:
    """Return a drawing of annotations or a prediction over a downscaled image ``(h, w, 3)``."""
    size: tuple[int, int] = pixels.shape[:2]
    if isinstance(result, LabelMap):
        small = result.replace(size=size, labels=resize_values(result.labels, size))
        return small.draw(pixels, legend=is_named)
    if isinstance(result, PanopticMap):
        segments = resize_values(result.segments, size)
        return result.replace(
            size=size, segments=segments).draw(
                pixels, captions=is_named, legend=is_named)
    result = result.filter_by_score(MIN_SCORE)
    captions = [f'{name} {score:.2f}' if has_scores else name
                for name, score in zip(result.names, result.scores, strict=True)]  # yapf: disable
    boxes = scale_boxes(result.boxes, result.size, size).astype(np.float32)
    masks = None if result.masks is None else [
        encode_mask(resize_values(decode_rle(mask), size)) for mask in result.masks
    ]
    colors = [result.palette[label] for label in result.labels]
    return draw_instances(pixels, boxes, masks, colors, captions if is_named else None)


def find_loader(dataset: Any) -> LoadBands | None:
    """Return the step of a dataset, or of the first that a wrapper holds, that loads bands."""
    while (inner := getattr(dataset, 'dataset', None) or getattr(dataset, 'datasets', None)):
        dataset = inner[0] if isinstance(inner, (list, tuple)) else inner
    steps = getattr(getattr(dataset, 'pipeline', None), 'transforms', None)
    return steps[0] if steps and isinstance(steps[0], LoadBands) else None


def draw_image(dataset: Any, image: ImageRecord, legend: Legend, truth_path: Path,
               prediction_path: Path) -> None:
    """Write drawings of the annotations and of the prediction of an image."""
    info = dataset.get_data_info(image.index)
    path = info['img_path']
    bands = find_loader(dataset)
    full = read_picture(path, bands) if bands else read_image(content(path))
    size = fit_size(full.shape, TILE, exact=True)
    pixels = resize_values(full, size, smooth=max(full.shape) > TILE)
    is_named = len(legend.classes) > MAX_UNNAMED
    truth: Result
    prediction: Result
    if isinstance(image, Detections):
        truth = build_instances(legend, info, path)
        prediction = Instances(image.size, legend.classes, legend.palette, image.boxes,
                               image.scores, image.labels, image.masks, path)
    elif isinstance(image, Segments):
        truth = build_panoptic_map(legend, info, path)
        prediction = truth.replace(
            size=image.segments.shape,
            segments=image.segments.unpack().astype(np.int32),
            labels=image.labels)
    else:
        truth = build_label_map(legend, info, path)
        prediction = truth.replace(size=image.labels.shape, labels=image.labels.unpack())
    for result, file, has_scores in ((truth, truth_path, False), (prediction, prediction_path,
                                                                  True)):
        drawing = draw_result(result, pixels, is_named=is_named, has_scores=has_scores)
        drawing.convert('RGB').save(file, 'JPEG', quality=JPEG_QUALITY, optimize=True)


def build_sample_sections(run: RecordedRun) -> list[Section]:
    """Return the sample images at several evaluations."""
    drawn = run.drawn
    if not drawn:
        return []
    shown = thin_evaluations(drawn, run.best)
    samples = read_samples([(f'iteration {each["iteration"]}' +
                             (' (best)' if each is run.best else ''), run, each)
                            for each in shown])  # yapf: disable
    text = 'Images of the validation set: annotations, and predictions of the model.'
    if len(shown) < len(drawn):
        text += f' {len(shown)} of {len(drawn)} evaluations are shown.'
    if others := sum(bool(each.get('samples')) for each in run.evaluations) - len(drawn):
        text += f' {others} with other images are omitted, because the validation data changed.'
    return [Section('Samples', text + describe_threshold(run), tiles=samples,
                    legend=build_legend(run))]  # yapf: disable


def read_samples(drawn: Sequence[tuple[str, RecordedRun, Evaluation]]) -> list[tuple[str, list]]:
    """Return each sample with its titled images: the ground truth, and predictions of runs."""
    samples = []
    for number, name in enumerate(drawn[-1][2]['samples']):
        paths = [('ground truth', drawn[0][1].folder / RECORD / f'truth_{number}.jpg')]
        for title, run, evaluation in drawn:
            folder = get_evaluation_folder(run.folder, evaluation['iteration'])
            paths.append((title, folder / f'sample_{number}.jpg'))
        if tiles := read_tiles(paths):
            samples.append((name, tiles))
    return samples


def read_tiles(tiles: Iterable[tuple[str, Path]]) -> list[tuple[str, Image.Image]]:
    """Return titles and images of the files that exist."""
    images = []
    for title, path in tiles:
        if path.is_file():
            with Image.open(path) as image:
                images.append((title, image.copy()))
    return images


def build_extreme_sections(run: RecordedRun) -> list[Section]:
    """Return the images with the worst and with the best predictions."""
    sections = []
    for kind, extreme in (('worst', 'lowest'), ('best', 'highest')):
        images, folder = [], get_evaluation_folder(run.folder, run.details.get('iteration', 0))
        found = run.details.get(kind, ())
        for number, each in enumerate(found):
            if tiles := read_tiles([('ground truth', folder / f'{kind}_{number}_truth.jpg'),
                                    ('prediction', folder / f'{kind}_{number}.jpg')]):
                images.append((f'{each["name"]}: {describe_quality(each)}', tiles))
        if images:
            text = f'Images with the {extreme} {name_quality(found[0])}.{describe_threshold(run)}'
            sections.append(
                Section(
                    f'{kind.capitalize()} images', text, tiles=images, legend=build_legend(run)))
    return sections


def name_quality(image: dict[str, Any]) -> str:
    """Return the name of the measure by which images are chosen."""
    if 'f1' in image:
        return ('F1. An object detected with a wrong class counts as missed, and the detection as '
                'wrong')
    return 'mean IoU of their annotated classes' if 'miou' in image else 'PQ of the image'


def describe_quality(image: dict[str, Any]) -> str:
    """Return how good a prediction is."""
    if 'f1' in image:
        return (f'F1 {image["f1"]:.2f}: {image["right"]} right, {image["missed"]} missed, '
                f'{image["wrong"]} wrong')
    return f'mean IoU {image["miou"]:.2f}' if 'miou' in image else f'PQ {image["pq"]:.1f}'


def build_legend(run: RecordedRun) -> list[tuple[str, Any]]:
    """Return classes and their colors, or nothing if they are too many."""
    colors = [tuple(each) for each in run.about.get('palette', ())]
    pairs = list(zip(run.about.get('classes', ()), colors, strict=False))
    return pairs if len(pairs) <= MAX_NAMES else []


def describe_threshold(run: RecordedRun) -> str:
    """Return the score from which detections are drawn, or nothing for other models."""
    if run.about.get('kind') not in ('masks', 'boxes'):
        return ''
    return f' Detections with a score of at least {MIN_SCORE} are drawn.'


def thin_evaluations(evaluations: Sequence[Evaluation],
                     best: Evaluation | None,
                     limit: int = MAX_EVALUATIONS) -> list[Evaluation]:
    """Return the first, the last, the best and some evaluations between, in order."""
    if len(evaluations) <= limit:
        return list(evaluations)
    last = len(evaluations) - 1
    chosen = {round(step * last / (limit - 1)) for step in range(limit)}
    places = [place for place, each in enumerate(evaluations) if each is best]
    if places and places[0] not in chosen:
        nearest = min(chosen - {0, last}, key=lambda place: abs(place - places[0]))
        chosen = chosen - {nearest} | {places[0]}
    return [evaluations[place] for place in sorted(chosen)]
