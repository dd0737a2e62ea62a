"""Validation of COCO's panoptic annotations: a JSON file, and PNG images of segments.

The JSON file is read into the rows of a COCO file. Each segment becomes an annotation with its ID
under ``segment_id``. Each annotated image has the name of its PNG image under ``segment_map``.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from mmengine.fileio import get

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.settings.findings import Finding

from ..segment_maps import NUM_COLORS, VOID, decode_segment_ids, measure_segments
from .coco_files import BOX, CONVERTED_FROM, FLAG, TEXT, Entry, Field, get_size, load_coco
from .image_files import MAX_DECODED, OtherSizeError, describe_read_error, open_image
from .listed_files import SAMPLE, CheckLevel, check_files
from .validation_report import Report, abbreviate, find_repeated

SEGMENT_MAP, SEGMENT_ID = 'segment_map', 'segment_id'  # keys of rows
REFERENCE = Field(lambda value: type(value) in (int, float, str), 'the ID of an image')
SEGMENTS = Field(
    lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value),
    'a list of segments')
ANNOTATION = dict(image_id=REFERENCE, file_name=TEXT, segments_info=SEGMENTS)
ID = Field(lambda value: type(value) is int and VOID < value < NUM_COLORS**3,
           f'an integer from 1 to {NUM_COLORS**3 - 1}')
MAX_SHOWN = 5  # segments in a message
MAX_BOX_ERROR = 1  # pixels; some programs do not count the last one


def load_panoptic(ann_file: Path,
                  report: Report,
                  *,
                  source: str | None = None,
                  needs_annotations: bool = True,
                  accepts_bom: bool = False) -> dict[str, list] | None:
    """Return the rows of a panoptic JSON file, or None if it is not one.

    Entries that cannot become rows are reported and omitted.

    Args:
        source: Name of the file in the locations of rows. Defaults to its path.
        needs_annotations, accepts_bom: See :func:`~.coco_files.load_coco`.
    """
    content = load_coco(
        ann_file, report, needs_annotations=needs_annotations, accepts_bom=accepts_bom)
    if content is None:
        return None
    annotations = []
    for index, entry in enumerate(content['annotations']):
        if error := _find_field_error(entry):
            text = f'{ann_file}: annotations[{index}]{error}'
            report.add(Finding('wrong-value', text, (str(ann_file), )))
        else:
            annotations.append(entry)
    for number in find_repeated(entry['image_id'] for entry in annotations):
        text = f'{ann_file}: image {number} has several annotations'
        report.add(
            Finding('repeated-annotation-id', text, (str(ann_file), ), id=number, effect='meaning'))
    for category in content['categories']:
        if isinstance(category, dict) and not FLAG.holds(category.get('isthing')):
            text = f'{ann_file}: category {abbreviate(category.get("id"))}: isthing must be ' \
                   f'{FLAG.expected}, got {abbreviate(category.get("isthing"))}'
            report.add(Finding('wrong-value', text, (str(ann_file), ), id=category.get('id')))
    rows: list[Entry] = []
    for entry in annotations:
        place = f'{source or ann_file}: image {entry["image_id"]}'
        rows += _iter_segments(entry, place, len(rows) + 1, ann_file, report)
    maps = {entry['image_id']: entry['file_name'] for entry in annotations}
    for image in content['images']:
        if isinstance(image, dict) and REFERENCE.holds(image.get('id')) and image['id'] in maps:
            image[SEGMENT_MAP] = maps[image['id']]
    return dict(content, annotations=rows)


def _find_field_error(entry: Any) -> str:
    """Return which key of an annotation is wrong, or an empty string."""
    if not isinstance(entry, dict):
        return f' must have {", ".join(ANNOTATION)}, got {abbreviate(entry)}'
    return next((f': {key} must be {field.expected}, got {abbreviate(entry.get(key))}'
                 for key, field in ANNOTATION.items() if not field.holds(entry.get(key))),
                '')  # yapf: disable


def _iter_segments(entry: Entry, place: str, first: int, ann_file: Path,
                   report: Report) -> Iterator[Entry]:
    """Yield a row for each segment of an annotation, with IDs from ``first`` on."""
    segments = entry['segments_info']
    for segment in segments:
        if not ID.holds(segment.get('id')):
            text = f'{place}: id of a segment must be {ID.expected}, got ' \
                   f'{abbreviate(segment.get("id"))}'
            report.add(Finding('wrong-value', text, (str(ann_file), ), id=entry['image_id']))
    valid = [segment for segment in segments if ID.holds(segment.get('id'))]
    for number in find_repeated(segment['id'] for segment in valid):
        text = f'{place}: segment {number} is duplicated'
        report.add(Finding('repeated-segment-id', text, (str(ann_file), ), id=number))
    for number, segment in enumerate(valid, first):
        location = {CONVERTED_FROM: f'{place}: segment {segment["id"]}'}
        yield dict(iscrowd=0) | location | segment | dict(
            id=number, image_id=entry['image_id'], segment_id=segment['id'])


def read_shapes(content: bytes, size: tuple[int, int] | None) -> tuple[str, dict[int, Any]]:
    """Return Pillow's mode of a PNG image of segments, and area and box of each segment by its ID.

    Args:
        content: Content of the file.
        size: Width and height of its image, or None if unknown.

    Raises:
        OSError: If it cannot be decoded.
        OtherSizeError: If it has another size than its image.
        UserError: If it is not a PNG, or too large.
    """
    with open_image(BytesIO(content)) as image:
        mode, (width, height) = image.mode, image.size
        if image.format != 'PNG':
            raise UserError(f'it is not a PNG, but {image.format}')
    if size not in (None, (width, height)):
        assert size is not None
        raise OtherSizeError(f'it has {width} x {height} pixels, but its image has {size[0]} x '
                             f'{size[1]}')
    if width * height > MAX_DECODED:
        raise UserError(f'it has {width} x {height} pixels, more than {MAX_DECODED}')
    return mode, measure_segments(decode_segment_ids(content))


def describe_unlisted(shapes: Mapping[int, Any], rows: Sequence[Entry], mode: str) -> str:
    """Return which segments have pixels but no row, or an empty string.

    Args:
        shapes, mode: See :func:`read_shapes`.
    """
    listed = {row[SEGMENT_ID] for row in rows}
    unlisted = [str(number) for number in shapes if number not in listed]
    if not unlisted:
        return ''
    hint = '' if mode in ('RGB', 'RGBA') else \
        f'. It has the mode {mode}, but the ID of a segment is red + 256 green + 65536 blue'
    return f'segments_info does not list {format_names(unlisted, MAX_SHOWN)}, which have ' \
           f'pixels{hint}'


def find_segment_problems(path: str, content: bytes, size: tuple[int, int] | None,
                          rows: Sequence[Entry]) -> Iterator[Finding]:
    """Yield what is wrong with the segments of an image.

    Args:
        path: Path of the PNG image, for messages.
        content, size: See :func:`read_shapes`.
        rows: Rows of its segments.
    """
    try:
        mode, shapes = read_shapes(content, size)
    except OtherSizeError as error:
        yield Finding('other-label-map', f'{path} cannot be used: {error}')
        return
    except (OSError, UserError) as error:
        yield Finding('wrong-label-map', f'{path} cannot be used: {error}',
                      fix='save it as a PNG with three channels of 8 bits')  # yapf: disable
        return
    if text := describe_unlisted(shapes, rows, mode):
        yield Finding('unlisted-segment', f'{path}: {text}')
    for row in rows:
        shape, place = shapes.get(row[SEGMENT_ID]), row[CONVERTED_FROM]
        if shape is None:
            yield Finding('empty-segment', f'{place}: no pixel in {path}', id=row[SEGMENT_ID])
        elif not has_shape(row, shape):
            yield Finding(
                'segment-shape', f'{place}: area {row.get("area")} and bbox {row.get("bbox")}, but '
                f'its pixels have {shape["area"]} and {shape["bbox"]}',
                id=row[SEGMENT_ID])


def has_shape(row: Entry, shape: Mapping[str, Any]) -> bool:
    """Return True if area and box of a row are those of its pixels, up to a pixel for the box."""
    box = row.get('bbox')
    return row.get('area') == shape['area'] and BOX.holds(box) and all(
        abs(a - b) <= MAX_BOX_ERROR for a, b in zip(box or (), shape['bbox'], strict=True))


def check_segment_maps(images: Sequence[Entry], paths: Sequence[str], rows: Sequence[Entry],
                       settings: Any, level: CheckLevel) -> Iterator[tuple[Entry, Finding]]:
    """Yield images and what is wrong with their PNG images of segments.

    Args:
        images: Valid entries of images.
        paths: Path of the PNG image of each.
        rows: Rows of all segments.
        settings: ``backend_args`` of the dataset.
        level: Thoroughness of the check.
    """
    by_image = defaultdict(list)
    for row in rows:
        by_image[row['image_id']].append(row)

    def check(index: int) -> list[Finding]:
        image = images[index]
        if SEGMENT_MAP not in image:  # reported by the caller
            return []
        try:
            content = get(paths[index], settings)
        except OSError as error:
            return [describe_read_error(paths[index], error)]
        return list(
            find_segment_problems(paths[index], content, get_size(image), by_image[image['id']]))

    for index, finding in check_files(paths, 'segment maps', check, settings, level, SAMPLE // 2):
        if finding.rule == 'missing-file':
            text = f'{images[index]["file_name"]} has no PNG image of segments {paths[index]}'
            finding = Finding('no-label-map', text)
        yield images[index], replace(finding, places=(paths[index], ))
