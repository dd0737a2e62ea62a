"""Label maps of every form: found, converted without loss, split, trained; and their faults."""
from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, SHARED
from helpers.drawn_data import assert_said, leaf, trained_and_tested
from helpers.label_writers import (COLOURS, NAMES, Splits, draw_samples, painted, save,
                                   write_camvid, write_cityscapes, write_folders, write_labelme,
                                   write_roboflow, write_voc)
from hypothesis import assume, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.datasets.formats.color_tables import text_rows
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.conversion_sources import find_changes
from colonnade.datasets.validation.validation_report import Report
from colonnade.recipes.custom_data import config_creation
from colonnade.recipes.custom_data.data_options import check_data_options, complete_data_options

SPLITS: Splits = {
    'train': draw_samples(['a b', 'ümläut', 'c3', 'c4']),
    'val': draw_samples(['v1', 'v2'], seed=1)
}
ONE: Splits = {'.': draw_samples(['p1_a', 'p1_b', 'p2_a', 'p3_a', 'p3_b'])}


def look(out: Path, *paths: Path,
         **options: object) -> tuple[config_creation.OwnData | None, Report]:
    """What ``create_config.py`` finds, without a recipe."""
    args, report = DataOptions(data=list(paths), data_out=out, **options), Report()
    check_data_options(args)
    complete_data_options(args)
    data = config_creation.look_at_data(args, report, masks=True, filter_cfg={}, kind='labels')
    return data, report


def loaded(data: config_creation.OwnData) -> dict[str, dict[str, np.ndarray]]:
    """The label maps as mmseg loads them, by names of images."""
    found = []
    for settings in data.datasets:
        settings = {key: value for key, value in settings.items() if key != 'type'}
        with DefaultScope.overwrite_default_scope('mmseg'):
            dataset = BaseSegDataset(
                **settings,
                data_root=str(data.root),
                metainfo=dict(classes=data.classes),
                pipeline=[])
        infos = [dataset.get_data_info(index) for index in range(len(dataset))]
        assert all(os.path.isfile(info['img_path']) for info in infos)
        found.append({
            Path(info['img_path']).stem.removesuffix('_leftImg8bit'):
            LoadAnnotations()(info)['gt_seg_map']
            for info in infos
        })
    return dict(zip(('train', 'val'), found, strict=True))


def assert_equal(found: dict[str, dict[str, np.ndarray]],
                 splits: Splits,
                 table: np.ndarray | None = None) -> None:
    """Label maps are the original ones, pixel by pixel; or these by a table."""
    assert found.keys() == splits.keys()
    for split, samples in splits.items():
        assert found[split].keys() == samples.keys()
        for name, (_, labels) in samples.items():
            expected = labels if table is None else table[labels]
            np.testing.assert_array_equal(found[split][name], expected, name)


@pytest.mark.parametrize('write, options, classes, converts', [
    (write_cityscapes, {}, 19, False),
    (write_camvid, {}, NAMES, True),
    (write_voc, dict(classes=list(NAMES)), NAMES, False),
    (lambda root, splits: write_voc(root, splits, palette=False), {}, NAMES, True),
    (write_roboflow, {}, NAMES, False),
    (lambda root, splits: write_roboflow(root, splits, (1, 5, 6, 90)), {}, NAMES, True),
    (write_folders, dict(classes=list(NAMES)), NAMES, False),
    (lambda root, splits: write_folders(root, splits, '{}/Img', '{}/GT'), {}, 4, False),
])  # yapf: disable
def test_forms_are_read_without_loss(write: Callable, options: dict, classes: tuple | int,
                                     converts: bool, tmp_path: Path) -> None:
    data, report = look(tmp_path / 'out', write(tmp_path / 'data', SPLITS), **options)
    assert report.faults == [] and data is not None
    assert data.classes == classes or len(data.classes) == classes
    assert_equal(loaded(data), SPLITS)
    assert (tmp_path / 'out').exists() == converts
    if converts:
        record = json.loads((tmp_path / 'out/conversion.json').read_text())
        assert record['counts'] == dict(train=4, val=2) and 'ümläut.png' in str(record['images']) \
            or 'ümläut.jpg' in str(record['images'])
        label_maps = list((tmp_path / 'out/masks').rglob('*.png'))
        assert {Image.open(file).mode for file in label_maps} == {'L'}


def test_cityscapes_ids_become_train_ids(tmp_path: Path) -> None:
    ids = np.array([7, 11, 33, 4, 0, 3], np.uint8)  # road, building, bicycle, and none
    splits = {
        split: {name: (pixels, ids[labels + 2 * (split == 'val')])
                for name, (pixels, labels) in samples.items()}
        for split, samples in SPLITS.items()
    }  # yapf: disable
    write_cityscapes(tmp_path / 'data', splits, 'labelIds')
    data, report = look(tmp_path / 'out', tmp_path / 'data')
    assert report.faults == [] and data is not None and data.palette is not None
    assert data.classes[18] == 'bicycle' and data.palette[18] == (119, 11, 32)
    table = np.full(256, 255, np.uint8)
    table[[7, 11, 33]] = 0, 2, 18
    assert_equal(loaded(data), splits, table)


def test_cityscapes_without_label_maps(tmp_path: Path) -> None:
    write_cityscapes(tmp_path, SPLITS, 'polygons')
    with pytest.raises(ValueError, match='no files .*labelTrainIds.png or .*labelIds.png'):
        look(tmp_path / 'out', tmp_path)
    write_cityscapes(
        tmp_path / 'ids', {
            'train': draw_samples('a'),
            'val': {
                'b': (SPLITS['val']['v1'][0], np.full((40, 48), 77, np.uint8))
            }
        }, 'labelIds')
    _, report = look(tmp_path / 'out', tmp_path / 'ids')
    assert_said(report.faults, 'b_gtFine_labelIds.png cannot be used: Cityscapes\' ids end at 33')


@pytest.mark.parametrize('zero', [None, 'unlabelled'])
def test_polygons_are_painted(zero: str | None, tmp_path: Path) -> None:
    """Classes are in the alphabet's order."""
    data, report = look(tmp_path / 'out', write_labelme(tmp_path / 'data', SPLITS), zero=zero)
    assert report.faults == [] and data is not None
    assert data.classes == (() if zero else ('background', )) + ('house', 'road', 'tree')
    table = np.array([255, 1, 2, 0] if zero else [0, 2, 3, 1], np.uint8)
    assert_equal(loaded(data), SPLITS, table)


def test_order_of_polygons_and_what_is_lost(tmp_path: Path) -> None:
    """Later shapes lie over earlier ones; lines have no area; one label is ignored."""
    write_labelme(tmp_path, SPLITS)
    file = tmp_path / 'train/c3.json'
    content = json.loads(file.read_text())
    whole = dict(points=[[0, 0], [48, 40]], shape_type='rectangle', flags={})
    part = dict(points=[[0, 0], [8, 0], [8, 40], [0, 40]], shape_type='polygon', flags={})
    content['shapes'] += [
        dict(whole, label='road'),
        dict(part, label='__ignore__'),
        dict(part, label='way', shape_type='linestrip')
    ]
    file.write_text(json.dumps(content))
    data, report = look(tmp_path / 'out', tmp_path)
    assert data is not None
    found = loaded(data)['train']['c3']
    assert (found[:, :8] == 255).all() and (found[:, 8:] == data.classes.index('road')).all()
    assert_said(report.remarks, 'linestrip, which have no area, are left out')
    assert json.loads((tmp_path / 'out/conversion.json').read_text())['lost']
    pixels = io.BytesIO()
    Image.new('1', (48, 20), 1).save(pixels, 'PNG')
    content['shapes'].append(
        dict(
            points=[[0, 20], [47, 39]],
            shape_type='mask',
            label='tree',
            mask=base64.b64encode(pixels.getvalue()).decode()))
    file.write_text(json.dumps(content))
    data, report = look(tmp_path / 'out1', tmp_path)
    assert data is not None
    found = loaded(data)['train']['c3']
    assert (found[20:] == data.classes.index('tree')).all() and (found[:20, :8] == 255).all()
    content['shapes'][0]['points'] = 'no'
    file.write_text(json.dumps(content))
    (tmp_path / 'train/c4.jpg').unlink()
    _, report = look(tmp_path / 'out2', tmp_path)
    assert_said(report.faults, 'c3.json: shape 1: points must be', 'c4.json: there is no image')
    assert not (tmp_path / 'out2').exists()
    data, report = look(tmp_path / 'out2', tmp_path, on_bad_data='skip')
    assert data is not None and not loaded(data)['train'].keys() & {'c3', 'c4'}
    assert_said(report.remarks, '--on-bad-data skip: 2 samples are left out, the first: train/c3')


def test_names_of_labelme_that_are_chosen(tmp_path: Path) -> None:
    write_labelme(tmp_path, SPLITS)
    data, _ = look(tmp_path / 'out', tmp_path, classes=['tree', 'road', 'house'])
    assert data is not None and data.classes == ('background', 'tree', 'road', 'house')
    _, report = look(tmp_path / 'out2', tmp_path, classes=['tree', 'road'])
    assert_said(report.faults, "a b.json cannot be used: 'house' is none of --classes")


@pytest.mark.parametrize('table', [
    'r;g;b;class\n0;0;0;a\n128;64;128;b\n107;142;35;c\n70;70;200;d\n',
    '0 0 0 a\n128 64 128\tb\n107 142 35 c\n70 70 200\td\n',
    'a:0,0,0::\nb:128,64,128::\nc:107,142,35::\nd:70,70,200:wheel,door:\n',
    '\ufeffname, r, g, b\r\na,0,0,0\r\n"b",128,64,128\r\nc,107,142,35\r\nd,70,70,200\r\n',
    '{"a": [0, 0, 0], "b": "#804080", "c": [107, 142, 35], "d": [70, 70, 200]}',
    '[{"name": "a", "color": "#000000"}, {"name": "b", "color": [128, 64, 128]}, '
    '{"name": "c", "color": "#6b8e23"}, {"name": "d", "color": "#4646C8"}]',
])
def test_tables_of_every_form(table: str, tmp_path: Path) -> None:
    write_camvid(tmp_path / 'data', SPLITS, '')
    file = tmp_path / ('t.json' if table[0] in '[{' else 't.csv')
    file.write_bytes(table.encode())
    data, report = look(tmp_path / 'out', tmp_path / 'data', colours=file)
    assert report.faults == [] and data is not None
    assert data.classes == tuple('abcd') and data.palette == list(COLOURS)
    assert_equal(loaded(data), SPLITS)


@pytest.mark.parametrize('table, says', [
    ('name,r,g,b\na,0,0,0\na,1,1,1\n', 'a name stands there more than once: a'),
    ('name,r,g,b\na,0,0,0\nb,0,0,0\n', r'a colour stands there more than once: \(0, 0, 0\)'),
    ('name,r,g,b\na,0,0,256\n', 'line 2: wanted red, green and blue from 0 to 255 for .a.'),
    ('name,r,g,b\n\na,0,0\n', 'line 3: wanted name,r,g,b, got .a,0,0'),
    ('name,r,g,b\n,0,0,0\n', 'line 2: wanted the name of a class'),
    ('name,r,g,b\na,x,0,0\n', 'line 2: wanted red, green and blue'),
    ('name,r,g,b\n', 'there is no row in it'),
    ('1,0,0,0\n', 'line 1: which of these is the name'),
])
def test_tables_that_are_wrong(table: str, says: str, tmp_path: Path) -> None:
    write_camvid(tmp_path, SPLITS, table)
    with pytest.raises(ValueError, match=f'class_dict.csv: {says}'):
        look(tmp_path / 'out', tmp_path)


@example_settings(max_examples=50, deadline=None)
@given(
    rows=st.dictionaries(
        st.text(st.characters(codec='utf-8', categories=(
            'L', 'N', 'P',
            'Zs')), min_size=1).map(str.strip).filter(lambda name: name and name[0] != '#'),
        st.tuples(*[st.integers(0, 255)] * 3),
        min_size=1,
        max_size=40))
def test_tables_of_any_names(rows: dict[str, tuple[int, int, int]]) -> None:
    """With a heading, a name may be anything that CSV can hold."""
    assume(len(set(rows.values())) == len(rows))
    file = io.StringIO()
    csv.writer(file).writerows([('name', 'r', 'g', 'b'), *((n, *c) for n, c in rows.items())])
    assert dict(text_rows(file.getvalue())) == rows


@pytest.mark.parametrize('text', ['{"a": [0, 0]}', '[[1, 2, 3]]', '{"a": "red"}', '{', '3', '[{}]'])
def test_json_that_is_no_table(text: str, tmp_path: Path) -> None:
    write_camvid(tmp_path / 'data', SPLITS, '')
    (tmp_path / 't.json').write_text(text)
    with pytest.raises(ValueError, match='t.json: '):
        look(tmp_path / 'out', tmp_path / 'data', colours=tmp_path / 't.json')


def test_rows_that_stand_for_unlabelled_pixels(tmp_path: Path) -> None:
    rows = zip(('Void', *NAMES[1:]), COLOURS, strict=True)
    table = ''.join(f'{name},{",".join(map(str, colour))}\n' for name, colour in rows)
    data, report = look(tmp_path / 'out', write_camvid(tmp_path / 'data', SPLITS, table))
    assert data is not None and data.classes == NAMES[1:]
    assert_equal(loaded(data), SPLITS, np.array([255, 0, 1, 2], np.uint8))
    assert_said(report.remarks, 'pixels of (0, 0, 0) are unlabelled')


def test_colours_that_are_not_in_the_table(tmp_path: Path) -> None:
    """The file, the colours and their pixels; the nearest class where edges are smooth."""
    write_camvid(tmp_path, SPLITS)
    picture = painted(SPLITS['train']['c3'][1])
    picture[0, :5], picture[1, :3] = (9, 9, 250), (126, 66, 128)
    save(tmp_path / 'train_labels/c3_L.png', picture)
    save(tmp_path / 'val_labels/v1_L.png', np.zeros((5, 6, 3), np.uint8))
    Image.fromarray(painted(SPLITS['val']['v2'][1])).save(tmp_path / 'val_labels/v2_L.png', 'JPEG')
    _, report = look(tmp_path / 'out', tmp_path)
    assert_said(
        report.faults, 'c3_L.png cannot be used: colours that are not in the table: (9, 9, 250) of '
        "5 pixels; (126, 66, 128) of 3 pixels (near 'road')", 'smooth edges or from JPEG',
        'v1_L.png cannot be used: it has 6 x 5 pixels, the image 48 x 40',
        'v2_L.png cannot be used: it is a JPEG')
    assert not (tmp_path / 'out').exists()


def test_pictures_without_a_table(tmp_path: Path) -> None:
    """The error shows the colours as a table, which can be used with names."""
    write_camvid(tmp_path / 'data', SPLITS, '')
    with pytest.raises(ValueError, match='is a picture in colours.*\n  name,r,g,b\n') as error:
        look(tmp_path / 'out', tmp_path / 'data')
    (tmp_path / 't.csv').write_text(str(error.value).partition('names:\n')[2])
    data, report = look(tmp_path / 'out', tmp_path / 'data', colours=tmp_path / 't.csv')
    assert report.faults == [] and data is not None and len(data.classes) == 4


def test_tables_beside_label_maps_of_one_channel(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'table', {})
    table = tmp_path / 'table/class_dict.csv'
    write_folders(tmp_path / 'data', SPLITS)
    with pytest.raises(ValueError, match='has one channel, which holds labels and no colours'):
        look(tmp_path / 'out', tmp_path / 'data', colours=table)
    table.rename(tmp_path / 'data/class_dict.csv')
    data, report = look(tmp_path / 'out', tmp_path / 'data')
    assert data is not None and not (tmp_path / 'out').exists()
    assert_said(report.remarks, 'class_dict.csv is not used')


@pytest.mark.parametrize('group', [None, '^(p.)_'])
def test_one_set_is_split(group: str | None, tmp_path: Path) -> None:
    """In place: nothing but two lists is written."""
    write_folders(tmp_path / 'data', ONE)
    found = []
    masks = dict(masks=[tmp_path / 'data/masks'], images=[tmp_path / 'data/images'])
    for paths, options in (([tmp_path / 'data'], {}), ([], masks)):
        out = tmp_path / f'out{len(found)}'
        data, report = look(out, *paths, split=0.4, group=group, **options)
        assert report.faults == [] and data is not None and data.num_images == (3, 2)
        names = ['conversion.json', 'sources.json', 'train.txt', 'val.txt']
        assert sorted(path.name for path in out.iterdir()) == names
        found.append(loaded(data))
        names = {split: set(samples) for split, samples in found[-1].items()}
        assert names['train'] | names['val'] == set(ONE['.'])
        if group:
            assert not {n[:2] for n in names['train']} & {n[:2] for n in names['val']}
    np.testing.assert_equal(*found)


def test_one_set_of_colours_is_converted_and_split(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'table', {})
    write_folders(tmp_path / 'data', ONE, colours=True)
    options = dict(split=0.4, colours=tmp_path / 'table/class_dict.csv')
    data, report = look(tmp_path / 'out', tmp_path / 'data', **options)
    assert report.faults == [] and data is not None and data.num_images == (3, 2)
    found = loaded(data)
    assert_equal({'.': found['train'] | found['val']}, ONE)


def test_a_split_that_is_needed_or_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='no validation set. --split 0.2'):
        look(tmp_path / 'out', write_folders(tmp_path / 'one', ONE))
    with pytest.raises(ValueError, match='--split is for one set of images, and there are two'):
        look(tmp_path / 'out', write_folders(tmp_path / 'two', SPLITS), split=0.5)
    with pytest.raises(ValueError, match='--split takes one folder of --masks'):
        look(tmp_path, masks=[tmp_path] * 2, images=[tmp_path] * 2, split=0.5)
    with pytest.raises(ValueError, match='--split takes one folder of --masks'):
        look(tmp_path, masks=[tmp_path], split=0.5)
    with pytest.raises(ValueError, match='have 4 parts, wanted are two'):
        look(tmp_path / 'out', tmp_path / 'two', tmp_path / 'two')
    with pytest.raises(ValueError, match='or say --split 0.2'):
        look(tmp_path, masks=[tmp_path], images=[tmp_path])


def test_a_conversion_happens_once(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'data', SPLITS)
    look(tmp_path / 'out', tmp_path / 'data')
    state = (tmp_path / 'out').stat().st_mtime_ns
    data, report = look(tmp_path / 'out', tmp_path / 'data')
    assert data is not None and (tmp_path / 'out').stat().st_mtime_ns == state
    assert_said(report.remarks, 'out is used again: label maps and lists')
    save(tmp_path / 'data/train_labels/c3_L.png', painted(SPLITS['train']['c4'][1]))
    os.utime(tmp_path / 'data/train_labels/c3_L.png', (1, 1))
    with pytest.raises(UserError, match='of other data: remove it'):
        look(tmp_path / 'out', tmp_path / 'data')


def test_masks_edited_after_the_conversion(tmp_path: Path) -> None:
    """Those in colours are stale; those that training reads itself only if one is new."""
    write_camvid(tmp_path / 'data', SPLITS)
    look(tmp_path / 'out', tmp_path / 'data')
    assert find_changes(tmp_path / 'out') == []
    mask = tmp_path / 'data/train_labels/c3_L.png'
    save(mask, painted(SPLITS['train']['c4'][1]))
    (tmp_path / 'data/class_dict.csv').write_text('name,r,g,b\n')
    assert find_changes(tmp_path / 'out') == [f'{tmp_path}/data/class_dict.csv (edited)',
                                              f'{mask} (edited)']  # yapf: disable
    write_folders(tmp_path / 'one', ONE)
    look(tmp_path / 'lists', tmp_path / 'one', split=0.4)
    mask = next((tmp_path / 'one/masks').glob('*.png'))
    mask.write_bytes(mask.read_bytes() + b'0')
    assert find_changes(tmp_path / 'lists') == []
    shutil.copy(mask, mask.with_name('new.png'))
    assert find_changes(tmp_path / 'lists') == [f'{mask.with_name("new.png")} (new)']


def test_files_that_are_missing(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'a', SPLITS)
    (tmp_path / 'a/train_labels/a b_L.png').unlink()
    _, report = look(tmp_path / 'out', tmp_path / 'a')
    assert_said(report.faults, 'train/a b.png has no label map')
    write_roboflow(tmp_path / 'b', SPLITS)
    (tmp_path / 'b/train/a b_mask.png').unlink()
    (tmp_path / 'b/train/c3.jpg').unlink()
    _, report = look(tmp_path / 'out', tmp_path / 'b')
    assert_said(report.faults, 'a b.jpg has no label map a b_mask.png')
    write_voc(tmp_path / 'c', SPLITS)
    (tmp_path / 'c/SegmentationClass/v1.png').unlink()
    (tmp_path / 'c/ImageSets/Segmentation/train.txt').write_text('c3\n\nno\nümläut\nc3\n')
    _, report = look(tmp_path / 'out', tmp_path / 'c')
    assert_said(report.faults, 'v1.jpg has no label map', 'train.txt:2: a line without a name',
                'train.txt:3: there is no image')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('rows, says', [
    ('Pixel Value, Class\n0, a\n0, b\n', '0 stands there more than once'),
    ('Pixel Value, Class\n0, a\n1, a\n', "'a' stands there more than once"),
    ('Pixel Value, Class\n0, a\n300, b\n', 'wanted a pixel value from 0 to 254'),
    ('Pixel Value, Class\n0\n', 'wanted a pixel value'),
    ('Pixel Value, Class\n', 'there are no classes in it'),
    ('Pixel Value, Class\n0, a\n', 'must be the same'),
])
def test_lists_of_classes_that_are_wrong(rows: str, says: str, tmp_path: Path) -> None:
    write_roboflow(tmp_path, SPLITS)
    (tmp_path / 'train/_classes.csv').write_text(rows)
    with pytest.raises(ValueError, match=f'_classes.csv.*{says}'):
        look(tmp_path / 'out', tmp_path)


def test_the_benchmark_of_pascal_voc_has_names(tmp_path: Path) -> None:
    splits = {'train': draw_samples(['2007_000032']), 'val': draw_samples(['2007_000033'])}
    data, _ = look(tmp_path / 'out', write_voc(tmp_path, splits))
    assert data is not None and data.classes[1] == 'aeroplane' and len(data.classes) == 21


def test_options_that_have_no_effect(tmp_path: Path) -> None:
    for write, option in ((write_cityscapes, dict(classes=['a'])),
                          (write_camvid, dict(zero='class')), (write_labelme,
                                                               dict(suffixes=['.jpg', '.png'])),
                          (write_roboflow, dict(colours=tmp_path))):
        root = write(tmp_path / write.__name__, SPLITS)
        with pytest.raises(ValueError, match=f'--{[*option][0]} has no effect'):
            look(tmp_path / 'out', root, **option)
    with pytest.raises(ValueError, match='--boxes is for detectors'):
        look(tmp_path / 'out', tmp_path / 'write_camvid', boxes=True)


def real_splits() -> Splits:
    """Parts of some images of ADE20k, each with its label map of 150 labels."""
    root, found = SHARED / 'data/ade', {}
    if not root.is_dir():
        pytest.skip(f'no sample images in {root}')
    for split, name, number in (('train', 'training', 3), ('val', 'validation', 2)):
        folders = next(root.rglob(f'images/{name}')), next(root.rglob(f'annotations/{name}'))
        images = sorted(folders[0].iterdir())[:number]
        found[split] = {
            image.stem:
            tuple(
                np.asarray(Image.open(file))[:240, :320]
                for file in (image, folders[1] / f'{image.stem}.png'))
            for image in images
        }
    return found


def test_real_label_maps_pass_through_colours(tmp_path: Path) -> None:
    """151 labels, each with a colour of its own."""
    splits = real_splits()
    colours = [(7 * label % 256, 91 * label % 256, label) for label in range(151)]
    pictures = {split: {name: (pixels, painted(labels, colours))
                        for name, (pixels, labels) in samples.items()}
                for split, samples in splits.items()}  # yapf: disable
    write_folders(tmp_path / 'data', pictures)
    rows = (f'label {n},{",".join(map(str, colour))}\n' for n, colour in enumerate(colours))
    (tmp_path / 'data/palette.csv').write_text(''.join(rows))
    data, report = look(tmp_path / 'out', tmp_path / 'data')
    assert report.faults == [] and data is not None and len(data.classes) == 151
    assert_equal(loaded(data), splits)


def test_a_converted_set_trains(tmp_path: Path, run_tool: Callable,
                                capsys: pytest.CaptureFixture[str]) -> None:
    write_camvid(tmp_path / 'data', SPLITS)
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--data', tmp_path / 'data', '--out', out)
    assert 'is read as images and label maps' in capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert [tuple(colour) for colour in cfg.metainfo.palette] == list(COLOURS)
    assert (tmp_path / 'own_data/masks/train/ümläut.png.png').is_file()
    assert 0 <= trained_and_tested(run_tool, out)['mIoU'] <= 100


@pytest.mark.slow
@pytest.mark.parametrize(
    'write', [write_folders, write_cityscapes, write_voc, write_roboflow, write_labelme])
def test_each_form_trains(write: Callable, tmp_path: Path, run_tool: Callable) -> None:
    write(tmp_path / 'data', SPLITS)
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--data', tmp_path / 'data', '--out', out)
    assert 0 <= trained_and_tested(run_tool, out)['mIoU'] <= 100


def test_commands_of_the_page(tmp_path: Path, run_tool: Callable,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    """One example of each form, on drawn data."""
    plain = dict(zip(('sky', 'road', 'tree', 'house'), COLOURS, strict=True))
    write_folders(tmp_path / 'my_masks', ONE, 'images', 'labels')
    write_folders(tmp_path / 'folders', SPLITS)
    write_camvid(tmp_path / 'camvid', SPLITS)
    write_folders(tmp_path / 'painted', SPLITS, colours=True)
    (tmp_path / 'colours.json').write_text(json.dumps(plain))
    write_cityscapes(tmp_path / 'cityscapes', SPLITS)
    write_voc(tmp_path / 'voc_masks', SPLITS)
    write_roboflow(tmp_path / 'robo_masks', SPLITS)
    write_labelme(tmp_path / 'polygons', SPLITS)
    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    monkeypatch.chdir(tmp_path)
    page = (ROOT / 'docs/own_data.md').read_text().partition('\n## Label maps')[2]
    commands = [
        line for block in re.findall('```sh\n(.*?)```', page, re.DOTALL)
        for line in block.replace('\\\n', '').splitlines()
    ]
    for _, tool, *arguments in map(shlex.split, commands):
        run_tool(Path(tool).stem, *arguments)
    assert len(commands) == len(list(tmp_path.glob('*.py'))) == 9


def test_folders_that_may_be_meant(tmp_path: Path) -> None:
    """Of several names, the folder that holds images; what is left for tests is said."""
    write_folders(tmp_path, {**SPLITS, 'test': draw_samples('t')}, 'Images/{}', 'masks/{}')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/a.txt').write_text('0 0.5 0.5 0.1 0.1')
    data, report = look(tmp_path / 'out', tmp_path)
    assert report.faults == [] and data is not None and data.num_images == (4, 2)
    assert_said(report.remarks, 'Images/test is left for tests')
    write_folders(tmp_path, SPLITS, 'img/{}')
    with pytest.raises(ValueError, match='Images and .*img may be meant: say --masks'):
        look(tmp_path / 'out', tmp_path)


def test_folders_of_splits_with_a_year(tmp_path: Path) -> None:
    write_folders(tmp_path, SPLITS, 'images/{}2017', 'masks/{}2017')
    data, report = look(tmp_path / 'out', tmp_path)
    assert report.faults == [] and data is not None and data.num_images == (4, 2)


def test_files_beside_the_images_of_voc(tmp_path: Path) -> None:
    write_voc(tmp_path, SPLITS)
    first = (tmp_path / 'ImageSets/Segmentation/train.txt').read_text().split('\n')[0]
    (tmp_path / f'JPEGImages/{first}.a').touch()
    data, report = look(tmp_path / 'out', tmp_path)
    assert report.faults == [] and data is not None


@pytest.mark.parametrize('name', ['ends ', ' begins', 'two\nlines'])
def test_names_that_lists_cannot_hold(name: str, tmp_path: Path) -> None:
    write_folders(tmp_path / 'data', {'.': draw_samples(['a', name])})
    with pytest.raises(ValueError, match='mmseg takes names of images from a list'):
        look(tmp_path / 'out', tmp_path / 'data', split=0.5)
    assert not (tmp_path / 'out').exists()


def test_what_is_named_like_a_table_and_is_none(tmp_path: Path) -> None:
    write_folders(tmp_path, SPLITS)
    (tmp_path / 'colors.txt').write_text('red\n')
    data, report = look(tmp_path / 'out', tmp_path)
    assert data is not None
    assert_said(report.remarks, 'colors.txt: line 1: wanted name,r,g,b')
    (tmp_path / 'palette.csv').write_text('red\n')
    with pytest.raises(ValueError, match='may be the table of colours: say --colours'):
        look(tmp_path / 'out', tmp_path)


def test_names_in_other_encodings(tmp_path: Path) -> None:
    """OpenCV crashes at them."""
    write_folders(tmp_path / 'data', {'.': draw_samples(['a', 'latin\udce4'])})
    _, report = look(tmp_path / 'out', tmp_path / 'data', split=0.5)
    assert_said(report.faults, 'cannot be read: its name is not in UTF-8: rename it')


def test_masks_in_colours_that_are_named(tmp_path: Path) -> None:
    write_camvid(tmp_path, SPLITS)
    folders = dict(
        masks=[tmp_path / 'train_labels', tmp_path / 'val_labels'],
        images=[tmp_path / 'train', tmp_path / 'val'])
    data, report = look(tmp_path / 'out', colours=tmp_path / 'class_dict.csv', **folders)
    assert report.faults == [] and data is not None and data.classes == NAMES
    assert_equal(loaded(data), SPLITS)
    assert (tmp_path / 'out/conversion.json').is_file()


def test_polygons_of_the_test_part_are_left(tmp_path: Path) -> None:
    write_labelme(tmp_path, {'train': ONE['.'], 'test': draw_samples('t')})
    data, report = look(tmp_path / 'out', tmp_path, split=0.4)
    assert report.faults == [] and data is not None and data.num_images == (3, 2)
    assert_said(report.remarks, 'test is left for tests')


def test_two_paths(tmp_path: Path) -> None:
    """Two paths are training and validation."""
    for split, samples in SPLITS.items():
        write_folders(tmp_path / split, {'.': samples}, 'images', 'masks')
    data, report = look(tmp_path / 'out', tmp_path / 'train', tmp_path / 'val')
    assert report.faults == [] and data is not None
    assert_equal(loaded(data), SPLITS)
