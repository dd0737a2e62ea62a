"""Pascal VOC's XML files, one an image, and those that other programs write like them."""
from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from .instances import (ALL, SPLITS, TEST_LEFT, TOO_FEW_POINTS, AnnotatedImage, Instance, Part,
                        Reading, box_around, files_below, is_finite, part_of, split_folders)
from .same_stem import image_of, say_unused

SIDES = ('xmin', 'ymin', 'xmax', 'ymax')
FLAGS = ('truncated', 'occluded', 'attributes', 'part', 'actions', 'pose')  # of objects, not kept
NOTHING = ('0', '', 'Unspecified')


def is_voc(path: Path) -> bool:
    """Whether there are XML files of VOC's form in the folder or in the one below."""
    if not path.is_dir():
        return False
    files = (file for pattern in ('*.xml', '*/*.xml', '*/*/*.xml') for file in path.glob(pattern))
    return any(_starts_like_voc(file) for file in files)


def _starts_like_voc(file: Path) -> bool:
    try:
        with file.open('rb') as handle:
            return b'<annotation' in handle.read(1000)
    except OSError:
        return False


def read_voc(path: Path, reading: Reading) -> dict[str, Part]:
    """The parts of a data set in VOC's form."""
    files = _files_by_part(path, reading)
    if 'test' in files:
        reading.lose(TEST_LEFT, count=len(files.pop('test')))
    trees = {split: _parsed(found, reading) for split, found in files.items()}
    origin = _origin([tree for found in trees.values() for tree in found.values()])
    if origin == 0:
        reading.lose('coordinates are taken to count from 0, not from 1 as in VOC: a box begins '
                     'before 1')
    images = {
        split: [image for file, tree in found.items()
                if (image := _image(file, tree, path, origin, reading))]
        for split, found in trees.items()
    }  # yapf: disable
    say_unused(images.values(), reading)
    return {split: part_of(found) for split, found in images.items() if found}


def _files_by_part(path: Path, reading: Reading) -> dict[str, list[Path]]:
    """XML files by part: as ImageSets/Main lists them, or folders are named, or all."""
    lists = {file.stem: file for file in path.glob('ImageSets/Main/*.txt')}
    if 'trainval' in lists and 'val' not in lists:
        lists[ALL] = lists['trainval']
        lists.pop('train', None)
    if ALL in lists or 'train' in lists:
        return {
            split: _listed(file, path, reading)
            for split, file in lists.items() if split in (*SPLITS, ALL)
        }
    folders = split_folders(path / 'Annotations') or split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path}
    return {
        split: list(filter(_starts_like_voc, files_below(folder, ('.xml', ))))
        for split, folder in folders.items()
    }


def _listed(names: Path, path: Path, reading: Reading) -> list[Path]:
    found = []
    for number, line in enumerate(reading.lines_of(names), 1):
        if line:
            file = path / 'Annotations' / f'{line.split()[0]}.xml'
            if file.is_file():
                found.append(file)
            else:
                reading.fault(names, f'there is no {file}', number)
    return found


def _parsed(files: list[Path], reading: Reading) -> dict[Path, Element]:
    trees = {}
    for file in files:
        try:
            source = file.read_bytes()
            if b'\0' in source:
                raise ValueError('it is not in UTF-8')
            if re.search(rb'<!(ENTITY|DOCTYPE)', source):  # entities can grow without bound
                raise ValueError('it declares a document type or entities')
            trees[file] = ElementTree.fromstring(source)
        except (OSError, ValueError, ElementTree.ParseError) as error:
            reading.fault(file, f'cannot be read: {error}')
    return trees


def _origin(trees: list[Element]) -> int:
    """The number of the first pixel: 1, as VOC says, unless a box begins before it."""
    starts = [
        e.text for tree in trees for key in SIDES[:2] for e in tree.findall(f'.//bndbox/{key}')
    ]
    try:
        return int(all(float(text or 1) >= 1 for text in starts))
    except ValueError:  # a fault later
        return 1


def _image(file: Path, tree: Element, path: Path, origin: int,
           reading: Reading) -> AnnotatedImage | None:
    said = _number(tree.findtext('size/width')), _number(tree.findtext('size/height'))
    image = image_of(file, tree.findtext('filename'), [path / 'JPEGImages', path / 'images'],
                     reading)
    size = image and reading.size_of(image, said, file)
    if not image or not size:
        return None
    instances = []
    for place, element in enumerate(tree.findall('object'), 1):
        try:
            instances.append(_instance(element, origin, reading.source(file, f'object {place}')))
        except ValueError as error:
            reading.fault(file, str(error), f'object {place}')
        _count_lost(element, reading, reading.source(file, f'object {place}'))
    return AnnotatedImage(image, size, reading.source(file), instances)


def _instance(element: Element, origin: int, source: str) -> Instance:
    """An object of an XML file.

    Raises:
        ValueError: If it lacks something, or has it wrong.
    """
    name = (element.findtext('name') or '').strip()
    if not name:
        raise ValueError('has no name')
    if element.find('robndbox') is not None:
        raise ValueError('is an oriented box (robndbox), for which Colonnade has no configs')
    polygons = [_polygon(found, origin) for found in element.findall('polygon')]
    polygons = [polygon for polygon in polygons if len(polygon) >= 6]
    box = element.find('bndbox')
    if box is None and not polygons:
        raise ValueError('has no bndbox')
    crowd = (element.findtext('difficult') or '0').strip() not in ('0', '')
    if box is None:
        return Instance(name, box_around(polygons), polygons, source, crowd)
    left, top, right, bottom = (_coordinate(box, key) for key in SIDES)
    if right < left or bottom < top:
        raise ValueError(f'bndbox ends before it begins: {left:g} {top:g} {right:g} {bottom:g}')
    # the last pixel that VOC names is in the box, whose edge is behind it
    sides = (left - origin, top - origin, right, bottom)
    return Instance(name, sides, polygons, source, crowd)


def _polygon(element: Element, origin: int) -> list[float]:
    """x, y, x, y, ... of ``<x1> <y1> <x2> ...`` or of ``<pt><x> <y></pt> ...``."""
    points = element.findall('pt')
    if points:
        values = [_coordinate(point, key) for point in points for key in 'xy']
    else:
        keys = {child.tag for child in element}
        number = sum(re.fullmatch(r'x\d+', key) is not None for key in keys)
        values = [_coordinate(element, f'{key}{i}') for i in range(1, number + 1) for key in 'xy']
    return [value - origin for value in values]


def _number(text: str | None) -> int:
    try:
        return int(float(text or 0))
    except (ValueError, OverflowError):
        return 0


def _coordinate(element: Element, key: str) -> float:
    text = element.findtext(key)
    try:
        value = float(text or '')
    except ValueError:
        value = float('nan')
    if not is_finite([value]):
        raise ValueError(f'{element.tag} must have a number {key}, got {text!r}')
    return value


def _count_lost(element: Element, reading: Reading, source: str) -> None:
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
