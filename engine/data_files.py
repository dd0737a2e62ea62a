"""One's own data set in COCO's form or as label maps: what is in it, and all that is wrong with it.

A *fault* stops training or evaluation, or would let it learn something else than what is meant. A
*remark* is what mmdet and mmseg pass over in silence.
"""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.utils import scandir
from PIL import Image

IMAGE_KEYS = ('id', 'file_name', 'width', 'height')
ANNOTATION_KEYS = ('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd', 'segmentation')
CATEGORY_KEYS = ('id', 'name')
IGNORED = 255  # the label that mmseg leaves out of losses and metrics
ORIENTATION = 0x0112  # EXIF tag; cameras' 5 to 8 are on their side, and OpenCV turns them


@dataclass
class Report:
    """What is wrong with a data set, one sentence each."""
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass
class Instances:
    """What one COCO file says."""
    classes: dict[str, int]  # name -> number of annotations that train, in the file's order
    sides: dict[str, int]  # file name -> shorter side in pixels, of all images
    populated: dict[str, set[str]]  # file name -> classes that train, of images that have any

    def restricted(self, classes: Collection[str]) -> Instances:
        """The same with some of its classes alone."""
        kept = {name: count for name, count in self.classes.items() if name in classes}
        populated = {image: names & kept.keys() for image, names in self.populated.items()}
        return Instances(kept, self.sides, {i: names for i, names in populated.items() if names})


@dataclass
class LabelMaps:
    """What a folder of label maps holds."""
    labels: dict[Path, frozenset[int]]  # label map -> values in it
    suffixes: tuple[str, str]  # ends of the names of images and of label maps

    def values(self) -> set[int]:
        """All labels but the ignored one."""
        return set().union(*self.labels.values()) - {IGNORED}


def image_size(path: Path) -> tuple[int, int]:
    """Width and height as OpenCV will decode the image, from its header.

    Raises:
        OSError: If the file is missing or no image.
    """
    with Image.open(path) as image:
        width, height = image.size
        sideways = image.getexif().get(ORIENTATION, 1) >= 5
    return (height, width) if sideways else (width, height)


def repeated(values: Iterable[Any]) -> list[Any]:
    """What occurs more than once, in order."""
    return [value for value, count in Counter(values).items() if count > 1]


def read_instances(ann_file: Path, images: Path, report: Report) -> Instances | None:
    """Read a COCO file and look at everything in it and at the headers of its images.

    Args:
        ann_file: JSON with ``images``, ``annotations`` and ``categories``.
        images: The folder that its file names are in.
        report: Takes what is wrong.

    Returns:
        None if the file cannot be read at all.
    """
    try:
        content = json.loads(ann_file.read_text())
        entries = {key: content[key] for key in ('images', 'annotations', 'categories')}
    except (OSError, ValueError) as error:
        report.faults.append(f'{ann_file} cannot be read: {error}')
        return None
    except (KeyError, TypeError):
        report.faults.append(
            f'{ann_file} is not in COCO\'s form: it needs images, annotations and categories')
        return None
    whole = {}
    for (kind, found), keys in zip(
            entries.items(), (IMAGE_KEYS, ANNOTATION_KEYS, CATEGORY_KEYS), strict=True):
        whole[kind] = list(_complete(found, keys, f'{ann_file}: {kind}', report))
        for number in repeated(entry['id'] for entry in whole[kind]):
            report.faults.append(f'{ann_file}: {kind}: id {number} stands there more than once')
    for name in repeated(category['name'] for category in whole['categories']):
        report.faults.append(f'{ann_file}: categories: more than one is named {name!r}')
    for name in repeated(image['file_name'] for image in whole['images']):
        report.remarks.append(f'{ann_file}: images: {name} stands there more than once')

    for image in whole['images']:
        report.faults += (f'{ann_file}: {text}' for text in _image_faults(image, images))
    images_by_id = {image['id']: image for image in whole['images']}
    names = {category['id']: category['name'] for category in whole['categories']}
    counts, populated = dict.fromkeys(names.values(), 0), {}
    for annotation in whole['annotations']:
        where = f'{ann_file}: annotation {annotation["id"]}'
        image = images_by_id.get(annotation['image_id'])
        faults = list(_annotation_faults(annotation, image, names))
        report.faults += (f'{where}: {text}' for text in faults)
        if faults:
            continue
        if reason := _why_left_out(annotation, image):
            report.remarks.append(f'{where}: left out of training: {reason}')
            continue
        left, top, width, height = annotation['bbox']
        beyond = max(-left, -top, left + width - image['width'], top + height - image['height'])
        if beyond > 1:
            report.remarks.append(f'{where}: box {annotation["bbox"]} reaches {beyond:.1f} pixels '
                                  'out of its image')
        if not annotation['iscrowd']:
            name = names[annotation['category_id']]
            counts[name] += 1
            populated.setdefault(image['file_name'], set()).add(name)
    if not populated:
        report.faults.append(f'{ann_file}: no image has an annotation that could be used')
    sides = {image['file_name']: min(image['width'], image['height']) for image in whole['images']}
    return Instances(counts, sides, populated)


def _complete(entries: list[dict], keys: tuple[str, ...], where: str,
              report: Report) -> Iterator[dict]:
    """The entries that have all keys; the others go to the report."""
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            report.faults.append(
                f'{where}: number {index} must have {", ".join(keys)}, got {entry}')
            continue
        missing = [key for key in keys if key not in entry]
        if missing:
            named = f'id {entry["id"]}' if 'id' in entry else f'number {index}'
            report.faults.append(f'{where}: {named} has no {", ".join(missing)}')
        else:
            yield entry


def _image_faults(image: dict, folder: Path) -> Iterator[str]:
    path, said = folder / image['file_name'], (image['width'], image['height'])
    try:
        found = image_size(path)
    except FileNotFoundError:
        yield f'image {image["id"]}: there is no {path}'
    except OSError as error:
        yield f'image {image["id"]}: {path} cannot be read: {error}'
    else:
        if found != said:
            turned = ' (turned as its EXIF data ask)' if found == said[::-1] else ''
            yield (f'image {image["id"]}: {path} has {found[0]} x {found[1]} pixels{turned}, the '
                   f'file says {said[0]} x {said[1]}')


def _annotation_faults(annotation: dict, image: dict | None, names: dict) -> Iterator[str]:
    if annotation['id'] == 0:
        yield 'ids must not be 0, which COCO\'s evaluation takes for "not matched"'
    if image is None:
        yield f'there is no image {annotation["image_id"]}'
    if annotation['category_id'] not in names:
        yield f'there is no category {annotation["category_id"]}'
    box, mask = annotation['bbox'], annotation['segmentation']
    numbers = isinstance(box, list) and all(isinstance(side, (int, float)) for side in box)
    if not (numbers and len(box) == 4 and np.isfinite(box).all()):
        yield f'bbox must be [left, top, width, height], got {box}'
    if not isinstance(annotation['area'], (int, float)):
        yield f'area must be a number of pixels, got {annotation["area"]!r}'
    if not mask:
        yield 'has no segmentation'
    elif not isinstance(mask, dict) and not (isinstance(mask, list)
                                             and all(isinstance(p, list) for p in mask)):
        yield 'segmentation must be a list of polygons, [[x, y, x, y, ...], ...], or an RLE'
    elif isinstance(mask, dict) and image is not None:
        size = [image['height'], image['width']]
        if mask.get('size') != size or 'counts' not in mask:
            yield f'the RLE must have counts and the size {size} of its image, got size ' \
                  f'{mask.get("size")}'
        elif isinstance(mask['counts'], list) and sum(mask['counts']) != size[0] * size[1]:
            yield f'the RLE has {sum(mask["counts"])} pixels, its image {size[0] * size[1]}'


def _why_left_out(annotation: dict, image: dict) -> str | None:
    """Why mmdet does not train with a sound annotation, if so."""
    left, top, width, height = box = annotation['bbox']
    if width < 1 or height < 1 or annotation['area'] <= 0:
        return f'empty, box {box}, area {annotation["area"]}'
    if min(left + width, top + height) <= 0 or left >= image['width'] or top >= image['height']:
        return f'box {box} lies outside its image of {image["width"]} x {image["height"]}'
    mask = annotation['segmentation']
    if isinstance(mask, list) and not any(len(p) >= 6 and len(p) % 2 == 0 for p in mask):
        return 'no polygon of at least three points'
    return None


def read_label_maps(masks: Path, images: Path, suffixes: tuple[str, str] | None,
                    report: Report) -> LabelMaps:
    """Read all label maps of a folder and the headers of the images that they belong to.

    Args:
        masks: Folder of 8-bit, one-channel images, in the same sub-folders as their images.
        images: Folder of images.
        suffixes: Ends of the names of images and of label maps, the rest of the names being equal;
            ``None`` takes the most frequent file extensions.
        report: Takes what is wrong.
    """
    folders = (images, masks)
    found = [_files(folder, report) for folder in folders]
    if suffixes is None:
        suffixes = tuple(
            _extension(folder, names, report) for folder, names in zip(folders, found, strict=True))
    stems = [{name.removesuffix(suffix)
              for name in names if name.endswith(suffix)}
             for names, suffix in zip(found, suffixes, strict=True)]
    if not stems[0]:
        report.faults.append(f'{images}: no images *{suffixes[0]}')
    for stem in sorted(stems[0] - stems[1]):
        report.faults.append(
            f'{images / stem}{suffixes[0]} has no label map {masks / stem}{suffixes[1]}')
    for stem in sorted(stems[1] - stems[0]):
        report.remarks.append(f'{masks / stem}{suffixes[1]} is not used: there is no such image')
    labels = {}
    for stem in sorted(stems[0] & stems[1]):
        image, mask = Path(f'{images / stem}{suffixes[0]}'), Path(f'{masks / stem}{suffixes[1]}')
        try:
            labels[mask] = _labels(mask, image_size(image))
        except (OSError, ValueError) as error:
            report.faults.append(f'{mask} or its image cannot be used: {error}')
            continue
        if labels[mask] <= {IGNORED}:
            report.remarks.append(f'{mask}: every pixel is {IGNORED}, which is ignored')
    return LabelMaps(labels, suffixes)


def _files(folder: Path, report: Report) -> list[str]:
    """Names of all files that Pillow may know, hidden ones left out, as mmseg lists them."""
    if not folder.is_dir():
        report.faults.append(f'{folder} is no folder')
        return []
    known = tuple(Image.registered_extensions())
    return list(scandir(folder, suffix=known, recursive=True, case_sensitive=False))


def _extension(folder: Path, names: list[str], report: Report) -> str:
    """The one extension of the files, which mmseg needs to be one."""
    counts = Counter(Path(name).suffix for name in names).most_common()
    if len(counts) > 1:
        shown = ', '.join(f'{count} {extension}' for extension, count in counts)
        report.faults.append(f'{folder}: all files must have one extension, there are {shown}')
    return counts[0][0] if counts else '.png'


def _labels(mask: Path, size: tuple[int, int]) -> frozenset[int]:
    """The values in the label map of an image of ``size`` (width, height).

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no label map of that size.
    """
    with Image.open(mask) as opened:
        label_map = np.asarray(opened)
    if label_map.ndim != 2:
        raise ValueError(f'a label map has one channel, this has {label_map.shape[2]}')
    if label_map.shape != size[::-1]:
        raise ValueError(f'the label map has {label_map.shape[1]} x {label_map.shape[0]} pixels, '
                         f'the image {size[0]} x {size[1]}')
    values = frozenset(np.unique(label_map).tolist())
    if min(values) < 0 or max(values) > 255:
        raise ValueError(f'labels must be in 0 ... 255, got {min(values)} to {max(values)}')
    return values
