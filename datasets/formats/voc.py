"""Pascal VOC XML files, one per image, and variants that other programs write."""
from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, DataIndex, Instance, index_images
from .data_format import (ALL, SPLITS, TEST_LEFT, TOO_FEW_POINTS, Occurrences, ReadContext,
                          are_finite, compute_box, find_files, find_split_folders, glob_nearby,
                          read_start)

SIDES = ('xmin', 'ymin', 'xmax', 'ymax')
FLAGS = ('truncated', 'occluded', 'attributes', 'part', 'actions', 'pose'
         )  # dropped properties of objects
UNSET_FLAGS = ('0', '', 'Unspecified')
ANNOTATIONS, IMAGES = ('Annotations', 'annotations'), ('JPEGImages', 'images', 'Images')


def is_voc(path: Path) -> bool:
    """Return True if a folder or one below it has VOC XML files."""
    return path.is_dir() and any(map(_looks_like_voc, glob_nearby(path, '.xml')))


def _looks_like_voc(file: Path) -> bool:
    return bool(re.search(rb'<([\w.-]+:)?annotation[\s/>]', read_start(file)))


def read_voc(path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a dataset in VOC format."""
    path = _find_dataset_folder(path)
    files = _find_files_by_split(path, context)
    if 'test' in files:
        context.count_dropped(TEST_LEFT, count=len(files.pop('test')))
    context.labels.update(itertools.chain(*files.values()))
    trees = {split: _parse_files(paths, context) for split, paths in files.items()}
    # The other path of --data counts pixels from the same origin. Its errors are reported later.
    quiet = context.ignore_errors()
    others = [other for other in map(_find_dataset_folder, context.paths) if other != path]
    other_trees = [
        _parse_files(paths, quiet) for other in others
        for paths in _find_files_by_split(other, quiet).values()
    ]
    origin = _find_origin(
        tree for each in (*trees.values(), *other_trees) for tree in each.values())
    if origin == 0:
        context.dropped['coordinates are assumed to start at 0, not at 1 as in VOC: a box starts '
                        'before 1'] = Occurrences(1)
    images = {
        split: [image for file, tree in parsed.items()
                if (image := _read_image(file, tree, path, origin, context))]
        for split, parsed in trees.items()
    }  # yapf: disable
    context.count_unused_images(images.values())
    return {split: index_images(found) for split, found in images.items() if found}


def _find_dataset_folder(path: Path) -> Path:
    """Return the folder itself, or the only one below with VOC's structure, as in ``VOCdevkit``."""
    if (path / 'ImageSets').is_dir():
        return path
    below = sorted(lists.parent.parent for lists in path.glob('*/ImageSets/Main'))
    if len(below) > 1:
        raise UserError(f'{path} has several datasets: pass one of {", ".join(map(str, below))}')
    return below[0] if below else path


def _find_files_by_split(path: Path, context: ReadContext) -> dict[str, list[Path]]:
    """Return XML files by split: from lists in ImageSets/Main, from folder names, or all files."""
    names = [path / name for name in ANNOTATIONS]
    annotations = next(filter(Path.is_dir, names), names[0])
    lists = {file.stem: file for file in path.glob('ImageSets/Main/*.txt')}
    if 'trainval' in lists and 'val' not in lists:
        lists[ALL] = lists['trainval']
        lists.pop('train', None)
    if ALL in lists or 'train' in lists:
        return {
            split:
            _read_list(file, annotations,
                       context.ignore_errors() if split == 'test' else context)
            for split, file in lists.items() if split in (*SPLITS, ALL)
        }
    folders = find_split_folders(annotations) or find_split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path}
    return {
        split: list(filter(_looks_like_voc, find_files(folder, ('.xml', ), context.count_link)))
        for split, folder in folders.items()
    }


def _read_list(file: Path, annotations: Path, context: ReadContext) -> list[Path]:
    """Return the XML files in a list, whose lines are names, or start with names and a space."""
    paths = []
    for number, line in enumerate(context.read_lines(file), 1):
        if line:
            candidates = [annotations / f'{name}.xml' for name in (line, line.split()[0])]
            existing = [candidate for candidate in candidates if candidate.is_file()]
            paths += existing[:1]
            if not existing:
                context.add_error(file, f'{candidates[0]} does not exist', number)
    return paths


def _parse_files(files: Iterable[Path], context: ReadContext) -> dict[Path, Element]:
    trees = {}
    for file in files:
        try:
            text = _decode_xml(file.read_bytes())
            if re.search('<!(ENTITY|DOCTYPE)', text):  # entities can expand without bound
                raise UserError('it declares a document type or entities')
            trees[file] = ElementTree.fromstring(text)
        except (OSError, ValueError, ElementTree.ParseError) as error:
            context.reject(file, f'cannot be read: {error}')
        else:
            for element in trees[file].iter():
                element.tag = element.tag.rpartition('}')[2]  # without its namespace
    return trees


def _decode_xml(source: bytes) -> str:
    """Return the text of XML in its declared encoding, of which expat supports only few."""
    if b'\0' in source:
        raise UserError('it is not encoded in UTF-8')
    match = re.match(rb'(\xef\xbb\xbf)?\s*<\?xml[^>]*?\sencoding\s*=\s*["\']([\w.-]+)', source)
    name = match[2].decode('ascii').lower() if match and not match[1] else 'utf-8'
    try:
        # GB18030 includes what programs write that declare GBK or GB2312.
        encoding = 'gb18030' if name in ('gbk', 'gb2312') else name
        return source.decode('utf-8-sig' if name in ('utf-8', 'utf8') else encoding)
    except LookupError as error:
        raise UserError(f'its encoding {name!r} is unknown') from error


def _find_origin(trees: Iterable[Element]) -> int:
    """Return the coordinate of the first pixel: 1 as in VOC, unless a box starts before it."""
    starts = [
        e.text for tree in trees for key in SIDES[:2] for e in tree.findall(f'.//bndbox/{key}')
    ]
    try:
        return int(all(float(text or 1) >= 1 for text in starts))
    except ValueError:  # reported when the object is read
        return 1


def _read_image(file: Path, tree: Element, path: Path, origin: int,
                context: ReadContext) -> AnnotatedImage | None:
    # The image can be next to any folder on the path to the file.
    parents = itertools.takewhile(lambda parent: parent != path.parent, file.parents)
    folders = [
        parent.parent / name / file.parent.relative_to(parent) for parent in parents
        for name in IMAGES
    ] + [path / name for name in IMAGES]
    image = context.find_image(file, tree.findtext('filename'), folders)
    declared = _parse_side(tree.findtext('size/width')), _parse_side(tree.findtext('size/height'))
    size = image and context.read_size(image, declared, file)
    if not image or not size:
        return None
    instances = []
    objects = tree.findall('object')
    for number, element in enumerate(objects, 1):
        location = context.locate(file, f'object {number}')
        try:
            instances.append(_read_object(element, origin, location))
        except ValueError as error:
            context.reject(file, str(error), f'object {number}')
        _count_dropped_flags(element, context, location)
    if len(instances) < len(objects):
        return None
    return AnnotatedImage(image, size, context.locate(file), instances)


def _parse_side(text: str | None) -> int:
    try:
        return int(float(text or 0))
    except (ValueError, OverflowError):
        return 0


def _read_object(element: Element, origin: int, location: str) -> Instance:
    name = (element.findtext('name') or '').strip()
    if not name:
        raise UserError('has no name')
    if element.find('robndbox') is not None:
        raise UserError('is an oriented box (robndbox), which Colonnade does not support')
    polygons = [_read_polygon(found, origin) for found in element.findall('polygon')]
    polygons = [polygon for polygon in polygons if len(polygon) >= 6]
    box = element.find('bndbox')
    if box is None and not polygons:
        raise UserError('has no bndbox')
    is_crowd = _is_difficult(element)
    if box is None:
        return Instance(name, compute_box(polygons), polygons, location, is_crowd)
    left, top, right, bottom = (_read_coordinate(box, key) for key in SIDES)
    if right < left or bottom < top:
        raise UserError(f'bndbox ends before it starts: {left:g} {top:g} {right:g} {bottom:g}')
    # xmax and ymax are inclusive, so only the left and top edges are shifted.
    sides = (left - origin, top - origin, right, bottom)
    return Instance(name, sides, polygons, location, is_crowd)


def _is_difficult(element: Element) -> bool:
    return (element.findtext('difficult') or '0').strip() not in ('0', '')


def _read_polygon(element: Element, origin: int) -> list[float]:
    """Return x, y, ... of ``<x1> <y1> <x2> ...`` or of ``<pt><x> <y></pt> ...``."""
    if points := element.findall('pt'):
        values = [_read_coordinate(point, key) for point in points for key in 'xy']
    else:
        count = sum(bool(re.fullmatch(r'x\d+', tag)) for tag in {child.tag for child in element})
        values = [
            _read_coordinate(element, f'{key}{i}') for i in range(1, count + 1) for key in 'xy'
        ]
    return [value - origin for value in values]


def _read_coordinate(element: Element, key: str) -> float:
    text = element.findtext(key)
    try:
        value = float(text or '')
    except ValueError:
        value = float('nan')
    if not are_finite([value]):
        raise UserError(f'{element.tag}: {key} must be a number, got {text!r}')
    return value


def _count_dropped_flags(element: Element, context: ReadContext, location: str) -> None:
    if _is_difficult(element):
        context.count_dropped(
            'objects marked difficult become crowds, which detectors neither train on nor count as '
            'errors', location)
    for flag in FLAGS:
        child = element.find(flag)
        if child is not None and (len(child) or (child.text or '').strip() not in UNSET_FLAGS):
            context.count_dropped(f'{flag} of objects is dropped', location)
    for polygon in element.findall('polygon'):
        if len(polygon) < 6 and len(polygon.findall('pt')) < 3:
            context.count_dropped(TOO_FEW_POINTS, location)
