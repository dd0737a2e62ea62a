"""Dataset of synthetic shapes: both formats agree exactly, and are reproducible."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

SPLITS = [('train2017', 'training', 12), ('val2017', 'validation', 4)]


def hash_folder(folder: Path) -> str:
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    return hashlib.sha256(b''.join(
        str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)).hexdigest()


@pytest.mark.parametrize('coco_folder, ade_folder, number', SPLITS)
def test_formats_agree(shapes: Path, coco_folder: str, ade_folder: str, number: int) -> None:
    coco = COCO(shapes / f'coco/annotations/instances_{coco_folder}.json')
    assert len(coco.imgs) == number
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == ['disc', 'square', 'triangle']
    for image in coco.imgs.values():
        path = shapes / f'coco/{coco_folder}' / image['file_name']
        same = shapes / f'ade/images/{ade_folder}' / image['file_name']
        assert path.read_bytes() == same.read_bytes()
        assert cv2.imread(str(path)).shape == (image['height'], image['width'], 3)
        label_map = cv2.imread(
            str(shapes / f'ade/annotations/{ade_folder}' / f'{path.stem}.png'),
            cv2.IMREAD_UNCHANGED)
        expected = np.ones_like(label_map)
        for annotation in coco.imgToAnns[image['id']]:
            mask = coco.annToMask(annotation).astype(bool)
            assert (expected[mask] == 1).all(), 'masks of one image do not overlap'
            expected[mask] = annotation['category_id'] + 1
            ys, xs = np.nonzero(mask)
            x, y, w, h = annotation['bbox']
            assert (x, y, x + w, y + h) == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
            assert annotation['area'] == mask.sum() >= 24
        assert np.array_equal(label_map, expected)


def test_images_differ_and_all_classes_occur(shapes: Path) -> None:
    images = [hashlib.sha256(p.read_bytes()).digest() for p in (shapes / 'coco').rglob('*.jpg')]
    assert len(set(images)) == len(images) == 16
    annotations = json.loads((shapes / 'coco/annotations/instances_train2017.json').read_text())
    assert {a['category_id'] for a in annotations['annotations']} == {1, 2, 3}


def test_seed_determines_dataset(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    size = ['--num-train', 12, '--num-val', 4, '--size', 64]
    run_tool('make_shapes', tmp_path / 'again', *size)
    run_tool('make_shapes', tmp_path / 'other', *size, '--seed', 1)
    assert hash_folder(tmp_path / 'again') == hash_folder(shapes)
    assert hash_folder(tmp_path / 'other') != hash_folder(shapes)


def test_scene_is_independent_of_their_number(shapes: Path, tmp_path: Path,
                                              run_tool: Callable) -> None:
    run_tool('make_shapes', tmp_path / 'few', '--num-train', 2, '--num-val', 1, '--size', 64)
    for name in ('000000.jpg', '000001.jpg'):
        few, many = (folder / 'coco/train2017' / name for folder in (tmp_path / 'few', shapes))
        assert few.read_bytes() == many.read_bytes()
