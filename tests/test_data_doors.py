"""Instances in the forms of other programs: what is read equals what was written."""
from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_data
import pytest
from conftest import ROOT
from drawn_data import SHORT, assert_said, coco_content, draw_image, faults_of, leaf
from foreign_data import Parts

from colonnade.engine.data_doors.doors import opened, recognise
from colonnade.engine.own_data.files import Report

WRITERS = {name.removeprefix('write_'): writer for name, writer in vars(foreign_data).items()
           if name.startswith('write_')}  # yapf: disable


@pytest.fixture(scope='session')
def real(real_data: dict[str, Path]) -> Parts:
    return foreign_data.smaller(real_data['coco'])


@pytest.fixture
def drawn(tmp_path: Path) -> Parts:
    """Two images of 48 x 40 pixels in each part."""
    parts = {}
    for split, first in (('train', 1), ('val', 100)):
        content = coco_content(first=first)
        for image in content['images']:
            draw_image(tmp_path / 'drawn' / split / image['file_name'])
        parts[split] = tmp_path / 'drawn' / split, content
    return parts


TEXTS = ('.json', '.txt', '.xml', '.yaml')
DAMAGE = (b'', b'null', b'-1', b'[]', b'{}', b'1e999', b'9' * 400, b'NaN', b'"\\ud800"', b'\xff',
          b'\0', b'\n', b'<a/>', b'&a', b'{a: b}', b'../', b'[[1, 2]]', b'"\\u0000"')


def options(*data: Path, out: Path, **values: Any) -> argparse.Namespace:
    defaults = dict.fromkeys(('coco', 'masks', 'images', 'split', 'group', 'data_out', 'zero',
                              'suffixes', 'colours', 'ignore_255'))
    values = dict(split_seed=0) | defaults | values
    return argparse.Namespace(data=list(data), out=out, **values)


def read(args: argparse.Namespace) -> tuple[list[dict[str, Any]], Report]:
    """Both COCO files that a door gives, and what it says."""
    report = Report()
    with opened(args, 'instances', report):
        if report.num_faults:
            return [], report
        return [json.loads(file.read_text()) for file in args.coco], report


def objects(content: dict[str, Any], exact: bool) -> dict[str, list[tuple]]:
    """Per image the classes with boxes and areas in order; or of each class the sum of areas."""
    files = {image['id']: image['file_name'] for image in content['images']}
    names = {category['id']: category['name'] for category in content['categories']}
    found: dict[str, list[tuple]] = {Path(name).stem: [] for name in files.values()}
    for a in content['annotations']:
        found[Path(files[a['image_id']]).stem].append(
            (names[a['category_id']], *a['bbox'], a['area']))
    if exact:
        return {stem: sorted(rows) for stem, rows in found.items()}
    return {
        stem: sorted((name, sum(row[-1] for row in rows if row[0] == name))
                     for name in {row[0] for row in rows}) for stem, rows in found.items()
    }  # yapf: disable


@pytest.mark.parametrize('form', WRITERS)
def test_what_was_written_is_read(form: str, real: Parts, tmp_path: Path) -> None:
    WRITERS[form](real, tmp_path / 'set')
    args = options(tmp_path / 'set', out=tmp_path / 'own.py')
    contents, report = read(args)
    assert not report.faults
    rasterised = form in ('voc_polygons', 'yolo_polygons')  # by the program that wrote it
    for (_, original), content, folder in zip(real.values(), contents, args.images, strict=True):
        assert all((folder / image['file_name']).is_file() for image in content['images'])
        written, again = (objects(c, not rasterised) for c in (original, content))
        assert written.keys() == again.keys()
        for stem in written:
            for one, other in zip(written[stem], again[stem], strict=True):
                assert one[0] == other[0]
                if rasterised:
                    assert other[1] == pytest.approx(one[1], rel=0.02, abs=20)
                    continue
                assert other[1:5] == pytest.approx(one[1:5], abs=2e-3)
                if 'boxes' not in form:
                    assert other[5] == pytest.approx(one[5], rel=1e-3)


@pytest.mark.parametrize('form', ['yolo_polygons', 'labelme_polygons'])
def test_its_config_is_written(form: str, drawn: Parts, tmp_path: Path, run_tool: Callable,
                               capsys: pytest.CaptureFixture[str]) -> None:
    WRITERS[form](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('new_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--out', out)
    said = capsys.readouterr().out
    assert f'{tmp_path / "set"} is read as' in said and '2 classes: disc, square' in said
    record = json.loads((tmp_path / 'own_data/conversion.json').read_text())
    assert record['source'] == [str(tmp_path / 'set')]
    assert record['counts']['train'] == dict(images=2, annotations=4, categories=2)


def lines(file: Path, *texts: str) -> None:
    file.write_text('\n'.join(texts))


BOX = '0 0.5 0.5 0.25 0.25'


@pytest.mark.parametrize('text, says', [
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
])
def test_lines_of_yolo_that_are_wrong(text: str, says: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    lines(tmp_path / 'set/labels/train/1.txt', BOX, text)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, says)
    assert not (tmp_path / 'own_data').exists()


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
    file.write_text(foreign_data.yaml.safe_dump(content | change))
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


def test_lists_of_images(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    folder = tmp_path / 'set'
    lines(folder / 'train.txt', './images/train/1.jpg', '', 'images/train/2.jpg')
    content = dict(train='train.txt', val=['images/val'], test='images/val',
                   names=['disc', 'square'])  # yapf: disable
    (folder / 'data.yaml').write_text(foreign_data.yaml.safe_dump(content))
    contents, report = read(options(folder / 'data.yaml', out=tmp_path / 'own.py'))
    assert [len(content['images']) for content in contents] == [2, 2]
    assert_said(report.remarks, 'images of the test part are left for tests (2)')
    lines(folder / 'train.txt', 'images/train/1.jpg', 'images/train/7.jpg')
    _, report = read(options(folder, out=tmp_path / 'own.py'))
    assert_said(report.faults, 'train.txt:2: there is no ')


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


def test_a_segmenter_needs_label_maps(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    with pytest.raises(ValueError, match='is read as YOLO, which has instances, for a detector'):
        recognise(tmp_path / 'set', 'labels')


def test_images_that_share_labels(drawn: Parts, tmp_path: Path) -> None:
    for form, folder in (('yolo_boxes', 'images/train'), ('voc_boxes', 'train')):
        WRITERS[form](drawn, tmp_path / form)
        draw_image(tmp_path / form / folder / '1.png')
        _, report = read(options(tmp_path / form, out=tmp_path / 'own.py'))
        assert_said(report.faults, '1.jpg and 1.png: rename one')


VOC = '<annotation><filename>{}</filename><size><width>{}</width><height>40</height></size>' \
      '<object><name>disc</name>{}</object></annotation>'
SIDES = '<bndbox><xmin>{}</xmin><ymin>5</ymin><xmax>20</xmax><ymax>25</ymax></bndbox>'


@pytest.mark.parametrize('source, says', [
    (VOC.format('1.jpg', 48, ''), 'train/1.xml: object 1: has no bndbox'),
    (VOC.format('1.jpg', 48, SIDES.format('x')), "1.xml: object 1: bndbox must have a number xmin"),
    (VOC.format('1.jpg', 48, SIDES.format(30)), 'object 1: bndbox ends before it begins: 30 5 20'),
    (VOC.format('1.jpg', 50, SIDES.format(5)), 'train/1.xml: says 50 x 40 pixels, '),
    (VOC.format('1.jpg', 48, '<robndbox/>'), 'object 1: is an oriented box'),
    ('<!DOCTYPE a [<!ENTITY b "c">]>' + VOC.format('1.jpg', 48, ''), 'declares a document type'),
    ('<annotation><object>', '1.xml: cannot be read: no element found'),
])
def test_xml_that_is_wrong(source: str, says: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['voc_boxes'](drawn, tmp_path / 'set')
    (tmp_path / 'set/train/1.xml').write_text(source)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, says)


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


def labelme(*shapes: dict, **values: object) -> str:
    return json.dumps(dict(shapes=shapes, imagePath='..\\1.jpg', **values))


def shape(points: list, kind: str = 'polygon', **values: object) -> dict:
    return dict(label='disc', points=points, shape_type=kind, **values)


@pytest.mark.parametrize('source, says', [
    (labelme(shape([[1, 2], [3, None], [5, 6]])), 'train/1.json: shape 1: points must be [[x, y]'),
    (labelme(shape([[1, 2], [3, 4]], 'mask')), 'shape 1: is a mask: save it as a polygon'),
    (labelme(shape([[1, 2]], 'circle')), 'shape 1: is a circle of 1 points'),
    (labelme(dict(points=[])), 'shape 1: must have a label, got'),
    (labelme(shape([]), imageWidth=4, imageHeight=5), '1.json: says 4 x 5 pixels, '),
    ('{"shapes": 5}', 'must have a list of shapes'),
    ('{"shapes": [', '1.json: cannot be read'),
])
def test_shapes_that_are_wrong(source: str, says: str, drawn: Parts, tmp_path: Path) -> None:
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    (tmp_path / 'set/train/1.json').write_text(source)
    _, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert_said(report.faults, says)


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
    assert box['bbox'] == [5, 10, 15, 15] and 'segmentation' not in box
    assert circle['bbox'] == [10, 10, 20, 20]
    assert circle['area'] == pytest.approx(314.16, rel=2e-3)
    assert pair['bbox'] == [1, 1, 28, 8] and list(map(len, pair['segmentation'])) == [6, 8]
    assert_said(report.remarks, 'shapes of kind line, which have no area, are left out (1, the ',
                'polygons of fewer than three points are left out (1', 'flags of shapes are lost',
                'descriptions of shapes are lost', 'circles become polygons of 64 points')


def test_annotations_without_an_image(drawn: Parts, tmp_path: Path) -> None:
    for form, image in (('voc_boxes', 'train/1.jpg'), ('labelme_polygons', 'train/1.jpg')):
        WRITERS[form](drawn, tmp_path / form)
        (tmp_path / form / image).unlink()
        _, report = read(options(tmp_path / form, out=tmp_path / 'own.py'))
        assert_said(report.faults, 'there is no image 1.jpg of it')


def test_two_folders_with_other_classes(drawn: Parts, tmp_path: Path) -> None:
    """Where nothing lists the classes, both parts have those of both."""
    del drawn['val'][1]['annotations'][::2]
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    both = tmp_path / 'set/train', tmp_path / 'set/val'
    contents, report = read(options(*both, out=tmp_path / 'own.py'))
    assert not report.faults
    train, val = (content['categories'] for content in contents)
    assert train == val == [dict(id=0, name='disc'), dict(id=1, name='square')]
    assert {a['category_id'] for a in contents[1]['annotations']} == {1}


def test_one_folder_is_split(real: Parts, tmp_path: Path) -> None:
    WRITERS['labelme_polygons'](real, tmp_path / 'set')
    one = tmp_path / 'set/train'
    with pytest.raises(ValueError, match='has no validation images of its own: say --split 0.2'):
        read(options(one, out=tmp_path / 'own.py'))
    contents, _ = read(options(one, out=tmp_path / 'own.py', split=0.4))
    names = [{image['file_name'] for image in content['images']} for content in contents]
    assert len(names[0] | names[1]) == 5 and not names[0] & names[1] and names[1]
    record = json.loads((tmp_path / 'own_data/conversion.json').read_text())['split']
    assert (record['fraction'], record['seed'], set(record['val'])) == (0.4, 0, names[1])
    with pytest.raises(FileExistsError, match='split in another way: remove it, or name'):
        read(options(one, out=tmp_path / 'own.py', split=0.4, split_seed=1))
    with pytest.raises(ValueError, match='does not match 5 names of images'):
        read(options(one, out=tmp_path / 'own.py', split=0.4, group='^(a)'))
    groups = options(one, out=tmp_path / 'g.py', split=0.4, group=r'(\d)\.jpg$')
    contents, _ = read(groups)
    ends = [{image['file_name'][-5] for image in content['images']} for content in contents]
    assert not ends[0] & ends[1]


def test_one_coco_file_is_split(drawn: Parts, tmp_path: Path, run_tool: Callable,
                                capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / 'all.json'
    content = coco_content(num_images=8)
    for image in content['images']:
        draw_image(tmp_path / 'images' / image['file_name'])
    file.write_text(json.dumps(content))
    arguments = [leaf('mask_rcnn'), '--coco', file, '--images', tmp_path / 'images', '--split']
    run_tool('new_config', *arguments, '0.25', '--out', tmp_path / 'own.py')
    assert '6 training and 2 validation images' in (tmp_path / 'own.py').read_text()
    content['annotations'][3]['segmentation'] = [[1, None]]
    file.write_text(json.dumps(content))
    said = faults_of(run_tool, capsys, *arguments, '0.25')
    assert_said(said, f'{file}: annotation 5: polygons must be numbers')
    assert not Path('own_that_is_not_written_data').exists()


def test_a_conversion_is_used_again(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    read(options(tmp_path / 'set', out=out))
    before = (tmp_path / 'own_data/train.json').stat()
    _, report = read(options(tmp_path / 'set', out=out))
    assert_said(report.remarks, 'own_data is used again')
    assert (tmp_path / 'own_data/train.json').stat() == before
    lines(tmp_path / 'set/labels/train/1.txt', BOX)
    with pytest.raises(FileExistsError, match='own_data is a conversion of other data: remove it'):
        read(options(tmp_path / 'set', out=out))
    (tmp_path / 'other').mkdir()
    with pytest.raises(FileExistsError, match='other exists and is no conversion'):
        read(options(tmp_path / 'set', out=out, data_out=tmp_path / 'other'))


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


def test_the_page(drawn: Parts, tmp_path: Path, run_tool: Callable,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands for instances, on data sets of the names there."""
    for name, form in dict(
            coco='coco', roboflow='roboflow_coco', yolo='yolo_polygons', voc='voc_polygons',
            labelme='labelme_polygons').items():  # yapf: disable
        WRITERS[form](drawn, tmp_path / name)
    (tmp_path / 'labelme/train').rename(tmp_path / 'my_data')
    shutil.copytree(tmp_path / 'my_data', tmp_path / 'labelme/train')
    (tmp_path / 'drawn/train').rename(tmp_path / 'images')
    (tmp_path / 'all.json').write_text(json.dumps(drawn['train'][1]))
    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    monkeypatch.chdir(tmp_path)
    page = (ROOT / 'docs/own_data.md').read_text().partition('\n## Label maps')[0]
    commands = [line for block in re.findall('```sh\n(.*?)```', page, re.DOTALL)
                for line in block.replace('\\\n', '').splitlines()]  # yapf: disable
    for _, tool, *arguments in map(shlex.split, commands):
        short = SHORT if tool == 'tools/train.py' else []
        run_tool(Path(tool).stem, *arguments, *short)
    assert len(commands) == 9 and len(list(tmp_path.glob('*.py'))) == 8


@pytest.mark.parametrize('names, says', [
    (['a.txt'], 'it holds a.txt. Wanted: instances, for a detector. The forms are'),
    ([], 'it holds nothing'),
    (['data.yaml', 'Annotations/1.xml'], 'has more than one form: YOLO and Pascal VOC'),
])
def test_folders_that_are_not_recognised(names: list[str], says: str, tmp_path: Path) -> None:
    texts = {'.yaml': 'train: a\nnames: [b]\n', '.xml': '<annotation/>', '.txt': 'hello'}
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(texts[Path(name).suffix])
    with pytest.raises(ValueError, match='(?s)' + says.replace('.', r'\.')):
        recognise(tmp_path, 'instances')
    with pytest.raises(FileNotFoundError, match='--data: there is no'):
        recognise(tmp_path / 'no', 'instances')


@pytest.mark.parametrize('arguments, says', [
    (['--data', '.', '--images', '.'], '--images is for --coco and --masks'),
    (['--data', '.', '.', '.'], '--data takes one path, or two'),
    (['--data', '.', '--split', '20'], '--split must be between 0 and 1, got 20'),
    (['--data', '.', '--group', 'a'], '--group and --split-seed are for --split'),
    (['--data', '.', '--split', '0.2', '--group', 'a'], 'has no group in brackets'),
    (['--data', '.', '--split', '0.2', '--group', '('], 'is no regular expression'),
    (['--coco', 'a.json', '--images', '.'], 'or one with --split 0.2'),
    (['--coco', 'a.json', 'b.json', '--images', '.', '--data-out', 'x'], '--data-out is for'),
])
def test_options_that_do_not_go_together(arguments: list[str], says: str, run_tool: Callable,
                                         tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f'new_config: .*{says}'):
        run_tool('new_config', leaf('mask_rcnn'), *arguments, '--out', tmp_path / 'own.py')
