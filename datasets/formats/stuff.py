"""Panoptic segments from instances and label maps of stuff.

Smaller objects are on top of larger ones, and all are on top of crowds and stuff. Crowds of a class
are one segment, as is each class of stuff.
"""
from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count, format_names
from colonnade.common.progress import Progress

from ..data_index import DataIndex
from ..options import DataOptions
from ..rle import decode_rle, encode_segmentation, get_area
from ..segment_maps import VOID, PanopticWriter
from ..validation.coco_files import CONVERTED_FROM, Entry
from ..validation.image_files import read_label_values, read_labels
from ..validation.label_map_files import IGNORED
from ..validation.segmentations import find_segmentation_error
from .data_format import ReadContext


@dataclass(frozen=True)
class StuffMaps:
    """Label maps of stuff for the images of a split."""
    files: Mapping[str, Path]  # image name -> label file
    labels: Mapping[int, int]  # label -> category ID
    categories: Sequence[Entry]  # categories of things, then of stuff


def add_stuff(index: DataIndex, folder: Path, args: DataOptions, context: ReadContext) -> StuffMaps:
    """Find the label maps of a split, check its masks and labels, and drop unusable images.

    Labels that have no class are errors, except for 255 and, with ``--label-zero ignore``, 0.
    Classes with the name of a category of objects are unlabeled.

    Args:
        index: Index of instances with masks. Images that are skipped are removed.
        folder: Folder of the label maps.
    """
    start, names = int(args.label_zero == 'ignore'), args.stuff_classes or []
    things = [dict(row, isthing=1) for row in index.rows['categories']]
    first = 1 + max((row['id'] for row in things), default=0)
    stuff = [name for name in names if name not in index.classes]
    ids = {name: number for number, name in enumerate(stuff, first)}
    ends = args.suffixes or ('', '.png')
    files, bad = {}, set()
    rows = defaultdict(list)
    for row in index.objects:
        rows[row['image_id']].append(row)
    for image in index.rows['images']:
        name, num_errors = image['file_name'], len(context.errors) + len(context.skipped)
        stem = name.removesuffix(ends[0]) if ends[0] else os.path.splitext(name)[0]
        files[name] = folder / f'{stem}{ends[1]}'
        context.labels.add(files[name])
        for row in rows[image['id']]:
            mask = row.get('segmentation')
            error = find_segmentation_error(mask, [image['height'], image['width']], True) \
                if mask else 'an object needs a mask to become a panoptic segment'
            if error:
                source = row.get(CONVERTED_FROM) or f'annotation {row["id"]}'
                context.reject(index.images / name, f'{source}: {error}', sample=name)
        try:
            values = read_label_values(files[name], (image['width'], image['height']))
            if unknown := sorted(values - {IGNORED, *range(len(names) + start)}):
                raise UserError(f'no class has label {format_names(unknown)}: --stuff-classes has '
                                f'{len(names)}, starting with label {start}')
        except (OSError, ValueError) as error:
            context.reject(files[name], f'cannot be used: {error}', sample=name)
        if len(context.errors) + len(context.skipped) > num_errors:
            bad.add(name)
    kept = index.select(files.keys() - bad)
    index.rows = kept.rows
    labels = {label: ids[name] for label, name in enumerate(names, start) if name in ids}
    return StuffMaps(
        files, labels,
        [*things, *(dict(id=number, name=name, isthing=0) for name, number in ids.items())])


def draw_panoptic(index: DataIndex, maps: StuffMaps, file: Path, context: ReadContext) -> None:
    """Write the panoptic JSON file of a split, and its PNG images to a folder of the same name."""
    writer = PanopticWriter(file, file.with_suffix(''), maps.categories)
    rows, num_hidden = defaultdict(list), 0
    for row in index.objects:
        rows[row['image_id']].append(row)
    with Progress('segment maps', len(index.rows['images'])) as progress:
        for number, image in enumerate(index.rows['images'], 1):
            stuff = read_labels(maps.files[image['file_name']], (image['width'], image['height']))
            ids, segments = draw_segments(stuff, maps.labels, rows[image['id']])
            writer.add(image, ids, segments)
            num_hidden += len(segments) - len({*np.unique(ids).tolist()} - {VOID})
            progress(number)
    writer.write()
    if num_hidden:
        context.report.add_warning(f'{file.name}: omitted {format_count(num_hidden, "segment")} '
                                   'that others cover completely')


def draw_segments(stuff: np.ndarray, labels: Mapping[int, int],
                  rows: Sequence[Entry]) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the ID of the segment of each pixel, ``(H, W)``, and the segments.

    Args:
        stuff: Labels of stuff, ``(H, W)``.
        labels: Label -> category ID. Pixels of other labels have no segment.
        rows: Annotations of the objects, with valid masks.
    """
    ids = np.full(stuff.shape, VOID, np.int32)
    segments: dict[Any, dict[str, Any]] = {}

    def add(mask: np.ndarray, category: int, key: Any, **keys: Any) -> None:
        if mask.any():
            segment = segments.setdefault(
                key, dict(segment_id=len(segments) + 1, category_id=category, **keys))
            ids[mask] = segment['segment_id']

    for label, category in labels.items():
        add(stuff == label, category, ('stuff', category))
    masks = [encode_segmentation(row['segmentation'], stuff.shape) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (not rows[i]['iscrowd'], -get_area(masks[i])))
    for index in order:
        row = rows[index]
        key = ('crowd', row['category_id']) if row['iscrowd'] else ('object', index)
        location = {CONVERTED_FROM: row[CONVERTED_FROM]} if CONVERTED_FROM in row else {}
        add(decode_rle(masks[index]),
            row['category_id'],
            key,
            iscrowd=int(row['iscrowd']),
            **location)
    return ids, list(segments.values())
