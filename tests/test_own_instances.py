"""Instances in COCO's form: all that is wrong with them is said."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from drawn_data import (HEIGHT, WIDTH, assert_said, change, coco_content, draw_image,
                        draw_instances, faults_of, leaf, remove)

from colonnade.engine.data_validation.coco_files import Usage, check_instances, headers_in
from colonnade.engine.data_validation.findings import Report

POLYGON = [4, 4, 20, 4, 20, 16]


@pytest.fixture
def instances(tmp_path: Path) -> list[str | Path]:
    return draw_instances(tmp_path)


def report_of(annotation: dict[str, Any], folder: Path, evaluated: bool = False) -> Report:
    """What is said of a file whose first annotation is changed."""
    content = coco_content()
    content['annotations'][0].update(annotation)
    report = Report()
    check_instances(
        Path('a.json'), content, report, look=headers_in(folder), usage=Usage(evaluated=evaluated))
    return report


@pytest.mark.parametrize('kind, values, says', [
    ('images', dict(width='48'), "image 1: width must be a whole number of pixels, got '48'"),
    ('images', dict(height=None), 'image 1: height must be a whole number of pixels, got None'),
    ('images', dict(height=0), 'image 1: height must be a whole number of pixels, got 0'),
    ('images', dict(file_name=7), 'image 1: file_name must be text, got 7'),
    ('images', dict(file_name='a\0b'), 'cannot be read: ValueError: embedded null byte'),
    ('images', dict(file_name='\ud800.jpg'), 'cannot be read: UnicodeEncodeError'),
    ('images', dict(file_name='.'), 'cannot be read: Is a directory'),
    ('images', dict(file_name='no.jpg'), 'train/no.jpg'),
    ('images', dict(id=[1]), 'images[0]: id must be a whole number, got [1]'),
    ('images', dict(id=10**30), 'images[0]: id must be a whole number, got 1000000'),
    ('categories', dict(name=5), 'category 0: name must be text, got 5'),
    ('categories', dict(id='0'), "categories[0]: id must be a whole number, got '0'"),
    ('categories', dict(id=1), 'category 1 stands there more than once'),
    ('categories', dict(name='square'), "more than one is named 'square'"),
    ('categories', dict(name='ring'), 'must have the same categories in the same order'),
    ('annotations', dict(id=3), 'annotation 3 stands there more than once'),
    ('annotations', dict(image_id=7), 'annotation 2: there is no image 7'),
    ('annotations', dict(category_id=9), 'annotation 2: there is no category 9'),
    ('annotations', dict(category_id=[0]), 'category_id must be a whole number, got [0]'),
    ('annotations', dict(bbox=[1, 2, 3]), 'bbox must be [left, top, width, height], got [1, 2, 3]'),
    ('annotations', dict(bbox=[1, 2, float('inf'), 3]), 'bbox must be [left'),
    ('annotations', dict(bbox=[1, 2, 10**400, 3]), 'bbox must be [left'),
    ('annotations', dict(area=None), 'area must be a number of pixels, got None'),
    ('annotations', dict(iscrowd='0'), "iscrowd must be 0 or 1, got '0'"),
    ('annotations', dict(segmentation=[]), 'annotation 2: has no segmentation'),
    ('annotations', dict(segmentation=POLYGON), 'segmentation must be a list of polygons'),
    ('annotations', dict(segmentation=[[4, 4, None, 4, 20, 16]]), 'polygons must be numbers'),
    ('annotations', dict(segmentation=[[4, 4, 1e9, 4, 20, 16]]), 'polygons must be numbers'),
    ('annotations', dict(segmentation=[[4, 4, float('nan'), 4, 20, 16]]),
     'polygons must be numbers'),
    ('annotations', dict(segmentation=dict(size=[5, 5], counts=[25])), 'the RLE must have'),
    ('annotations', dict(segmentation=dict(size=[40, 48])), 'the RLE must have'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts=[3, 4])), 'the RLE has 7 pixels'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts=[3, None])),
     'must be a string, or'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts='é')),
     'does not occur in a string'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts='zz')), 'RLE cannot be decoded'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts='P')), 'ends within a number'),
])
def test_what_cannot_be_used(kind: str, values: dict, says: str, instances: list,
                             run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    change(instances[1], kind, 0, **values)
    assert_said(faults_of(run_tool, capsys, leaf('mask_rcnn'), *instances), says)


def test_entries_without_what_they_need(instances: list, run_tool: Callable,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    remove(instances[1], 'area', 'iscrowd')
    content = json.loads(instances[1].read_text())
    content['categories'].append(7)
    instances[1].write_text(json.dumps(content))
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), *instances)
    assert_said(said, 'annotation 2 has no area, iscrowd',
                'categories[2] must have id, name, got 7')


@pytest.mark.parametrize('values, says', [
    (dict(bbox=[5, 5, 0, 9]), 'left out of training: empty'),
    (dict(area=0), 'left out of training: empty'),
    (dict(bbox=[5000, 5, 9, 9]), 'left out of training: box [5000, 5, 9, 9] lies outside'),
    (dict(segmentation=[[1, 2, 3, 4]]), 'left out of training: no polygon'),
    (dict(segmentation=[POLYGON, [1, 2]]), '1 of its polygons are left out of training'),
    (dict(ignore=1), 'left out of training: it is marked to be ignored'),
    (dict(bbox=[-40, 0, 50, 9]), 'box [-40, 0, 50, 9] reaches 40.0 pixels out'),
])
def test_what_mmdet_passes_over(values: dict, says: str, tmp_path: Path) -> None:
    for number in (1, 2):
        draw_image(tmp_path / f'{number}.jpg')
    report = report_of(values, tmp_path)
    assert_said(report.remarks, says)
    assert not report.faults


def test_an_id_that_the_evaluation_takes_for_none(tmp_path: Path) -> None:
    assert 'must not be 0' not in str(report_of(dict(id=0), tmp_path).faults)
    report = report_of(dict(id=0), tmp_path, evaluated=True)
    assert_said(report.faults, 'annotation 0: ids must not be 0')


@pytest.mark.parametrize('polygon', [[5, 5], [5, 5, 9, 9], [1, 1, 9, 1, 9, 9, 3], []])
def test_polygons_that_the_evaluation_cannot_read(polygon: list[int], tmp_path: Path) -> None:
    """mmdet leaves them out of training; pycocotools stops, or takes four numbers for a box."""
    for mask in ([polygon], [POLYGON, polygon]):
        report = report_of(dict(segmentation=mask), tmp_path, evaluated=True)
        assert_said(report.faults, 'segmentation has')


@pytest.mark.parametrize('content, says', [
    (b'{"images": [', 'cannot be read'),
    (b'[]', 'needs images, categories, annotations, it is a list'),
    (b'7', 'it is 7'),
    (b'{"shapes": [], "imagePath": "a"}', "it is one image's shapes, as LabelMe writes them"),
    (b'{"images": [], "annotations": null, "categories": {}}', 'annotations must be a list'),
    (b'{"images": [], "annotations": [], "categories": []}', 'no image has an annotation'),
    (b'\xef\xbb\xbf{}', 'starts with a byte order mark'),
    ('{"images": "é"}'.encode('latin-1'), 'cannot be read'),
    ('{}'.encode('utf-16'), 'cannot be read'),
    (b'[' * 100000, 'cannot be read'),
    (b'{"images": ' + b'1' * 5000 + b'}', 'cannot be read'),
])
def test_files_that_are_not_cocos(content: bytes, says: str, instances: list, run_tool: Callable,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    instances[2].write_bytes(content)
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), *instances)
    assert any(f'{instances[2]}' in line and says in line for line in said), said


@pytest.mark.parametrize('name, what', [
    ('data.yaml', "a YAML file, as YOLO's"),
    ('labels/train/1.txt', "a folder of YOLO's text files"),
    ('1.txt', "a folder of YOLO's text files"),
    ('Annotations/1.xml', "a folder of Pascal VOC's XML"),
    ('train.json', 'a folder: name the JSON file'),
    ('masks/1.png', 'a folder of images: label maps are for --masks'),
])
def test_other_programs_data_are_named(name: str, what: str, instances: list, tmp_path: Path,
                                       run_tool: Callable,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / 'other' / name
    file.parent.mkdir(parents=True)
    file.write_text('0 0.5 0.5 0.1 0.1\n')
    named = file if file.suffix == '.yaml' else tmp_path / 'other'
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), '--coco', named, named, *instances[3:])
    assert_said(said, f'{named} is {what}', "--coco takes COCO's JSON")


def test_a_file_that_is_not_there(instances: list, run_tool: Callable,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), '--coco', 'no.json', *instances[2:])
    assert_said(said, 'no.json cannot be read')


def test_many_faults_of_a_kind_are_counted(tmp_path: Path, run_tool: Callable,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_instances(tmp_path, num_images=40)
    for image in (tmp_path / 'train').iterdir():
        image.unlink()
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), *arguments)
    assert len(said) < 20
    assert_said(said, 'fault: and 30 more of this kind')


def test_a_folder_of_images_that_is_not_there(instances: list, run_tool: Callable,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), *instances[:4], 'no', 'no')
    assert_said(said, '--images: no is no folder')


def test_run_lengths_where_polygons_alone_train(tmp_path: Path, run_tool: Callable,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    instances = draw_instances(tmp_path)
    rle = dict(size=[HEIGHT, WIDTH], counts=[0, HEIGHT * WIDTH])
    change(instances[1], 'annotations', 0, segmentation=rle)
    rtmdet = ROOT / 'configs/rtmdet_ins/xcit_small_12_p16_300ep_coco.py'
    run_tool('new_config', rtmdet, *instances, '--out', tmp_path / 'own.py')
    assert 'annotation 2: left out of training: its segmentation is an RLE' in capsys.readouterr(
    ).out
    for index in range(1, 4):
        change(instances[1], 'annotations', index, segmentation=rle)
    assert_said(
        faults_of(run_tool, capsys, rtmdet, *instances),
        'train.json: no image has an annotation that could be used')
