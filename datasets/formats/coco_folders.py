"""Folders with COCO's JSON files: as COCO is distributed, or with a file beside the images."""
from __future__ import annotations

import re
from codecs import BOM_UTF8
from pathlib import Path, PureWindowsPath
from typing import Any

from colonnade.common.name_lists import format_names

from ..data_index import DataIndex, name_sources
from ..validation.coco_files import (CONVERTED_FROM, FIELDS, Usage, check_headers, check_instances,
                                     find_whole_entries, load_coco)
from ..validation.validation_report import Report
from .coco_repairs import Repairer, fill_masks
from .instance_records import ALL, SPLITS, Reading, any_case, split_folders

PROBE = 2**16  # bytes at the beginning of a file that are looked at to recognise it
PROBES = 10  # images that are looked for: some may be missing
OTHER_TASKS = ('captions', 'person_keypoints', 'panoptic', 'stuff', 'image_info')


def is_coco(path: Path) -> bool:
    """Whether there is a JSON file of COCO's form in the folder, in annotations/ or below."""
    if path.is_file():
        return path.suffix.lower() == '.json' and bool(_find_keys(path) - {b'shapes'})
    return bool(_annotation_files(path))


def _looks_like_coco(file: Path) -> bool:
    """Whether a file has images and annotations, or a large one a key of COCO's form."""
    keys, wanted = _find_keys(file), {b'images', b'annotations'}
    is_large = bool(keys) and file.stat().st_size > PROBE
    return b'shapes' not in keys and (is_large or keys >= wanted)


def _find_keys(file: Path) -> set[bytes]:
    """The keys of COCO's and LabelMe's forms that a file's beginning has."""
    try:
        with file.open('rb') as handle:
            start = handle.read(PROBE)
    except OSError:
        return set()
    return set(re.findall(rb'"(images|categories|annotations|shapes)"\s*:\s*[\[{]', start))


def read_coco(path: Path, reading: Reading) -> dict[str, DataIndex]:
    """Return the parts of a dataset in COCO's format; they keep their files if nothing changes."""
    parts, found = {}, _annotation_files(path)
    if {'train', 'val'} <= found.keys():
        for file in found.pop(ALL, ()):
            reading.lose('files whose names tell no part are not used', reading.source(file))
    for split, files in found.items():
        if len(files) > 1:
            names = format_names([reading.source(file) for file in files])
            reading.fault(
                path, f'more than one file is of the part {split}: {names}. Name two '
                'with --coco')
        elif split == 'test':
            reading.lose('file of the test part is left for tests', reading.source(files[0]))
        elif part := read_coco_file(files[0], None, reading, masks=not reading.boxes_only):
            parts[split] = part
    return parts


def _annotation_files(path: Path) -> dict[str, list[Path]]:
    """JSON files by the part that their name or folder tells."""
    if path.is_file():
        return {ALL: [path]}
    found: dict[str, list[Path]] = {}
    for split, folder in split_folders(path).items():
        files = list(filter(_looks_like_coco, sorted(folder.glob(any_case('.json')))))
        if files:
            found[split] = files
    if found:
        return found
    for folder in (path / 'annotations', path):
        for file in sorted(folder.glob(any_case('.json'))):
            if not file.name.startswith(OTHER_TASKS) and _looks_like_coco(file):
                found.setdefault(_find_split(file.stem), []).append(file)
        if found:
            return found
    return found


def _find_split(stem: str) -> str:
    """The part that a name tells: ``instances_val2017`` is of ``val``."""
    words = re.findall('[a-z]+', stem.lower())
    return next((split for split, names in SPLITS.items() if set(names) & set(words)), ALL)


def read_coco_file(file: Path,
                   images: Path | None,
                   reading: Reading,
                   masks: bool = True) -> DataIndex | None:
    """Read one COCO file and find its folder of images; repair what can be repaired.

    Args:
        file: The file.
        images: The folder; ``None`` looks for it.
        reading: Takes what is wrong and what was repaired.
        masks: Whether segmentations are used.
    """
    reading.tables.add(file)
    content = load_coco(file, reading.report, takes_bom=True)
    if content is None:
        return None
    located = _locate_images(file, images, content['images'], reading)
    if located is None:
        return None
    folder, entries = located
    has_slashes = entries is not content['images']
    content['images'] = entries
    repairer = Repairer(file, content, reading)
    if starts_with_bom(file):
        repairer.has_changed = True
        reading.repair('byte order marks: removed', reading.source(file))
    repairer.repair_ids()
    repairer.remove_orphans(folder)
    repairer.repair_sizes(folder)
    repairer.repair_annotations()
    if reading.skips_bad_data:
        repairer.remove_bad_samples(folder, masks)
    if not _is_whole(file, content):
        fill_masks([DataIndex(folder, content)], Reading(reading.root, Report()))
        for entry in (*content['images'], *content['annotations']):
            if isinstance(entry, dict) and CONVERTED_FROM in entry:  # and has a new ID
                entry[CONVERTED_FROM] = str(reading.root / entry[CONVERTED_FROM])
        usage = Usage(masks=masks)
        check_instances(file, content, reading.report, look=check_headers(folder), usage=usage)
        return None
    used = {annotation['category_id'] for annotation in content['annotations']}
    unused = [
        c for c in content['categories'] if c['id'] == 0 and 0 not in used and any(
            other.get('supercategory') == c['name'] for other in content['categories'])
    ]
    if unused:
        reading.lose(
            f'category {unused[0]["name"]!r}, of which the others are kinds, has no '
            'annotations and is left out', reading.source(file))
        content['categories'] = [c for c in content['categories'] if c not in unused]
    if not unused and not has_slashes and not repairer.has_changed:
        return DataIndex(folder, content, file=file)
    return DataIndex(folder, name_sources(content, reading.source(file)))


def starts_with_bom(file: Path) -> bool:
    """Return True if a file starts with the byte order mark of UTF-8."""
    with file.open('rb') as handle:
        return handle.read(len(BOM_UTF8)) == BOM_UTF8


def _is_whole(file: Path, content: dict[str, list]) -> bool:
    """Return True if all entries have what they need, and no two of a kind one ID."""
    report = Report()
    for kind, fields in FIELDS.items():
        find_whole_entries(content[kind], kind, fields, file, report)
    return not report.num_faults


def _locate_images(file: Path, images: Path | None, entries: list[dict],
                   reading: Reading) -> tuple[Path, list[dict]] | None:
    """The folder of a file's images, and their entries, with slashes for Windows' backslashes.

    Args:
        file: The file.
        images: The folder; ``None`` looks for it.
        entries: Of the images; the first that have a backslash are looked for, or the first.
        reading: Takes what is wrong.
    """
    if images and not images.is_dir():
        reading.fault(images, 'is no folder: --images takes the folder of the images')
        return None
    names = [
        entry['file_name'] for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get('file_name'), str)
    ]
    if not names:
        reading.fault(file, 'has no images')
        return None
    names = [name for name in names if '\\' in name][:PROBES] or names[:PROBES]
    name = names[0]
    ways = [images] if images else _guess_image_folders(file)
    for way in ways:  # a folder, also where names are absolute
        if way.is_dir() and any((way / name).is_file() for name in names):
            return way, entries
    for way in ways:
        if any((way / name.replace('\\', '/')).is_file() for name in names):
            reading.lose('backslashes in names of images are read as slashes', reading.source(file))
            return way, [_with_slashes(entry) for entry in entries]
    if images:
        return images, entries
    where = 'there: name images from their folder on' \
        if name.startswith('/') or PureWindowsPath(name).is_absolute() else \
        f'in {format_names([str(way) for way in ways])}: say --coco and --images'
    reading.fault(file, f'its image {name} is not {where}')
    return None


def _with_slashes(entry: Any) -> Any:
    """Return the entry of an image with slashes for the backslashes in its name."""
    if isinstance(entry, dict) and isinstance(entry.get('file_name'), str):
        return entry | dict(file_name=entry['file_name'].replace('\\', '/'))
    return entry


def _guess_image_folders(file: Path) -> list[Path]:
    """Where the images of a file may be."""
    words = re.sub('^instances_', '', file.stem)
    root = file.parent.parent if file.parent.name == 'annotations' else file.parent
    names = SPLITS.get(_find_split(file.stem), ())
    ways = [
        parent / name for parent in (root, root / 'images', file.parent)
        for name in (words, *names, '.', 'JPEGImages')
    ]
    return list(dict.fromkeys(ways))
