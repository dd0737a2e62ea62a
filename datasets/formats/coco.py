"""Folders with COCO files: COCO's directory structure, or a file next to the images."""
from __future__ import annotations

import mmap
import re
from codecs import BOM_UTF8
from collections.abc import Callable
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

from colonnade.common.name_lists import format_names

from ..data_index import DataIndex, name_sources
from ..validation.coco_files import (CONVERTED_FROM, FIELDS, Usage, check_instances,
                                     find_valid_entries, load_coco, make_header_check)
from ..validation.validation_report import Report
from .coco_repairs import CocoRepairer, fill_masks
from .data_format import ALL, SPLITS, ReadContext, find_split_folders, match_suffix, read_start

NUM_BYTES = 2**16  # start of a file that is searched for keys
NUM_IMAGES = 10  # images that are looked up to find their folder; some may be missing
OTHER_TASKS = ('captions', 'person_keypoints', 'stuff', 'image_info')
ReadFile = Callable[[Path, Path | None, ReadContext], DataIndex | None]


def is_coco(path: Path) -> bool:
    """Return True for a COCO file, or a folder with one in it or in annotations/."""
    if path.is_file():
        return path.suffix.lower() == '.json' and bool(_find_keys(path) -
                                                       {b'shapes'}) and not has_segments(path)
    return bool(find_annotation_files(path))


def _looks_like_coco(file: Path) -> bool:
    """Return True if a file has images and annotations, or a large file any key of COCO."""
    keys = _find_keys(file)
    is_large = bool(keys) and file.stat().st_size > NUM_BYTES
    return b'shapes' not in keys and (is_large or keys >= {b'images', b'annotations'})


def has_segments(file: Path) -> bool:
    """Return True if a JSON file has panoptic annotations, whose images may come before them."""
    try:
        with file.open('rb') as handle, mmap.mmap(
                handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b'"segments_info"') >= 0
    except (OSError, ValueError):  # unreadable or empty
        return False


def _find_keys(file: Path) -> set[bytes]:
    start = read_start(file, NUM_BYTES)
    return set(re.findall(rb'"(images|categories|annotations|shapes)"\s*:\s*[\[{]', start))


def read_coco(path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a COCO dataset; they keep their files if nothing is repaired."""
    read = partial(read_coco_file, masks=not context.boxes_only)
    return read_splits(path, find_annotation_files(path), context, read)


def read_splits(path: Path, files_by_split: dict[str, list[Path]], context: ReadContext,
                read: ReadFile) -> dict[str, DataIndex]:
    """Return the splits of the JSON files of a dataset, without that of tests."""
    splits = {}
    if {'train', 'val'} <= files_by_split.keys():
        for file in files_by_split.pop(ALL, ()):
            context.count_dropped('files whose names contain no split are not used',
                                  context.locate(file))
    for split, files in files_by_split.items():
        if len(files) > 1:
            names = format_names([context.locate(file) for file in files])
            context.add_error(
                path, f'has several files for the split {split}: {names}. Pass one file for each '
                'split with --data')
        elif split == 'test':
            context.count_dropped('the file of the test split is not used',
                                  context.locate(files[0]))
        elif index := read(files[0], None, context):
            splits[split] = index
    return splits


def find_annotation_files(path: Path, *, panoptic: bool = False) -> dict[str, list[Path]]:
    """Return JSON files by the split in the name of their folder or in their own name."""
    if path.is_file():
        return {ALL: [path]}

    def has_task(file: Path) -> bool:
        return _looks_like_coco(file) and has_segments(file) == panoptic

    by_split: dict[str, list[Path]] = {}
    for split, folder in find_split_folders(path).items():
        files = list(filter(has_task, sorted(folder.glob(match_suffix('.json')))))
        if files:
            by_split[split] = files
    for folder in (path / 'annotations', path):
        if by_split:
            break
        for file in sorted(folder.glob(match_suffix('.json'))):
            if not file.name.startswith(OTHER_TASKS) and has_task(file):
                by_split.setdefault(_parse_split(file.stem), []).append(file)
    return by_split


def _parse_split(stem: str) -> str:
    """Return the split in a name: ``instances_val2017`` is of ``val``."""
    words = re.findall('[a-z]+', stem.lower())
    return next((split for split, names in SPLITS.items() if set(names) & set(words)), ALL)


def read_coco_file(file: Path,
                   images: Path | None,
                   context: ReadContext,
                   masks: bool = True) -> DataIndex | None:
    """Read a COCO file, find its images and repair it; return None after reporting an error.

    Args:
        images: Folder of its images; None searches for it.
        masks: Whether segmentations are used.
    """
    context.tables.add(file)
    content = load_coco(file, context.report, accepts_bom=True)
    if content is None:
        return None
    located = locate_images(file, images, content['images'], context)
    if located is None:
        return None
    folder, entries = located
    had_backslashes = entries is not content['images']
    content['images'] = entries
    repairer = CocoRepairer(file, content, context)
    if read_start(file).startswith(BOM_UTF8):
        repairer.has_changed = True
        context.count_repair('byte order marks: removed', context.locate(file))
    repairer.repair_ids()
    repairer.remove_orphans(folder)
    repairer.repair_sizes(folder)
    repairer.repair_annotations()
    if context.skips_bad_data:
        repairer.remove_bad_samples(folder, masks)
    report = Report()
    for kind in FIELDS:
        find_valid_entries(content[kind], kind, file, report)
    if report.num_errors:
        fill_masks([DataIndex(folder, content)], context.ignore_errors())
        for entry in (*content['images'], *content['annotations']):
            if isinstance(entry, dict) and CONVERTED_FROM in entry:  # its ID has changed
                entry[CONVERTED_FROM] = str(context.root / entry[CONVERTED_FROM])
        check_instances(
            file,
            content,
            context.report,
            check_images=make_header_check(folder, num_bands=context.num_bands),
            usage=Usage(masks=masks))
        return None
    used = {annotation['category_id'] for annotation in content['annotations']}
    unused = [
        c for c in content['categories'] if c['id'] == 0 and 0 not in used and any(
            other.get('supercategory') == c['name'] for other in content['categories'])
    ]
    if unused:
        context.count_dropped(
            f'the category {unused[0]["name"]!r}, a supercategory of others without annotations, '
            'is omitted', context.locate(file))
        content['categories'] = [c for c in content['categories'] if c not in unused]
    if not unused and not had_backslashes and not repairer.has_changed:
        return DataIndex(folder, content, file=file)
    return DataIndex(folder, name_sources(content, context.locate(file)))


def locate_images(file: Path, images: Path | None, entries: list[dict],
                  context: ReadContext) -> tuple[Path, list[dict]] | None:
    """Return the folder of a file's images, and their entries without backslashes."""
    if images and not images.is_dir():
        context.add_error(images, 'is not a folder: pass the folder of the images with --images')
        return None
    names = [
        entry['file_name'] for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get('file_name'), str)
    ]
    if not names:
        context.add_error(file, 'has no images')
        return None
    names = [name for name in names if '\\' in name][:NUM_IMAGES] or names[:NUM_IMAGES]
    folders = [images] if images else _guess_image_folders(file)
    for folder in folders:  # a folder, also if names are absolute
        if folder.is_dir() and any((folder / name).is_file() for name in names):
            return folder, entries
    for folder in folders:
        if any((folder / name.replace('\\', '/')).is_file() for name in names):
            context.count_dropped('backslashes in image names are replaced by slashes',
                                  context.locate(file))
            return folder, [_replace_backslashes(entry) for entry in entries]
    if images:
        return images, entries
    name, advice = names[0], 'make image names relative to their folder'
    if not name.startswith('/') and not PureWindowsPath(name).is_absolute():
        advice = f'searched in {format_names([str(folder) for folder in folders])}; pass --coco ' \
            'and --images'
    context.add_error(file, f'its image {name} does not exist: {advice}')
    return None


def _replace_backslashes(entry: Any) -> Any:
    if isinstance(entry, dict) and isinstance(entry.get('file_name'), str):
        return entry | dict(file_name=entry['file_name'].replace('\\', '/'))
    return entry


def _guess_image_folders(file: Path) -> list[Path]:
    name = re.sub('^(instances|panoptic)_', '', file.stem)
    root = file.parent.parent if file.parent.name == 'annotations' else file.parent
    names = SPLITS.get(_parse_split(file.stem), ())
    folders = [
        parent / below for parent in (root, root / 'images', file.parent)
        for below in (name, *names, '.', 'JPEGImages')
    ]
    return list(dict.fromkeys(folders))
