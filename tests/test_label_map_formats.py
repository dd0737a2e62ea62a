"""Label map formats: detection, lossless conversion, splitting, training, errors."""
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
from helpers.label_writers import (COLORS, NAMES, Splits, draw_samples, paint, save, write_camvid,
                                   write_cityscapes, write_folders, write_labelme, write_roboflow,
                                   write_voc)
from helpers.synthetic_data import assert_messages, leaf, train_and_test
from hypothesis import assume, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.datasets.formats.color_masks import parse_text
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.conversion_sources import find_changes
from colonnade.datasets.validation.validation_report import Report
from colonnade.recipes.custom_data import config_creation
from colonnade.recipes.custom_data.data_options import complete_data_options

SPLITS: Splits = {
    'train': draw_samples(['a b', 'ümläut', 'c3', 'c4']),
    'val': draw_samples(['v1', 'v2'], seed=1)
}
ONE: Splits = {'.': draw_samples(['p1_a', 'p1_b', 'p2_a', 'p3_a', 'p3_b'])}


def find_data(out: Path, *paths: Path,
              **options: object) -> tuple[config_creation.CustomDataset | None, Report]:
    """Return what ``create_config.py`` finds without a recipe, and its report."""
    args, report = DataOptions(data=list(paths), converted_dir=out, **options), Report()
    complete_data_options(args)
    data = config_creation.read_dataset_description(
        args, report, masks=True, filter_cfg={}, kind='labels')
    return data, report


def load_label_maps(data: config_creation.CustomDataset) -> dict[str, dict[str, np.ndarray]]:
    """Return the label maps that mmseg loads, by split and image name."""
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
    """Check that label maps equal the original ones, or their values in a table."""
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
def test_formats_are_converted_without_loss(write: Callable, options: dict, classes: tuple | int,
                                            converts: bool, tmp_path: Path) -> None:
    data, report = find_data(tmp_path / 'out', write(tmp_path / 'data', SPLITS), **options)
    assert report.errors == [] and data is not None
    assert data.classes == classes or len(data.classes) == classes
    assert_equal(load_label_maps(data), SPLITS)
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
    data, report = find_data(tmp_path / 'out', tmp_path / 'data')
    assert report.errors == [] and data is not None and data.palette is not None
    assert data.classes[18] == 'bicycle' and data.palette[18] == (119, 11, 32)
    table = np.full(256, 255, np.uint8)
    table[[7, 11, 33]] = 0, 2, 18
    assert_equal(load_label_maps(data), splits, table)


def test_cityscapes_errors(tmp_path: Path) -> None:
    write_cityscapes(tmp_path, SPLITS, 'polygons')
    with pytest.raises(ValueError, match='has no files .*labelTrainIds.png or .*labelIds.png'):
        find_data(tmp_path / 'out', tmp_path)
    write_cityscapes(
        tmp_path / 'ids', {
            'train': draw_samples('a'),
            'val': {
                'b': (SPLITS['val']['v1'][0], np.full((40, 48), 77, np.uint8))
            }
        }, 'labelIds')
    _, report = find_data(tmp_path / 'out', tmp_path / 'ids')
    assert_messages(report.errors,
                    'b_gtFine_labelIds.png cannot be used: Cityscapes IDs must be at most 33')


@pytest.mark.parametrize('zero', [None, 'ignore'])
def test_labelme_polygons_are_drawn(zero: str | None, tmp_path: Path) -> None:
    """Classes are in alphabetical order."""
    data, report = find_data(
        tmp_path / 'out', write_labelme(tmp_path / 'data', SPLITS), label_zero=zero)
    assert report.errors == [] and data is not None
    assert data.classes == (() if zero else ('background', )) + ('house', 'road', 'tree')
    table = np.array([255, 1, 2, 0] if zero else [0, 2, 3, 1], np.uint8)
    assert_equal(load_label_maps(data), SPLITS, table)


def test_labelme_order_and_dropped_shapes(tmp_path: Path) -> None:
    """Later shapes are drawn over earlier ones; lines have no area; one label is ignored."""
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
    data, report = find_data(tmp_path / 'out', tmp_path)
    assert data is not None
    found = load_label_maps(data)['train']['c3']
    assert (found[:, :8] == 255).all() and (found[:, 8:] == data.classes.index('road')).all()
    assert_messages(report.warnings, 'linestrip shapes, which have no area, are omitted')
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
    data, report = find_data(tmp_path / 'out1', tmp_path)
    assert data is not None
    found = load_label_maps(data)['train']['c3']
    assert (found[20:] == data.classes.index('tree')).all() and (found[:20, :8] == 255).all()
    content['shapes'][0]['points'] = 'no'
    file.write_text(json.dumps(content))
    (tmp_path / 'train/c4.jpg').unlink()
    _, report = find_data(tmp_path / 'out2', tmp_path)
    assert_messages(report.errors, 'c3.json: shape 1: points must be',
                    'c4.json: its image c4.jpg does not exist')
    assert not (tmp_path / 'out2').exists()
    data, report = find_data(tmp_path / 'out2', tmp_path, on_bad_data='skip')
    assert data is not None and not load_label_maps(data)['train'].keys() & {'c3', 'c4'}
    assert_messages(report.warnings, '--on-bad-data skip: 2 samples skipped, the first: train/c3')


@pytest.mark.parametrize('write, end', [(write_roboflow, 'train/*_mask.png'),
                                        (write_cityscapes, 'gtFine/train/*/*TrainIds.png')])
def test_images_without_label_maps_are_skipped(write: Callable, end: str, tmp_path: Path) -> None:
    write(tmp_path / 'set', SPLITS)
    masks = sorted((tmp_path / 'set').glob(end))
    masks[0].unlink()
    _, report = find_data(tmp_path / 'out', tmp_path / 'set')
    assert len(report.errors) == report.num_skippable == 1
    data, report = find_data(tmp_path / 'out', tmp_path / 'set', on_bad_data='skip')
    assert data is not None and len(load_label_maps(data)['train']) == len(masks) - 1
    assert_messages(report.warnings, '--on-bad-data skip: 1 sample skipped, the first: ')
    for mask in masks[1:]:
        mask.write_bytes(b'no PNG')
    data, report = find_data(tmp_path / 'out2', tmp_path / 'set', on_bad_data='skip')
    assert_messages(report.errors, 'no usable image is left')
    assert data is None


def test_labelme_chosen_classes(tmp_path: Path) -> None:
    write_labelme(tmp_path, SPLITS)
    data, _ = find_data(tmp_path / 'out', tmp_path, classes=['tree', 'road', 'house'])
    assert data is not None and data.classes == ('background', 'tree', 'road', 'house')
    _, report = find_data(tmp_path / 'out2', tmp_path, classes=['tree', 'road'])
    assert_messages(report.errors, '--classes lacks house: a segmenter needs all classes of ')
    _, report = find_data(tmp_path / 'out2', tmp_path, classes=['tree', 'road', 'hose'])
    assert_messages(report.errors, "; 'hose' is not one: did you mean house?")


@pytest.mark.parametrize('table', [
    'r;g;b;class\n0;0;0;a\n128;64;128;b\n107;142;35;c\n70;70;200;d\n',
    '0 0 0 a\n128 64 128\tb\n107 142 35 c\n70 70 200\td\n',
    'a:0,0,0::\nb:128,64,128::\nc:107,142,35::\nd:70,70,200:wheel,door:\n',
    '\ufeffname, r, g, b\r\na,0,0,0\r\n"b",128,64,128\r\nc,107,142,35\r\nd,70,70,200\r\n',
    '{"a": [0, 0, 0], "b": "#804080", "c": [107, 142, 35], "d": [70, 70, 200]}',
    '[{"name": "a", "color": "#000000"}, {"name": "b", "color": [128, 64, 128]}, '
    '{"name": "c", "color": "#6b8e23"}, {"name": "d", "color": "#4646C8"}]',
])
def test_color_table_formats(table: str, tmp_path: Path) -> None:
    write_camvid(tmp_path / 'data', SPLITS, '')
    file = tmp_path / ('t.json' if table[0] in '[{' else 't.csv')
    file.write_bytes(table.encode())
    data, report = find_data(tmp_path / 'out', tmp_path / 'data', color_map=file)
    assert report.errors == [] and data is not None
    assert data.classes == tuple('abcd') and data.palette == list(COLORS)
    assert_equal(load_label_maps(data), SPLITS)


@pytest.mark.parametrize('table, says', [
    ('name,r,g,b\na,0,0,0\na,1,1,1\n', 'the name a is duplicated'),
    ('name,r,g,b\na,0,0,0\nb,0,0,0\n', r'the color \(0, 0, 0\) is duplicated'),
    ('name,r,g,b\na,0,0,256\n', 'line 2: expected red, green and blue values from 0 to 255 for '),
    ('name,r,g,b\n\na,0,0\n', 'line 3: expected name,r,g,b, got .a,0,0'),
    ('name,r,g,b\n,0,0,0\n', 'line 2: expected a class name'),
    ('name,r,g,b\na,x,0,0\n', 'line 2: expected red, green and blue'),
    ('name,r,g,b\n', 'expected lines with name,r,g,b, got none'),
    ('1,0,0,0\n', 'line 1: it is unclear which value is the name'),
])
def test_invalid_color_tables(table: str, says: str, tmp_path: Path) -> None:
    write_camvid(tmp_path, SPLITS, table)
    with pytest.raises(ValueError, match=f'class_dict.csv: {says}'):
        find_data(tmp_path / 'out', tmp_path)


@example_settings(max_examples=50, deadline=None)
@given(
    rows=st.dictionaries(
        st.text(st.characters(codec='utf-8', categories=(
            'L', 'N', 'P',
            'Zs')), min_size=1).map(str.strip).filter(lambda name: name and name[0] != '#'),
        st.tuples(*[st.integers(0, 255)] * 3),
        min_size=1,
        max_size=40))
def test_color_tables_with_any_names(rows: dict[str, tuple[int, int, int]]) -> None:
    """With a header, a name can be anything that CSV can hold."""
    assume(len(set(rows.values())) == len(rows))
    file = io.StringIO()
    csv.writer(file).writerows([('name', 'r', 'g', 'b'), *((n, *c) for n, c in rows.items())])
    assert dict(parse_text(file.getvalue())) == rows


@pytest.mark.parametrize('text', ['{"a": [0, 0]}', '[[1, 2, 3]]', '{"a": "red"}', '{', '3', '[{}]'])
def test_invalid_json_color_tables(text: str, tmp_path: Path) -> None:
    write_camvid(tmp_path / 'data', SPLITS, '')
    (tmp_path / 't.json').write_text(text)
    with pytest.raises(ValueError, match='t.json: '):
        find_data(tmp_path / 'out', tmp_path / 'data', color_map=tmp_path / 't.json')


def test_unlabeled_rows_of_color_table(tmp_path: Path) -> None:
    rows = zip(('Void', *NAMES[1:]), COLORS, strict=True)
    table = ''.join(f'{name},{",".join(map(str, color))}\n' for name, color in rows)
    data, report = find_data(tmp_path / 'out', write_camvid(tmp_path / 'data', SPLITS, table))
    assert data is not None and data.classes == NAMES[1:]
    assert_equal(load_label_maps(data), SPLITS, np.array([255, 0, 1, 2], np.uint8))
    assert_messages(report.warnings, 'pixels of (0, 0, 0) are ignored')


def test_colors_missing_in_table(tmp_path: Path) -> None:
    """Errors show the file, colors with pixel counts, and the class of similar colors."""
    write_camvid(tmp_path, SPLITS)
    picture = paint(SPLITS['train']['c3'][1])
    picture[0, :5], picture[1, :3] = (9, 9, 250), (126, 66, 128)
    save(tmp_path / 'train_labels/c3_L.png', picture)
    save(tmp_path / 'val_labels/v1_L.png', np.zeros((5, 6, 3), np.uint8))
    Image.fromarray(paint(SPLITS['val']['v2'][1])).save(tmp_path / 'val_labels/v2_L.png', 'JPEG')
    _, report = find_data(tmp_path / 'out', tmp_path)
    assert_messages(
        report.errors, 'c3_L.png cannot be used: colors are not in the table: (9, 9, 250) of '
        "5 pixels; (126, 66, 128) of 3 pixels (near 'road')", 'from anti-aliasing or JPEG',
        'v1_L.png cannot be used: it has 6 x 5 pixels, but the image has 48 x 40',
        'v2_L.png cannot be used: it is a JPEG')
    assert not (tmp_path / 'out').exists()


def test_color_masks_without_table(tmp_path: Path) -> None:
    """The error shows the colors as a table that can be used."""
    write_camvid(tmp_path / 'data', SPLITS, '')
    with pytest.raises(ValueError, match='is color-coded.*\n  name,r,g,b\n') as error:
        find_data(tmp_path / 'out', tmp_path / 'data')
    (tmp_path / 't.csv').write_text(str(error.value).partition('names:\n')[2])
    data, report = find_data(tmp_path / 'out', tmp_path / 'data', color_map=tmp_path / 't.csv')
    assert report.errors == [] and data is not None and len(data.classes) == 4


def test_color_table_with_label_maps(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'table', {})
    table = tmp_path / 'table/class_dict.csv'
    write_folders(tmp_path / 'data', SPLITS)
    with pytest.raises(ValueError, match='has one channel with labels, not colors'):
        find_data(tmp_path / 'out', tmp_path / 'data', color_map=table)
    table.rename(tmp_path / 'data/class_dict.csv')
    data, report = find_data(tmp_path / 'out', tmp_path / 'data')
    assert data is not None and not (tmp_path / 'out').exists()
    assert_messages(report.warnings, 'class_dict.csv is not used')


@pytest.mark.parametrize('group', [None, '^(p.)_'])
def test_split_label_maps_in_place(group: str | None, tmp_path: Path) -> None:
    """Only two lists are written, no label maps."""
    write_folders(tmp_path / 'data', ONE)
    found = []
    masks = dict(masks=[tmp_path / 'data/masks'], images=[tmp_path / 'data/images'])
    for paths, options in (([tmp_path / 'data'], {}), ([], masks)):
        out = tmp_path / f'out{len(found)}'
        data, report = find_data(out, *paths, val_fraction=0.4, group_regex=group, **options)
        assert report.errors == [] and data is not None and data.num_images == (3, 2)
        names = ['conversion.json', 'sources.json', 'train.txt', 'val.txt']
        assert sorted(path.name for path in out.iterdir()) == names
        found.append(load_label_maps(data))
        names = {split: set(samples) for split, samples in found[-1].items()}
        assert names['train'] | names['val'] == set(ONE['.'])
        if group:
            assert not {n[:2] for n in names['train']} & {n[:2] for n in names['val']}
    np.testing.assert_equal(*found)
    with pytest.raises(
            ValueError, match=r"^--group-regex '\(\)' puts all 5 images into one group, ''"):
        find_data(tmp_path / 'one', tmp_path / 'data', val_fraction=0.4, group_regex='()')


def test_convert_and_split_color_masks(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'table', {})
    write_folders(tmp_path / 'data', ONE, colors=True)
    options = dict(val_fraction=0.4, color_map=tmp_path / 'table/class_dict.csv')
    data, report = find_data(tmp_path / 'out', tmp_path / 'data', **options)
    assert report.errors == [] and data is not None and data.num_images == (3, 2)
    found = load_label_maps(data)
    assert_equal({'.': found['train'] | found['val']}, ONE)


def test_split_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='no validation images: pass --val-fraction 0.2'):
        find_data(tmp_path / 'out', write_folders(tmp_path / 'one', ONE))
    with pytest.raises(
            ValueError, match='--val-fraction applies only to data without a validation split'):
        find_data(tmp_path / 'out', write_folders(tmp_path / 'two', SPLITS), val_fraction=0.5)
    with pytest.raises(
            ValueError, match='--val-fraction requires one folder each for --masks and --images'):
        find_data(tmp_path, masks=[tmp_path] * 2, images=[tmp_path] * 2, val_fraction=0.5)
    with pytest.raises(
            ValueError, match='--val-fraction requires one folder each for --masks and --images'):
        find_data(tmp_path, masks=[tmp_path], val_fraction=0.5)
    with pytest.raises(ValueError, match='must have two splits, training and validation, got 4'):
        find_data(tmp_path / 'out', tmp_path / 'two', tmp_path / 'two')
    with pytest.raises(ValueError, match='or one with --val-fraction 0.2'):
        find_data(tmp_path, masks=[tmp_path], images=[tmp_path])


def test_conversion_is_reused(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'data', SPLITS)
    find_data(tmp_path / 'out', tmp_path / 'data')
    state = (tmp_path / 'out').stat().st_mtime_ns
    data, report = find_data(tmp_path / 'out', tmp_path / 'data')
    assert data is not None and (tmp_path / 'out').stat().st_mtime_ns == state
    assert_messages(report.warnings, 'out: reused label maps and image lists')
    save(tmp_path / 'data/train_labels/c3_L.png', paint(SPLITS['train']['c4'][1]))
    os.utime(tmp_path / 'data/train_labels/c3_L.png', (1, 1))
    with pytest.raises(UserError, match='of different data: remove the folder'):
        find_data(tmp_path / 'out', tmp_path / 'data')


def test_edited_masks_make_conversion_stale(tmp_path: Path) -> None:
    """Of label maps that training reads directly, only new ones count as changes."""
    write_camvid(tmp_path / 'data', SPLITS)
    find_data(tmp_path / 'out', tmp_path / 'data')
    assert find_changes(tmp_path / 'out') == []
    mask = tmp_path / 'data/train_labels/c3_L.png'
    save(mask, paint(SPLITS['train']['c4'][1]))
    (tmp_path / 'data/class_dict.csv').write_text('name,r,g,b\n')
    assert find_changes(tmp_path / 'out') == [f'{tmp_path}/data/class_dict.csv (edited)',
                                              f'{mask} (edited)']  # yapf: disable
    write_folders(tmp_path / 'one', ONE)
    find_data(tmp_path / 'lists', tmp_path / 'one', val_fraction=0.4)
    mask = next((tmp_path / 'one/masks').glob('*.png'))
    mask.write_bytes(mask.read_bytes() + b'0')
    assert find_changes(tmp_path / 'lists') == []
    shutil.copy(mask, mask.with_name('new.png'))
    assert find_changes(tmp_path / 'lists') == [f'{mask.with_name("new.png")} (new)']


def test_missing_files(tmp_path: Path) -> None:
    write_camvid(tmp_path / 'a', SPLITS)
    (tmp_path / 'a/train_labels/a b_L.png').unlink()
    _, report = find_data(tmp_path / 'out', tmp_path / 'a')
    assert_messages(report.errors, 'train/a b.png has no label map')
    write_roboflow(tmp_path / 'b', SPLITS)
    (tmp_path / 'b/train/a b_mask.png').unlink()
    (tmp_path / 'b/train/c3.jpg').unlink()
    _, report = find_data(tmp_path / 'out', tmp_path / 'b')
    assert_messages(report.errors, f'a b.jpg has no label map {tmp_path}/b/train/a b_mask.png')
    write_voc(tmp_path / 'c', SPLITS)
    (tmp_path / 'c/SegmentationClass/v1.png').unlink()
    (tmp_path / 'c/ImageSets/Segmentation/train.txt').write_text('c3\n\nno\nümläut\nc3\n')
    _, report = find_data(tmp_path / 'out', tmp_path / 'c')
    assert_messages(report.errors, 'v1.jpg has no label map', 'train.txt:2: the line is empty',
                    'train.txt:3: image')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('rows, says', [
    ('Pixel Value, Class\n0, a\n0, b\n', '0 is duplicated'),
    ('Pixel Value, Class\n0, a\n1, a\n', "'a' is duplicated"),
    ('Pixel Value, Class\n0, a\n300, b\n', 'expected a pixel value from 0 to 254'),
    ('Pixel Value, Class\n0\n', 'expected a pixel value'),
    ('Pixel Value, Class\n', 'has no classes'),
    ('Pixel Value, Class\n0, a\n', 'must have the same content'),
])
def test_invalid_roboflow_classes(rows: str, says: str, tmp_path: Path) -> None:
    write_roboflow(tmp_path, SPLITS)
    (tmp_path / 'train/_classes.csv').write_text(rows)
    with pytest.raises(ValueError, match=f'_classes.csv.*{says}'):
        find_data(tmp_path / 'out', tmp_path)


def test_pascal_voc_benchmark_has_class_names(tmp_path: Path) -> None:
    splits = {'train': draw_samples(['2007_000032']), 'val': draw_samples(['2007_000033'])}
    data, _ = find_data(tmp_path / 'out', write_voc(tmp_path, splits))
    assert data is not None and data.classes[1] == 'aeroplane' and len(data.classes) == 21


def test_options_without_effect(tmp_path: Path) -> None:
    for write, option in ((write_cityscapes, dict(classes=['a'])), (write_camvid,
                                                                    dict(label_zero='class')),
                          (write_labelme, dict(suffixes=['.jpg', '.png'])),
                          (write_roboflow, dict(color_map=tmp_path))):
        root = write(tmp_path / write.__name__, SPLITS)
        with pytest.raises(ValueError, match=f'--{[*option][0].replace("_", "-")} has no effect'):
            find_data(tmp_path / 'out', root, **option)
    with pytest.raises(ValueError, match='--boxes-only applies only to detectors'):
        find_data(tmp_path / 'out', tmp_path / 'write_camvid', boxes_only=True)


def real_splits() -> Splits:
    """Return crops of some ADE20k images with label maps of 150 labels."""
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


def test_real_label_maps_as_color_masks(tmp_path: Path) -> None:
    """151 labels each have a different color."""
    splits = real_splits()
    colors = [(7 * label % 256, 91 * label % 256, label) for label in range(151)]
    pictures = {split: {name: (pixels, paint(labels, colors))
                        for name, (pixels, labels) in samples.items()}
                for split, samples in splits.items()}  # yapf: disable
    write_folders(tmp_path / 'data', pictures)
    rows = (f'label {n},{",".join(map(str, color))}\n' for n, color in enumerate(colors))
    (tmp_path / 'data/palette.csv').write_text(''.join(rows))
    data, report = find_data(tmp_path / 'out', tmp_path / 'data')
    assert report.errors == [] and data is not None and len(data.classes) == 151
    assert_equal(load_label_maps(data), splits)


@pytest.mark.slow
def test_train_on_converted_dataset(tmp_path: Path, run_tool: Callable,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    write_camvid(tmp_path / 'data', SPLITS)
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--data', tmp_path / 'data', '--out', out)
    assert 'is in images and label maps format' in capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert [tuple(color) for color in cfg.metainfo.palette] == list(COLORS)
    assert (tmp_path / 'own_data/masks/train/ümläut.png.png').is_file()
    assert 0 <= train_and_test(run_tool, out)['mIoU'] <= 100


@pytest.mark.slow
@pytest.mark.parametrize(
    'write', [write_folders, write_cityscapes, write_voc, write_roboflow, write_labelme])
def test_train_on_each_format(write: Callable, tmp_path: Path, run_tool: Callable) -> None:
    write(tmp_path / 'data', SPLITS)
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--data', tmp_path / 'data', '--out', out)
    assert 0 <= train_and_test(run_tool, out)['mIoU'] <= 100


def test_documented_commands(tmp_path: Path, run_tool: Callable,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands for label maps work on datasets with the names in the pages."""
    write_folders(tmp_path / 'my_masks', ONE, 'images', 'labels')
    write_folders(tmp_path / 'painted', SPLITS, colors=True)
    table = dict(zip(('sky', 'road', 'tree', 'house'), COLORS, strict=True))
    (tmp_path / 'colors.json').write_text(json.dumps(table))
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / 'docs/guides/custom_datasets.md').read_text()
    guide = ''.join(
        guide.partition(f'\n## {first}')[2].partition(f'\n## {after}')[0]
        for first, after in (('Label maps', 'More bands than RGB'), ('Unlabeled images',
                                                                     'What the config sets')))
    shutil.copytree(tmp_path / 'my_masks/images', tmp_path / 'my_unlabeled')
    formats = (ROOT / 'docs/reference/data_formats.md').read_text()
    page = guide + formats.partition('\n## Label map formats')[2]
    commands = [
        line for block in re.findall('```sh\n(.*?)```', page, re.DOTALL)
        for line in block.replace('\\\n', '').splitlines()
    ]
    for _, tool, *arguments in map(shlex.split, commands):
        run_tool(tool.replace('-', '_'), *arguments)
    assert len(commands) == len(list(tmp_path.glob('*.py'))) == 3


def test_ambiguous_folders(tmp_path: Path) -> None:
    """Of several matching names, the folder with images is used."""
    write_folders(tmp_path, {**SPLITS, 'test': draw_samples('t')}, 'Images/{}', 'masks/{}')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/a.txt').write_text('0 0.5 0.5 0.1 0.1')
    data, report = find_data(tmp_path / 'out', tmp_path)
    assert report.errors == [] and data is not None and data.num_images == (4, 2)
    assert_messages(report.warnings, 'Images/test is not used: it is the test split')
    write_folders(tmp_path, SPLITS, 'img/{}')
    with pytest.raises(ValueError, match='Images and .*img: pass --masks'):
        find_data(tmp_path / 'out', tmp_path)


def test_split_folders_with_year(tmp_path: Path) -> None:
    write_folders(tmp_path, SPLITS, 'images/{}2017', 'masks/{}2017')
    data, report = find_data(tmp_path / 'out', tmp_path)
    assert report.errors == [] and data is not None and data.num_images == (4, 2)


def test_other_files_next_to_voc_images(tmp_path: Path) -> None:
    write_voc(tmp_path, SPLITS)
    first = (tmp_path / 'ImageSets/Segmentation/train.txt').read_text().split('\n')[0]
    (tmp_path / f'JPEGImages/{first}.a').touch()
    data, report = find_data(tmp_path / 'out', tmp_path)
    assert report.errors == [] and data is not None


@pytest.mark.parametrize('name', ['ends ', ' begins', 'two\nlines'])
def test_names_unsuitable_for_lists(name: str, tmp_path: Path) -> None:
    write_folders(tmp_path / 'data', {'.': draw_samples(['a', name])})
    with pytest.raises(ValueError, match='mmseg reads image names from a list'):
        find_data(tmp_path / 'out', tmp_path / 'data', val_fraction=0.5)
    assert not (tmp_path / 'out').exists()


def test_file_named_like_color_table(tmp_path: Path) -> None:
    write_folders(tmp_path, SPLITS)
    (tmp_path / 'colors.txt').write_text('red\n')
    data, report = find_data(tmp_path / 'out', tmp_path)
    assert data is not None
    assert_messages(report.warnings, 'colors.txt: line 1: expected name,r,g,b')
    (tmp_path / 'palette.csv').write_text('red\n')
    with pytest.raises(ValueError, match='could be the color table .*: pass one with --color-map'):
        find_data(tmp_path / 'out', tmp_path)


def test_file_names_not_in_utf_8(tmp_path: Path) -> None:
    write_folders(tmp_path / 'data', {'.': draw_samples(['a', 'latin\udce4'])})
    _, report = find_data(tmp_path / 'out', tmp_path / 'data', val_fraction=0.5)
    assert_messages(report.errors, 'cannot be read: its name is not valid UTF-8: rename it')


def test_color_masks_in_chosen_folders(tmp_path: Path) -> None:
    write_camvid(tmp_path, SPLITS)
    folders = dict(
        masks=[tmp_path / 'train_labels', tmp_path / 'val_labels'],
        images=[tmp_path / 'train', tmp_path / 'val'])
    data, report = find_data(tmp_path / 'out', color_map=tmp_path / 'class_dict.csv', **folders)
    assert report.errors == [] and data is not None and data.classes == NAMES
    assert_equal(load_label_maps(data), SPLITS)
    assert (tmp_path / 'out/conversion.json').is_file()


def test_labelme_test_split_is_ignored(tmp_path: Path) -> None:
    write_labelme(tmp_path, {'train': ONE['.'], 'test': draw_samples('t')})
    data, report = find_data(tmp_path / 'out', tmp_path, val_fraction=0.4)
    assert report.errors == [] and data is not None and data.num_images == (3, 2)
    assert_messages(report.warnings, 'images of the test split are not used')


def test_two_paths_are_training_and_validation(tmp_path: Path) -> None:
    for split, samples in SPLITS.items():
        write_folders(tmp_path / split, {'.': samples}, 'images', 'masks')
    data, report = find_data(tmp_path / 'out', tmp_path / 'train', tmp_path / 'val')
    assert report.errors == [] and data is not None
    assert_equal(load_label_maps(data), SPLITS)
