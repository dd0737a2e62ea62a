"""COCO's panoptic annotations: a JSON file with segments_info, and a folder of PNG images."""
from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError
from colonnade.common.progress import Progress

from ..data_index import DataIndex, name_sources
from ..segment_maps import build_panoptic_content, get_segment_map_name
from ..validation.coco_files import (FIELDS, Entry, Usage, check_instances, find_valid_entries,
                                     make_header_check)
from ..validation.panoptic_files import (SEGMENT_ID, SEGMENT_MAP, describe_unlisted, has_shape,
                                         load_panoptic, read_shapes)
from ..validation.validation_report import Report
from .coco import find_annotation_files, has_segments, locate_images, read_splits
from .coco_repairs import CocoRepairer
from .data_format import ReadContext

NUM_PROBES = 10  # PNG images that are looked up to find their folder; some may be missing


def is_panoptic(path: Path) -> bool:
    """Return True for a panoptic JSON file, or a folder with one in it or in annotations/."""
    if path.is_file():
        return path.suffix.lower() == '.json' and has_segments(path)
    return bool(find_annotation_files(path, panoptic=True))


def read_panoptic(path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a panoptic dataset; they keep their files if nothing is repaired."""
    return read_splits(path, find_annotation_files(path, panoptic=True), context,
                       read_panoptic_file)


def read_panoptic_file(file: Path, images: Path | None, context: ReadContext) -> DataIndex | None:
    """Read and repair a panoptic JSON file; return None after reporting an error.

    Args:
        images: Folder of its images; None searches for it.
    """
    context.tables.add(file)
    report, num_errors = context.report, context.report.num_errors
    content = load_panoptic(file, report, source=context.locate(file), accepts_bom=True)
    if content is None or report.num_errors > num_errors:
        return None
    located = locate_images(file, images, content['images'], context)
    maps = _find_maps_folder(file, content['images'], context)
    if located is None or maps is None:
        return None
    folder, entries = located
    has_changed = entries is not content['images']
    content['images'] = entries
    repairer = CocoRepairer(file, content, context)
    repairer.repair_ids()
    repairer.remove_orphans(folder)
    repairer.repair_sizes(folder)
    if context.skips_bad_data:
        repairer.remove_bad_samples(folder, False)
    has_changed |= repairer.has_changed | _repair_segments(file, content, maps, context)
    errors = Report()
    for kind in FIELDS:
        find_valid_entries(content[kind], kind, file, errors)
    if errors.num_errors or report.num_errors > num_errors:
        check_instances(
            file,
            content,
            report,
            check_images=make_header_check(folder, num_bands=context.num_bands),
            usage=Usage(masks=False, is_panoptic=True))
        return None
    label_maps = {image['file_name']: maps / image.pop(SEGMENT_MAP) for image in content['images']}
    rows = name_sources(content, context.locate(file)) if has_changed else content
    return DataIndex(folder, rows, label_maps, maps, None if has_changed else file)


def _find_maps_folder(file: Path, images: Sequence[Any], context: ReadContext) -> Path | None:
    """Return the folder of the PNG images, or None after reporting an error."""
    names = [
        image[SEGMENT_MAP] for image in images if isinstance(image, dict) and SEGMENT_MAP in image
    ][:NUM_PROBES]
    if not names:
        context.add_error(file, 'has no annotated images')
        return None
    nearby = (
        path for parent in (file.parent, file.parent.parent)
        for path in (parent, *sorted(filter(Path.is_dir, parent.iterdir()))))
    counts = {folder: sum((folder / name).is_file() for name in names)
              for folder in (file.with_suffix(''), *nearby)}  # yapf: disable
    best = max(counts, key=lambda folder: counts[folder])  # the first of equal ones
    if not counts[best]:
        context.add_error(
            file, f'its PNG image {names[0]} does not exist: expected it in '
            f'{file.with_suffix("")}, or in a folder next to or above {file.name}')
        return None
    return best


def _repair_segments(file: Path, content: dict[str, list], maps: Path,
                     context: ReadContext) -> bool:
    """Make areas and boxes those of the pixels, and remove what has no segments.

    Returns:
        Whether something has changed. Errors are reported.
    """
    rows: dict[Any, list[Entry]] = defaultdict(list)
    for row in content['annotations']:
        rows[row.get('image_id')].append(row)
    has_changed, images, annotations = False, [], []
    with Progress('segment maps', len(content['images'])) as progress:
        for number, image in enumerate(content['images'], 1):
            progress(number)
            if not isinstance(image, dict) or SEGMENT_MAP not in image:
                context.count_dropped('images without panoptic annotations are not used',
                                      context.locate(file, f'image {_get_id(image)}'))
                continue
            path = maps / image[SEGMENT_MAP]
            context.labels.add(path)
            try:
                has_size = 'width' in image and 'height' in image
                size = (image['width'], image['height']) if has_size else None
                mode, shapes = read_shapes(path.read_bytes(), size)
                if text := describe_unlisted(shapes, rows[image['id']], mode):
                    raise UserError(text)
            except (OSError, ValueError) as error:
                context.reject(path, f'cannot be used: {error}', sample=str(path))
                continue
            own = []
            for row in rows[image['id']]:
                shape = shapes.get(row[SEGMENT_ID])
                if shape is None:
                    context.count_repair('segments without pixels: removed', row['converted_from'])
                    has_changed = True
                    continue
                if not has_shape(row, shape):
                    context.count_repair('area or bbox of segments: computed from pixels',
                                         row['converted_from'])
                    row |= shape
                    has_changed = True
                own.append(row)
            if not own:
                context.count_dropped('images without segments are not used',
                                      context.locate(file, f'image {image["id"]}'))
                continue
            images.append(image)
            annotations += own
    has_changed |= len(images) < len(content['images'])
    content |= dict(images=images, annotations=annotations)
    return has_changed


def _get_id(image: Any) -> Any:
    return image.get('id') if isinstance(image, dict) else image


def order_things_first(indices: Sequence[DataIndex], context: ReadContext) -> None:
    """Move the categories of stuff after those of things, which heads number first."""
    for index in indices:
        ordered = sorted(index.rows['categories'], key=lambda row: not row['isthing'])
        if ordered != index.rows['categories']:
            location = context.locate(index.file) if index.file else None
            index.detach(context.root)
            index.rows['categories'] = ordered
            context.count_repair('categories of stuff before those of things: reordered', location)


def write_segments(index: DataIndex, folder: Path) -> dict[str, list]:
    """Return the content of a panoptic JSON file, and copy its PNG images if mmdet needs this.

    Args:
        index: Index of a panoptic split.
        folder: Folder of the copies. It is not created if their names fit those of the images.
    """
    assert index.masks is not None
    names = {name: get_segment_map_name(name) for name in index.label_maps}
    if any(index.label_maps[name] != index.masks / names[name] for name in names):
        for name, path in index.label_maps.items():
            (folder / names[name]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / names[name])
    ids = {row['id']: names[row['file_name']] for row in index.rows['images']}
    return build_panoptic_content(index.rows, ids)


def read_converted(index: DataIndex, folder: Path, report: Report) -> None:
    """Set the rows and label maps of an index to those in its file, with PNG images in a folder."""
    assert index.file is not None
    rows = load_panoptic(index.file, report)
    assert rows is not None  # it was written by a conversion
    index.rows, index.masks = rows, folder
    index.label_maps = {row['file_name']: folder / row[SEGMENT_MAP] for row in rows['images']}
