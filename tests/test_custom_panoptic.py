"""COCO's panoptic annotations: they are checked, repaired, split, drawn and trained on."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from conftest import ROOT
from helpers.pages import find_blocks, parse_commands
from helpers.synthetic_data import (HEIGHT, WIDTH, assert_messages, coco_content, draw_image,
                                    run_and_get_errors, train_and_test)
from helpers.third_party_formats import options
from mmengine.config import Config

from colonnade.common.errors import UserError
from colonnade.datasets.data_index import DataIndex
from colonnade.datasets.formats.format_detection import detect_format, open_dataset
from colonnade.datasets.segment_maps import PanopticWriter, decode_segment_ids
from colonnade.datasets.training_checks import loaded_datasets  # noqa: F401
from colonnade.datasets.validation.listed_files import CheckLevel
from colonnade.datasets.validation.preflight import check_sources
from colonnade.datasets.validation.sources import check_source, find_sources
from colonnade.datasets.validation.validation_report import Report
from colonnade.settings.checks.class_checks import find_class_problems
from colonnade.settings.reading import read_config

CONFIG = ROOT / 'configs/pmt/xcit_nano_12_p16_slim_shapes_panoptic.py'
CATEGORIES = [dict(id=7, name='disc', isthing=1), dict(id=3, name='sky', isthing=0)]
VAL = Path('annotations/panoptic_val2017')


def write_panoptic(folder: Path,
                   splits: tuple[str, ...] = ('train', 'val'),
                   num_images: int = 2,
                   categories: list[dict[str, Any]] = CATEGORIES) -> Path:
    """Write two discs, of which the second is a crowd, and sky; the first row has no segment."""
    ids = np.full((HEIGHT, WIDTH), 300)
    ids[0], ids[10:20, 5:15], ids[10:20, 20:40] = 0, 1, 2**17
    segments = [dict(segment_id=1, category_id=7), dict(segment_id=300, category_id=3),
                dict(segment_id=2**17, category_id=7, iscrowd=1)]  # yapf: disable
    for split in splits:
        file = folder / f'annotations/panoptic_{split}2017.json'
        writer = PanopticWriter(file, file.with_suffix(''), categories)
        for number in range(1, 1 + num_images):
            image = dict(id=number, file_name=f'{split}{number}.jpg', width=WIDTH, height=HEIGHT)
            draw_image(folder / f'{split}2017' / image['file_name'])
            writer.add(image, ids, segments)
        writer.write()
    return folder


def read(folder: Path, **values: Any) -> tuple[list[DataIndex], Report]:
    report = Report()
    with open_dataset(options(folder, out=folder.parent / 'own.py', **values), 'panoptic',
                      report) as data:
        return list(data or ()), report


def edit(folder: Path, change: Callable[[dict[str, Any]], object], split: str = 'val') -> None:
    file = folder / f'annotations/panoptic_{split}2017.json'
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def write_config(folder: Path, **model: Any) -> Path:
    """Write a config of a panoptic head for the classes of the data."""
    names = [each['name'] for each in CATEGORIES]
    metainfo = dict(classes=names, thing_classes=names[:1], stuff_classes=names[1:], palette=None)
    dataset = dict(data_root=str(folder), metainfo=metainfo)
    file = folder / 'config.py'
    classes = dict(num_things_classes=1, num_stuff_classes=1)
    heads = dict(panoptic_head=classes | model, panoptic_fusion_head=classes)
    file.write_text(f'_base_ = {str(CONFIG)!r}\nmodel = {heads}\n'
                    f'train_dataloader = dict(dataset={dataset})\n'
                    f'val_dataloader = dict(dataset={dataset})\n'
                    'test_dataloader = val_dataloader\n')
    return file


def test_training(tmp_path: Path, run_tool: Callable, capsys: Any) -> None:
    """A config trains on the files in place."""
    write_panoptic(tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', CONFIG, '--data', tmp_path / 'set', '--out', out)
    assert '2 classes: disc, sky' in capsys.readouterr().out
    assert not (tmp_path / 'own_data').exists()
    cfg = Config.fromfile(out)
    for head in (cfg.model.panoptic_head, cfg.model.panoptic_fusion_head):
        assert (head.num_things_classes, head.num_stuff_classes) == (1, 1)
    metainfo = cfg.val_dataloader.dataset.metainfo
    assert (metainfo.thing_classes, metainfo.stuff_classes) == (('disc', ), ('sky', ))
    run_tool('check_dataset', out)
    assert 'check-dataset: no finding' in capsys.readouterr().out
    assert train_and_test(run_tool, out)['coco_panoptic/PQ'] >= 0


@pytest.mark.slow
@pytest.mark.parametrize('isthing', [0, 1])
def test_things_or_stuff_only(isthing: int, tmp_path: Path, run_tool: Callable) -> None:
    categories = [dict(each, isthing=isthing) for each in CATEGORIES]
    write_panoptic(tmp_path / 'set', categories=categories)
    out = tmp_path / 'own.py'
    run_tool('create_config', CONFIG, '--data', tmp_path / 'set', '--out', out)
    assert train_and_test(run_tool, out)['coco_panoptic/PQ'] >= 0


def test_split(tmp_path: Path) -> None:
    """PNG images stay in place; a file without another split is for all images."""
    folder = write_panoptic(tmp_path / 'set', ('train', ), num_images=4)
    with pytest.raises(UserError, match='has no validation images: pass --val-fraction'):
        read(folder)
    (train, val), report = read(folder, val_fraction=0.25)
    assert not report.errors and len(train.rows['images']) == 3 and len(val.label_maps) == 1
    assert sorted(each.name for each in (tmp_path / 'own_data').iterdir()) == [
        'conversion.json', 'sources.json', 'train.json', 'val.json']  # yapf: disable
    assert val.file and val.masks == folder / 'annotations/panoptic_train2017'
    segment = json.loads(val.file.read_text())['annotations'][0]['segments_info'][-1]
    assert (segment['id'], segment['iscrowd'], segment['area']) == (2**17, 1, 200)
    assert re.fullmatch(r'annotations/panoptic_train2017.json: image \d: segment 131072',
                        segment['converted_from'])


def get_segment(content: dict[str, Any]) -> dict[str, Any]:
    return content['annotations'][0]['segments_info'][0]


def rename_maps(folder: Path) -> None:
    """Give PNG images other names than images."""
    for path in list((folder / VAL).iterdir()):
        path.rename(path.with_name(f'{path.stem}_panoptic.png'))
    edit(folder, lambda content: [
        each.update(file_name=each['file_name'].replace('.', '_panoptic.'))
        for each in content['annotations']
    ])  # yapf: disable


@pytest.mark.parametrize('change, says', [
    (lambda c: get_segment(c).update(area=1, bbox=[0, 0, 2, 2]),
     'area or bbox of segments: computed from pixels (1, the first: annotations/panoptic_val2017'),
    (lambda c: get_segment(c).pop('bbox'), 'area or bbox of segments: computed from pixels (1'),
    (lambda c: c['annotations'][0]['segments_info'].append(dict(id=9, category_id=3)),
     'segments without pixels: removed (1'),
    (lambda c: c['categories'].reverse(), 'order'),
    (lambda c: c['images'].append(dict(id=9, file_name='val1.jpg', width=WIDTH, height=HEIGHT)),
     'images without panoptic annotations are not used (1'),
    (lambda c: c['annotations'].append(dict(image_id=9, file_name='a.png', segments_info=[
        dict(id=1, category_id=7, bbox=[0, 0, 1, 1], area=1)])),
     'annotations of images that are not in the file: removed (1'),
])  # yapf: disable
def test_repairs(change: Callable, says: str, tmp_path: Path) -> None:
    folder = write_panoptic(tmp_path / 'set')
    expected = [index.rows for index in read(folder)[0]]
    edit(folder, change)
    (train, val), report = read(folder)
    assert not report.errors and val.file == tmp_path / 'own_data/val.json'
    assert_messages(report.warnings, says)
    for index, rows in zip((train, val), expected, strict=True):
        assert [each['file_name']
                for each in index.rows['images']] == [each['file_name'] for each in rows['images']]
        assert [(each['segment_id'], each['area'], each['bbox']) for each in index.objects] == [
            (each['segment_id'], each['area'], each['bbox']) for each in rows['annotations']
        ]
        assert index.rows['categories'] == CATEGORIES


def test_maps_with_other_names_are_copied(tmp_path: Path) -> None:
    """CocoPanopticDataset derives names of PNG images from those of images."""
    folder = write_panoptic(tmp_path / 'set')
    rename_maps(folder)
    edit(folder, lambda content: content['categories'].reverse())
    (train, val), report = read(folder)
    assert not report.errors
    assert [path.name for path in val.label_maps.values()] == ['val1.png', 'val2.png']
    assert val.masks == tmp_path / 'own_data/val' and len(list(val.masks.iterdir())) == 2


def paint(folder: Path, change: Callable[[np.ndarray], np.ndarray | None]) -> None:
    path = folder / VAL / 'val1.png'
    image = cv2.imread(str(path))
    changed = change(image)
    cv2.imwrite(str(path), image if changed is None else changed)


ERRORS = [
    ('no-label-map', 'sample', lambda f: (f / VAL / 'val1.png').unlink(), 'val1.jpg has no PNG'),
    ('other-label-map', 'sample', lambda f: paint(f, lambda image: image[:9]), '48 x 9 pixels'),
    ('wrong-label-map', 'sample', lambda f: (f / VAL / 'val1.png').write_bytes(b'a'), 'val1.png'),
    ('unlisted-segment', 'meaning', lambda f: paint(f, lambda image: image[..., 2]),
     'It has the mode L, but the ID of a segment is red'),
    ('unlisted-segment', 'meaning', lambda f: paint(f, lambda image: np.maximum(image, 1)),
     'does not list'),
    ('empty-segment', 'meaning', lambda f: edit(f, lambda c: get_segment(c).update(id=9)),
     'image 1: segment 9: no pixel in'),
    ('segment-shape', 'none', lambda f: edit(f, lambda c: get_segment(c).update(area=1)),
     'image 1: segment 1: area 1 and bbox [5, 10, 10, 10], but its pixels have 100 and'),
    ('unknown-category', 'loading', lambda f: edit(f, lambda c: get_segment(c).update(
        category_id=9)), 'image 1: segment 1: category 9 does not exist'),
    ('wrong-value', 'loading', lambda f: edit(f, lambda c: c['categories'][1].pop('isthing')),
     'category 3: isthing must be 0 or 1, got None'),
    ('wrong-value', 'loading', lambda f: edit(f, lambda c: get_segment(c).update(bbox=[1])),
     'image 1: segment 1: bbox must be'),
    ('repeated-image-id', 'meaning', lambda f: edit(f, lambda c: c['images'].append(
        c['images'][0])), 'image 1 is duplicated'),
    ('repeated-segment-id', 'meaning', lambda f: edit(f, lambda c: c['annotations'][0][
        'segments_info'].append(get_segment(c))), 'image 1: segment 1 is duplicated'),
    ('repeated-annotation-id', 'meaning', lambda f: edit(f, lambda c: c['annotations'].append(
        c['annotations'][0])), 'image 1 has several annotations'),
    ('unknown-image', 'meaning', lambda f: edit(f, lambda c: c['images'].pop()),
     'image 2: segment 1: image 2 does not exist'),
    ('no-annotation', 'sample', lambda f: edit(f, lambda c: c['annotations'].pop()),
     'image 2: val2.jpg has no annotation'),
    ('wrong-value', 'loading', lambda f: edit(f, lambda c: c['annotations'][1].update(
        segments_info=None)), 'annotations[1]: segments_info must be a list of segments'),
    ('other-size', 'sample', lambda f: edit(f, lambda c: c['images'][0].update(width=1)),
     'has 48 x 40 pixels, but its annotations say 1 x 40'),
    ('unreadable-annotations', 'loading', lambda f: (f / f'{VAL}.json').write_text('[]'), 'a list'),
]  # yapf: disable


@pytest.mark.parametrize('rule, effect, spoil, says', ERRORS)
def test_checks(rule: str, effect: str, spoil: Callable, says: str, tmp_path: Path) -> None:
    folder = write_panoptic(tmp_path / 'set')
    cfg = read_config(write_config(folder))
    for is_spoilt in (False, True):
        if is_spoilt:
            spoil(folder)
        train, val = find_sources(cfg, ('train', 'val'))
        for source in (train, val):
            check_source(cfg, source, CheckLevel(is_full=True, allow_external_files=False))
        found = [(each.rule, each.effect, each.message) for each in val.report.findings]
        assert not train.report.findings and (is_spoilt or not found)
    assert_messages([each[2] for each in found if each[:2] == (rule, effect)], says)
    preflight = [Report.from_json(each['report']) for each in check_sources(cfg)]
    assert any((rule, effect) in report.counts for report in preflight)


@pytest.mark.parametrize('spoil, says',
                         [(each[2], each[3])
                          for each in ERRORS if each[0] in ('no-label-map', 'unlisted-segment')])
def test_bad_images_are_skipped(spoil: Callable, says: str, tmp_path: Path) -> None:
    folder = write_panoptic(tmp_path / 'set')
    spoil(folder)
    indices, report = read(folder)
    assert not indices and len(report.errors) == 1
    (_, val), report = read(folder, on_bad_data='skip')
    assert list(val.label_maps) == ['val2.jpg'] and not report.errors


@pytest.mark.parametrize('metainfo, model, says', [
    (dict(classes=('sky', 'disc')), {}, 'must start with'),
    (dict(thing_classes=None), {}, 'must start with'),
    (dict(thing_classes=('disc', 'sky')), {}, 'the categories with isthing=1 are disc'),
    (dict(classes=('disc', )), {}, 'does not have sky, which are categories'),
    (dict(classes=('disc', 'sky', 'sea')), {}, 'has sea, but the categories of'),
    ({}, dict(num_stuff_classes=2), 'model.panoptic_head.num_stuff_classes is 2, but'),
])
def test_classes(metainfo: dict, model: dict, says: str, tmp_path: Path) -> None:
    cfg = read_config(write_config(write_panoptic(tmp_path / 'set'), **model))
    assert bool(model) == bool(list(find_class_problems(cfg, ('train_dataloader', ))))
    cfg.train_dataloader.dataset.metainfo.update(metainfo)
    messages = [each.message for each in find_class_problems(cfg, ('train_dataloader', ))]
    assert_messages(messages, says)


def test_formats_are_distinguished(tmp_path: Path, run_tool: Callable) -> None:
    """A folder can have instances and segments; a detector of boxes does not take segments."""
    folder = write_panoptic(tmp_path / 'set')
    with pytest.raises(UserError, match='is in COCO panoptic format, which has panoptic segments'):
        detect_format(folder, 'instances')
    file = folder / 'annotations/instances_train2017.json'
    file.write_text(json.dumps(coco_content()))
    assert detect_format(folder, 'panoptic').name == 'COCO panoptic'
    assert detect_format(folder, 'instances').name == 'COCO'
    assert detect_format(file, 'instances').name == 'COCO'
    assert detect_format(folder / f'{VAL}.json', 'panoptic').name == 'COCO panoptic'
    with pytest.raises(UserError, match='Pass label maps of stuff with --stuff'):
        detect_format(file, 'panoptic')
    for arguments, says in ((['--classes', 'disc'], '--classes applies only to'), ):
        assert_messages(run_and_get_errors(run_tool, CONFIG, '--data', folder, *arguments), says)


def write_instances(folder: Path, labels: np.ndarray) -> list[str | Path]:
    """Write instances and label maps of stuff, and return the arguments for them."""
    for split, first in (('train', 1), ('val', 3)):
        content = coco_content(first=first)
        large = content['annotations'][0]
        large |= dict(bbox=[0, 0, 30, 30], area=900, segmentation=[[0, 0, 30, 0, 30, 30, 0, 30]])
        crowd = large | dict(id=99, iscrowd=1, bbox=[0, 0, 48, 10], area=480,
                             segmentation=[[0, 0, 48, 0, 48, 10, 0, 10]])  # yapf: disable
        content['annotations'].append(crowd)
        for image in content['images']:
            draw_image(folder / split / image['file_name'])
            cv2.imwrite(str(folder / 'stuff' / f'{image["id"]}.png'), labels)
        (folder / f'{split}.json').write_text(json.dumps(content))
    return ['--coco', folder / 'train.json', folder / 'val.json', '--images', folder / 'train',
            folder / 'val', '--stuff', folder / 'stuff', '--stuff-classes']  # yapf: disable


def test_instances_and_stuff(tmp_path: Path, run_tool: Callable, capsys: Any) -> None:
    """Small objects are on top, then large ones, crowds and stuff; names of things are void."""
    (tmp_path / 'stuff').mkdir()
    labels = np.full((HEIGHT, WIDTH), 255, np.uint8)
    labels[:, 32:40], labels[:, 40:44], labels[:, 44:] = 0, 1, 2
    arguments = write_instances(tmp_path, labels)
    out = tmp_path / 'own.py'
    run_tool('create_config', CONFIG, *arguments, 'sky', 'sea', 'disc', '--out', out)
    assert '4 classes: disc, square, sky, sea' in capsys.readouterr().out
    content = json.loads((tmp_path / 'own_data/train.json').read_text())
    annotation = content['annotations'][0]
    ids = decode_segment_ids((tmp_path / 'own_data/train' / annotation['file_name']).read_bytes())
    names = {row['id']: row['name'] for row in content['categories']}
    segments = {segment['id']: (names[segment['category_id']], segment['iscrowd'])
                for segment in annotation['segments_info']}  # yapf: disable
    drawn = {
        (x, y): segments.get(int(ids[y, x]))
        for x, y in ((1, 1), (16, 22), (31, 2), (31, 20), (38, 2), (38, 20), (42, 20), (46, 20))
    }
    assert drawn == {(1, 1): ('disc', 0), (16, 22): ('square', 0), (31, 2): ('disc', 1),
                     (31, 20): None, (38, 2): ('disc', 1), (38, 20): ('sky', 0),
                     (42, 20): ('sea', 0), (46, 20): None}  # yapf: disable
    run_tool('check_dataset', out)
    assert 'train_dataloader.dataset: 2 images, 9 annotations, no findings' in \
        capsys.readouterr().out
    cv2.imwrite(str(tmp_path / 'stuff/1.png'), 255 - labels)
    with pytest.raises(SystemExit, match='would make training or evaluation fail'):
        run_tool('check_dataset', out)
    cv2.imwrite(str(tmp_path / 'stuff/1.png'), labels[::-1])
    run_tool('check_dataset', out, '--reconvert')


def test_documented_command(tmp_path: Path, run_tool: Callable,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that combines instances and stuff works on data with the names in the page."""
    (tmp_path / 'stuff').mkdir()
    write_instances(tmp_path, np.resize(np.uint8([0, 1, 255]), (HEIGHT, WIDTH)))
    (tmp_path / 'stuff').rename(tmp_path / 'my_maps')
    for split in ('train', 'val'):
        folder = tmp_path / 'my_data' / split
        folder.parent.mkdir(exist_ok=True)
        (tmp_path / split).rename(folder)
        (tmp_path / f'{split}.json').rename(folder / '_annotations.coco.json')
    (command, ), = (parse_commands(block)
                    for block in find_blocks(ROOT / 'docs/reference/data_formats.md', 'sh')
                    if '--stuff' in block.code)  # yapf: disable
    monkeypatch.chdir(tmp_path)
    run_tool('create_config', *command[2:])
    classes = Config.fromfile('panoptic.py').train_dataloader.dataset.metainfo.classes
    assert classes == ('disc', 'square', 'sky', 'road')


@pytest.mark.parametrize('spoil, names, says', [
    (lambda f: (f / 'stuff/1.png').unlink(), ['sky', 'sea'], 'stuff/1.png: cannot be used'),
    (lambda f: None, ['sky'], 'no class has label 1: --stuff-classes has 1, starting with label 0'),
])
def test_unusable_stuff(spoil: Callable, names: list[str], says: str, tmp_path: Path,
                        run_tool: Callable) -> None:
    (tmp_path / 'stuff').mkdir()
    arguments = write_instances(tmp_path, np.resize(np.uint8([0, 1, 255]), (HEIGHT, WIDTH)))
    spoil(tmp_path)
    assert_messages(run_and_get_errors(run_tool, CONFIG, *arguments, *names), says)
