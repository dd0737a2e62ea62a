"""Instance formats of other programs: reading returns what was written."""
from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml as yaml_module
from conftest import ROOT
from helpers.synthetic_data import (SHORT, assert_messages, coco_content, draw_image, leaf,
                                    run_and_get_errors)
from helpers.third_party_formats import (BOX, WRITERS, Parts, draw_dataset, options, read,
                                         select_images, write_lines)

from colonnade.common.atomic_files import set_aside
from colonnade.common.errors import UserError
from colonnade.datasets.data_index import AnnotatedImage, DataIndex, Instance, index_images
from colonnade.datasets.formats import datumaro_formats, format_detection
from colonnade.datasets.formats.data_format import DataFormat, ReadContext
from colonnade.datasets.formats.format_detection import detect_format
from colonnade.datasets.formats.instance_formats import open_instances
from colonnade.datasets.validation.preflight import check_sources
from colonnade.datasets.validation.validation_report import Report
from colonnade.settings.reading import read_config


@pytest.fixture(scope='session')
def real(real_data: dict[str, Path]) -> Parts:
    return select_images(real_data['coco'])


@pytest.fixture
def drawn(tmp_path: Path) -> Parts:
    return draw_dataset(tmp_path / 'drawn')


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


def test_custom_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format needs only a reader and a table row; objects keep their file and line."""

    def read_csv(path: Path, context: ReadContext) -> dict[str, DataIndex]:
        found: dict[str, list[AnnotatedImage]] = {'train': [], 'val': []}
        for number, line in enumerate(context.read_lines(path / 'boxes.csv'), 1):
            split, name, label, *sides = line.split(',')
            source = context.locate(path / 'boxes.csv', number)
            left, top, right, bottom = map(float, sides)
            box = Instance(label, (left, top, right, bottom), [], source)
            size = context.read_size(path / name)
            assert size is not None
            found[split].append(AnnotatedImage(path / name, size, source, [box]))
        return {split: index_images(images) for split, images in found.items()}

    toy = DataFormat('toy', 'instances', 'boxes.csv', lambda path: (path / 'boxes.csv').is_file(),
                     partial(open_instances, 'toy', read_csv))
    monkeypatch.setattr(format_detection, 'FORMATS', (*format_detection.FORMATS, toy))
    for name in ('a.png', 'b.png'):
        draw_image(tmp_path / 'set' / name)
    write_lines(tmp_path / 'set/boxes.csv', 'train,a.png,disc,1,2,9,8', 'val,b.png,ring,1,2,9,8')
    (train, val), report = read(options(tmp_path / 'set', out=tmp_path / 'own.py'))
    assert not report.errors and val['categories'] == train['categories']
    assert [each['name'] for each in train['categories']] == ['disc', 'ring']
    annotation, = val['annotations']
    assert annotation['converted_from'] == 'boxes.csv:2' and annotation['bbox'] == [1, 2, 8, 6]


@pytest.mark.parametrize('form', WRITERS)
def test_written_instances_are_read(form: str, real: Parts, tmp_path: Path) -> None:
    WRITERS[form](real, tmp_path / 'set')
    args = options(tmp_path / 'set', out=tmp_path / 'own.py')
    contents, report = read(args)
    assert not report.errors
    rasterised = form in ('voc_polygons', 'yolo_polygons', 'supervisely_bitmaps')  # when written
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
def test_create_config_from_format(form: str, drawn: Parts, tmp_path: Path, run_tool: Callable,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    WRITERS[form](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--out', out)
    said = capsys.readouterr().out
    assert f'{tmp_path / "set"} is in ' in said and '2 classes: disc, square' in said
    record = json.loads((tmp_path / 'own_data/conversion.json').read_text())
    assert record['source'] == [str(tmp_path / 'set')]
    assert record['counts']['train'] == dict(images=2, annotations=4, categories=2)


def test_label_maps_come_before_instances(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['coco'](drawn, tmp_path / 'set')
    assert detect_format(tmp_path / 'set', 'labels').name == 'COCO'
    draw_image(tmp_path / 'set/masks/a.png')
    draw_image(tmp_path / 'set/images/a.png')
    assert detect_format(tmp_path / 'set', 'labels').name == 'images and label maps'
    with pytest.raises(ValueError, match='is in COCO and images and label maps format'):
        detect_format(tmp_path / 'set', 'panoptic')


def test_two_folders_share_inferred_classes(drawn: Parts, tmp_path: Path) -> None:
    """Without a list of classes, both splits have the classes of both."""
    del drawn['val'][1]['annotations'][::2]
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    both = tmp_path / 'set/train', tmp_path / 'set/val'
    contents, report = read(options(*both, out=tmp_path / 'own.py'))
    assert not report.errors
    train, val = (content['categories'] for content in contents)
    assert train == val == [dict(id=0, name='disc'), dict(id=1, name='square')]
    assert {a['category_id'] for a in contents[1]['annotations']} == {1}


def test_split_folder(real: Parts, tmp_path: Path) -> None:
    WRITERS['labelme_polygons'](real, tmp_path / 'set')
    one = tmp_path / 'set/train'
    with pytest.raises(ValueError, match='has no validation images: pass --val-fraction 0.2'):
        read(options(one, out=tmp_path / 'own.py'))
    contents, _ = read(options(one, out=tmp_path / 'own.py', val_fraction=0.4))
    names = [{image['file_name'] for image in content['images']} for content in contents]
    assert len(names[0] | names[1]) == 5 and not names[0] & names[1] and names[1]
    record = json.loads((tmp_path / 'own_data/conversion.json').read_text())['split']
    assert (record['fraction'], record['seed'], set(record['val'])) == (0.4, 0, names[1])
    for other in (dict(val_fraction=0.4, split_seed=1), dict(val_fraction=0.2)):
        with pytest.raises(UserError, match='with a different split: remove the folder, or choose'):
            read(options(one, out=tmp_path / 'own.py', **other))
    with pytest.raises(ValueError, match='does not match 5 image names'):
        read(options(one, out=tmp_path / 'own.py', val_fraction=0.4, group_regex='^(a)'))
    groups = options(one, out=tmp_path / 'g.py', val_fraction=0.4, group_regex=r'(\d)\.jpg$')
    contents, _ = read(groups)
    ends = [{image['file_name'][-5] for image in content['images']} for content in contents]
    assert not ends[0] & ends[1]


def test_split_coco_file(drawn: Parts, tmp_path: Path, run_tool: Callable) -> None:
    file = tmp_path / 'all.json'
    content = coco_content(num_images=8)
    for image in content['images']:
        draw_image(tmp_path / 'images' / image['file_name'])
    file.write_text(json.dumps(content))
    arguments = [
        leaf('mask_rcnn'), '--coco', file, '--images', tmp_path / 'images', '--val-fraction'
    ]
    run_tool('create_config', *arguments, '0.25', '--out', tmp_path / 'own.py')
    assert '6 training and 2 validation images' in (tmp_path / 'own.py').read_text()
    content['annotations'][3]['segmentation'] = [[1, None]]
    file.write_text(json.dumps(content))
    said = run_and_get_errors(run_tool, *arguments, '0.25')
    assert_messages(said, 'all.json: annotation 5: polygons must be numbers')
    assert not Path('own_that_is_not_written_data').exists()


def test_conversion_is_reused(drawn: Parts, tmp_path: Path) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    read(options(tmp_path / 'set', out=out))
    before = (tmp_path / 'own_data/train.json').stat()
    _, report = read(options(tmp_path / 'set', out=out))
    assert_messages(report.warnings, 'own_data: reused')
    assert (tmp_path / 'own_data/train.json').stat() == before
    write_lines(tmp_path / 'set/labels/train/1.txt', BOX)
    with pytest.raises(UserError, match='own_data is a conversion of different data: remove the'):
        read(options(tmp_path / 'set', out=out))
    (tmp_path / 'other').mkdir()
    with pytest.raises(UserError, match='other already exists and is not a converted'):
        read(options(tmp_path / 'set', out=out, converted_dir=tmp_path / 'other'))


def find_preflight_messages(config: Path) -> list[str]:
    reports = [Report.from_json(each['report']) for each in check_sources(read_config(config))]
    return [found.message for report in reports for found in report.findings
            if found.rule != 'partly-checked']  # yapf: disable


@pytest.mark.parametrize('form', ['yolo_boxes', 'voc_boxes', 'labelme_polygons'])
def test_edited_labels_make_conversion_stale(form: str, drawn: Parts, tmp_path: Path,
                                             run_tool: Callable,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Training and check_dataset stop; --reconvert fixes it, also after moving all folders."""
    WRITERS[form](drawn, tmp_path / 'a/set')
    out = tmp_path / 'a/own.py'
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'a/set', '--out', out)
    assert not find_preflight_messages(out)
    source = json.loads((tmp_path / 'a/own_data/sources.json').read_bytes())
    folder = tmp_path / 'a/set'
    file = next(path for path in sorted(folder.rglob('*'))
                if any(str(path).endswith(name) for name in source['labels']))  # yapf: disable
    text = file.read_text()
    os.utime(file, (1, 1))
    assert not find_preflight_messages(out)  # same content
    file.with_name(f'another{file.suffix}').write_text(text)
    assert f'another{file.suffix} (new)' in find_preflight_messages(out)[0]
    file.with_name(f'another{file.suffix}').unlink()
    file.write_text(f'{text}\n')
    assert_messages(
        find_preflight_messages(out), f'{file} (edited). Convert again with: '
        f'colonnade check-dataset {out} --reconvert')
    with pytest.raises(SystemExit, match='1 finding would make'):
        run_tool('check_dataset', out)
    assert 'outdated conversions (1)' in capsys.readouterr().out

    shutil.move(tmp_path / 'a', tmp_path / 'b')
    if form == 'yolo_boxes':
        file = tmp_path / 'b' / file.relative_to(tmp_path / 'a')
        write_lines(file, BOX)
    text = (tmp_path / 'b/own.py').read_text()
    (tmp_path / 'b/own.py').write_text(text.replace(f'{tmp_path}/a', f'{tmp_path}/b'))
    run_tool('check_dataset', tmp_path / 'b/own.py', '--reconvert')
    assert not find_preflight_messages(tmp_path / 'b/own.py')
    assert not (tmp_path / 'b/own_data-again').exists()
    if form == 'yolo_boxes':
        assert len(json.loads((tmp_path / 'b/own_data/train.json').read_bytes())['annotations']) < \
            sum(len(content['annotations']) for _, content in drawn.values())


def add_class(folder: Path) -> None:
    """Add a third class and an object of it."""
    yaml, = folder.glob('*.y*ml')
    content = yaml_module.safe_load(yaml.read_text())
    yaml.write_text(yaml_module.safe_dump(content | dict(names=['disc', 'square', 'cow'], nc=3)))
    write_lines(min(folder.glob('labels/train/*.txt')), '2 0.5 0.5 0.25 0.25')


def move_images(folder: Path) -> None:
    """Move all training images and labels to a subfolder."""
    for kind in ('images', 'labels'):
        for path in list((folder / kind / 'train').iterdir()):
            (folder / kind / 'train/day1').mkdir(exist_ok=True)
            path.rename(folder / kind / 'train/day1' / path.name)


@pytest.mark.parametrize('edit, says', [
    (add_class, 'the classes are now disc, square, cow, and those of the config disc, square'),
    (move_images, 'the images are now in .*day1, and those of the config in '),
])
def test_reconversion_must_fit_config(edit: Callable, says: str, drawn: Parts, tmp_path: Path,
                                      run_tool: Callable, capsys: Any) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--out', out)
    before = (tmp_path / 'own_data/train.json').read_bytes()
    edit(tmp_path / 'set')
    with pytest.raises(SystemExit):
        run_tool('check_dataset', out, '--reconvert')
    assert re.search(f'{says}.*: nothing was changed. Create the config again',
                     capsys.readouterr().err)
    assert (tmp_path / 'own_data/train.json').read_bytes() == before
    assert not (tmp_path / 'own_data-again').exists()


@pytest.mark.parametrize('edit', [add_class, move_images])
def test_updated_config_fits(edit: Callable, drawn: Parts, tmp_path: Path, run_tool: Callable,
                             capsys: pytest.CaptureFixture[str]) -> None:
    """--update repeats the command that the config records, and keeps what it replaces."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--batch-size', 2,
             '--boxes-only', '--out', out)  # yapf: disable
    before = out.read_text()
    assert before.startswith(f'# colonnade create-config {leaf("mask_rcnn")} --data '
                             f'{tmp_path / "set"} --boxes-only --out {out} --batch-size 2\n')
    run_tool('create_config', out, '--update')  # nothing has changed
    assert out.read_text() == before == (tmp_path / 'own_old.py').read_text()
    edit(tmp_path / 'set')
    assert find_preflight_messages(out)
    capsys.readouterr()
    run_tool('create_config', out, '--update')
    printed = capsys.readouterr().out
    assert f'kept as {tmp_path / "own_old2.py"}, {tmp_path / "own_data_old2"}' in printed
    assert ("\n+    classes=('disc', 'square', 'cow')," in printed) == (edit is add_class)
    assert not find_preflight_messages(out) and 'batch_size=2' in out.read_text()
    assert (tmp_path / 'own_old2.py').read_text() == before


def test_update_in_another_folder(drawn: Parts, tmp_path: Path, run_tool: Callable,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded paths are relative to the folder of the command. Other folders are not moved."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    monkeypatch.chdir(tmp_path)
    run_tool('create_config', leaf('mask_rcnn'), '--data', 'set', '--out', 'own.py')
    before = Path('own.py').read_text()
    run_tool('create_config', tmp_path / 'own.py', '--update')
    assert Path('own.py').read_text() == before  # the recorded path, too
    shutil.rmtree('own_data')
    Path('own_data').mkdir()
    Path('own_data/notes').touch()  # no conversion
    with pytest.raises(SystemExit, match='own_data already exists and is not a converted dataset'):
        run_tool('create_config', 'own.py', '--update')
    assert Path('own.py').is_file() and Path('own_data/notes').is_file()
    (tmp_path / 'other').mkdir()
    monkeypatch.chdir(tmp_path / 'other')
    with pytest.raises(SystemExit, match=f'own.py was run in {tmp_path}: run it there'):
        run_tool('create_config', '../own.py', '--update')


def test_set_aside_restores_in_order(tmp_path: Path) -> None:
    """The file is inside of the folder, which is renamed after it."""
    (tmp_path / 'folder').mkdir()
    file = tmp_path / 'folder/a.py'
    file.write_text('a')
    with pytest.raises(KeyError), set_aside(file, tmp_path / 'folder'):
        raise KeyError
    assert file.read_text() == 'a' and os.listdir(tmp_path) == ['folder']
    with pytest.raises(OSError), set_aside(file, Path('/proc/1')):
        pass
    assert os.listdir(tmp_path / 'folder') == ['a.py']


def test_update_restores_after_errors(drawn: Parts, tmp_path: Path, run_tool: Callable) -> None:
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--out', out)
    before = sorted(tmp_path.iterdir()), out.read_text()
    write_lines(min((tmp_path / 'set').glob('labels/train/*.txt')), 'no box')
    with pytest.raises(SystemExit, match='1 error, no config was written'):
        run_tool('create_config', out, '--update')
    assert (sorted(tmp_path.iterdir()), out.read_text()) == before
    with pytest.raises(SystemExit, match='--update takes no other options'):
        run_tool('create_config', out, '--update', '--epochs', 3)
    with pytest.raises(SystemExit, match='does not begin with the command that created it'):
        run_tool('create_config', leaf('mask_rcnn'), '--update')


def test_reconvert_label_maps(drawn: Parts, tmp_path: Path, run_tool: Callable,
                              capsys: pytest.CaptureFixture[str]) -> None:
    """Labels are numbered in the order of names, so other names are rejected."""
    WRITERS['labelme_polygons'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--data', tmp_path / 'set', '--out', out)
    files = sorted((tmp_path / 'set').rglob('*.json'))
    files[0].write_text(files[0].read_text() + '\n')
    assert 'Convert again' in find_preflight_messages(out)[0]
    run_tool('check_dataset', out, '--reconvert')
    assert not find_preflight_messages(out)
    for file in files:
        file.write_text(file.read_text().replace('"disc"', '"zebra"'))
    with pytest.raises(SystemExit):
        run_tool('check_dataset', out, '--reconvert')
    assert 'the classes are now' in capsys.readouterr().err


def test_labels_in_new_folder_make_conversion_stale(drawn: Parts, tmp_path: Path,
                                                    run_tool: Callable) -> None:
    """A new folder counts below existing ones, except hidden folders and conversions."""
    WRITERS['yolo_boxes'](drawn, tmp_path / 'set')
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--out',
             tmp_path / 'own.py')
    folder = min((tmp_path / 'set').rglob('labels'))
    for name in ('.hidden', 'day2'):
        (folder / name).mkdir()
        write_lines(folder / name / '9.txt', BOX)
        found = find_preflight_messages(tmp_path / 'own.py')
        assert bool(found) == (name == 'day2')
    assert 'day2/9.txt (new)' in found[0]


def test_run_next_to_labels_is_ignored(tmp_path: Path, run_tool: Callable) -> None:
    """Labels can be directly in the folder of the dataset, next to work dirs."""
    WRITERS['labelme_polygons'](draw_dataset(tmp_path / 'drawn'), tmp_path / 'set')
    folder = min((tmp_path / 'set').rglob('*.json')).parent
    run_tool('create_config', leaf('mask_rcnn'), '--data', folder, '--val-fraction', '0.5', '--out',
             tmp_path / 'own.py')
    (folder / 'run').mkdir()
    (folder / 'run/scalars.json').write_text('{}')
    assert not find_preflight_messages(tmp_path / 'own.py')
    (folder / 'new.json').write_text('{}')
    assert 'new.json (new)' in find_preflight_messages(tmp_path / 'own.py')[0]


def test_sources_on_another_machine(drawn: Parts, tmp_path: Path, run_tool: Callable) -> None:
    """Images and conversion exist, but sources or their record do not."""
    WRITERS['voc_boxes'](drawn, tmp_path / 'set')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), '--data', tmp_path / 'set', '--out', out)
    for file in (tmp_path / 'set').rglob('*.xml'):
        file.unlink()
    assert_messages(find_preflight_messages(out), 'they cannot be read on this machine')
    (tmp_path / 'own_data/sources.json').write_text('{')
    assert_messages(
        find_preflight_messages(out), 'sources.json or a file that it lists cannot be read')
    (tmp_path / 'own_data/conversion.json').write_text('{}')
    with pytest.raises(SystemExit, match='was converted by an earlier version'):
        run_tool('check_dataset', out, '--reconvert')
    with pytest.raises(
            SystemExit, match='uses no dataset that colonnade create-config has converted'):
        run_tool('check_dataset', leaf('mask_rcnn'), '--reconvert')


def test_documented_commands(drawn: Parts, tmp_path: Path, run_tool: Callable,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands for instances work on datasets with the names in the page."""
    WRITERS['labelme_polygons'](drawn, tmp_path / 'labelme')
    shutil.copytree(tmp_path / 'labelme/train', tmp_path / 'my_data')
    (tmp_path / 'drawn/train').rename(tmp_path / 'images')
    (tmp_path / 'all.json').write_text(json.dumps(drawn['train'][1]))
    monkeypatch.chdir(tmp_path)
    text = (ROOT / 'docs/guides/custom_datasets.md').read_text()
    page = text.partition('\n## Pass files explicitly')[0]
    commands = [line for block in re.findall('```sh\n(.*?)```', page, re.DOTALL)
                for line in block.replace('\\\n', '').splitlines()]  # yapf: disable
    for _, tool, *arguments in map(shlex.split, commands):
        run_tool(tool.replace('-', '_'), *arguments, *(SHORT if tool == 'train' else []))
    assert len(commands) == 4 and len(list(tmp_path.glob('*.py'))) == 3


@pytest.mark.parametrize('names, says', [
    (['a.txt'], 'it contains a.txt. Expected instances, for a detector. Supported formats'),
    ([], 'it contains nothing'),
    (['data.yaml', 'Annotations/1.xml'], 'matches several dataset formats: YOLO and Pascal VOC'),
    (['annotations.xml'], 'is in the XML format of CVAT, which requires another package: pip'),
])
def test_unknown_formats(names: list[str], says: str, tmp_path: Path,
                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datumaro_formats, 'find_spec', lambda name: None)
    texts = {'.yaml': 'train: a\nnames: [b]\n', '.xml': '<annotation/>', '.txt': 'hello',
             'annotations.xml': '<?xml version="1.0"?>\n<annotations>'}  # yapf: disable
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(texts.get(name, texts[Path(name).suffix]))
    with pytest.raises(ValueError, match='(?s)' + re.escape(says)):
        detect_format(tmp_path, 'instances')
    with pytest.raises(FileNotFoundError, match='--data: no such file or folder: '):
        detect_format(tmp_path / 'no', 'instances')


@pytest.mark.parametrize('named, meant', [
    ('sets', 'sets/coco (COCO)'),
    ('sets/coco/train2017', 'sets/coco (COCO)'),
    ('yolo/labels/train', 'yolo (YOLO)'),
    ('yolo/labels', 'yolo (YOLO)'),
    ('yolo/classes.txt', 'yolo (YOLO)'),
])
def test_nearby_folder_is_suggested(named: str, meant: str, drawn: Parts, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS['coco'](drawn, tmp_path / 'sets/coco')
    WRITERS['yolo_boxes'](drawn, tmp_path / 'yolo')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'yolo/data.yaml').unlink()
    (tmp_path / 'yolo/classes.txt').write_text('disc\nsquare\n')
    with pytest.raises(ValueError, match=re.escape(f'Did you mean {meant}?')):
        detect_format(Path(named), 'instances')


def test_archive_is_rejected(tmp_path: Path) -> None:
    (tmp_path / 'set.zip').write_bytes(b'PK')
    with pytest.raises(ValueError, match='set.zip is an archive: unpack it, and pass the folder'):
        detect_format(tmp_path / 'set.zip', 'instances')


@pytest.mark.parametrize('arguments, says', [
    (['--data', '.', '--images', '.'], '--images requires --coco or --masks'),
    (['--data', '.', '.', '.'], '--data takes one path, or two'),
    (['--data', '.', '--val-fraction', '20'], '--val-fraction must be between 0 and 1, got 20'),
    (['--data', '.', '--group-regex', 'a'
      ], '--group-regex and --split-seed require --val-fraction'),
    (['--data', '.', '--val-fraction', '0.2', '--group-regex', 'a'
      ], 'has no group: use parentheses'),
    (['--data', '.', '--val-fraction', '0.2', '--group-regex', '('], 'is not a regular expression'),
    (['--coco', 'a.json', '--images', '.'], 'or one with --val-fraction 0.2'),
])
def test_incompatible_options(arguments: list[str], says: str, run_tool: Callable,
                              tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f'create-config: .*{says}'):
        run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', tmp_path / 'own.py')
