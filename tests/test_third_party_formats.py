"""Rules of each third-party instance format: valid variants, errors, dropped content."""
from __future__ import annotations

import base64
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import NO_WORKERS, ROOT, SHORT, latest_log
from helpers.synthetic_data import assert_messages, draw_image
from helpers.third_party_formats import (BOX, WRITERS, Parts, draw_dataset, make_bitmap,
                                         make_region, make_supervisely, make_via_entry, options,
                                         read, select_images, write_lines)
from PIL import Image
from pycocotools import mask as coco_masks

from colonnade.common.errors import UserError
from colonnade.datasets.data_index import LabelSet
from colonnade.datasets.formats.format_detection import open_dataset
from colonnade.datasets.validation.conversion_sources import find_changes
from colonnade.datasets.validation.validation_report import Report


@pytest.fixture
def drawn(tmp_path: Path) -> Parts:
    return draw_dataset(tmp_path / 'drawn')


@pytest.mark.parametrize('change, says', [
    (dict(names={
        0: 'a',
        2: 'b'
    }), 'numbered from 0 without gaps, got [0, 2]'),
    (dict(names=['a', 'a']), "names: 'a' is duplicated"),
    (dict(names=['a', True]), 'each name must be a string, got True: put it in quotes'),
    (dict(names='a'), "names must be a list of class names, got 'a'"),
    (dict(nc=3), 'nc is 3, but there are 2 names'),
    (dict(train='images/no'), 'images/no does not exist'),
    (dict(train=['images/train', 7]), 'train must be a folder or a list of images, got 7'),
    (dict(train='labels/train'), 'labels/train has no images'),
    (dict(kpt_shape=[17, 3]), 'its labels are keypoints, which Colonnade does not support'),
    (dict(task='obb'), 'its labels are oriented boxes'),
])
def test_invalid_yolo_yaml(change: dict, says: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    file = tmp_path / 'set/data.yaml'
    content = dict(path='.', train='images/train', val='images/val', names=['disc', 'square'])
    file.write_text(yaml.safe_dump(content | change))
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.errors, says)
    assert all(str(file) in error for error in report.errors)


def test_yolo_variants(drawn: Parts, tmp_path: Path) -> None:
    """CRLF, a byte order mark, suffixes in capitals, blanks, umlauts, folders, empty files."""
    folder = tmp_path / 'My Data'
    for name in ('a b/Bär.JPG', 'a b/x.y.png', 'empty.jpg', 'none.jpg'):
        draw_image(folder / 'images' / name)
        (folder / 'labels' / name).parent.mkdir(parents=True, exist_ok=True)
    text = f'{BOX}\r\n\r\n1 0.1 0.1 0.5 0.1 0.5 0.5\r\n{BOX}\r\n0 .5 .5 .5 .5 0.9\r\n'
    (folder / 'labels/a b/Bär.txt').write_bytes(b'\xef\xbb\xbf' + text.encode())
    write_lines(folder / 'labels/a b/x.y.txt', '1 1.000001 0.5 0.2 0.2')
    (folder / 'labels/empty.txt').touch()
    write_lines(folder / 'labels/gone.txt', BOX)
    (folder / 'labels/classes.txt').write_bytes(b'\xef\xbb\xbfdisc\r\nsquare\r\n')
    contents, report = read(options(folder, out=tmp_path / 'own.py', val_fraction=0.5))
    assert not report.errors
    assert_messages(report.warnings, 'without a label file count as images without objects (1',
                    'duplicate lines of a label file are omitted (1',
                    'assumed to be confidences, and omitted (1', 'without an image are not used (1')
    assert sum(len(content['images']) for content in contents) == 4
    found = [a for content in contents for a in content['annotations']]
    assert sorted(a['converted_from'] for a in found) == [
        'labels/a b/Bär.txt:1', 'labels/a b/Bär.txt:3', 'labels/a b/Bär.txt:5',
        'labels/a b/x.y.txt:1']  # yapf: disable


@pytest.mark.parametrize('points', [1, 2, 3, 4, 17])
@pytest.mark.parametrize('flag', ['1', '2.000000'])
def test_yolo_poses_are_rejected(points: int, flag: str, drawn: Parts, tmp_path: Path) -> None:
    """Lines with a class, a box and keypoints (x, y, visibility) cause a single error."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    line = BOX + f' 0.5 0.4 {flag}' * points
    for file in (tmp_path / 'set/labels').rglob('*.txt'):
        write_lines(file, line)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.errors, f'which fits a class, a box and {points} keypoints')
    assert len(report.errors) == 1
    write_lines(tmp_path / 'set/labels/train/1.txt', line, BOX)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not any('keypoints' in error for error in report.errors)


def test_polygons_of_equal_length_cause_warning(drawn: Parts, tmp_path: Path) -> None:
    """Keypoints without visibility cannot be distinguished from polygons."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    for file in (tmp_path / 'set/labels').rglob('*.txt'):
        write_lines(file, BOX + ' 0.5 0.4 0.3 0.3 0.2 0.25')
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.warnings,
                    'have 5 points: even if they are boxes with keypoints, training')


@pytest.mark.parametrize('form, file, text', [
    ('yolo_boxes', 'labels/train/1.txt', f'{BOX}\n2 0.5 0.5 0.1 0.1'),
    ('yolo_boxes', 'labels/train/1.txt', '0 1.05 0.5 0.1 0.1'),
    ('yolo_boxes', 'images/train/1.jpg', 'no JPEG'),
    ('voc_boxes', 'train/1.xml', '<annotation><object></object></annotation>'),
    ('voc_boxes', 'train/1.xml', '<annotation>'),
    ('labelme_polygons', 'train/1.json', '{"shapes": [7]}'),
    ('labelme_polygons', 'train/1.json', '{"shapes": ['),
    ('labelme_polygons', 'train/1.jpg', 'no JPEG'),
])
def test_bad_samples_are_skipped(form: str, file: str, text: str, drawn: Parts,
                                 tmp_path: Path) -> None:
    """An image is skipped with all objects, since omitted objects would train as background."""
    WRITERS[form](drawn, tmp_path / 'set')
    (tmp_path / 'set' / file).write_text(text)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert report.errors
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py', on_bad_data='skip'))
    assert not report.errors
    assert_messages(report.warnings, f'--on-bad-data skip: 1 sample skipped, the first: {file}')
    assert [image['file_name'] for image in contents[0]['images']] == ['2.jpg']
    assert {a['image_id'] for a in contents[0]['annotations']} == {1}
    assert json.loads((tmp_path / 'own_data/conversion.json').read_text())['skipped']


def test_missing_test_split_is_ignored(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    file = tmp_path / 'set/data.yaml'
    for test in ('images/no', 'test.txt', 7):
        write_lines(tmp_path / 'set/test.txt', 'no.jpg', 'images/train/1.jpg')
        content = dict(train='images/train', val='images/val', test=test, names=['disc', 'square'])
        file.write_text(yaml.safe_dump(content))
        contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
        assert not report.errors and [len(content['images']) for content in contents] == [2, 2]
    file.unlink()
    write_lines(tmp_path / 'set/classes.txt', 'disc', 'square')
    shutil.move(tmp_path / 'set/images', tmp_path / 'cvat')
    for split in ('train', 'val'):
        for image in (tmp_path / 'cvat' / split).iterdir():
            label = (tmp_path / 'set/labels' / split / image.name).with_suffix('.txt')
            shutil.move(label, image.with_suffix('.txt'))
        names = [f'{split}/{image.name}' for image in (tmp_path / 'cvat' / split).glob('*.jpg')]
        write_lines(tmp_path / f'cvat/{split}.txt', *names)
    write_lines(tmp_path / 'cvat/test.txt', 'no.jpg')
    write_lines(tmp_path / 'cvat/obj.names', 'disc', 'square')
    _, report = read(options(tmp_path / 'cvat', out=tmp_path / 'cvat.py'))
    assert not report.errors
    WRITERS['voc_polygons'](drawn, tmp_path / 'voc')
    write_lines(tmp_path / 'voc/ImageSets/Main/test.txt', 'no')
    _, report = read(options(tmp_path / 'voc', out=tmp_path / 'voc.py'))
    assert not report.errors


def test_yolo_class_count_without_names(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    content = dict(train='images/train', val='images/val', nc=2)
    (tmp_path / 'set/data.yaml').write_text(yaml.safe_dump(content))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    assert [c['name'] for c in contents[0]['categories']] == ['class 0', 'class 1']
    assert_messages(report.warnings,
                    'nc without names: classes are named class 0, class 1 and so on')


@pytest.mark.parametrize('name', ['data.yaml', 'classes.txt'])
def test_latin_1_class_names(name: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    text = 'train: images/train\nval: images/val\nnames: [Bär, Straße]\n'
    (tmp_path / 'set/data.yaml').unlink()
    (tmp_path / 'set' / name).write_text(
        text if name == 'data.yaml' else 'Bär\nStraße\n', encoding='latin-1')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    assert [c['name'] for c in contents[0]['categories']] == ['Bär', 'Straße']
    says = 'class names in a file that is not in UTF-8: read as Latin-1 (1, the first: '
    assert_messages(report.warnings, f'repaired: {says}{name})')


def test_several_yaml_files(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    shutil.copy(tmp_path / 'set/data.yaml', tmp_path / 'set/dataset.yaml')
    with pytest.raises(
            ValueError, match='several YAML files: pass one of .*data.yaml, .*dataset.yaml'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    _, report = read(options(tmp_path / 'set/dataset.yaml', out=tmp_path / 'own.py'))
    assert not report.errors


def test_images_of_no_split_are_counted(drawn: Parts, tmp_path: Path) -> None:
    """Links to read folders are counted, too; suffixes can be upper-case, folders with a year."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    folder = tmp_path / 'set'
    (folder / 'data.yaml').unlink()
    write_lines(folder / 'classes.txt', 'disc', 'square')
    draw_image(folder / 'images/alone.jpg')
    (folder / 'images/train/loop').symlink_to('../..')
    for kind in ('images', 'labels'):
        (folder / kind / 'val').rename(folder / kind / 'val2017')
    for file in (folder / 'labels').rglob('*.txt'):
        file.rename(file.with_suffix('.TXT'))
    contents, report = read(options(folder, out=tmp_path / 'own.py'))
    assert [len(content['annotations']) for content in contents] == [4, 4]
    assert [len(content['images']) for content in contents] == [2, 2]
    assert_messages(report.warnings,
                    'images of no split are not used (1, the first: images/alone.jpg)',
                    'read already are ignored (1, the first: images/train/loop)')


def test_cvat_lists(tmp_path: Path) -> None:
    """``train.txt`` and ``Validation.txt`` list images in ``data``, the folder itself."""
    for split in ('train', 'Validation'):
        names = [f'obj_{split}_data/{split}{number}.png' for number in range(2)]
        for name in names:
            draw_image(tmp_path / 'set' / name)
            write_lines((tmp_path / 'set' / name).with_suffix('.txt'), BOX)
        write_lines(tmp_path / f'set/{split}.txt', *(f'data/{name}' for name in names))
    write_lines(tmp_path / 'set/obj.names', 'disc')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    assert [len(content['annotations']) for content in contents] == [2, 2]
    with pytest.raises(ValueError, match='--val-fraction applies only to data without'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=0.5))


def test_yolo_image_lists(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    folder = tmp_path / 'set'
    write_lines(folder / 'train.txt', './images/train/1.jpg', '', 'images/train/2.jpg')
    content = dict(train='train.txt', val=['images/val'], test='images/val',
                   names=['disc', 'square'])  # yapf: disable
    (folder / 'data.yaml').write_text(yaml.safe_dump(content))
    contents, report = read(options(folder / 'data.yaml', out=tmp_path / 'own.py'))
    assert [len(content['images']) for content in contents] == [2, 2]
    assert_messages(report.warnings, 'images of the test split are not used (2)')
    write_lines(folder / 'train.txt', 'images/train/1.jpg', 'images/train/7.jpg')
    write_lines(folder / 'labels/train/1.txt', '0 1.2 0.5 0.1 0.1')
    _, report = read(options(folder, out=tmp_path / 'own.py'))
    assert_messages(report.errors, 'images/train/7.jpg does not exist',
                    '1.txt:1: coordinates must be')


def test_two_yolo_folders(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    (tmp_path / 'set/data.yaml').unlink()
    both = tmp_path / 'set/images/train', tmp_path / 'set/images/val'
    _, report = read(options(*both, out=tmp_path / 'own.py'))
    assert_messages(report.errors, 'has no class names: add data.yaml, or classes.txt')
    write_lines(tmp_path / 'set/classes.txt', 'disc', '', 'square')
    _, report = read(options(*both, out=tmp_path / 'own.py'))
    assert_messages(report.errors, 'set/classes.txt:2: the line is empty')
    write_lines(tmp_path / 'set/classes.txt', 'disc', 'square', '')
    contents, report = read(options(*both, out=tmp_path / 'own.py'))
    assert not report.errors
    assert [len(content['annotations']) for content in contents] == [4, 4]
    assert contents[0]['annotations'][0]['converted_from'] == 'labels/train/1.txt:1'
    with pytest.raises(
            ValueError, match='must have one split, since --data has two paths, got train'):
        read(options(tmp_path / 'set', both[1], out=tmp_path / 'own.py'))


def test_images_with_shared_annotations(drawn: Parts, tmp_path: Path) -> None:
    for form, folder in (('yolo_boxes', 'images/train'), ('voc_boxes', 'train')):
        WRITERS[form](drawn, tmp_path / form)
        draw_image(tmp_path / form / folder / '1.png')
        _, report = read(options(tmp_path / form, out=tmp_path / 'own.py'))
        assert_messages(report.errors, 'matches several images, 1.jpg and 1.png: rename one')


VOC = '<annotation><filename>{}</filename><size><width>{}</width><height>40</height></size>' \
      '<object><name>disc</name>{}</object></annotation>'
SIDES = '<bndbox><xmin>{}</xmin><ymin>5</ymin><xmax>20</xmax><ymax>25</ymax></bndbox>'


def test_voc_coordinates_start_at_1(drawn: Parts, tmp_path: Path) -> None:
    """Both the first and the last pixel of a box are inside."""
    flags = '<difficult>1</difficult><truncated>1</truncated>'
    points = '<polygon>' + ''.join(f'<pt><x>{x}</x><y>{y}</y></pt>' for x, y in
                                   ((5, 5), (20, 5), (20, 25))) + '</polygon>'  # yapf: disable
    for split, name in (('train', '1'), ('val', '100')):
        draw_image(tmp_path / f'set/{split}/{name}.jpg')
        text = VOC.format('old name.jpg', 0, SIDES.format(5) + flags + points)
        (tmp_path / f'set/{split}/{name}.xml').write_text(text)
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    found = contents[0]['annotations'][0]
    assert (found['bbox'], found['iscrowd']) == ([4, 4, 16, 21], 1)
    assert found['segmentation'] == [[4, 4, 19, 4, 19, 24]]
    assert_messages(report.warnings, 'objects marked difficult become crowds',
                    'truncated of objects is dropped (2, the first: train/1.xml: object 1)')


def test_voc_image_sets(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['voc_polygons'](drawn, tmp_path / 'set')
    write_lines(tmp_path / 'set/ImageSets/Main/train.txt', '1', '')
    write_lines(tmp_path / 'set/ImageSets/Main/disc_train.txt', '1 -1', '2 1')
    write_lines(tmp_path / 'set/ImageSets/Main/test.txt', '101')
    write_lines(tmp_path / 'set/ImageSets/Main/val.txt', '100')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert [[image['file_name'] for image in content['images']] for content in contents] == [
        ['1.jpg'], ['100.jpg']]  # yapf: disable
    assert_messages(report.warnings, 'images of the test split are not used (1)',
                    'or of no split, are not used (2, the first: JPEGImages/101.jpg)')
    (tmp_path / 'set/ImageSets/Main/val.txt').rename(tmp_path / 'set/ImageSets/Main/trainval.txt')
    with pytest.raises(ValueError, match='has no validation images: pass'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    (tmp_path / 'set/ImageSets/Main/trainval.txt').unlink()
    write_lines(tmp_path / 'set/ImageSets/Main/train.txt', '1', '', '7')
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.errors, '7.xml does not exist')


def draw_voc(folder: Path, annotations: str, images: str, **begins: int) -> None:
    """Write two images per split, with a box from ``begins`` on; ``{}`` is the split in paths."""
    for split in ('train', 'val'):
        for number in range(2):
            draw_image(folder / images.format(split) / f'{split} {number}.jpg')
            file = folder / annotations.format(split) / f'{split} {number}.xml'
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(VOC.format('', 48, SIDES.format(begins.get(split, 5))))


@pytest.mark.parametrize('annotations, images', [
    ('Annotations/{}', 'JPEGImages/{}'),
    ('annotations/{}', 'images/{}'),
    ('{}/annotations', '{}/images'),
    ('{}/Annotations', '{}/JPEGImages'),
])
def test_voc_split_folders(annotations: str, images: str, tmp_path: Path) -> None:
    draw_voc(tmp_path / 'set', annotations, images)
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    assert [[image['file_name'] for image in content['images']] for content in contents] == [
        ['train 0.jpg', 'train 1.jpg'], ['val 0.jpg', 'val 1.jpg']]  # yapf: disable


def test_voc_devkit(tmp_path: Path) -> None:
    """Lists are used there too, and names in them can have spaces."""
    folder = tmp_path / 'VOCdevkit/VOC2012'
    draw_voc(folder, 'Annotations', 'JPEGImages')
    (folder / 'ImageSets/Main').mkdir(parents=True)
    for split in ('train', 'val'):
        write_lines(folder / f'ImageSets/Main/{split}.txt', f'{split} 0', f'{split} 1')
    contents, report = read(options(tmp_path / 'VOCdevkit', out=tmp_path / 'own.py'))
    assert not report.errors
    assert [len(content['images']) for content in contents] == [2, 2]
    shutil.copytree(folder, folder.with_name('VOC2007'))
    with pytest.raises(ValueError, match='several datasets: pass one of .*VOC2007, .*VOC2012'):
        read(options(tmp_path / 'VOCdevkit', out=tmp_path / 'own.py'))


def test_voc_paths_share_origin(tmp_path: Path) -> None:
    draw_voc(tmp_path, '{}', '{}', train=0)
    contents, _ = read(options(tmp_path / 'train', tmp_path / 'val', out=tmp_path / 'own.py'))
    assert [content['annotations'][0]['bbox'][:2] for content in contents] == [[0, 5], [5, 5]]


def test_voc_xml_namespaces(tmp_path: Path) -> None:
    draw_voc(tmp_path, '{}', '{}')
    for file in tmp_path.rglob('*0.xml'):
        file.write_text(file.read_text().replace('<annotation', '<annotation xmlns="urn:a"'))
    for file in tmp_path.rglob('*1.xml'):
        source = file.read_text().replace('annotation>', 'v:annotation>')
        file.write_text(source.replace('<v:annotation', '<v:annotation xmlns:v="urn:a"', 1))
    contents, report = read(options(tmp_path, out=tmp_path / 'own.py'))
    assert not report.errors
    assert [len(content['annotations']) for content in contents] == [2, 2]


@pytest.mark.parametrize('encoding, declared', [
    ('gbk', 'GBK'),
    ('gb18030', 'gb2312'),
    ('shift_jis', 'Shift_JIS'),
    ('latin-1', 'ISO-8859-1'),
    ('utf-8-sig', 'utf-8'),
    ('utf-8', 'utf-8'),
])
def test_voc_xml_encodings(encoding: str, declared: str, tmp_path: Path) -> None:
    name = 'Straße' if encoding in ('latin-1', 'utf-8-sig') else '道路'
    draw_voc(tmp_path, '{}', '{}')
    for file in tmp_path.rglob('*.xml'):
        source = file.read_text().replace('disc', name)
        source = f'<?xml version="1.0" encoding={declared!r}?>\n{source}'
        file.write_bytes(source.encode(encoding))
    contents, report = read(options(tmp_path, out=tmp_path / 'own.py'))
    assert not report.errors
    assert contents[0]['categories'] == [dict(id=0, name=name)]


@pytest.mark.parametrize('declared, says', [
    ('no-such', "its encoding 'no-such' is unknown"),
    ('rot13', "its encoding 'rot13' is unknown"),
    ('utf-7', 'declares a document type'),
])
def test_unsafe_xml_encodings(declared: str, says: str, tmp_path: Path) -> None:
    draw_voc(tmp_path, '{}', '{}')
    source = '<annotation/>' if declared != 'utf-7' else '+ADwAIQ-DOCTYPE a><annotation/>'
    (tmp_path / 'train/train 0.xml').write_text(f'<?xml encoding={declared!r}?>{source}')
    _, report = read(options(tmp_path, out=tmp_path / 'own.py'))
    assert_messages(report.errors, says)


def make_labelme(*shapes: dict, **values: object) -> str:
    return json.dumps(dict(shapes=shapes, imagePath='..\\1.jpg', **values))


def make_shape(points: list, kind: str = 'polygon', **values: object) -> dict:
    return dict(label='disc', points=points, shape_type=kind, **values)


def encode_png_mask(pixels: np.ndarray) -> str:
    """Return a mask as LabelMe stores it."""
    file = io.BytesIO()
    Image.fromarray((pixels > 0).astype(np.uint8) * 255).save(file, 'PNG')
    return base64.b64encode(file.getvalue()).decode()


def make_via(*regions: dict, name: str = '1.jpg') -> str:
    return json.dumps(dict([make_via_entry(name, *regions)]))


def make_points(kind: str, exterior: list, *interior: list) -> dict:
    """Return an object as Supervisely stores polygons and rectangles."""
    points = dict(exterior=exterior, interior=interior)
    return dict(classTitle='disc', geometryType=kind, points=points)


#: format -> a file, and its wrong contents (YOLO's second line) with the message of each
WRONG: dict[str, tuple[str, list[tuple[str, str]]]] = {
    'yolo_boxes': ('labels/train/1.txt', [
        ('2 0.5 0.5 0.1 0.1', '1.txt:2: class must be from 0 to 1, got 2'),
        ('-1 0.5 0.5 0.1 0.1', '1.txt:2: class must be from 0 to 1, got -1'),
        ('0.5 0.5 0.5 0.1 0.1', '1.txt:2: class must be from 0 to 1, got 0.5'),
        ('0 0.5 0.5 0.1', 'labels/train/1.txt:2: must be "class x y width height"'),
        ('0 50 50 10 10', '1.txt:2: coordinates must be normalized to the range 0 to 1, got 50'),
        ('0 0.5 0.5 -0.1 0.1',
         '1.txt:2: coordinates must be normalized to the range 0 to 1, got -0.1'),
        ('0 0.5 0.5 nan 0.1',
         '1.txt:2: coordinates must be normalized to the range 0 to 1, got nan'),
        ('disc 0.5 0.5 0.1 0.1', "1.txt:2: must be a class and numbers, got 'disc 0.5"),
        ('0,0.5,0.5,0.1,0.1', '1.txt:2: must be a class and numbers'),
        ('\x00', '1.txt:2: must be a class and numbers'),
    ]),
    'voc_boxes': ('train/1.xml', [
        (VOC.format('1.jpg', 48, ''), 'train/1.xml: object 1: has no bndbox'),
        (VOC.format('1.jpg', 48,
                    SIDES.format('x')), "1.xml: object 1: bndbox: xmin must be a number"),
        (VOC.format('1.jpg', 48,
                    SIDES.format(30)), 'object 1: bndbox ends before it starts: 30 5 20'),
        (VOC.format('1.jpg', 50, SIDES.format(5)), 'train/1.xml: says 50 x 40 pixels, '),
        (VOC.format('1.jpg', 48, '<robndbox/>'), 'object 1: is an oriented box'),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + VOC.format('1.jpg', 48, ''),
         'declares a document type'),
        ('<annotation><object>', '1.xml: cannot be read: no element found'),
    ]),
    'labelme_polygons': ('train/1.json', [
        (make_labelme(make_shape([[1, 2], [3, None],
                                  [5, 6]])), 'train/1.json: shape 1: points must be [[x, y]'),
        (make_labelme(make_shape([[1, 1], [1e8, 5], [5, 1e8]])), 'from -1048576 to 1048576, got'),
        (make_labelme(make_shape([[1, 2], [3, 4]],
                                 'mask')), 'shape 1: a mask must have two points and'),
        (make_labelme(make_shape([[1, 2], [3, 4]], 'mask',
                                 mask='no')), 'shape 1: its mask cannot be read'),
        (make_labelme(make_shape([[1, 2], [300, 4]], 'mask',
                                 mask='')), 'shape 1: its mask from 1, 2 to 300, 4'),
        (make_labelme(make_shape([[1, 2], [3, 4]], 'mask', mask=encode_png_mask(np.eye(4)))),
         'shape 1: its mask has 4 x 4 pixels, but its points enclose 3 x 3'),
        (make_labelme(make_shape([[1, 2]], 'circle')), 'shape 1: a circle must have two points'),
        (make_labelme(dict(points=[])), 'shape 1: must have a label, got'),
        (make_labelme(make_shape([]), imageWidth=4, imageHeight=5), '1.json: says 4 x 5 pixels, '),
        ('{"shapes": 5}', 'must have a list of shapes'),
        ('{"shapes": [', '1.json: cannot be read'),
    ]),
    'via_boxes': ('train/via_region_data.json', [
        (make_via(make_region('rect', 'disc', x=1, y=2, width=None, height=3)),
         'via_region_data.json: 1.jpg, region 1: x, y, width, height must be numbers'),
        (make_via(make_region('polygon', 'disc', all_points_x=[1, 2, 3], all_points_y=[1, 2])),
         'region 1: all_points_x and all_points_y must be lists of equally many numbers'),
        (make_via(make_region('star', 'disc')), "region 1: has the unknown shape 'star'"),
        (make_via(make_region('rect', 7, x=1, y=2, width=5,
                              height=3)), 'region 1: has no class: its attribute type is 7'),
        (make_via(dict(region_attributes={})),
         'regions must have shape_attributes and region_attr'),
        (make_via(make_region('point', 'a'),
                  name='no.jpg'), "its image 'no.jpg' does not exist in"),
        (make_via(name='C:\\' + 300 * 'long'), 'does not exist in'),
        ('{"a": {"filename": 7, "file_attributes": {}, "regions": []}}',
         'via_region_data.json: each filename must be a string, got'),
        ('{"a": {"file_attributes": {}, "regions": [', 'via_region_data.json: cannot be read'),
    ]),
    'supervisely_bitmaps': ('train/ann/1.jpg.json', [
        (make_supervisely(50, 40), 'train/ann/1.jpg.json: says 50 x 40 pixels, '),
        (make_supervisely(48, 40, {}), 'object 1: must have a classTitle, got'),
        (make_supervisely(48, 40, make_bitmap('no',
                                              np.eye(4) > 0)),
         "object 1: has the class 'no', which meta.json does not list"),
        (make_supervisely(48, 40,
                          make_bitmap('disc',
                                      np.eye(4) > 0) | dict(bitmap={})),
         'object 1: its bitmap cannot be read: KeyError'),
        (make_supervisely(48, 40, make_bitmap('disc',
                                              np.eye(60) > 0)),
         'its bitmap of 60 x 60 pixels at 0, 0 extends beyond the image of 48 x 40'),
        (make_supervisely(48, 40, make_points('polygon', [[1, 'a']])), 'exterior must be points'),
        (make_supervisely(48, 40, make_points('rectangle', [[1, 2]])),
         'object 1: a rectangle must have two points, got 1'),
        (make_supervisely(48, 40, make_points('polygon', [[2, 2, 2], [9, 2, 2]])),
         'object 1: exterior must be points [x, y], got'),
        ('{"objects": null, "size": {"height": 40, "width": 48}}', 'and objects: TypeError'),
        ('{"objects": 5}', 'must have the size of the image and objects'),
        ('{"objects": [', 'must have the size of the image and objects'),
    ]),
}


@pytest.mark.parametrize('form, file, source, says',
                         [(form, file, *case) for form, (file, cases) in WRONG.items()
                          for case in cases])  # yapf: disable
def test_invalid_files(form: str, file: str, source: str, says: str, drawn: Parts,
                       tmp_path: Path) -> None:
    WRITERS[form](drawn, tmp_path / 'set')
    write_lines(tmp_path / 'set' / file, *([BOX] if form == 'yolo_boxes' else []), source)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.errors, says)
    assert not (tmp_path / 'own_data').exists()


def test_labelme_shapes(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    (tmp_path / 'set/train/1.json').write_text(
        make_labelme(
            make_shape([[20, 25], [5, 10]], 'rectangle', flags=dict(seen=True)),
            make_shape([[20, 20], [20, 30]], 'circle'),
            make_shape([[1, 1], [9, 1], [9, 9]], group_id=3),
            make_shape([[20, 1], [29, 9]], 'rectangle', group_id=3),
            make_shape([[1, 1], [2, 2]], 'line', description='x'), make_shape([[1, 1], [2, 2]])))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    box, circle, pair = [a for a in contents[0]['annotations'] if a['image_id'] == 1]
    assert box['bbox'] == [5, 10, 15, 15]
    assert box['segmentation'] == [[5, 10, 20, 10, 20, 25, 5, 25]]
    assert circle['bbox'] == [10, 10, 20, 20]
    assert circle['area'] == pytest.approx(314.16, rel=2e-3)
    assert pair['bbox'] == [1, 1, 28, 8] and list(map(len, pair['segmentation'])) == [6, 8]
    assert_messages(
        report.warnings, 'line shapes, which have no area, are omitted (1, the ',
        'polygons with fewer than three points are omitted (1', 'flags of shapes are dropped',
        'descriptions of shapes are dropped', 'circles become polygons of 64 points',
        'repaired: objects without a mask, though others have one: corners of the '
        'box used as mask (detectors without masks: --boxes-only) (1, the first: train/1.json: ')


def test_labelme_masks_and_rotated_boxes(drawn: Parts, tmp_path: Path) -> None:
    """Masks become RLEs of the image's size; parts of an object are merged, also with polygons."""
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    pixels = np.triu(np.ones((4, 6)))
    part = make_shape([[10, 20], [15, 23]], 'mask', mask=encode_png_mask(pixels))
    (tmp_path / 'set/train/1.json').write_text(
        make_labelme(part, part | dict(group_id=1),
                     make_shape([[1, 1], [9, 1], [9, 9], [1, 9]], group_id=1),
                     make_shape([[5, 5], [9, 9], [5, 13], [1, 9]], 'rotation', direction=0.78),
                     part | dict(mask=encode_png_mask(0 * pixels)),
                     make_shape([[1, 1], [9, 9]], 'cuboid')))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    single, joined, turned = [a for a in contents[0]['annotations'] if a['image_id'] == 1]
    expected = np.zeros((40, 48), np.uint8)
    expected[20:24, 10:16] = pixels
    np.testing.assert_array_equal(coco_masks.decode(single['segmentation']), expected)
    assert (single['bbox'], single['area']) == ([10, 20, 6, 4], pixels.sum())
    expected[1:9, 1:9] = 1
    np.testing.assert_array_equal(coco_masks.decode(joined['segmentation']), expected)
    assert joined['bbox'] == [1, 1, 15, 23]
    assert turned['segmentation'] == [[5, 5, 9, 9, 5, 13, 1, 9]]
    assert_messages(report.warnings, 'masks without pixels are omitted (1',
                    "shapes of the unknown type 'cuboid' are omitted (1")
    assert not any('no area' in warning for warning in report.warnings)


def test_via_shapes(tmp_path: Path) -> None:
    """A project with an attribute that is a checkbox, and images in a folder of their own."""
    for name in ('1.png', '2.png', '3.png'):
        draw_image(tmp_path / 'set/images' / name)
    regions = [
        make_region('circle', dict(disc=True, square=False), cx=20, cy=20, r=5),
        make_region('ellipse', 'disc', cx=20, cy=20, rx=10, ry=5, theta=np.pi / 2),
        make_region('polygon', 'square', all_points_x=[1, 9, 9], all_points_y=[1, 1, 9]),
        make_region('polyline', 'disc', all_points_x=[1, 9, 9], all_points_y=[1, 1, 9]),
    ]
    # Version 1 numbers regions in a mapping.
    entries = dict([make_via_entry('1.png', *regions), make_via_entry('2.png')])
    entries['1.png5']['regions'] = {str(number): each for number, each in enumerate(regions)}
    (tmp_path / 'set/project.json').write_text(
        json.dumps(dict(_via_settings={}, _via_img_metadata=entries)))
    args = options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=0.5)
    contents, report = read(args)
    assert not report.errors
    found = [a for content in contents for a in content['annotations']]
    assert [a['bbox'] for a in found] == [[15, 15, 10, 10], [15, 10, 10, 20], [1, 1, 8, 8]]
    assert [a['category_id'] for a in found] == [0, 0, 1]
    assert found[2]['converted_from'] == 'project.json: 1.png, region 3'
    assert_messages(report.warnings, 'polyline regions, which have no area, are omitted (1',
                    'circles and ellipses become polygons of 64 points (2',
                    'images without annotations, or of no split, are not used (1')


@pytest.mark.parametrize('attributes, says', [
    ([{}, {}], 'object'),
    ([dict(name='balloon'), dict(name='balloon', color='red')], 'balloon'),
    ([dict(shade='a', color='red')], 'regions have the attributes shade, color: rename the one'),
])
def test_via_classes(attributes: list[dict], says: str, tmp_path: Path) -> None:
    """Regions without attributes have one class; several attributes need a usual name."""
    for split in ('train', 'val'):
        draw_image(tmp_path / 'set' / split / '1.png')
        regions = [make_region('rect', None, x=1, y=2, width=3, height=4) for _ in attributes]
        for region, each in zip(regions, attributes, strict=True):
            region['region_attributes'] = each
        file = tmp_path / 'set' / split / 'via_region_data.json'
        file.write_text(json.dumps(dict([make_via_entry('1.png', *regions)])))
    args = options(tmp_path / 'set', out=tmp_path / 'own.py')
    contents, report = read(args)
    if not contents:
        assert_messages(report.errors, f'train/via_region_data.json: {says}')
        return
    assert not report.errors
    assert [category['name'] for category in contents[0]['categories']] == [says]


def test_supervisely_shapes(drawn: Parts, tmp_path: Path) -> None:
    """Holes are cut out of polygons, and rectangles include their last row and column."""
    WRITERS['supervisely_bitmaps'](drawn, tmp_path / 'set')
    square = [[2, 2], [22, 2], [22, 22], [2, 22]]
    (tmp_path / 'set/train/ann/1.jpg.json').write_text(
        make_supervisely(48, 40, make_points('rectangle', [[20, 30], [5, 10]]),
                         make_points('polygon', square, [[6, 6], [16, 6], [16, 16], [6, 16]]),
                         make_points('polygon', square), make_points('line', [[1, 2], [3, 4]]),
                         make_points('star', []), make_points('polygon', square, square)))
    (tmp_path / 'set/other/ann').mkdir(parents=True)
    (tmp_path / 'set/other/img').mkdir()
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    box, hollow, filled = [a for a in contents[0]['annotations'] if a['image_id'] == 1]
    assert box['bbox'] == [5, 10, 16, 21]
    mask = coco_masks.decode(hollow['segmentation'])
    assert hollow['area'] == mask.sum() == 300 and mask[3, 3] and not mask[10, 10]
    assert filled['segmentation'] == [[2, 2, 22, 2, 22, 22, 2, 22]]
    assert_messages(report.warnings, "objects of type 'line', which have no area, are omitted (1",
                    "objects of type 'star', which Colonnade does not read, are omitted (1",
                    'masks without pixels are omitted (1',
                    'datasets that are not named like a split are not used (1, the first: other')


def test_via_image_paths(tmp_path: Path) -> None:
    """A project names its folder of images, and Windows paths. No image has two entries."""
    names = ('1.png', 'pics\\2.png', 'C:\\me\\3.png', 'https://a.org/pics/4.png')
    for number in range(1, 5):
        draw_image(tmp_path / f'set/pics/{number}.png')
    (tmp_path / 'set/test').mkdir()
    region = make_region('rect', 'disc', x=1, y=2, width=3, height=4)
    project = dict(
        _via_settings=dict(core=dict(default_filepath='./pics/')),
        _via_img_metadata=dict(make_via_entry(name, region) for name in names))
    (tmp_path / 'set/project.json').write_text(json.dumps(project))
    args = options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=0.5)
    contents, report = read(args)
    assert not report.errors and [len(content['images']) for content in contents] == [2, 2]
    (tmp_path / 'set/export.json').write_text(json.dumps(dict([make_via_entry('pics/2.png')])))
    _, report = read(args)
    assert_messages(report.errors, 'project.json: ', 'export.json also annotates')


def test_two_via_files_of_one_folder(tmp_path: Path) -> None:
    """Training and validation share the folder of images; the class can be named."""
    for number in range(5):
        draw_image(tmp_path / f'set/{number}.png')
    files = [tmp_path / 'set/a.json', tmp_path / 'set/b.json']
    region = make_region('rect', None, x=1, y=2, width=9, height=9)
    for index, file in enumerate(files):
        names = (f'{number}.png' for number in (2 * index, 2 * index + 1))
        file.write_text(json.dumps(dict(make_via_entry(name, region) for name in names)))
    args = options(*files, out=tmp_path / 'own.py', classes=['background', 'balloon'])
    report = Report()
    with open_dataset(args, 'labels', report) as labels:
        assert isinstance(labels, LabelSet) and labels.classes == ['background', 'balloon']
    assert not report.errors
    assert_messages(report.warnings, 'VIA: 1 images without annotations, or of no split',
                    '4 rectangles filled like masks, the first: a.json: 0.png, region 1')


def test_nested_supervisely_datasets(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['supervisely_bitmaps'](drawn, tmp_path / 'set')
    shutil.copytree(tmp_path / 'set/train', tmp_path / 'set/train/datasets/more')
    (tmp_path / 'set/train/datasets/more/ann/._1.jpg.json').touch()  # of macOS
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors and [len(content['images']) for content in contents] == [4, 2]


@pytest.mark.parametrize('form', ['labelme_polygons', 'via_boxes', 'supervisely_bitmaps'])
def test_splits_of_shapes(form: str, drawn: Parts, tmp_path: Path) -> None:
    """A split without usable images is an error, also if bad images are skipped."""
    WRITERS[form](drawn, tmp_path / 'set')
    for image in (tmp_path / 'set/val').rglob('*.jpg'):
        image.write_bytes(b'no image')
    for skips in (False, True):
        args = options(
            tmp_path / 'set', out=tmp_path / 'own.py', on_bad_data='skip' if skips else 'error')
        for kind in ('instances', 'labels'):
            report = Report()
            try:
                with open_dataset(args, kind, report) as data:  # type: ignore[arg-type]
                    assert data is None
                errors = report.errors
            except UserError as error:
                errors = [str(error)]
            assert_messages(errors, f'{tmp_path / "set"} has no usable images for the split val'
                            if skips else '100.jpg: cannot be read')  # yapf: disable


@pytest.mark.parametrize('form, changed, old, new', [
    ('via_boxes', 'train/**/*.json', '"disc"', '"square"'),
    ('supervisely_bitmaps', 'train/**/*.json', '"disc"', '"square"'),
    ('coco', 'instances_train*.json', '"category_id": 1', '"category_id": 0'),
    ('yolo_polygons', '*.txt', '0 ', '1 '),
    ('voc_polygons', '*.xml', '<name>disc', '<name>square'),
])  # yapf: disable
def test_label_maps_of_shapes(form: str, changed: str, old: str, new: str, drawn: Parts,
                              tmp_path: Path) -> None:
    """Segmenters learn from the same files, which then identify the conversion."""
    WRITERS[form](drawn, tmp_path / 'set')
    report = Report()
    args = options(tmp_path / 'set', out=tmp_path / 'own.py')
    with open_dataset(args, 'labels', report) as labels:
        assert isinstance(labels, LabelSet) and not report.errors
        assert labels.classes == ['background', 'disc', 'square']
        for split in labels.splits:
            for file in split.label_maps.values():
                label_map = np.asarray(Image.open(file))
                assert label_map[5, 10] == 1 and label_map[21, 15] == 2 and label_map[0, 0] == 0
    file = min(path for path in (tmp_path / 'set').rglob(changed) if old in path.read_text())
    assert find_changes(tmp_path / 'own_data') == []
    file.write_text(file.read_text().replace(old, new))
    assert find_changes(tmp_path / 'own_data') == [f'{file} (edited)']
    with pytest.raises(UserError, match='is a conversion of different data'):
        with open_dataset(args, 'labels', report):
            pass


def test_label_maps_of_crowds_and_repeated_images(drawn: Parts, tmp_path: Path) -> None:
    """Crowds are below other objects; an image listed twice has the objects of both entries."""
    WRITERS['coco'](drawn, tmp_path / 'set')
    file = tmp_path / 'set/annotations/instances_train2017.json'
    content = json.loads(file.read_text())
    image, square = content['images'][0], content['categories'][1]['id']
    content['images'].append(image | dict(id=99))
    for place, (left, top, size, crowd) in enumerate([(0, 0, 24, 1), (0, 0, 2, 0)]):
        right, bottom = left + size, top + size
        box = dict(bbox=[left, top, size, size], area=size**2, iscrowd=crowd)
        polygon = [left, top, right, top, right, bottom, left, bottom]
        content['annotations'].append(
            box | dict(id=900 + place, image_id=99, category_id=square, segmentation=[polygon]))
    content['annotations'][-1]['category_id'] = content['categories'][0]['id']
    file.write_text(json.dumps(content))
    report = Report()
    args = options(tmp_path / 'set', out=tmp_path / 'own.py')
    with open_dataset(args, 'labels', report) as labels:
        assert isinstance(labels, LabelSet) and not report.errors
        assert any('images listed several times' in each for each in report.warnings)
        label_map = np.asarray(Image.open(labels.splits[0].label_maps[image['file_name']]))
        assert label_map[5, 10] == 1 and label_map[0, 0] == 1 and label_map[0, 20] == 2
    (tmp_path / 'set/train2017' / image['file_name']).touch()  # only its time changes
    with open_dataset(args, 'labels', report) as labels:
        assert isinstance(labels, LabelSet)


@pytest.mark.parametrize('form', ['labelme_polygons', 'voc_boxes'])
def test_image_with_two_annotation_files(form: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS[form](drawn, tmp_path / 'set')
    file = next((tmp_path / 'set/train').glob('1.[jx]*[nl]'))
    shutil.copy(file, file.with_stem('1 (copy)'))
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.errors, f'{file.name}: ')
    assert_messages(report.errors, 'remove one of the two files')


def test_large_labelme_files(drawn: Parts, tmp_path: Path) -> None:
    """Shapes are detected far from both ends of files with upper-case suffixes."""
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    for file in (tmp_path / 'set').rglob('*.json'):
        content = dict(imageData='A' * 70000) | json.loads(file.read_text())
        file.unlink()
        file.with_suffix('.JSON').write_text(json.dumps(content | dict(version='5' * 70000)))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors
    assert [len(content['annotations']) for content in contents] == [4, 4]


def test_annotations_without_an_image(drawn: Parts, tmp_path: Path) -> None:
    for form, image in (('voc_boxes', 'train/1.jpg'), ('labelme_polygons', 'train/1.jpg')):
        WRITERS[form](drawn, tmp_path / form)
        (tmp_path / form / image).unlink()
        _, report = read(options(tmp_path / form, out=tmp_path / 'own.py'))
        assert_messages(report.errors, 'its image 1.jpg does not exist')


def test_ambiguous_coco_files(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['coco'](drawn, tmp_path / 'set')
    train, own = tmp_path / 'set/annotations/instances_train2017.json', tmp_path / 'own.py'
    shutil.copy(train, train.with_stem('other'))
    _, report = read(options(tmp_path / 'set', out=own))
    assert_messages(report.warnings,
                    'names contain no split are not used (1, the first: annotations/other')
    shutil.copy(train, train.with_stem('instances_train2014'))
    _, report = read(options(tmp_path / 'set', out=own))
    assert_messages(report.errors, 'has several files for the split train: annotations/instances')
    train.with_stem('instances_train2014').unlink()
    train.unlink()
    shutil.copytree(tmp_path / 'set/train2017', tmp_path / 'set/images')
    with pytest.raises(ValueError, match='it is unclear which file is for training'):
        read(options(tmp_path / 'set', out=own))


def test_coco_image_names(drawn: Parts, tmp_path: Path) -> None:
    """Backslashes become slashes if that finds the image; absolute names can exist."""
    WRITERS['roboflow_coco'](drawn, tmp_path / 'set')
    file = tmp_path / 'set/train/_annotations.coco.json'
    content = json.loads(file.read_text())
    (tmp_path / 'set/train/deep').mkdir()
    for image in content['images']:
        name = image['file_name']
        (file.parent / name).rename(file.parent / 'deep' / name)
        image['file_name'] = f'deep\\{name}'
    file.write_text(json.dumps(content))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert [image['file_name'] for image in contents[0]['images']] == ['deep/1.jpg', 'deep/2.jpg']
    assert_messages(
        report.warnings, 'backslashes in image names are replaced by slashes (1',
        '0: numbered from 1 (8, the first: train/_annotations.coco.json: annotation 0)')
    for name in ('/no/1.jpg', 'C:\\no\\1.jpg'):
        content['images'] = [image | dict(file_name=name) for image in content['images']]
        file.write_text(json.dumps(content))
        _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
        assert_messages(report.errors,
                        f'its image {name} does not exist: make image names relative')
    for image in content['images']:
        image['file_name'] = str(file.parent / f'deep/{image["id"]}.jpg')
    file.write_text(json.dumps(content))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'absolute.py'))
    assert not report.errors and contents[0]['images'][0]['file_name'].startswith('/')


def test_label_studio_notes_are_ignored(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    (tmp_path / 'set/notes.json').write_text('{"categories": [{"id": 0, "name": "disc"}]}')
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_messages(report.warnings, 'set is in YOLO format')


TEXTS = ('.json', '.txt', '.xml', '.yaml')
DAMAGE = (b'', b'null', b'-1', b'[]', b'{}', b'1e999', b'9' * 400, b'NaN', b'"\\ud800"', b'\xff',
          b'\0', b'\n', b'<a/>', b'&a', b'{a: b}', b'../', b'[[1, 2]]', b'"\\u0000"')


@pytest.mark.parametrize('form', WRITERS)
def test_corrupted_files_are_reported(form: str, drawn: Parts, tmp_path: Path) -> None:
    """Replacing any word of a file causes only a UserError or report that names a file."""
    WRITERS[form](drawn, tmp_path / 'set')
    files = [file for file in sorted((tmp_path / 'set').rglob('*.*')) if file.suffix in TEXTS]
    draw = random.Random(0)
    for number in range(20):
        file = draw.choice(files)
        source = file.read_bytes()
        word = draw.choice(list(re.finditer(rb'[-\w.]+|"[^"]*"|[\[\]{}]|<[^>]*>', source)))
        damage = draw.choice(DAMAGE)
        file.write_bytes(source[:word.start()] + damage + source[word.end():])
        try:
            _, report = read(options(tmp_path / 'set', out=tmp_path / f'{number}.py'))
        except (ValueError, OSError) as error:
            assert str(tmp_path) in str(error), (file, word[0], damage)
        else:
            assert all(str(tmp_path) in error for error in report.errors)
        file.write_bytes(source)


@pytest.mark.slow
@pytest.mark.parametrize('form', WRITERS)
def test_train_on_real_data_of_each_format(form: str, real_data: dict[str, Path], tmp_path: Path,
                                           run_tool: Callable) -> None:
    WRITERS[form](select_images(real_data['coco']), tmp_path / 'set')
    recipe = ROOT / 'configs/mask_rcnn/xcit_nano_12_p16_slim_coco.py'
    run_tool('create_config', recipe, '--data', tmp_path / 'set', '--out', tmp_path / 'own.py')
    run_tool('train', tmp_path / 'own.py', '--work-dir', tmp_path / 'run', *SHORT, *NO_WORKERS)
    assert 'Iter(train) [2/2]' in latest_log(tmp_path / 'run')
