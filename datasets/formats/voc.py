"""Pascal VOC's XML files, one an image, and those that other programs write like them."""
from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, DataIndex, Instance, index_images
from ..validation.validation_report import Report
from .image_pairing import count_unused, find_image
from .instance_records import (ALL, SPLITS, TEST_LEFT, TOO_FEW_POINTS, Loss, Reading, any_case,
                               are_finite, box_around, files_below, split_folders, unreported)

SIDES = ('xmin', 'ymin', 'xmax', 'ymax')
FLAGS = ('truncated', 'occluded', 'attributes', 'part', 'actions', 'pose')  # of objects, not kept
NOTHING = ('0', '', 'Unspecified')
ANNOTATIONS, IMAGES = ('Annotations', 'annotations'), ('JPEGImages', 'images', 'Images')  # folders


def is_voc(path: Path) -> bool:
    """Whether there are XML files of VOC's form in the folder or in the one below."""
    if not path.is_dir():
        return False
    files = (file for below in ('', '*/', '*/*/') for file in path.glob(below + any_case('.xml')))
    return any(_starts_like_voc(file) for file in files)


def _starts_like_voc(file: Path) -> bool:
    return bool(re.search(rb'<([\w.-]+:)?annotation[\s/>]', start_of(file)))


def start_of(file: Path) -> bytes:
    """Where XML has its outermost element; nothing if the file cannot be read."""
    try:
        with file.open('rb') as handle:
            return handle.read(1000)
    except OSError:
        return b''


def read_voc(path: Path, reading: Reading) -> dict[str, DataIndex]:
    """The parts of a data set in VOC's form."""
    path = _folder_of_set(path)
    files = _files_by_part(path, reading)
    if 'test' in files:
        reading.lose(TEST_LEFT, count=len(files.pop('test')))
    reading.labels.update(file for found in files.values() for file in found)
    trees = {split: _parse_files(found, reading) for split, found in files.items()}
    origin = _find_origin([tree for found in trees.values()
                           for tree in found.values()] + _trees_of_others(path, reading))
    if origin == 0:
        reading.lost['coordinates are taken to count from 0, not from 1 as in VOC: a box begins '
                     'before 1'] = Loss(1)
    images = {
        split: [image for file, tree in found.items()
                if (image := _read_image(file, tree, path, origin, reading))]
        for split, found in trees.items()
    }  # yapf: disable
    count_unused(images.values(), reading)
    return {split: index_images(found) for split, found in images.items() if found}


def _folder_of_set(path: Path) -> Path:
    """The folder itself, or the only one below that is laid out as VOC, as in ``VOCdevkit``.

    Raises:
        ValueError: If there are several.
    """
    if (path / 'ImageSets').is_dir():
        return path
    below = sorted(lists.parent.parent for lists in path.glob('*/ImageSets/Main'))
    if len(below) > 1:
        raise UserError(f'{" and ".join(map(str, below))} may be meant: name one of them')
    return below[0] if below else path


def _trees_of_others(path: Path, reading: Reading) -> list[Element]:
    """Annotations of the other part, where parts are two paths: they count pixels alike."""
    alone = Reading(reading.root, Report())  # what is wrong is said when they are read
    folders = filter(lambda other: other != path, map(_folder_of_set, reading.paths))
    found = [files for other in folders for files in _files_by_part(other, alone).values()]
    return [tree for files in found for tree in _parse_files(files, alone).values()]


def _files_by_part(path: Path, reading: Reading) -> dict[str, list[Path]]:
    """XML files by part: as ImageSets/Main lists them, or folders are named, or all."""
    lists = {file.stem: file for file in path.glob('ImageSets/Main/*.txt')}
    if 'trainval' in lists and 'val' not in lists:
        lists[ALL] = lists['trainval']
        lists.pop('train', None)
    if ALL in lists or 'train' in lists:
        return {
            split: _read_list(file, path,
                              unreported(reading) if split == 'test' else reading)
            for split, file in lists.items() if split in (*SPLITS, ALL)
        }
    folders = split_folders(_annotations_of(path)) or split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path}
    return {
        split: list(filter(_starts_like_voc, files_below(folder, ('.xml', ), reading)))
        for split, folder in folders.items()
    }


def _annotations_of(path: Path) -> Path:
    folders = [path / name for name in ANNOTATIONS]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _read_list(names: Path, path: Path, reading: Reading) -> list[Path]:
    """The files that a list names: whole lines, or what is before a blank."""
    folder, found = _annotations_of(path), []
    for number, line in enumerate(reading.lines_of(names), 1):
        if line:
            files = [folder / f'{name}.xml' for name in (line, line.split()[0])]
            there = [file for file in files if file.is_file()]
            found += there[:1]
            if not there:
                reading.fault(names, f'there is no {files[0]}', number)
    return found


def _list_image_folders(file: Path, path: Path) -> list[Path]:
    """Where the image of an XML file may be: a folder on its path has another name for images."""
    parents = list(itertools.takewhile(lambda parent: parent != path.parent, file.parents))
    return [
        parent.parent / name / file.parent.relative_to(parent) for parent in parents
        for name in IMAGES
    ] + [path / name for name in IMAGES]


def _parse_files(files: list[Path], reading: Reading) -> dict[Path, Element]:
    trees = {}
    for file in files:
        try:
            source = _decode_xml(file.read_bytes())
            if re.search('<!(ENTITY|DOCTYPE)', source):  # entities can grow without bound
                raise UserError('it declares a document type or entities')
            trees[file] = _remove_namespaces(ElementTree.fromstring(source))
        except (OSError, ValueError, ElementTree.ParseError) as error:
            reading.reject(file, f'cannot be read: {error}')
    return trees


def _decode_xml(source: bytes) -> str:
    """Return the text of XML in the encoding that it declares, of which expat knows few.

    Raises:
        ValueError: If it is not in that encoding, or in none that is known.
    """
    if b'\0' in source:
        raise UserError('it is not in UTF-8')
    found = re.match(rb'(\xef\xbb\xbf)?\s*<\?xml[^>]*?\sencoding\s*=\s*["\']([\w.-]+)', source)
    name = found[2].decode('ascii').lower() if found and not found[1] else 'utf-8'
    try:
        # the first has what programs write that declare one of the others
        encoding = 'gb18030' if name in ('gbk', 'gb2312') else name
        return source.decode('utf-8-sig' if name in ('utf-8', 'utf8') else encoding)
    except LookupError as error:
        raise UserError(f'its encoding {name!r} is not known') from error


def _remove_namespaces(tree: Element) -> Element:
    for element in tree.iter():
        element.tag = element.tag.rpartition('}')[2]
    return tree


def _find_origin(trees: list[Element]) -> int:
    """The number of the first pixel: 1, as VOC says, unless a box begins before it."""
    starts = [
        e.text for tree in trees for key in SIDES[:2] for e in tree.findall(f'.//bndbox/{key}')
    ]
    try:
        return int(all(float(text or 1) >= 1 for text in starts))
    except ValueError:  # a fault later
        return 1


def _read_image(file: Path, tree: Element, path: Path, origin: int,
                reading: Reading) -> AnnotatedImage | None:
    said = _parse_side(tree.findtext('size/width')), _parse_side(tree.findtext('size/height'))
    image = find_image(file, tree.findtext('filename'), _list_image_folders(file, path), reading)
    size = image and reading.size_of(image, said, file)
    if not image or not size:
        return None
    instances = []
    objects = tree.findall('object')
    for place, element in enumerate(objects, 1):
        try:
            instances.append(_read_object(element, origin, reading.source(file, f'object {place}')))
        except ValueError as error:
            reading.reject(file, str(error), f'object {place}')
        _count_lost_flags(element, reading, reading.source(file, f'object {place}'))
    if len(instances) < len(objects):
        return None
    return AnnotatedImage(image, size, reading.source(file), instances)


def _read_object(element: Element, origin: int, source: str) -> Instance:
    """An object of an XML file.

    Raises:
        ValueError: If it lacks something, or has it wrong.
    """
    name = (element.findtext('name') or '').strip()
    if not name:
        raise UserError('has no name')
    if element.find('robndbox') is not None:
        raise UserError('is an oriented box (robndbox), for which Colonnade has no configs')
    polygons = [_read_polygon(found, origin) for found in element.findall('polygon')]
    polygons = [polygon for polygon in polygons if len(polygon) >= 6]
    box = element.find('bndbox')
    if box is None and not polygons:
        raise UserError('has no bndbox')
    crowd = (element.findtext('difficult') or '0').strip() not in ('0', '')
    if box is None:
        return Instance(name, box_around(polygons), polygons, source, crowd)
    left, top, right, bottom = (_read_coordinate(box, key) for key in SIDES)
    if right < left or bottom < top:
        raise UserError(f'bndbox ends before it begins: {left:g} {top:g} {right:g} {bottom:g}')
    # the last pixel that VOC names is in the box, whose edge is behind it
    sides = (left - origin, top - origin, right, bottom)
    return Instance(name, sides, polygons, source, crowd)


def _read_polygon(element: Element, origin: int) -> list[float]:
    """x, y, x, y, ... of ``<x1> <y1> <x2> ...`` or of ``<pt><x> <y></pt> ...``."""
    points = element.findall('pt')
    if points:
        values = [_read_coordinate(point, key) for point in points for key in 'xy']
    else:
        keys = {child.tag for child in element}
        number = sum(re.fullmatch(r'x\d+', key) is not None for key in keys)
        values = [
            _read_coordinate(element, f'{key}{i}') for i in range(1, number + 1) for key in 'xy'
        ]
    return [value - origin for value in values]


def _parse_side(text: str | None) -> int:
    try:
        return int(float(text or 0))
    except (ValueError, OverflowError):
        return 0


def _read_coordinate(element: Element, key: str) -> float:
    text = element.findtext(key)
    try:
        value = float(text or '')
    except ValueError:
        value = float('nan')
    if not are_finite([value]):
        raise UserError(f'{element.tag} must have a number {key}, got {text!r}')
    return value


def _count_lost_flags(element: Element, reading: Reading, source: str) -> None:
    difficult = (element.findtext('difficult') or '0').strip()
    if difficult not in ('0', ''):
        reading.lose(
            'objects marked difficult become crowds, which are neither trained nor counted '
            'as errors', source)
    for flag in FLAGS:
        found = element.find(flag)
        if found is not None and (len(found) or (found.text or '').strip() not in NOTHING):
            reading.lose(f'what `{flag}` says of objects is lost', source)
    for polygon in element.findall('polygon'):
        if len(polygon) < 6 and len(polygon.findall('pt')) < 3:
            reading.lose(TOO_FEW_POINTS, source)
