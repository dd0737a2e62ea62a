"""Writers of instance datasets in third-party formats, from COCO files."""
from __future__ import annotations

import base64
import io
import json
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from globox import AnnotationSet
from helpers.synthetic_data import coco_content, draw_image
from PIL import Image
from supervision import DetectionDataset

from colonnade.datasets.formats.format_detection import open_dataset
from colonnade.datasets.options import DataOptions
from colonnade.datasets.rle import decode_rle, encode_segmentation
from colonnade.datasets.validation.validation_report import Report

Parts = Mapping[str, tuple[Path, dict[str, Any]]]  # train, val -> folder of images, COCO's content


def select_images(folder: Path, num_images: int = 5) -> Parts:
    """Return the real images with the fewest annotations, without crowds."""
    parts: dict[str, tuple[Path, dict[str, Any]]] = {}
    for split in ('train', 'val'):
        content = json.loads((folder / f'annotations/instances_{split}2017.json').read_text())
        of_image: dict[int, list[dict]] = {image['id']: [] for image in content['images']}
        for annotation in content['annotations']:
            of_image[annotation['image_id']].append(annotation)
        fewest = sorted((len(found), number) for number, found in of_image.items()
                        if len(found) > 1 and not any(a['iscrowd'] for a in found))[:num_images]
        chosen = {number for _, number in fewest}
        content['images'] = [image for image in content['images'] if image['id'] in chosen]
        content['annotations'] = [a for number in sorted(chosen) for a in of_image[number]]
        parts[split] = folder / f'{split}2017', content
    used = {a['category_id'] for _, content in parts.values() for a in content['annotations']}
    for _, content in parts.values():
        content['categories'] = [c for c in content['categories'] if c['id'] in used]
    return parts


def class_names(parts: Parts) -> list[str]:
    return [category['name'] for category in parts['train'][1]['categories']]


def copy_images(parts: Parts, split: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for image in parts[split][1]['images']:
        shutil.copy(parts[split][0] / image['file_name'], folder)


def write_coco(parts: Parts, out: Path) -> None:
    """Write COCO's directory structure."""
    (out / 'annotations').mkdir(parents=True)
    for split, (_, content) in parts.items():
        (out / f'annotations/instances_{split}2017.json').write_text(json.dumps(content))
        copy_images(parts, split, out / f'{split}2017')


def write_roboflow_coco(parts: Parts, out: Path) -> None:
    """Write a file next to the images, with a supercategory of ID 0, and IDs from 0."""
    for split, (_, content) in parts.items():
        folder = out / dict(train='train', val='valid')[split]
        copy_images(parts, split, folder)
        numbers = {category['id']: i for i, category in enumerate(content['categories'], 1)}
        categories = [dict(id=0, name='things', supercategory='none')]
        categories += [
            dict(id=i, name=name, supercategory='things')
            for i, name in enumerate(class_names(parts), 1)
        ]
        annotations = [
            a | dict(id=i, category_id=numbers[a['category_id']])
            for i, a in enumerate(content['annotations'])
        ]
        content = content | dict(categories=categories, annotations=annotations)
        (folder / '_annotations.coco.json').write_text(json.dumps(content))


def globox_set(parts: Parts, split: str, out: Path) -> AnnotationSet:
    scratch = out.parent / f'{out.name}_{split}.json'
    scratch.write_text(json.dumps(parts[split][1]))
    return AnnotationSet.from_coco(scratch)


def supervision_set(parts: Parts, split: str, out: Path) -> DetectionDataset:
    scratch = out.parent / f'{out.name}_{split}.json'
    scratch.write_text(json.dumps(parts[split][1]))
    return DetectionDataset.from_coco(
        images_directory_path=str(parts[split][0]), annotations_path=str(scratch), force_masks=True)


def write_yolo_boxes(parts: Parts, out: Path) -> None:
    """Write images/, labels/ and data.yaml, whose names are a mapping."""
    names = class_names(parts)
    for split in parts:
        copy_images(parts, split, out / 'images' / split)
        (out / 'labels').mkdir(exist_ok=True)
        globox_set(parts, split, out).save_yolo_v5(
            out / 'labels' / split, label_to_id={
                name: i
                for i, name in enumerate(names)
            })
    content = dict(path='.', train='images/train', val='images/val', names=dict(enumerate(names)))
    (out / 'data.yaml').write_text(yaml.safe_dump(content))


def write_yolo_polygons(parts: Parts, out: Path) -> None:
    """Write Roboflow's variant of YOLO: train/images, with a wrong path in data.yaml."""
    for split in parts:
        folder = out / dict(train='train', val='valid')[split]
        supervision_set(parts, split, out).as_yolo(
            str(folder / 'images'), str(folder / 'labels'), str(out / 'data.yaml'))
    content = yaml.safe_load((out / 'data.yaml').read_text())
    content |= dict(train='../train/images', val='../valid/images')
    (out / 'data.yaml').write_text(yaml.safe_dump(content))


def write_voc_boxes(parts: Parts, out: Path) -> None:
    """Write XML next to the images, with fractional coordinates from 0."""
    for split in parts:
        copy_images(parts, split, out / split)
        globox_set(parts, split, out).save_pascal_voc(out / split)


def write_voc_polygons(parts: Parts, out: Path) -> None:
    """Write Annotations/, JPEGImages/ and ImageSets/, with polygons."""
    (out / 'ImageSets/Main').mkdir(parents=True)
    for split, (_, content) in parts.items():
        supervision_set(parts, split,
                        out).as_pascal_voc(str(out / 'JPEGImages'), str(out / 'Annotations'))
        stems = [Path(image['file_name']).stem for image in content['images']]
        (out / f'ImageSets/Main/{split}.txt').write_text('\n'.join(stems))


def write_labelme_boxes(parts: Parts, out: Path) -> None:
    for split in parts:
        copy_images(parts, split, out / split)
        globox_set(parts, split, out).save_labelme(out / split)


def write_labelme_polygons(parts: Parts, out: Path) -> None:
    """Write parts of an object with the same group_id."""
    for split, (_, content) in parts.items():
        copy_images(parts, split, out / split)
        names = {category['id']: category['name'] for category in content['categories']}
        for image in content['images']:
            shapes = [
                dict(
                    label=names[a['category_id']],
                    points=[list(p) for p in zip(polygon[::2], polygon[1::2], strict=True)],
                    group_id=a['id'] if len(a['segmentation']) > 1 else None,
                    shape_type='polygon',
                    flags={}) for a in content['annotations'] if a['image_id'] == image['id']
                for polygon in a['segmentation']
            ]
            file = (out / split / image['file_name']).with_suffix('.json')
            file.write_text(
                json.dumps(
                    dict(
                        version='5.5.0',
                        flags={},
                        shapes=shapes,
                        imagePath=image['file_name'],
                        imageData=None,
                        imageHeight=image['height'],
                        imageWidth=image['width'])))


def write_via_boxes(parts: Parts, out: Path) -> None:
    """Write via_region_data.json next to the images, as version 2 exports it."""
    for split, (_, content) in parts.items():
        copy_images(parts, split, out / split)
        names = {category['id']: category['name'] for category in content['categories']}
        regions: dict[int, list[dict]] = {image['id']: [] for image in content['images']}
        for annotation in content['annotations']:
            sides = dict(zip(('x', 'y', 'width', 'height'), annotation['bbox'], strict=True))
            label = names[annotation['category_id']]
            regions[annotation['image_id']].append(make_region('rect', label, **sides))
        entries = [make_via_entry(image['file_name'], *regions[image['id']])
                   for image in content['images']]  # yapf: disable
        (out / split / 'via_region_data.json').write_text(json.dumps(dict(entries)))


def make_region(kind: str, label: object, **shape: object) -> dict[str, Any]:
    return dict(
        shape_attributes=dict(name=kind, **shape),
        region_attributes={'type': label} if label else {})


def make_via_entry(name: str, *regions: dict) -> tuple[str, dict[str, Any]]:
    entry = dict(filename=name, size=5, regions=list(regions), file_attributes={})
    return f'{name}5', entry


def write_supervisely_bitmaps(parts: Parts, out: Path) -> None:
    """Write a project with a dataset for each split, whose objects are cropped masks."""
    for split, (_, content) in parts.items():
        copy_images(parts, split, out / split / 'img')
        (out / split / 'ann').mkdir()
        names = {category['id']: category['name'] for category in content['categories']}
        for image in content['images']:
            objects = []
            for annotation in content['annotations']:
                if annotation['image_id'] == image['id']:
                    size = image['height'], image['width']
                    mask = decode_rle(encode_segmentation(annotation['segmentation'], size))
                    objects.append(make_bitmap(names[annotation['category_id']], mask))
            file = out / split / f'ann/{image["file_name"]}.json'
            file.write_text(make_supervisely(image['width'], image['height'], *objects))
    classes = [dict(title=name, shape='bitmap', color='#00FF00') for name in class_names(parts)]
    (out / 'meta.json').write_text(json.dumps(dict(classes=classes, tags=[])))


def make_supervisely(width: int, height: int, *objects: dict) -> str:
    return json.dumps(
        dict(description='', tags=[], size=dict(height=height, width=width), objects=objects))


def make_bitmap(label: str, mask: np.ndarray) -> dict[str, Any]:
    """Return an object with the box of a mask ``(H, W)``, as Supervisely's SDK encodes it."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    image = Image.fromarray(mask[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]).convert('P')
    image.putpalette([0, 0, 0, 255, 255, 255])
    file = io.BytesIO()
    image.save(file, 'PNG', transparency=0, optimize=0)
    data = base64.b64encode(zlib.compress(file.getvalue())).decode()
    origin = [int(columns[0]), int(rows[0])]
    return dict(classTitle=label, geometryType='bitmap', bitmap=dict(data=data, origin=origin))


WRITERS = {
    name.removeprefix('write_'): value
    for name, value in list(globals().items()) if name.startswith('write_')
}
BOX = '0 0.5 0.5 0.25 0.25'  # line of a YOLO file


def write_lines(file: Path, *texts: str) -> None:
    file.write_text('\n'.join(texts))


def draw_dataset(folder: Path) -> Parts:
    """Draw two images of 48 x 40 pixels per split, with a disc and a square."""
    parts = {}
    for split, first in (('train', 1), ('val', 100)):
        content = coco_content(first=first)
        for image in content['images']:
            draw_image(folder / split / image['file_name'])
        parts[split] = folder / split, content
    return parts


def options(*data: Path, out: Path, **values: Any) -> DataOptions:
    """Return the options for a dataset."""
    return DataOptions(data=list(data), out=out, **values)


def read(args: DataOptions) -> tuple[list[dict[str, Any]], Report]:
    """Return the content of the COCO files that a dataset is converted to, and the report.

    Sets ``args.images`` to their folders of images.
    """
    report = Report()
    with open_dataset(args, 'instances', report) as indices:
        args.images = [index.images for index in indices or ()]
        return [json.loads(index.file.read_text()) for index in indices or ()], report
