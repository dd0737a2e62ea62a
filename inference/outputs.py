"""Files of ``colonnade predict``: visualizations, results, label maps, and their COCO IDs."""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image

from colonnade.common.atomic_files import atomic_write, write_json
from colonnade.common.errors import UserError, file_errors
from colonnade.datasets.rle import encode_mask, make_json_rle
from colonnade.runtime.results import add_suffix

from .georeferences import read_georeference, write_geojson, write_geotiff
from .inputs import Input
from .model import MAX_TILED_PIXELS, Prediction
from .results import Instances, LabelMap, PanopticMap, Result

MAX_JPEG_SIDE = 65500  # pixels


@dataclass(frozen=True)
class CocoIds:
    """COCO IDs of inputs and classes."""
    images: dict[str, int]
    categories: tuple[int, ...]


def count_ids(inputs: Sequence[Input], classes: Sequence[str], first: int = 1) -> CocoIds:
    """Number the inputs from 1, and the classes from ``first``."""
    images = {item.name: number for number, item in enumerate(inputs, 1)}
    return CocoIds(images, tuple(range(first, first + len(classes))))


@file_errors()
def find_ids(annotations: Path, inputs: Sequence[Input], classes: Sequence[str]) -> CocoIds:
    """Return the IDs that a COCO file assigns to inputs and classes.

    The path of each input must end with the ``file_name`` of an image. Each class must be the name
    of a category.
    """
    try:
        content: Any = json.loads(annotations.read_bytes())
        images = {image['file_name']: image['id'] for image in content['images']}
        categories = {category['name']: category['id'] for category in content['categories']}
    except (ValueError, RecursionError) as error:
        raise UserError(f'{annotations} is not a JSON file: {error}') from error
    except (KeyError, TypeError) as error:
        raise UserError(f'{annotations} is not a COCO file: expected images with id and file_name, '
                        'and categories with id and name') from error
    missing = [name for name in classes if name not in categories]
    if missing:
        raise UserError(f'{annotations} has no category for the class {missing[0]!r} of the model; '
                        f'its categories are {", ".join(map(repr, categories))}')
    owners: dict[int, str] = {}
    for item in inputs:
        parts = item.path.as_posix().split('/')
        ends = ('/'.join(parts[start:]) for start in range(1, len(parts)))  # the longest first
        image_id = next((images[end] for end in ends if end in images), None)
        if image_id is None:
            raise UserError(f'{annotations} has no image {item.name}')
        if (other := owners.setdefault(image_id, item.name)) != item.name:
            raise UserError(f'{other} and {item.name} both match image {image_id} of '
                            f'{annotations}: remove one from the inputs')
    ids = {name: image_id for image_id, name in owners.items()}
    return CocoIds(ids, tuple(categories[name] for name in classes))


@dataclass(frozen=True)
class OutputWriter:
    """Writer of the outputs of each image; safe to use from several threads."""
    folder: Path
    outputs: Sequence[str]
    categories: Sequence[int]
    threshold: float
    opacity: float

    def write(self, item: Input, prediction: Prediction) -> dict[str, Any] | None:
        """Write the files of an image; return its record, or None if it could not be predicted."""
        result = prediction.result
        if result is None:
            return None
        if 'visualizations' in self.outputs and self.can_draw(result):
            assert prediction.image is not None  # because there is a result
            drawing = self.draw(result, prediction.image)
            suffix = 'jpg' if max(drawing.size) <= MAX_JPEG_SIDE else 'png'
            path = self.folder / 'visualizations' / f'{item.stem}.{suffix}'
            with atomic_write(path) as scratch:
                drawing.save(scratch, quality=90)
        if 'labels' in self.outputs and isinstance(result, LabelMap):
            self.write_labels(result, item.stem)
        self.write_georeferenced(result, item)
        record = dict(name=item.name, size=list(result.size))
        if 'results' in self.outputs:
            record['entries'] = [self.write_segments(result, item.stem)] if isinstance(
                result, PanopticMap) else self.build_entries(result)
        return record

    @staticmethod
    def can_draw(result: Result) -> bool:
        """Return True unless the image is so large that a drawing would fill the memory."""
        return math.prod(result.size) <= MAX_TILED_PIXELS

    def build_entries(self, result: Result) -> list[dict[str, Any]]:
        """Return JSON entries: one per instance or segment, or one with fractions of classes."""
        if isinstance(result, LabelMap):
            return [dict(shares=result.class_fractions())]
        if isinstance(result, PanopticMap):
            return [
                dict(info, segmentation=make_json_rle(encode_mask(result.segments == info['id'])))
                for info in result.to_coco(0, '', self.categories)['segments_info']
            ]
        entries = result.to_coco(0, self.categories)
        return [{key: entry[key] for key in entry if key != 'image_id'} for entry in entries]

    def draw(self, result: Result, image: np.ndarray, *, legend: bool = True) -> Image.Image:
        """Draw a result; ``legend`` lists the classes of a map below the image."""
        if isinstance(result, Instances):
            return result.draw(image, threshold=self.threshold, opacity=self.opacity)
        return result.draw(image, opacity=self.opacity, legend=legend)

    def write_labels(self, result: LabelMap, stem: str) -> None:
        """Write a label map as a PNG."""
        with atomic_write(self.folder / 'labels' / f'{stem}.png') as scratch:
            result.to_image(self.categories[0]).save(scratch)

    def write_georeferenced(self, result: Result, item: Input) -> None:
        """Write a label map or instances in map coordinates, if the image is georeferenced."""
        output = 'labels' if isinstance(result, LabelMap) else 'results'
        if output not in self.outputs or isinstance(
                result, PanopticMap) or not (place := read_georeference(item.path, result.size)):
            return
        path = self.folder / 'georeferenced' / item.stem
        if isinstance(result, LabelMap):
            write_geotiff(add_suffix(path, '.tif'), result, place, self.categories[0])
        else:
            visible = result.filter_by_score(self.threshold)
            write_geojson(add_suffix(path, '.geojson'), visible, place, self.categories)

    def write_segments(self, result: PanopticMap, stem: str) -> dict[str, Any]:
        """Write segments as a PNG; return their annotation, which lacks the ID of the image."""
        with atomic_write(self.folder / 'panoptic' / f'{stem}.png') as scratch:
            result.to_image().save(scratch)
        annotation = result.to_coco(0, f'{stem}.png', self.categories)
        return {key: annotation[key] for key in annotation if key != 'image_id'}


def list_inputs(records: Iterable[dict[str, Any]],
                ids: CocoIds) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return IDs, names and sizes of finished images and of finished videos, as in a COCO file."""
    images, videos = [], []
    for record in (record for record in records if record['name'] in ids.images):
        height, width = record['size']
        image_id = ids.images[record['name']]
        entry = dict(id=image_id, file_name=record['name'], width=width, height=height)
        if 'video' in record:
            videos.append({**entry, **record['video']})
        else:
            images.append(entry)
    for entries in (images, videos):
        entries.sort(key=lambda entry: entry['id'])
    return images, videos


def write_images_json(path: Path, records: Iterable[dict[str, Any]], ids: CocoIds,
                      categories: list[dict[str, Any]]) -> None:
    """Write IDs, names and sizes of finished inputs as in a COCO file."""
    images, videos = list_inputs(records, ids)
    write_json(path, dict(images=images, videos=videos, categories=categories))


def write_results_json(path: Path, records: Iterable[dict[str, Any]], ids: CocoIds) -> None:
    """Write a list of the entries of all finished inputs, each with the ID of its image."""
    with atomic_write(path) as scratch, scratch.open('w', encoding='utf-8') as file:
        write_entries(file, records, ids)


def write_panoptic_json(path: Path, records: Iterable[dict[str, Any]], ids: CocoIds,
                        categories: list[dict[str, Any]]) -> None:
    """Write a file in COCO's panoptic format, whose PNG images are already written."""
    images, _ = list_inputs(records, ids)
    with atomic_write(path) as scratch, scratch.open('w', encoding='utf-8') as file:
        head = json.dumps(dict(images=images, categories=categories))
        file.write(f'{head[:-1]}, "annotations": ')
        write_entries(file, records, ids)
        file.write('}\n')


def write_entries(file: TextIO, records: Iterable[dict[str, Any]], ids: CocoIds) -> None:
    """Write a JSON list of the entries of all finished inputs."""
    separator = '['
    for record in (record for record in records if record['name'] in ids.images):
        for entry in record['entries']:
            line = json.dumps(dict(image_id=ids.images[record['name']], **entry))
            file.write(f'{separator}\n{line}')
            separator = ','
    file.write(f'{separator if separator == "[" else ""}\n]\n')
