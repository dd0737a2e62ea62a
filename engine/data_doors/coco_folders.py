"""Folders with COCO's JSON files: as COCO is distributed, or with a file beside the images."""
from __future__ import annotations

import re
from pathlib import Path, PureWindowsPath

from ..data_validation.coco_files import CONVERTED_FROM, FIELDS, SINGULAR, load_coco, whole_entries
from ..data_validation.findings import listed
from .instances import ALL, SPLITS, Part, Reading, any_case, split_folders

PROBE = 2**16  # bytes at the beginning of a file that are looked at to recognise it
OTHER_TASKS = ('captions', 'person_keypoints', 'panoptic', 'stuff', 'image_info')


def is_coco(path: Path) -> bool:
    """Whether there is a JSON file of COCO's form in the folder, in annotations/ or below."""
    if path.is_file():
        return path.suffix.lower() == '.json' and bool(_keys_of(path) - {b'shapes'})
    return bool(_annotation_files(path))


def _looks_like_coco(file: Path) -> bool:
    """Whether a file has images and annotations, or a large one a key of COCO's form."""
    keys, wanted = _keys_of(file), {b'images', b'annotations'}
    is_large = bool(keys) and file.stat().st_size > PROBE
    return b'shapes' not in keys and (is_large or keys >= wanted)


def _keys_of(file: Path) -> set[bytes]:
    """The keys of COCO's and LabelMe's forms that a file's beginning has."""
    try:
        with file.open('rb') as handle:
            start = handle.read(PROBE)
    except OSError:
        return set()
    return set(re.findall(rb'"(images|categories|annotations|shapes)"\s*:\s*[\[{]', start))


def read_coco(path: Path, reading: Reading) -> dict[str, Part]:
    """The parts of a data set in COCO's form; they keep their files where nothing changes."""
    parts, found = {}, _annotation_files(path)
    if {'train', 'val'} <= found.keys():
        for file in found.pop(ALL, ()):
            reading.lose('files whose names tell no part are not used', reading.source(file))
    for split, files in found.items():
        if len(files) > 1:
            names = listed([reading.source(file) for file in files])
            reading.fault(
                path, f'more than one file is of the part {split}: {names}. Name two '
                'with --coco')
        elif split == 'test':
            reading.lose('file of the test part is left for tests', reading.source(files[0]))
        elif part := read_file(files[0], None, reading):
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
                found.setdefault(_split_of(file.stem), []).append(file)
        if found:
            return found
    return found


def _split_of(stem: str) -> str:
    """The part that a name tells: ``instances_val2017`` is of ``val``."""
    words = re.findall('[a-z]+', stem.lower())
    return next((split for split, names in SPLITS.items() if set(names) & set(words)), ALL)


def read_file(file: Path, images: Path | None, reading: Reading) -> Part | None:
    """One COCO file and its folder of images.

    Args:
        file: The file.
        images: The folder; ``None`` looks for it.
        reading: Takes what is wrong.
    """
    before = reading.report.num_faults
    content = load_coco(file, reading.report)
    if content is None:
        return None
    for kind, fields in FIELDS.items():
        whole_entries(content[kind], kind, fields, file, reading.report)
    ids = {image['id'] for image in content['images'] if reading.report.num_faults == before}
    for annotation in content['annotations'] if ids else ():
        if annotation['image_id'] not in ids:
            reading.fault(file, f'there is no image {annotation["image_id"]}',
                          f'annotation {annotation["id"]}')
    if reading.report.num_faults > before:
        return None
    located = _located(file, images, content['images'], reading)
    if located is None:
        return None
    folder, entries = located
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
    has_zero = any(annotation['id'] == 0 for annotation in content['annotations'])
    if not unused and not has_zero and entries is content['images']:
        return Part(folder, content, file)
    content = named_by_source(content | dict(images=entries), reading.source(file))
    if has_zero:
        reading.lose(
            'ids of annotations count from 0, which stands for "not matched" in COCO\'s '
            'evaluation: they are numbered from 1 on', reading.source(file))
        content['annotations'] = [
            annotation | dict(id=number)
            for number, annotation in enumerate(content['annotations'], 1)
        ]
    return Part(folder, content)


def named_by_source(content: dict[str, list], source: str) -> dict[str, list]:
    """A COCO file whose entries say which place they were converted from."""
    named = {
        kind: [{
            CONVERTED_FROM: f'{source}: {SINGULAR[kind]} {entry["id"]}',
            **entry
        } for entry in content[kind]]
        for kind in ('images', 'annotations')
    }
    return content | named


def _located(file: Path, images: Path | None, entries: list[dict],
             reading: Reading) -> tuple[Path, list[dict]] | None:
    """The folder of a file's images, and their entries, with slashes for Windows' backslashes.

    Args:
        file: The file.
        images: The folder; ``None`` looks for it.
        entries: Of the images; the first that has a backslash is looked for, or the first.
        reading: Takes what is wrong.
    """
    if not entries:
        reading.fault(file, 'has no images')
        return None
    names = [entry['file_name'] for entry in entries]
    name = next((name for name in names if '\\' in name), names[0])
    ways = [images] if images else _folders_of_images(file)
    for way in ways:
        if way.is_dir() and (way / name).is_file():  # a folder, also where names are absolute
            return way, entries
    for way in ways:
        if (way / name.replace('\\', '/')).is_file():
            reading.lose('backslashes in names of images are read as slashes', reading.source(file))
            return way, [e | dict(file_name=e['file_name'].replace('\\', '/')) for e in entries]
    if images:
        return images, entries
    where = 'there: name images from their folder on' \
        if name.startswith('/') or PureWindowsPath(name).is_absolute() else \
        f'in {listed([str(way) for way in ways])}: say --coco and --images'
    reading.fault(file, f'its image {name} is not {where}')
    return None


def _folders_of_images(file: Path) -> list[Path]:
    """Where the images of a file may be."""
    words = re.sub('^instances_', '', file.stem)
    root = file.parent.parent if file.parent.name == 'annotations' else file.parent
    names = SPLITS.get(_split_of(file.stem), ())
    ways = [
        parent / name for parent in (root, root / 'images', file.parent)
        for name in (words, *names, '.', 'JPEGImages')
    ]
    return list(dict.fromkeys(ways))
