"""Datasets that datumaro reads: written by it, or as CVAT and KITTI write them."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.synthetic_data import CLASSES, HEIGHT, WIDTH, assert_messages, draw_image, leaf
from helpers.third_party_formats import options, read
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.datasets.data_index import LabelSet
from colonnade.datasets.formats.format_detection import detect_format, open_dataset
from colonnade.datasets.rle import decode_rle, encode_segmentation
from colonnade.datasets.validation.validation_report import Report

datumaro = pytest.importorskip(
    'datumaro', reason='datumaro is not installed: make test installs it')
BOX = '<box label="disc" xtl="4" ytl="4" xbr="20" ybr="16" occluded="0"></box>'
SHAPES = BOX + '''
<polygon label="square" occluded="1" points="4,20;20,20;20,32"></polygon>
<mask label="square" occluded="0" rle="3, 4, 3" left="5" top="20" width="2" height="5"></mask>
<box label="disc" xtl="10" ytl="8" xbr="20" ybr="12" occluded="0" rotation="90"></box>
<ellipse label="disc" cx="20" cy="20" rx="5" ry="4" occluded="0"></ellipse>
<polyline label="disc" points="1,2;3,4" occluded="0"></polyline>'''
SIZE = ' '.join(f'{key}={str(side)!r}' for key, side in dict(width=WIDTH, height=HEIGHT).items())
LABELS = ''.join(f'<label><name>{name}</name><attributes></attributes></label>' for name in CLASSES)


def write_cvat(folder: Path, images: dict[str, str], meta: str, tracks: str = '') -> None:
    """Write images and annotations.xml as CVAT exports a task or a project.

    Args:
        images: Name -> more attributes of the image, and its shapes after ``>``.
        meta: Content of the header.
        tracks: Elements of a video.
    """
    (folder / 'images').mkdir(parents=True)
    texts = [
        f'<image id={str(number)!r} name={name!r} {SIZE}{text}</image>'
        for number, (name, text) in enumerate(images.items())
    ]
    for name in images:
        draw_image(folder / 'images' / name)
    (folder / 'annotations.xml').write_text(
        f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n  <meta>'
        f'{meta}</meta>{"".join(texts)}{tracks}</annotations>')


def write_task(folder: Path, shapes: str = SHAPES) -> None:
    meta = f'<task><id>1</id><name>t</name><labels>{LABELS}</labels></task>'
    write_cvat(folder, {f'{number}.png': f'>{shapes}' for number in range(4)}, meta)


def write_kitti(folder: Path) -> None:
    for number in range(4):
        draw_image(folder / f'training/image_2/{number:06}.png')
        file = folder / f'training/label_2/{number:06}.txt'
        file.parent.mkdir(exist_ok=True)
        file.write_text('Car 0.00 0 -1.58 4.00 4.00 20.00 16.00 1.6 1.6 3.6 -0.6 1.7 46.7 -1.5\n'
                        'DontCare -1 -1 -10 20 16 40 29 -1 -1 -1 -1000 -1000 -1000 -10\n')


def find_objects(content: dict[str, Any], image: int = 0) -> list[tuple[str, list[float]]]:
    """Return class and box of the objects of an image."""
    names = {category['id']: category['name'] for category in content['categories']}
    number = content['images'][image]['id']
    return [(names[a['category_id']], a['bbox']) for a in content['annotations']
            if a['image_id'] == number]  # yapf: disable


@pytest.mark.parametrize('name', ['cvat', 'datumaro', 'kitti_segmentation', 'open_images'])
def test_formats_that_datumaro_writes(name: str, tmp_path: Path) -> None:
    triangle = [4, 20, 20, 20, 20, 32]
    mask = decode_rle(encode_segmentation([triangle], (HEIGHT, WIDTH)))
    items = []
    for number, split in enumerate(('train', 'train', 'val')):
        draw_image(tmp_path / f'drawn/{number}.png')
        items.append(
            datumaro.DatasetItem(
                str(number),
                subset=split,
                media=datumaro.Image.from_file(path=str(tmp_path / f'drawn/{number}.png')),
                annotations=[
                    datumaro.Bbox(4, 4, 16, 12, label=0, id=1, group=1),
                    datumaro.Mask(mask, label=1, id=2, group=2)
                ]))
    dataset = datumaro.Dataset.from_iterable(items, categories=list(CLASSES))
    dataset.export(str(tmp_path / 'set'), name, save_media=True)
    # Open Images' folders look like label maps.
    args = options(
        tmp_path / 'set',
        out=tmp_path / 'own.py',
        datumaro_format=name if name == 'open_images' else None)
    contents, report = read(args)
    assert not report.errors and [len(content['images']) for content in contents] == [2, 1]
    assert_messages(report.warnings, f"is in datumaro's {name} format")
    for content in contents:
        # KITTI's label maps have the box as a crowd, which fills the image.
        kinds = {a['category_id'] for a in content['annotations'] if not a['iscrowd']}
        assert kinds == ({1} if name == 'kitti_segmentation' else {0, 1})
        assert [category['name'] for category in content['categories']] == list(CLASSES)
        for annotation in content['annotations']:
            if annotation['category_id'] == 1:
                np.testing.assert_array_equal(decode_rle(annotation['segmentation']), mask)
            elif not annotation['iscrowd']:
                assert annotation['bbox'] == [4, 4, 16, 12]


def test_cvat_task(tmp_path: Path) -> None:
    """Boxes, polygons, masks and rotated boxes are read; what is not is counted."""
    write_task(tmp_path / 'set')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=.5))
    assert not report.errors and [len(content['images']) for content in contents] == [2, 2]
    assert find_objects(contents[0]) == [('disc', [4, 4, 16, 12]), ('square', [4, 20, 16, 12]),
                                         ('square', [5, 21, 2, 3]), ('disc', [13, 5, 4, 10])]
    assert_messages(
        report.warnings, 'shapes of type ellipse, which datumaro does not read, are '
        'omitted (4, the first: annotations.xml)',
        'annotations of type polyline, which have no area, are omitted (4, the first')
    source = contents[0]['annotations'][1]['converted_from']
    assert source == f'images/{contents[0]["images"][0]["file_name"]}: shape 2'


def test_cvat_project(tmp_path: Path) -> None:
    """Its subsets are the splits, also those of several tasks; that of tests is omitted."""
    subsets = ('Train', 'Train', 'Validation', 'Test')
    tasks = ''.join(f'<task><id>{number}</id><subset>{subset}</subset></task>'
                    for number, subset in enumerate(subsets))
    images = {
        f'{subset}/{number}.png': f' subset={subset!r}>{BOX}'
        for number, subset in enumerate(subsets)
    }
    write_cvat(tmp_path / 'set', images,
               f'<project><tasks>{tasks}</tasks><labels>{LABELS}</labels></project>')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors and [len(content['images']) for content in contents] == [2, 1]
    assert [find_objects(content) for content in contents] == 2 * [[('disc', [4, 4, 16, 12])]]
    assert_messages(report.warnings, 'images of the test split are not used (1)')


def test_cvat_video(tmp_path: Path) -> None:
    """Tracks of a video, whose frames CVAT writes with a suffix in capitals; one has no shapes."""
    size = f'<original_size><width>{WIDTH}</width><height>{HEIGHT}</height></original_size>'
    boxes = [
        BOX.replace('label="disc"',
                    f'frame={str(number)!r} outside={str(number // 2)!r} keyframe="1"')
        for number in range(3)
    ]
    write_cvat(
        tmp_path / 'set', {},
        f'<task><id>1</id><labels>{LABELS}</labels>{size}</task>',
        tracks=f'<track id="0" label="disc">{"".join(boxes)}</track>')
    for number in range(4):
        draw_image(tmp_path / f'set/images/frame_{number:06}.PNG')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=.34))
    assert not report.errors
    found = [find_objects(content, image) for content in contents
             for image in range(len(content['images']))]  # yapf: disable
    assert sorted(found) == [[], *(2 * [[('disc', [4, 4, 16, 12])]])]  # the object leaves frame 2
    assert_messages(report.warnings, 'images without annotations, or of no split, are not used (1')


def test_kitti(tmp_path: Path) -> None:
    write_kitti(tmp_path / 'set')
    draw_image(tmp_path / 'set/training/image_2/000009.png')
    draw_image(tmp_path / 'set/testing/image_2/000000.png')
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=.2))
    assert not report.errors and [len(content['images']) for content in contents] == [4, 1]
    sources = json.loads((tmp_path / 'own_data/sources.json').read_text())['files']
    assert all(name.endswith('.txt') for name in sources)  # images are not read
    assert find_objects(contents[1]) == [('Car', [4, 4, 16, 12])]
    assert [category['name'] for category in contents[0]['categories']] == ['Car']
    assert_messages(
        report.warnings, "is in datumaro's kitti_detection format",
        'unlabeled shapes, such as DontCare, are omitted (4, the first: training/image_2/000000',
        'images without shapes count as images without objects (1, the first: training/image_2')


@pytest.mark.parametrize('label_zero', [None, 'ignore'])
def test_label_maps(label_zero: str | None, run_tool: Callable, tmp_path: Path) -> None:
    """Shapes are drawn, later ones on top; an edited file is noticed and converted again."""
    write_task(tmp_path / 'set')
    arguments = ['--label-zero', label_zero] if label_zero else []
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--data', tmp_path / 'set', '--out', out,
             '--val-fraction', '0.5', *arguments)  # yapf: disable
    run_tool('check_dataset', out)
    file = tmp_path / 'own_data/masks/0.png.png'
    label_map = np.asarray(Image.open(file))
    assert label_map[5, 5] == 1 and label_map[21, 15] == 2 and label_map[39, 47] == 0
    assert "'background'" in out.read_text() or label_zero
    annotations = tmp_path / 'set/annotations.xml'
    annotations.write_text(annotations.read_text().replace('xtl="4" ytl="4"', 'xtl="4" ytl="8"'))
    with pytest.raises(SystemExit):
        run_tool('check_dataset', out)
    run_tool('check_dataset', out, '--reconvert')
    assert np.asarray(Image.open(file))[5, 5] == 0


def test_two_folders(tmp_path: Path) -> None:
    """Training and validation can be exported apart."""
    for split in ('a', 'b'):
        write_task(tmp_path / split)
    paths = tmp_path / 'a', tmp_path / 'b/annotations.xml'
    contents, report = read(options(*paths, out=tmp_path / 'own.py'))
    assert not report.errors and [len(content['images']) for content in contents] == [4, 4]
    with open_dataset(options(*paths, out=tmp_path / 'maps.py'), 'labels', Report()) as labels:
        assert isinstance(labels, LabelSet)
        assert [len(split.label_maps) for split in labels.splits] == [4, 4]


def test_bad_samples(tmp_path: Path) -> None:
    write_kitti(tmp_path / 'set')
    (tmp_path / 'set/training/image_2/000001.png').write_bytes(b'no image')
    args: dict[str, Any] = dict(out=tmp_path / 'own.py', val_fraction=.5)
    _, report = read(options(tmp_path / 'set', **args))
    assert_messages(report.errors, 'image_2/000001.png: cannot be read')
    contents, report = read(options(tmp_path / 'set', on_bad_data='skip', **args))
    assert not report.errors and sum(len(content['images']) for content in contents) == 3
    assert_messages(report.warnings, '1 sample skipped, the first: training/image_2/000001')


@pytest.mark.parametrize('old, new, says', [
    ('</annotations>', '', 'cannot be read by datumaro as cvat: ParseError: no element found'),
    ('2.png', 'no.png', 'has name=no.png. Put all images into the folder images next to'),
    ('3, 4, 3', '3, x', "cvat: ValueError: invalid literal for int() with base 10: ' x'"),
    ('xbr="20" ybr="16"', 'xbr="1e8" ybr="16"', 'its annotations: shape 1 has the coordinates [4'),
    ('xbr="20" ybr="16"', 'xbr="nan" ybr="16"', 'shape 1 has the coordinates [4.0, 4.0, nan'),
    ('xbr="20" ybr="16"', 'xbr="2" ybr="16"', 'shape 1 has the coordinates [4.0, 4.0, 2.0'),
    ("width='48'", "width='96'", 'annotations.xml: says 96 x 40 pixels, but'),
    ('<image', '<!-- <image', 'has no training images'),
])
def test_damaged_files(old: str, new: str, says: str, tmp_path: Path) -> None:
    write_task(tmp_path / 'set')
    file = tmp_path / 'set/annotations.xml'
    text = file.read_text().replace(old, new)
    file.write_text(text.replace('</image>', '</image> -->') if '<!--' in new else text)
    for kind in ('instances', 'labels'):
        report = Report()
        args = options(file, out=tmp_path / 'own.py', val_fraction=.5)
        try:
            with open_dataset(args, kind, report):  # type: ignore[arg-type]
                pass
            errors = report.errors
        except UserError as error:
            errors = [str(error)]
        expected = 'has no annotated images' if 'no training' in says and kind == 'labels' else says
        assert_messages(errors, expected)
        assert all(str(tmp_path / 'set') in error for error in errors)
        assert not (tmp_path / 'own_data').exists()


def test_groups(tmp_path: Path) -> None:
    """Grouped shapes are one object, whose box may be listed, too; other boxes are their own."""
    square = '<polygon label="disc" points="4,4;20,4;20,16;4,16" group_id="1"></polygon>'
    far = BOX.replace('xtl="4"', 'xtl="30"').replace('xbr="20"', 'xbr="40"')
    boxes = [far, BOX.replace('xbr="20"', 'xbr="24"')]
    shapes = square + square.replace('20', '24') + ''.join(
        box.replace('occluded', 'group_id="1" occluded') for box in boxes)
    write_task(tmp_path / 'set', shapes)
    contents, report = read(options(tmp_path / 'set', out=tmp_path / 'own.py', val_fraction=.5))
    assert not report.errors
    assert find_objects(contents[0]) == [('disc', [4, 4, 20, 12]), ('disc', [30, 4, 10, 12])]


def test_names_and_crowds_of_open_images(tmp_path: Path) -> None:
    draw_image(tmp_path / 'set/images/train/a.png')
    files = {
        'class-descriptions-boxable.csv': '/m/01,Person\n/m/02,Car\n/m/03,Cat\n',
        'train-annotations-bbox.csv':
            'ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,'
            'IsGroupOf,IsDepiction,IsInside\na,xclick,/m/02,1,0.25,0.5,0.25,0.5,0,0,1,0,0\n',
    }  # yapf: disable
    for name, text in files.items():
        file = tmp_path / 'set/annotations' / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    shutil.copytree(tmp_path / 'set', tmp_path / 'other')
    paths = tmp_path / 'set', tmp_path / 'other'
    contents, report = read(options(*paths, out=tmp_path / 'own.py'))
    assert not report.errors
    assert find_objects(contents[0]) == [('Car', [12, 10, 12, 10])]
    assert [annotation['iscrowd'] for annotation in contents[0]['annotations']] == [1]
    assert [category['name'] for category in contents[0]['categories']] == ['Car']


def test_image_listed_twice(tmp_path: Path) -> None:
    """MVTec's images are read for each of three tasks."""
    for name in ('train/good/1.png', 'test/broken/1.png'):
        draw_image(tmp_path / 'set' / name)
    (tmp_path / 'set/ground_truth/broken').mkdir(parents=True)
    mask = Image.fromarray(np.full((HEIGHT, WIDTH), 255, np.uint8))
    mask.save(tmp_path / 'set/ground_truth/broken/1_mask.png')
    with pytest.raises(UserError, match='lists .*1.png several times as mvtec: pass a more spec'):
        read(options(tmp_path / 'set', out=tmp_path / 'own.py', datumaro_format='mvtec'))


def test_named_format(run_tool: Callable, tmp_path: Path) -> None:
    """Training runs on a dataset in a named format; its conversion records the name."""
    write_kitti(tmp_path / 'set')
    shutil.move(tmp_path / 'set/training', tmp_path / 'set/train')
    out = tmp_path / 'own.py'
    arguments = ['--data', tmp_path / 'set', '--val-fraction', '0.5', '--boxes-only']
    with pytest.raises(SystemExit, match='no_such: datumaro has no such format. It has: .*, cvat,'):
        run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', out, '--datumaro-format',
                 'no_such')
    run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', out, '--datumaro-format',
             'kitti_detection')
    record = json.loads((tmp_path / 'own_data/conversion.json').read_text())
    assert record['options']['datumaro'] == 'kitti_detection'
    run_tool('check_dataset', out, '--reconvert')


def test_other_folders_are_unknown(tmp_path: Path) -> None:
    """Datumaro does not claim folders of images or texts, nor formats of its classifiers."""
    draw_image(tmp_path / 'set/cats/1.png')
    (tmp_path / 'set/notes.txt').write_text('hello')
    with pytest.raises(UserError, match='has an unknown format'):
        detect_format(tmp_path / 'set', 'instances')
