"""Custom COCO datasets: repairs, errors and warnings."""
from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from helpers.synthetic_data import (CLASSES, HEIGHT, WIDTH, assert_messages, change, coco_content,
                                    draw_image, draw_instances, leaf, remove, run_and_get_errors)
from mmengine.config import Config

from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.coco_files import Usage, check_instances, make_header_check
from colonnade.datasets.validation.validation_report import Report
from colonnade.recipes.custom_data.config_creation import read_dataset_description
from colonnade.tools.command_line import parse_options

POLYGON = [4, 4, 20, 4, 20, 16]


@pytest.fixture
def instances(tmp_path: Path) -> list[str | Path]:
    return draw_instances(tmp_path)


def check_annotation(annotation: dict[str, Any], folder: Path, evaluated: bool = False) -> Report:
    """Check a file whose first annotation is changed."""
    content = coco_content()
    content['annotations'][0].update(annotation)
    report = Report()
    check_instances(
        Path('a.json'),
        content,
        report,
        check_images=make_header_check(folder),
        usage=Usage(evaluated=evaluated))
    return report


@pytest.mark.parametrize('kind, values, says', [
    ('images', dict(file_name=7), 'image 1: file_name must be a string, got 7'),
    ('images', dict(file_name='a\0b'), 'cannot be read: ValueError: embedded null byte'),
    ('images', dict(file_name='\ud800.jpg'), 'its name is not valid UTF-8'),
    ('images', dict(file_name='.'), 'cannot be read: Is a directory'),
    ('images', dict(file_name='no.jpg'), 'train/no.jpg'),
    ('images', dict(id=[1]), 'images[0]: id must be an integer, got [1]'),
    ('images', dict(id=10**30), 'images[0]: id must be an integer, got 1000000'),
    ('categories', dict(name=5), 'category 0: name must be a string, got 5'),
    ('categories', dict(id=1), 'category 1 is duplicated'),
    ('categories', dict(name='square'), "categories: 'square' is duplicated"),
    ('categories', dict(name='ring'), 'must have the same categories in the same order'),
    ('annotations', dict(category_id=9), 'annotation 2: category 9 does not exist'),
    ('annotations', dict(bbox=[1, 2, 3],
                         segmentation=[]), 'bbox must be [left, top, width, height'),
    ('annotations', dict(bbox=None, segmentation=[[1, 2, None]]), 'bbox must be [left'),
    ('annotations', dict(iscrowd=2), 'iscrowd must be 0 or 1, got 2'),
    ('annotations', dict(segmentation=7), 'segmentation must be a list of polygons'),
    ('annotations', dict(category_id=[0]), 'category_id must be an integer, got [0]'),
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
     'is not a valid character in compressed counts'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts='zz')), 'RLE cannot be decoded'),
    ('annotations', dict(segmentation=dict(size=[40, 48], counts='P')), 'ends in the middle of a'),
])
def test_errors(kind: str, values: dict, says: str, instances: list, run_tool: Callable) -> None:
    change(instances[1], kind, 0, **values)
    assert_messages(run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances), says)


def test_consequences_of_errors_are_not_reported(instances: list, run_tool: Callable) -> None:

    content = json.loads(instances[1].read_text())
    content['categories'].append(7)
    instances[1].write_text(json.dumps(content))
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances)
    assert_messages(said, 'categories[2] must have id, name, got 7')
    assert len([line for line in said if line.startswith('error')]) == 1
    for kind, values in (('images', dict(file_name='no.jpg',
                                         width=None)), ('categories', dict(name=None)),
                         ('categories', dict(id=...)), ('annotations', dict(category_id=7))):
        draw_instances(instances[1].parent)
        change(instances[1], kind, 0, **values)
        content = json.loads(instances[1].read_text())
        content['images'] = content['images'][:1]
        instances[1].write_text(json.dumps(content))
        said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances)
        assert len([line for line in said if line.startswith('error')]) == 1, said


def repair_instances(instances: list, *options: str) -> tuple[list[dict], list[str]]:
    """Return the content of the COCO files that a config would use, and the warnings."""
    parser = argparse.ArgumentParser()
    args = parse_options(parser, DataOptions, words=[*map(str, instances), *options])
    args.out, report = instances[1].parent / 'own.py', Report()
    data = read_dataset_description(args, report, masks=True, filter_cfg={}, kind='instances')
    assert data is not None and not report.errors
    files = [data.root / dataset['ann_file'] for dataset in data.datasets]
    return [json.loads(file.read_text()) for file in files], report.warnings


@pytest.mark.parametrize('split', [1, 2])
@pytest.mark.parametrize('kind, values, expected, says', [
    ('images', dict(width='48'), dict(width=48), 'width and height of images: converted to int'),
    ('images', dict(width=48.0), dict(width=48), 'converted to integers'),
    ('images', dict(height=None), dict(height=40), 'read from their files'),
    ('images', dict(height=0), dict(height=40), 'read from their files'),
    ('images', dict(height=...), dict(height=40), 'read from their files'),
    ('categories', dict(id='0'), dict(id=0), 'IDs of categories'),
    ('annotations', dict(id=0), {}, 'annotation IDs that are missing, duplicated or 0'),
    ('annotations', dict(id=...), {}, 'annotation IDs that are missing, duplicated or 0'),
    ('annotations', dict(id='2'), dict(id=2), 'annotation IDs: converted to integers'),
    ('annotations', dict(bbox=...), dict(bbox=[4, 4, 16, 12]), 'bbox of annotations: computed'),
    ('annotations', dict(bbox=[1, 2, 3]), dict(bbox=[4, 4, 16, 12]), 'computed from masks'),
    ('annotations', dict(bbox=[1, 2, float('inf'), 3]), dict(bbox=[4, 4, 16, 12]), 'computed'),
    ('annotations', dict(bbox=['4', 4, '16.0', 12]), dict(bbox=[4, 4, 16, 12]), 'to numbers'),
    ('annotations', dict(area=...), dict(area=96), 'area of annotations: computed'),
    ('annotations', dict(area=None), dict(area=96), 'area of annotations: computed'),
    ('annotations', dict(iscrowd=...), dict(iscrowd=0),
     'iscrowd of annotations: missing, set to 0'),
    ('annotations', dict(iscrowd='1'), dict(iscrowd=1), 'iscrowd of annotations: converted to'),
    ('annotations', dict(segmentation=POLYGON), dict(segmentation=[POLYGON]), 'flat polygons'),
    ('annotations', dict(segmentation=[[4, 4], [20, 4], [20, 16]]), dict(segmentation=[POLYGON]),
     'flat polygons: put into a list'),
    ('annotations', dict(segmentation=[POLYGON, [1, 2, 3, 4]]), dict(segmentation=[POLYGON]),
     'polygons with fewer than three points: removed'),
    ('annotations', dict(segmentation=[]), dict(segmentation=[[4, 4, 20, 4, 20, 16, 4, 16]]),
     'corners of the box used as mask (detectors without masks: --boxes-only)'),
])
def test_repairs(split: int, kind: str, values: dict, expected: dict, says: str,
                 instances: list) -> None:
    change(instances[split], kind, 0, **values)
    before = instances[split].read_bytes()
    contents, said = repair_instances(instances)
    content = contents[split - 1]
    assert instances[split].read_bytes() == before
    assert content[kind][0].items() >= expected.items()
    assert all(
        type(content[kind][0][key]) is type(value) for key, value in expected.items()
        if key != 'area')
    ids = [annotation['id'] for annotation in content['annotations']]
    assert len(set(ids)) == len(ids) == 4 and set(map(type, ids)) == {int}
    warnings = [line for line in said if line.startswith('repaired: ')]
    assert len(warnings) == 1 and says in warnings[0]
    assert f', the first: {instances[split].name}: ' in warnings[0]


def test_several_repairs_cause_one_warning(instances: list) -> None:
    """IDs are names, an annotation has no image, an unused image no file; there is a BOM."""
    for file in instances[1:3]:
        remove(file, 'area', 'iscrowd', 'bbox', 'id')
        content = json.loads(file.read_text())
        for image in content['images']:
            image['id'] = f'image {image["id"]}'
        for annotation in content['annotations']:
            annotation['image_id'] = f'image {annotation["image_id"]}'
        content['images'].append(dict(id='gone', file_name='gone.jpg'))
        content['annotations'][1]['id'] = content['annotations'][2]['id'] = 5
        content['annotations'].append(content['annotations'][0] | dict(image_id='nowhere'))
        file.write_text(json.dumps(content), encoding='utf-8-sig')
    contents, remarks = repair_instances(instances)
    for content in contents:
        assert [image['id'] for image in content['images']] == [2, 3]  # 'gone' was 1
        assert [a['image_id'] for a in content['annotations']] == [2, 2, 3, 3]
    assert contents[0]['annotations'][0]['converted_from'] == 'train.json: annotations[0]'
    said, = (line for line in remarks if line.startswith('repaired: '))
    for text in ('byte order marks: removed (2, ', 'area of annotations: computed (8, the first: '
                 'train.json: annotations[0])', 'that are not in the file: removed (2, the first',
                 'images without annotations whose files do not exist: removed (2, ',
                 'IDs of images: converted to integers (6, the first: train.json: image image 1)'):
        assert text in said, text


@pytest.mark.parametrize('ids', [('1_2', '12', '3'), ('01', '1', '2'), ('9' * 19, '1', '2')])
def test_ids_similar_to_integers_are_names(ids: tuple[str, ...], instances: list) -> None:
    arguments = draw_instances(instances[1].parent, num_images=3)
    content = json.loads(arguments[1].read_text())
    names = {image['id']: name for image, name in zip(content['images'], ids, strict=True)}
    for image in content['images']:
        image['id'] = names[image['id']]
    for annotation in content['annotations']:
        annotation['image_id'] = names[annotation['image_id']]
    arguments[1].write_text(json.dumps(content))
    (train, _), _ = repair_instances(arguments)
    numbers = [image['id'] for image in train['images']]
    assert len(set(numbers)) == 3 and set(map(type, numbers)) == {int}
    assert [a['image_id'] for a in train['annotations']] == [each for each in numbers for _ in '12']


def test_file_of_other_images_is_rejected(instances: list, run_tool: Callable) -> None:
    content = json.loads(instances[1].read_text())
    for annotation in content['annotations'][1:]:
        annotation['image_id'] += 1000
    instances[1].write_text(json.dumps(content))
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances)
    assert_messages(said, '3 of 4 annotations refer to images that are not in the file')


@pytest.mark.parametrize('names', [['square', 'disc'], ['square'], ['disc', 'square', 'ring']])
def test_categories_are_aligned(names: list[str], instances: list) -> None:
    """mmdet numbers categories by their order in each file; validation can have fewer or more."""
    content = json.loads(instances[2].read_text())
    content['categories'] = [dict(id=10 + place, name=name) for place, name in enumerate(names)]
    kept = [a for a in content['annotations'] if ('disc', 'square')[a['category_id']] in names]
    for annotation in kept:
        name = ('disc', 'square')[annotation['category_id']]
        annotation['category_id'] = 10 + names.index(name)
    instances[2].write_text(json.dumps(content | dict(annotations=kept)))
    (train, val), _ = repair_instances(instances)
    order = [category['name'] for category in train['categories']]
    assert order == [category['name'] for category in val['categories']]
    assert order == ['disc', 'square', 'ring'][:max(2, len(names))]
    found = {category['id']: category['name'] for category in val['categories']}
    assert {found[a['category_id']] for a in val['annotations']} == set(names) & {*CLASSES}


def test_bad_samples_are_skipped(instances: list, run_tool: Callable) -> None:
    arguments = draw_instances(instances[1].parent, num_images=5)
    with pytest.raises(SystemExit, match='1 error, no config was written$'):
        run_tool('create_config', leaf('mask_rcnn'), *arguments, '--classes', 'rng', '--out',
                 'own.py')
    (arguments[1].parent / 'train/1.jpg').write_bytes(b'no JPEG')
    (arguments[1].parent / 'train/2.jpg').unlink()
    change(arguments[1], 'annotations', 4, category_id=9)  # image 3
    change(arguments[1], 'annotations', 6, bbox=None, segmentation=None)  # image 4
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *arguments)
    assert_messages(said, 'image 1: ', 'train/2.jpg', 'category 9', 'bbox must be')
    with pytest.raises(SystemExit, match='4 errors, .*; --on-bad-data skip leaves out bad images'):
        run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', 'own.py')
    (train, val), remarks = repair_instances(arguments, '--on-bad-data', 'skip')
    assert [image['id'] for image in train['images']] == [5]
    assert {a['image_id'] for a in train['annotations']} == {5} and len(val['images']) == 5
    assert_messages(remarks, '--on-bad-data skip: 4 samples skipped, the first: train.json: image')
    (arguments[1].parent / 'train/5.jpg').unlink()
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *arguments, '--on-bad-data', 'skip')
    assert_messages(said, 'train: no usable image is left', '5 samples skipped, the first: ')
    arguments[1].write_text('{"images": [')  # not an image
    with pytest.raises(SystemExit, match='1 error, no config was written$'):
        run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', 'own.py')


def test_config_uses_repaired_files(instances: list, run_tool: Callable, tmp_path: Path,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    remove(instances[1], 'iscrowd')
    run_tool('create_config', leaf('mask_rcnn'), *instances, '--out', tmp_path / 'own.py')
    cfg = Config.fromfile(tmp_path / 'own.py')
    assert cfg.train_dataloader.dataset.ann_file == 'own_data/train.json'
    assert cfg.val_evaluator.ann_file.endswith('own_data/val.json')
    assert 'warning: repaired: iscrowd of annotations: missing, set to 0 (4, the first: ' \
        'train.json: annotation 2)\n' in capsys.readouterr().out


def test_reconvert_repaired_files(instances: list, run_tool: Callable, tmp_path: Path) -> None:
    """Repairs and skipped samples stay the same."""
    remove(instances[1], 'iscrowd')
    (tmp_path / 'train/1.jpg').write_bytes(b'no JPEG')
    run_tool('create_config', leaf('mask_rcnn'), *instances, '--out', tmp_path / 'own.py',
             '--on-bad-data', 'skip')
    change(instances[1], 'annotations', 2, bbox=[5, 5, 9, 9])
    with pytest.raises(SystemExit):
        run_tool('check_dataset', tmp_path / 'own.py')
    run_tool('check_dataset', tmp_path / 'own.py', '--reconvert')
    content = json.loads((tmp_path / 'own_data/train.json').read_text())
    assert [image['file_name'] for image in content['images']] == ['2.jpg']
    assert content['annotations'][0]['bbox'] == [5, 5, 9, 9]
    assert content['annotations'][0]['iscrowd'] == 0


def test_valid_files_are_used_unchanged(instances: list, tmp_path: Path) -> None:
    repair_instances(instances, '--on-bad-data', 'skip')
    assert not (tmp_path / 'own_data').exists()


@pytest.mark.parametrize('values, says', [
    (dict(bbox=[5, 5, 0, 9]), 'not used for training: empty'),
    (dict(area=0), 'not used for training: empty'),
    (dict(bbox=[5000, 5, 9, 9]), 'not used for training: box [5000, 5, 9, 9] is outside'),
    (dict(segmentation=[[1, 2, 3, 4]]), 'not used for training: it has no polygon'),
    (dict(segmentation=[POLYGON, [1, 2]]), '1 of its polygons are not used for training'),
    (dict(ignore=1), 'not used for training: it is marked with ignore'),
    (dict(bbox=[-40, 0, 50, 9]), 'box [-40, 0, 50, 9] extends 40.0 pixels beyond'),
])
def test_annotations_ignored_by_mmdet(values: dict, says: str, tmp_path: Path) -> None:
    for number in (1, 2):
        draw_image(tmp_path / f'{number}.jpg')
    report = check_annotation(values, tmp_path)
    assert_messages(report.warnings, says)
    assert not report.errors


def test_id_0_is_rejected_for_evaluation(tmp_path: Path) -> None:
    assert 'must not be 0' not in str(check_annotation(dict(id=0), tmp_path).errors)
    report = check_annotation(dict(id=0), tmp_path, evaluated=True)
    assert_messages(report.errors, 'annotation 0: annotation IDs must not be 0')


@pytest.mark.parametrize('polygon', [[5, 5], [5, 5, 9, 9], [1, 1, 9, 1, 9, 9, 3], []])
def test_invalid_polygons_in_evaluation(polygon: list[int], tmp_path: Path) -> None:
    """mmdet omits them in training; pycocotools stops, or takes four numbers for a box."""
    for mask in ([polygon], [POLYGON, polygon]):
        report = check_annotation(dict(segmentation=mask), tmp_path, evaluated=True)
        assert_messages(report.errors, 'segmentation has')


@pytest.mark.parametrize('content, says', [
    (b'{"images": [', 'cannot be read'),
    (b'[]', 'expected images, categories, annotations, got a list'),
    (b'7', 'got 7'),
    (b'{"shapes": [], "imagePath": "a"}', 'got a LabelMe file of one image'),
    (b'{"images": [], "annotations": null, "categories": {}}', 'annotations must be a list'),
    (b'{"images": [], "annotations": [], "categories": []}', 'has no images'),
    (b'\xef\xbb\xbf{}', 'got an object with no keys'),
    ('{"images": "é"}'.encode('latin-1'), 'cannot be read'),
    ('{}'.encode('utf-16'), 'cannot be read'),
    (b'[' * 100000, 'cannot be read'),
    (b'{"images": ' + b'1' * 5000 + b'}', 'cannot be read'),
])
def test_files_not_in_coco_format(content: bytes, says: str, instances: list,
                                  run_tool: Callable) -> None:
    instances[2].write_bytes(content)
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances)
    assert any(f'{instances[2]}' in line and says in line for line in said), said


@pytest.mark.parametrize('name, what', [
    ('data.yaml', 'a YAML file, as in YOLO datasets'),
    ('labels/train/1.txt', 'a folder of YOLO text files'),
    ('1.txt', 'a folder of YOLO text files'),
    ('Annotations/1.xml', 'a folder of Pascal VOC XML files'),
    ('train.json', 'a folder: pass the JSON file'),
    ('masks/1.png', 'a folder of images: pass label maps with --masks'),
])
def test_other_formats_are_named(name: str, what: str, instances: list, tmp_path: Path,
                                 run_tool: Callable) -> None:
    file = tmp_path / 'other' / name
    file.parent.mkdir(parents=True)
    file.write_text('0 0.5 0.5 0.1 0.1\n')
    named = file if file.suffix == '.yaml' else tmp_path / 'other'
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), '--coco', named, named, *instances[3:])
    assert_messages(said, f'{named} is {what}', '--coco expects two COCO files')


def test_missing_paths(instances: list, run_tool: Callable) -> None:
    for words, missing in ((['--coco', 'no.json',
                             *instances[2:]], '--coco no.json'), ([*instances[:4], 'no',
                                                                   'no'], '--images no')):
        with pytest.raises(SystemExit, match=f'no such file or folder: {missing}'):
            run_tool('create_config', leaf('mask_rcnn'), *words)


def test_similar_errors_are_counted(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_instances(tmp_path, num_images=40)
    for image in (tmp_path / 'train').iterdir():
        image.unlink()
    said = run_and_get_errors(run_tool, leaf('mask_rcnn'), *arguments)
    assert len(said) < 20
    assert_messages(said, 'error: and 30 more of this type')


def test_rles_with_polygons_only(tmp_path: Path, run_tool: Callable,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    instances = draw_instances(tmp_path)
    rle = dict(size=[HEIGHT, WIDTH], counts=[0, HEIGHT * WIDTH])
    change(instances[1], 'annotations', 0, segmentation=rle)
    rtmdet = ROOT / 'configs/rtmdet_ins/xcit_small_12_p16_300ep_coco.py'
    run_tool('create_config', rtmdet, *instances, '--out', tmp_path / 'own.py')
    assert 'annotation 2: not used for training: its segmentation is an RLE' in capsys.readouterr(
    ).out
    for index in range(1, 4):
        change(instances[1], 'annotations', index, segmentation=rle)
    assert_messages(
        run_and_get_errors(run_tool, rtmdet, *instances),
        'training: no image has a usable annotation')
