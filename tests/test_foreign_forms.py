"""Each form of other programs: what is allowed, what is wrong, what is lost."""
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
from helpers.drawn_data import assert_said, draw_image
from helpers.foreign_data import BOX, WRITERS, Parts, drawn_parts, lines, options, read, smaller
from PIL import Image
from pycocotools import mask as coco_masks


@pytest.fixture
def drawn(tmp_path: Path) -> Parts:
    return drawn_parts(tmp_path / 'drawn')


@pytest.mark.parametrize('change, says', [
    (dict(names={
        0: 'a',
        2: 'b'
    }), 'numbered from 0 without gaps, got [0, 2]'),
    (dict(names=['a', 'a']), "names: more than one is 'a'"),
    (dict(names=['a', True]), 'names must be text, got True: put quotes around it'),
    (dict(names='a'), "names must be a list of names of classes, got 'a'"),
    (dict(nc=3), 'nc is 3, and there are 2 names'),
    (dict(train='images/no'), 'train: there is no '),
    (dict(train=['images/train', 7]), 'train must be a folder or a list of images, got 7'),
    (dict(train='labels/train'), 'train: there are no images in '),
    (dict(kpt_shape=[17, 3]), 'its labels are keypoints, for which Colonnade has no configs'),
    (dict(task='obb'), 'its labels are oriented boxes'),
])
def test_yaml_that_is_wrong(change: dict, says: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    file = tmp_path / 'set/data.yaml'
    content = dict(path='.', train='images/train', val='images/val', names=['disc', 'square'])
    file.write_text(yaml.safe_dump(content | change))
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, says)
    assert all(str(file) in fault for fault in report.faults)


def test_what_yolo_allows(drawn: Parts, tmp_path: Path) -> None:
    """CRLF, a byte order mark, suffixes in capitals, blanks, umlauts, folders, empty files."""
    folder = tmp_path / 'My Data'
    for name in ('a b/Bär.JPG', 'a b/x.y.png', 'empty.jpg', 'none.jpg'):
        draw_image(folder / 'images' / name)
        (folder / 'labels' / name).parent.mkdir(parents=True, exist_ok=True)
    text = f'{BOX}\r\n\r\n1 0.1 0.1 0.5 0.1 0.5 0.5\r\n{BOX}\r\n0 .5 .5 .5 .5 0.9\r\n'
    (folder / 'labels/a b/Bär.txt').write_bytes(b'\xef\xbb\xbf' + text.encode())
    lines(folder / 'labels/a b/x.y.txt', '1 1.000001 0.5 0.2 0.2')
    (folder / 'labels/empty.txt').touch()
    lines(folder / 'labels/gone.txt', BOX)
    (folder / 'labels/classes.txt').write_bytes(b'\xef\xbb\xbfdisc\r\nsquare\r\n')
    contents, report = read(options(folder, out=tmp_path / 'own.py', split=0.5))
    assert not report.faults
    assert_said(report.remarks, 'without a file of labels are taken for images without objects (1',
                'lines that repeat another of their file are left out (1',
                'taken for confidences and left out (1', 'without an image are not used (1')
    assert sum(len(content['images']) for content in contents) == 4
    found = [a for content in contents for a in content['annotations']]
    assert sorted(a['converted_from'] for a in found) == [
        'labels/a b/Bär.txt:1', 'labels/a b/Bär.txt:3', 'labels/a b/Bär.txt:5',
        'labels/a b/x.y.txt:1']  # yapf: disable


@pytest.mark.parametrize('points', [1, 2, 3, 4, 17])
@pytest.mark.parametrize('flag', ['1', '2.000000'])
def test_poses_are_no_polygons(points: int, flag: str, drawn: Parts, tmp_path: Path) -> None:
    """A class, a box, and x, y and visibility of each point; one fault, not one for each line."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    line = BOX + f' 0.5 0.4 {flag}' * points
    for file in (tmp_path / 'set/labels').rglob('*.txt'):
        lines(file, line)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, f'as a class, a box and {points} keypoints have')
    assert len(report.faults) == 1
    lines(tmp_path / 'set/labels/train/1.txt', line, BOX)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not any('keypoints' in fault for fault in report.faults)


def test_objects_with_as_many_points(drawn: Parts, tmp_path: Path) -> None:
    """Keypoints without visibility cannot be told from polygons: that is said."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    for file in (tmp_path / 'set/labels').rglob('*.txt'):
        lines(file, BOX + ' 0.5 0.4 0.3 0.3 0.2 0.25')
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.remarks, 'have 5 points: if these are boxes with keypoints, they train as')


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
def test_samples_that_cannot_be_used_are_skipped(form: str, file: str, text: str, drawn: Parts,
                                                 tmp_path: Path) -> None:
    """The image goes with all its objects: one that is left out would be learnt as background."""
    WRITERS[form](drawn, tmp_path / 'set')
    (tmp_path / 'set' / file).write_text(text)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert report.faults
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py', on_bad_data='skip'))
    assert not report.faults
    assert_said(report.remarks, f'--on-bad-data skip: 1 samples are left out, the first: {file}')
    assert [image['file_name'] for image in contents[0]['images']] == ['2.jpg']
    assert {a['image_id'] for a in contents[0]['annotations']} == {1}
    assert json.loads((tmp_path / 'own_data/conversion.json').read_text())['skipped']


def test_tests_that_are_missing_stop_nothing(drawn: Parts, tmp_path: Path) -> None:
    """Nothing reads them."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    file = tmp_path / 'set/data.yaml'
    for test in ('images/no', 'test.txt', 7):
        lines(tmp_path / 'set/test.txt', 'no.jpg', 'images/train/1.jpg')
        content = dict(train='images/train', val='images/val', test=test, names=['disc', 'square'])
        file.write_text(yaml.safe_dump(content))
        contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
        assert not report.faults and [len(content['images']) for content in contents] == [2, 2]
    file.unlink()
    lines(tmp_path / 'set/classes.txt', 'disc', 'square')
    shutil.move(tmp_path / 'set/images', tmp_path / 'cvat')
    for split in ('train', 'val'):
        for image in (tmp_path / 'cvat' / split).iterdir():
            label = (tmp_path / 'set/labels' / split / image.name).with_suffix('.txt')
            shutil.move(label, image.with_suffix('.txt'))
        names = [f'{split}/{image.name}' for image in (tmp_path / 'cvat' / split).glob('*.jpg')]
        lines(tmp_path / f'cvat/{split}.txt', *names)
    lines(tmp_path / 'cvat/test.txt', 'no.jpg')
    lines(tmp_path / 'cvat/obj.names', 'disc', 'square')
    _, report = read(options(tmp_path / 'cvat', out=tmp_path / 'cvat.py'))
    assert not report.faults
    WRITERS['voc_polygons'](drawn, tmp_path / 'voc')
    lines(tmp_path / 'voc/ImageSets/Main/test.txt', 'no')
    _, report = read(options(tmp_path / 'voc', out=tmp_path / 'voc.py'))
    assert not report.faults


def test_numbers_of_classes_without_names(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    content = dict(train='images/train', val='images/val', nc=2)
    (tmp_path / 'set/data.yaml').write_text(yaml.safe_dump(content))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.faults
    assert [c['name'] for c in contents[0]['categories']] == ['class 0', 'class 1']
    assert_said(report.remarks, 'nc without names: classes are called class 0, class 1 and so on')


@pytest.mark.parametrize('name', ['data.yaml', 'classes.txt'])
def test_names_in_latin_1(name: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    text = 'train: images/train\nval: images/val\nnames: [Bär, Straße]\n'
    (tmp_path / 'set/data.yaml').unlink()
    (tmp_path / 'set' / name).write_text(
        text if name == 'data.yaml' else 'Bär\nStraße\n', encoding='latin-1')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.faults
    assert [c['name'] for c in contents[0]['categories']] == ['Bär', 'Straße']
    assert_said(report.remarks, f'repaired: names of classes in a file that is not in UTF-8: '
                f'read as Latin-1 (1, the first: {name})')  # yapf: disable


def test_two_yaml_files(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    shutil.copy(tmp_path / 'set/data.yaml', tmp_path / 'set/dataset.yaml')
    with pytest.raises(ValueError, match='data.yaml and .*dataset.yaml may be meant: name one of'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    _, report = read(options(tmp_path / 'set/dataset.yaml', out=tmp_path / 'own.py'))
    assert not report.faults


def test_images_of_no_part_are_counted(drawn: Parts, tmp_path: Path) -> None:
    """So are links to folders that were read; labels may end in capitals, folders with a year."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    folder = tmp_path / 'set'
    (folder / 'data.yaml').unlink()
    lines(folder / 'classes.txt', 'disc', 'square')
    draw_image(folder / 'images/alone.jpg')
    (folder / 'images/train/loop').symlink_to('../..')
    for kind in ('images', 'labels'):
        (folder / kind / 'val').rename(folder / kind / 'val2017')
    for file in (folder / 'labels').rglob('*.txt'):
        file.rename(file.with_suffix('.TXT'))
    contents, report = read(options(folder, out=tmp_path / 'own.py'))
    assert [len(content['annotations']) for content in contents] == [4, 4]
    assert [len(content['images']) for content in contents] == [2, 2]
    assert_said(report.remarks, 'images of no part are not used (1, the first: images/alone.jpg)',
                'not followed (1, the first: images/train/loop)')


def test_lists_of_cvat(tmp_path: Path) -> None:
    """``train.txt`` and ``Validation.txt`` name images in ``data``, which is the folder itself."""
    for split in ('train', 'Validation'):
        names = [f'obj_{split}_data/{split}{number}.png' for number in range(2)]
        for name in names:
            draw_image(tmp_path / 'set' / name)
            lines((tmp_path / 'set' / name).with_suffix('.txt'), BOX)
        lines(tmp_path / f'set/{split}.txt', *(f'data/{name}' for name in names))
    lines(tmp_path / 'set/obj.names', 'disc')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.faults
    assert [len(content['annotations']) for content in contents] == [2, 2]
    with pytest.raises(ValueError, match='--split is for data of one part'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py', split=0.5))


def test_lists_of_images(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    folder = tmp_path / 'set'
    lines(folder / 'train.txt', './images/train/1.jpg', '', 'images/train/2.jpg')
    content = dict(train='train.txt', val=['images/val'], test='images/val',
                   names=['disc', 'square'])  # yapf: disable
    (folder / 'data.yaml').write_text(yaml.safe_dump(content))
    contents, report = read(options(folder / 'data.yaml', out=tmp_path / 'own.py'))
    assert [len(content['images']) for content in contents] == [2, 2]
    assert_said(report.remarks, 'images of the test part are left for tests (2)')
    lines(folder / 'train.txt', 'images/train/1.jpg', 'images/train/7.jpg')
    lines(folder / 'labels/train/1.txt', '0 1.2 0.5 0.1 0.1')
    _, report = read(options(folder, out=tmp_path / 'own.py'))
    assert_said(report.faults, 'train.txt:2: there is no ', '1.txt:1: coordinates must be parts')


def test_two_folders_of_images(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    (tmp_path / 'set/data.yaml').unlink()
    both = tmp_path / 'set/images/train', tmp_path / 'set/images/val'
    _, report = read(options(*both, out=tmp_path / 'own.py'))
    assert_said(report.faults, 'nothing names the classes: write data.yaml, or classes.txt')
    lines(tmp_path / 'set/classes.txt', 'disc', '', 'square')
    _, report = read(options(*both, out=tmp_path / 'own.py'))
    assert_said(report.faults, 'set/classes.txt:2: the line is empty')
    lines(tmp_path / 'set/classes.txt', 'disc', 'square', '')
    contents, report = read(options(*both, out=tmp_path / 'own.py'))
    assert not report.faults
    assert [len(content['annotations']) for content in contents] == [4, 4]
    assert contents[0]['annotations'][0]['converted_from'] == 'labels/train/1.txt:1'
    with pytest.raises(ValueError, match='is one of two paths of --data, and has the parts train'):
        read(options(tmp_path / 'set', both[1], out=tmp_path / 'own.py'))


def test_images_that_share_labels(drawn: Parts, tmp_path: Path) -> None:
    for form, folder in (('yolo_boxes', 'images/train'), ('voc_boxes', 'train')):
        WRITERS[form](drawn, tmp_path / form)
        draw_image(tmp_path / form / folder / '1.png')
        _, report = read(options(tmp_path / form, out=tmp_path / 'own.py'))
        assert_said(report.faults, '1.jpg and 1.png: rename one')


VOC = '<annotation><filename>{}</filename><size><width>{}</width><height>40</height></size>' \
      '<object><name>disc</name>{}</object></annotation>'
SIDES = '<bndbox><xmin>{}</xmin><ymin>5</ymin><xmax>20</xmax><ymax>25</ymax></bndbox>'


def test_pixels_of_voc_count_from_1(drawn: Parts, tmp_path: Path) -> None:
    """The first and the last pixel of a box belong to it."""
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
    assert_said(report.remarks, 'objects marked difficult become crowds',
                'what `truncated` says of objects is lost (2, the first: train/1.xml: object 1)')


def test_parts_that_voc_lists(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['voc_polygons'](drawn, tmp_path / 'set')
    lines(tmp_path / 'set/ImageSets/Main/train.txt', '1', '')
    lines(tmp_path / 'set/ImageSets/Main/disc_train.txt', '1 -1', '2 1')
    lines(tmp_path / 'set/ImageSets/Main/test.txt', '101')
    lines(tmp_path / 'set/ImageSets/Main/val.txt', '100')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert [[image['file_name'] for image in content['images']] for content in contents] == [
        ['1.jpg'], ['100.jpg']]  # yapf: disable
    assert_said(report.remarks, 'images of the test part are left for tests (1)',
                'or of no part, are not used (2, the first: JPEGImages/101.jpg)')
    (tmp_path / 'set/ImageSets/Main/val.txt').rename(tmp_path / 'set/ImageSets/Main/trainval.txt')
    with pytest.raises(ValueError, match='has no validation images of its own'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    (tmp_path / 'set/ImageSets/Main/trainval.txt').unlink()
    lines(tmp_path / 'set/ImageSets/Main/train.txt', '1', '', '7')
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, 'train.txt:3: there is no ')


def draw_voc(folder: Path, annotations: str, images: str, **begins: int) -> None:
    """Two images in each part, with a box from ``begins`` on; ``{}`` is the part in paths."""
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
def test_parts_of_voc_beside_each_other(annotations: str, images: str, tmp_path: Path) -> None:
    draw_voc(tmp_path / 'set', annotations, images)
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.faults
    assert [[image['file_name'] for image in content['images']] for content in contents] == [
        ['train 0.jpg', 'train 1.jpg'], ['val 0.jpg', 'val 1.jpg']]  # yapf: disable


def test_the_folder_around_voc(tmp_path: Path) -> None:
    """Lists count there too, and names in them may have blanks."""
    folder = tmp_path / 'VOCdevkit/VOC2012'
    draw_voc(folder, 'Annotations', 'JPEGImages')
    (folder / 'ImageSets/Main').mkdir(parents=True)
    for split in ('train', 'val'):
        lines(folder / f'ImageSets/Main/{split}.txt', f'{split} 0', f'{split} 1')
    contents, report = read(options(tmp_path / 'VOCdevkit', out=tmp_path / 'own.py'))
    assert not report.faults
    assert [len(content['images']) for content in contents] == [2, 2]
    shutil.copytree(folder, folder.with_name('VOC2007'))
    with pytest.raises(ValueError, match='VOC2007 and .*VOC2012 may be meant: name one of them'):
        read(options(tmp_path / 'VOCdevkit', out=tmp_path / 'own.py'))


def test_two_paths_of_voc_count_pixels_alike(tmp_path: Path) -> None:
    draw_voc(tmp_path, '{}', '{}', train=0)
    contents, _ = read(options(tmp_path / 'train', tmp_path / 'val', out=tmp_path / 'own.py'))
    assert [content['annotations'][0]['bbox'][:2] for content in contents] == [[0, 5], [5, 5]]


def test_xml_with_a_namespace(tmp_path: Path) -> None:
    draw_voc(tmp_path, '{}', '{}')
    for file in tmp_path.rglob('*0.xml'):
        file.write_text(file.read_text().replace('<annotation', '<annotation xmlns="urn:a"'))
    for file in tmp_path.rglob('*1.xml'):
        source = file.read_text().replace('annotation>', 'v:annotation>')
        file.write_text(source.replace('<v:annotation', '<v:annotation xmlns:v="urn:a"', 1))
    contents, report = read(options(tmp_path, out=tmp_path / 'own.py'))
    assert not report.faults
    assert [len(content['annotations']) for content in contents] == [2, 2]


@pytest.mark.parametrize('encoding, declared', [
    ('gbk', 'GBK'),
    ('gb18030', 'gb2312'),
    ('shift_jis', 'Shift_JIS'),
    ('latin-1', 'ISO-8859-1'),
    ('utf-8-sig', 'utf-8'),
    ('utf-8', 'utf-8'),
])
def test_xml_in_other_encodings(encoding: str, declared: str, tmp_path: Path) -> None:
    name = 'Straße' if encoding in ('latin-1', 'utf-8-sig') else '道路'
    draw_voc(tmp_path, '{}', '{}')
    for file in tmp_path.rglob('*.xml'):
        source = file.read_text().replace('disc', name)
        source = f'<?xml version="1.0" encoding={declared!r}?>\n{source}'
        file.write_bytes(source.encode(encoding))
    contents, report = read(options(tmp_path, out=tmp_path / 'own.py'))
    assert not report.faults
    assert contents[0]['categories'] == [dict(id=0, name=name)]


@pytest.mark.parametrize('declared, says', [
    ('no-such', "its encoding 'no-such' is not known"),
    ('rot13', "its encoding 'rot13' is not known"),
    ('utf-7', 'declares a document type'),
])
def test_encodings_that_hide_something(declared: str, says: str, tmp_path: Path) -> None:
    draw_voc(tmp_path, '{}', '{}')
    source = '<annotation/>' if declared != 'utf-7' else '+ADwAIQ-DOCTYPE a><annotation/>'
    (tmp_path / 'train/train 0.xml').write_text(f'<?xml encoding={declared!r}?>{source}')
    _, report = read(options(tmp_path, out=tmp_path / 'own.py'))
    assert_said(report.faults, says)


def labelme(*shapes: dict, **values: object) -> str:
    return json.dumps(dict(shapes=shapes, imagePath='..\\1.jpg', **values))


def shape(points: list, kind: str = 'polygon', **values: object) -> dict:
    return dict(label='disc', points=points, shape_type=kind, **values)


def png_mask(pixels: np.ndarray) -> str:
    """Return a mask as LabelMe stores it."""
    file = io.BytesIO()
    Image.fromarray((pixels > 0).astype(np.uint8) * 255).save(file, 'PNG')
    return base64.b64encode(file.getvalue()).decode()


#: form: a file of it, and what may be wrong in it (of YOLO, in the second line)
WRONG: dict[str, tuple[str, list[tuple[str, str]]]] = {
    'yolo_boxes': ('labels/train/1.txt', [
        ('2 0.5 0.5 0.1 0.1', '1.txt:2: class 2 has no name: there are 2'),
        ('-1 0.5 0.5 0.1 0.1', '1.txt:2: class -1 has no name'),
        ('0.5 0.5 0.5 0.1 0.1', '1.txt:2: class 0.5 has no name'),
        ('0 0.5 0.5 0.1', 'labels/train/1.txt:2: must be `class x y width height`'),
        ('0 50 50 10 10', '1.txt:2: coordinates must be parts of the image, 0 to 1, got 50'),
        ('0 0.5 0.5 -0.1 0.1', '1.txt:2: coordinates must be parts of the image, 0 to 1, got -0.1'),
        ('0 0.5 0.5 nan 0.1', '1.txt:2: coordinates must be parts of the image, 0 to 1, got nan'),
        ('disc 0.5 0.5 0.1 0.1', "1.txt:2: must be a class and numbers, got 'disc 0.5"),
        ('0,0.5,0.5,0.1,0.1', '1.txt:2: must be a class and numbers'),
        ('\x00', '1.txt:2: must be a class and numbers'),
    ]),
    'voc_boxes': ('train/1.xml', [
        (VOC.format('1.jpg', 48, ''), 'train/1.xml: object 1: has no bndbox'),
        (VOC.format('1.jpg', 48,
                    SIDES.format('x')), "1.xml: object 1: bndbox must have a number xmin"),
        (VOC.format('1.jpg', 48,
                    SIDES.format(30)), 'object 1: bndbox ends before it begins: 30 5 20'),
        (VOC.format('1.jpg', 50, SIDES.format(5)), 'train/1.xml: says 50 x 40 pixels, '),
        (VOC.format('1.jpg', 48, '<robndbox/>'), 'object 1: is an oriented box'),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + VOC.format('1.jpg', 48, ''),
         'declares a document type'),
        ('<annotation><object>', '1.xml: cannot be read: no element found'),
    ]),
    'labelme_polygons': ('train/1.json', [
        (labelme(shape([[1, 2], [3, None], [5,
                                            6]])), 'train/1.json: shape 1: points must be [[x, y]'),
        (labelme(shape([[1, 1], [1e8, 5], [5, 1e8]])), 'within -1048576 ... 1048576, got'),
        (labelme(shape([[1, 2], [3, 4]],
                       'mask')), 'shape 1: is a mask: it must have two points, and'),
        (labelme(shape([[1, 2], [3, 4]], 'mask',
                       mask='no')), 'shape 1: is a mask that cannot be read'),
        (labelme(shape([[1, 2], [300, 4]], 'mask',
                       mask='')), 'shape 1: is a mask from 1, 2 to 300, 4'),
        (labelme(shape([[1, 2], [3, 4]], 'mask', mask=png_mask(np.eye(4)))),
         'shape 1: is a mask of 4 x 4 pixels, and its points are of 3 x 3'),
        (labelme(shape([[1, 2]], 'circle')), 'shape 1: is a circle of 1 points'),
        (labelme(dict(points=[])), 'shape 1: must have a label, got'),
        (labelme(shape([]), imageWidth=4, imageHeight=5), '1.json: says 4 x 5 pixels, '),
        ('{"shapes": 5}', 'must have a list of shapes'),
        ('{"shapes": [', '1.json: cannot be read'),
    ]),
}


@pytest.mark.parametrize('form, file, source, says',
                         [(form, file, *case) for form, (file, cases) in WRONG.items()
                          for case in cases])  # yapf: disable
def test_files_that_are_wrong(form: str, file: str, source: str, says: str, drawn: Parts,
                              tmp_path: Path) -> None:
    WRITERS[form](drawn, tmp_path / 'set')
    lines(tmp_path / 'set' / file, *([BOX] if form == 'yolo_boxes' else []), source)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, says)
    assert not (tmp_path / 'own_data').exists()


def test_shapes_of_labelme(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    (tmp_path / 'set/train/1.json').write_text(
        labelme(
            shape([[20, 25], [5, 10]], 'rectangle', flags=dict(seen=True)),
            shape([[20, 20], [20, 30]], 'circle'), shape([[1, 1], [9, 1], [9, 9]], group_id=3),
            shape([[20, 1], [29, 9]], 'rectangle', group_id=3),
            shape([[1, 1], [2, 2]], 'line', description='x'), shape([[1, 1], [2, 2]])))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    box, circle, pair = [a for a in contents[0]['annotations'] if a['image_id'] == 1]
    assert box['bbox'] == [5, 10, 15, 15]
    assert box['segmentation'] == [[5, 10, 20, 10, 20, 25, 5, 25]]
    assert circle['bbox'] == [10, 10, 20, 20]
    assert circle['area'] == pytest.approx(314.16, rel=2e-3)
    assert pair['bbox'] == [1, 1, 28, 8] and list(map(len, pair['segmentation'])) == [6, 8]
    assert_said(
        report.remarks, 'shapes of kind line, which have no area, are left out (1, the ',
        'polygons of fewer than three points are left out (1', 'flags of shapes are lost',
        'descriptions of shapes are lost', 'circles become polygons of 64 points',
        'repaired: objects without a mask beside others with one: the corners of their '
        'box are the mask (--boxes trains boxes alone) (1, the first: train/1.json: ')


def test_masks_and_turned_boxes_of_labelme(drawn: Parts, tmp_path: Path) -> None:
    """Masks are RLEs of the image's size; parts of one object are joined, also with a polygon."""
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    pixels = np.triu(np.ones((4, 6)))
    part = shape([[10, 20], [15, 23]], 'mask', mask=png_mask(pixels))
    (tmp_path / 'set/train/1.json').write_text(
        labelme(part, part | dict(group_id=1), shape([[1, 1], [9, 1], [9, 9], [1, 9]], group_id=1),
                shape([[5, 5], [9, 9], [5, 13], [1, 9]], 'rotation', direction=0.78),
                part | dict(mask=png_mask(0 * pixels)), shape([[1, 1], [9, 9]], 'cuboid')))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.faults
    alone, joined, turned = [a for a in contents[0]['annotations'] if a['image_id'] == 1]
    expected = np.zeros((40, 48), np.uint8)
    expected[20:24, 10:16] = pixels
    np.testing.assert_array_equal(coco_masks.decode(alone['segmentation']), expected)
    assert (alone['bbox'], alone['area']) == ([10, 20, 6, 4], pixels.sum())
    expected[1:9, 1:9] = 1
    np.testing.assert_array_equal(coco_masks.decode(joined['segmentation']), expected)
    assert joined['bbox'] == [1, 1, 15, 23]
    assert turned['segmentation'] == [[5, 5, 9, 9, 5, 13, 1, 9]]
    assert_said(report.remarks, 'masks without a pixel are left out (1',
                "shapes of kind 'cuboid', which is not known, are left out (1")
    assert not any('no area' in remark for remark in report.remarks)


@pytest.mark.parametrize('form', ['labelme_polygons', 'voc_boxes'])
def test_two_files_of_one_image(form: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS[form](drawn, tmp_path / 'set')
    file = next((tmp_path / 'set/train').glob('1.[jx]*[nl]'))
    shutil.copy(file, file.with_stem('1 (copy)'))
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, f'{file.name}: ')
    assert_said(report.faults, 'is of the same image')


def test_large_files_of_labelme(drawn: Parts, tmp_path: Path) -> None:
    """Whose shapes are far from both ends, and whose names end in capitals."""
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    for file in (tmp_path / 'set').rglob('*.json'):
        content = dict(imageData='A' * 70000) | json.loads(file.read_text())
        file.unlink()
        file.with_suffix('.JSON').write_text(json.dumps(content | dict(version='5' * 70000)))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.faults
    assert [len(content['annotations']) for content in contents] == [4, 4]


def test_annotations_without_an_image(drawn: Parts, tmp_path: Path) -> None:
    for form, image in (('voc_boxes', 'train/1.jpg'), ('labelme_polygons', 'train/1.jpg')):
        WRITERS[form](drawn, tmp_path / form)
        (tmp_path / form / image).unlink()
        _, report = read(options(tmp_path / form, out=tmp_path / 'own.py'))
        assert_said(report.faults, 'there is no image 1.jpg of it')


def test_files_of_coco_that_are_not_clear(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['coco'](drawn, tmp_path / 'set')
    train, own = tmp_path / 'set/annotations/instances_train2017.json', tmp_path / 'own.py'
    shutil.copy(train, train.with_stem('other'))
    _, report = read(options(tmp_path / 'set', out=own))
    assert_said(report.remarks, 'names tell no part are not used (1, the first: annotations/other')
    shutil.copy(train, train.with_stem('instances_train2014'))
    _, report = read(options(tmp_path / 'set', out=own))
    assert_said(report.faults, 'more than one file is of the part train: annotations/instances')
    train.with_stem('instances_train2014').unlink()
    train.unlink()
    shutil.copytree(tmp_path / 'set/train2017', tmp_path / 'set/images')
    with pytest.raises(ValueError, match='does not tell which file is for training'):
        read(options(tmp_path / 'set', out=own))


def test_names_of_images_in_coco(drawn: Parts, tmp_path: Path) -> None:
    """Backslashes are slashes where that finds the image; absolute names are of this machine."""
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
    assert_said(report.remarks, 'backslashes in names of images are read as slashes (1',
                '0: numbered from 1 (8, the first: train/_annotations.coco.json: annotation 0)')
    for name in ('/no/1.jpg', 'C:\\no\\1.jpg'):
        content['images'] = [image | dict(file_name=name) for image in content['images']]
        file.write_text(json.dumps(content))
        _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
        assert_said(report.faults, f'its image {name} is not there: name images from their folder')
    for image in content['images']:
        image['file_name'] = str(file.parent / f'deep/{image["id"]}.jpg')
    file.write_text(json.dumps(content))
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'absolute.py'))
    assert not report.faults and contents[0]['images'][0]['file_name'].startswith('/')


def test_label_studio_writes_notes(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    (tmp_path / 'set/notes.json').write_text('{"categories": [{"id": 0, "name": "disc"}]}')
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.remarks, 'set is read as YOLO')


TEXTS = ('.json', '.txt', '.xml', '.yaml')
DAMAGE = (b'', b'null', b'-1', b'[]', b'{}', b'1e999', b'9' * 400, b'NaN', b'"\\ud800"', b'\xff',
          b'\0', b'\n', b'<a/>', b'&a', b'{a: b}', b'../', b'[[1, 2]]', b'"\\u0000"')


@pytest.mark.parametrize('form', WRITERS)
def test_damaged_files_are_reported(form: str, drawn: Parts, tmp_path: Path) -> None:
    """Whatever takes the place of a word, no error but the user's comes up, and it names a file."""
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
            assert all(str(tmp_path) in fault for fault in report.faults)
        file.write_bytes(source)


@pytest.mark.slow
@pytest.mark.parametrize('form', WRITERS)
def test_real_data_of_each_form_train(form: str, real_data: dict[str, Path], tmp_path: Path,
                                      run_tool: Callable) -> None:
    WRITERS[form](smaller(real_data['coco']), tmp_path / 'set')
    recipe = ROOT / 'configs/mask_rcnn/xcit_nano_12_p16_slim_coco.py'
    run_tool('create_config', recipe, '--data', tmp_path / 'set', '--out', tmp_path / 'own.py')
    run_tool('train', tmp_path / 'own.py', '--work-dir', tmp_path / 'run', *SHORT, *NO_WORKERS)
    assert 'Iter(train) [2/2]' in latest_log(tmp_path / 'run')
