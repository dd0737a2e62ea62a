"""Untrusted annotations run no code, access no external files and cannot exhaust memory."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NO_VAL, NO_WORKERS, config, latest_log
from helpers.packages import write_checkpoint
from helpers.synthetic_data import change, draw_instances, draw_label_maps, leaf
from markdown_it import MarkdownIt
from mmengine.config import Config

from colonnade.common.storage import ShardsBackend
from colonnade.common.storage.shard_index import read_manifest
from colonnade.datasets.formats.data_format import ReadContext
from colonnade.datasets.formats.yolo_yaml import read_yaml
from colonnade.datasets.shards.dataset_sharding import ShardOptions, make_shards
from colonnade.datasets.validation.validation_report import Report
from colonnade.inference import load
from colonnade.inference.packages.creation import CardText, make_package

CODE = 'str(__import__("pathlib").Path("made").touch())'
TEMPLATES = {  # class names with templates that mmengine replaces before it runs a config
    'escape from a literal': '"{{$A:X|\\\'+' + CODE + ',#}}',
    'separate line': '{{$A:X|\\n' + CODE + '}}',
    'base value': '{{_base_.model}}',
}


@pytest.mark.parametrize('kind', TEMPLATES)
def test_templates_in_class_names_are_rejected(kind: str, tmp_path: Path, run_tool: Callable,
                                               monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.chdir(tmp_path)
    arguments = draw_instances(tmp_path)
    for split in ('train', 'val'):
        change(tmp_path / f'{split}.json', 'categories', 0, name=TEMPLATES[kind])
        change(tmp_path / f'{split}.json', 'categories', 1, name='b' * 60)
    with pytest.raises(SystemExit, match='contains {{, which mmengine replaces in configs'):
        run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', 'own.py')
    assert not Path('made').exists() and not Path('own.py').exists()


@pytest.mark.slow
@pytest.mark.parametrize('name',
                         ["a'b", 'a"b\\', 'a\nimport os', '#', "''' + f() + '''", '\x1b[2J'])
def test_class_names_are_written_unchanged(name: str, tmp_path: Path, run_tool: Callable,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_instances(tmp_path)
    for split in ('train', 'val'):
        change(tmp_path / f'{split}.json', 'categories', 0, name=name)
    run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', tmp_path / 'own.py')
    assert Config.fromfile(tmp_path / 'own.py').metainfo.classes[0] == name
    assert '\x1b' not in capsys.readouterr().out


def prepare_training(tmp_path: Path, run_tool: Callable, file_name: str) -> list[Any]:
    """Return the arguments of a training whose annotations contain an image name."""
    run_tool('create_config', leaf('mask_rcnn'), *draw_instances(tmp_path / 'data'), '--out',
             tmp_path / 'own.py')  # yapf: disable
    change(tmp_path / 'data/train.json', 'images', 0, file_name=file_name)
    (tmp_path / 'secret.jpg').write_bytes((tmp_path / 'data/train/1.jpg').read_bytes())
    return [tmp_path / 'own.py', '--work-dir', tmp_path / 'run']


ONE_STEP = ['--cfg-options', 'train_cfg.max_iters=1', 'train_dataloader.batch_size=2', *NO_VAL,
            *NO_WORKERS[:1]]  # yapf: disable


@pytest.mark.slow
@pytest.mark.parametrize('file_name', ['../../secret.jpg', '{}/secret.jpg'])
def test_training_rejects_external_files(file_name: str, tmp_path: Path,
                                         run_tool: Callable) -> None:
    arguments = prepare_training(tmp_path, run_tool, file_name.format(tmp_path))
    with pytest.raises(
            SystemExit, match='train.json refers to 1 file outside of .*secret.jpg.* --allow'):
        run_tool('train', *arguments, *ONE_STEP)


def test_check_dataset_reports_external_files(tmp_path: Path, run_tool: Callable,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    own, *_ = prepare_training(tmp_path, run_tool, '../../secret.jpg')
    with pytest.raises(SystemExit, match='1 finding would make'):
        run_tool('check_dataset', own, '--split', 'train')
    assert 'files outside the folders of their dataset (1)' in capsys.readouterr().out
    run_tool('check_dataset', own, '--split', 'train', '--allow-external-files')
    assert 'no finding would make training' in capsys.readouterr().out


@pytest.mark.parametrize('file_name', ['../../secret.jpg', '{}/secret.jpg'])
def test_create_config_rejects_external_files(file_name: str, tmp_path: Path, run_tool: Callable,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """If they are allowed, the suggested training command allows them, too."""
    data = draw_instances(tmp_path / 'data')
    (tmp_path / 'data/train/1.jpg').rename(tmp_path / 'secret.jpg')
    change(tmp_path / 'data/train.json', 'images', 0, file_name=file_name.format(tmp_path))
    command = ['create_config', leaf('mask_rcnn'), *data, '--out', tmp_path / 'own.py']
    with pytest.raises(SystemExit):
        run_tool(*command)
    assert f'secret.jpg is outside of {tmp_path}/data' in capsys.readouterr().err
    assert not (tmp_path / 'own.py').exists()
    run_tool(*command, '--allow-external-files')
    assert capsys.readouterr().out.endswith('own.py --allow-external-files\n')


@pytest.mark.slow
def test_external_files_can_be_allowed(tmp_path: Path, run_tool: Callable) -> None:
    """Other files in the folder of the dataset are always allowed."""
    arguments = prepare_training(tmp_path, run_tool, '../../secret.jpg')
    run_tool('train', *arguments, '--allow-external-files', *ONE_STEP)
    change(tmp_path / 'data/train.json', 'images', 0, file_name='../val/100.jpg')
    run_tool('train', *arguments[:1], '--work-dir', tmp_path / 'second', *ONE_STEP)
    change(tmp_path / 'data/val.json', 'images', 0, file_name='../../secret.jpg')
    with pytest.raises(SystemExit, match='val.json refers to 1 file outside of .* --allow'):
        run_tool('test', *arguments[:1], tmp_path / 'run/iter_1.pth', '--work-dir',
                 tmp_path / 'out')


@pytest.mark.slow
def test_external_files_in_image_lists(tmp_path: Path, run_tool: Callable) -> None:
    run_tool('create_config', leaf('sem_fpn'), *draw_label_maps(tmp_path / 'data'), '--out',
             tmp_path / 'own.py')  # yapf: disable
    for folder, suffix in (('images', '.jpg'), ('masks', '.png')):
        source = next((tmp_path / 'data' / folder / 'train').glob(f'*{suffix}'))
        (tmp_path / f'secret{suffix}').write_bytes(source.read_bytes())
    (tmp_path / 'list.txt').write_text('../../../secret\n')
    with pytest.raises(SystemExit, match='list.txt refers to 2 files outside of .*secret.jpg'):
        run_tool('train', tmp_path / 'own.py', '--work-dir', tmp_path / 'run', *ONE_STEP,
                 f'train_dataloader.dataset.ann_file={tmp_path}/list.txt')


DEEP = '[' * 10**5


@pytest.mark.slow
@pytest.mark.parametrize('tool', ['train', 'create_config', 'browse_dataset'])
def test_deeply_nested_json(tool: str, tmp_path: Path, run_tool: Callable,
                            capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_instances(tmp_path / 'data')
    run_tool('create_config', leaf('mask_rcnn'), *data, '--out', tmp_path / 'own.py')
    text = (tmp_path / 'data/train.json').read_text()
    (tmp_path / 'data/train.json').write_text(f'{text[:-1]}, "more": {DEEP}')
    command = dict(
        train=[tmp_path / 'own.py', '--work-dir', tmp_path / 'run', *ONE_STEP],
        browse_dataset=[tmp_path / 'own.py', '--out', tmp_path / 'page.html'],
        create_config=[leaf('mask_rcnn'), *data, '--out', tmp_path / 'new.py'])
    with pytest.raises(SystemExit) as stopped:
        run_tool(tool, *command[tool])
    said = f'{stopped.value}{capsys.readouterr().err}'
    assert 'train.json' in said and re.search('nested|recursion', said), said


def test_yaml_runs_no_code(tmp_path: Path) -> None:
    file = tmp_path / 'data.yaml'
    file.write_text('train: images\nnames: !!python/object/apply:pathlib.Path.touch\n'
                    f'- !!python/object/apply:pathlib.Path [{tmp_path}/made]\n')
    report = Report()
    assert read_yaml(file, ReadContext(tmp_path, report)) == ([], {})
    assert 'could not determine a constructor' in report.errors[0]
    assert not (tmp_path / 'made').exists()


@pytest.fixture
def shards(shapes: Path, tmp_path: Path) -> Path:
    options = ShardOptions(
        config=config('sem_fpn'), data_root=shapes / 'ade', out=tmp_path / 'shards')
    make_shards(options)
    return tmp_path / 'shards'


@pytest.mark.parametrize('name', ['../secret.tar', '/etc/passwd', '', None, 7])
def test_external_shards_are_rejected(name: object, shards: Path) -> None:
    manifest = json.loads((shards / 'shards.json').read_text())
    manifest['shards'][0]['file'] = name
    (shards / 'shards.json').write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match='shards.json: shards must be files next to it, got'):
        read_manifest(str(shards))


@pytest.mark.parametrize('column, value', [(1, 2**62), (1, -1), (2, 2**62), (2, -1), (0, 0)])
def test_invalid_shard_locations(column: int, value: int, shards: Path) -> None:
    places = np.load(shards / 'places.npy')
    paths = np.load(shards / 'paths.npy')
    places[-1, column] = value if column else places[0, 0]
    places[-1, 3] += 1
    np.save(shards / 'places.npy', places)
    with pytest.raises((OSError, ValueError), match='is damaged: '):
        ShardsBackend().get(f'shards://{shards}/{paths[-1].decode()}')


class Page(HTMLParser):
    """Scripts and links of an HTML page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.text = ''
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        links = [value for key, value in attributes if key in ('src', 'href')]
        self.scripts += [tag] * (tag in ('script', 'iframe', 'object', 'embed', 'a'))
        self.scripts += [key for key, _ in attributes if key.startswith('on')]
        self.scripts += [link for link in links if not str(link).startswith('data:image/')]

    def handle_data(self, data: str) -> None:
        self.text += data


CLASS = '</td><script>alert(1)</script>'
FILE = '"><img src=x onerror=alert(1)>.jpg'


@pytest.mark.slow
def test_names_are_escaped_in_pages(tmp_path: Path, run_tool: Callable) -> None:
    """All pages have the same template as those of browse_dataset.py."""
    arguments = draw_instances(tmp_path)
    for split, number in (('train', 1), ('val', 100)):
        change(tmp_path / f'{split}.json', 'categories', 0, name=CLASS)
        change(tmp_path / f'{split}.json', 'images', 0, file_name=FILE)
        (tmp_path / split / f'{number}.jpg').rename(tmp_path / split / FILE)
    run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', tmp_path / 'own.py')
    run_tool('browse_dataset', tmp_path / 'own.py', '--out', tmp_path / 'page.html')
    page = Page((tmp_path / 'page.html').read_text())
    assert not page.scripts and CLASS in page.text and FILE in page.text


@pytest.mark.slow
def test_names_are_escaped_in_package_cards(tmp_path: Path) -> None:
    """A hub renders the README of a package."""
    names = [CLASS, '[free](http://evil.example)', '# Heading <b>']
    model = load(config('mask_rcnn'), write_checkpoint('mask_rcnn', tmp_path / 'a.pth'))
    model.classes = tuple(names)
    make_package(model, tmp_path / 'out', CardText('shapes'))
    _, _, body = (tmp_path / 'out/README.md').read_text().split('---\n', 2)
    html = MarkdownIt('commonmark', {'html': True}).enable('table').render(body)
    page = Page(html)
    assert not page.scripts and '<h1>Heading' not in html and '<b>' not in html
    assert CLASS in page.text and names[1] in page.text


@pytest.mark.slow
def test_logs_contain_no_control_characters(tmp_path: Path, run_tool: Callable) -> None:
    arguments = prepare_training(tmp_path, run_tool, '../val/100.jpg')
    for split in ('train', 'val'):
        name = 'a\x1b[31mb.jpg'
        (tmp_path / 'data' / split / name).write_bytes((tmp_path / 'secret.jpg').read_bytes())
        change(tmp_path / f'data/{split}.json', 'images', 0, file_name=name)
    run_tool('train', *arguments, '--cfg-options', 'train_cfg.max_iters=1',
             'train_dataloader.batch_size=2', *NO_WORKERS)
    log = latest_log(tmp_path / 'run')
    assert 'validation images are also used for training' in log
    assert r'a\x1b[31mb.jpg' in log and '\x1b' not in log


SIZE = ('from colonnade.common.process_memory import get_peak_memory; '
        'print(get_peak_memory() // 1024)')
READERS = {
    'create_config':
    """
from pathlib import Path
from colonnade.datasets.validation.coco_files import load_coco
from colonnade.datasets.validation.validation_report import Report
load_coco(Path(path), Report())
""",
    'training':
    """
import colonnade.engine.components
from mmdet.datasets import CocoDataset
CocoDataset(ann_file=path, data_prefix=dict(img=''), metainfo=dict(classes=('a', )), pipeline=[])
""",
}


def write_large_file(path: Path, megabytes: int) -> float:
    """Write a COCO file of polygons with 20 points, and return its size in MB."""
    annotation = dict(
        image_id=1, category_id=1, bbox=[1.25, 2.5, 30.25, 40.75], area=900.5, iscrowd=0,
        segmentation=[[n + 0.25 for n in range(40)]])  # yapf: disable
    number = megabytes * 10**6 // 500
    with path.open('w') as file:
        images = [dict(id=n, file_name=f'{n}.jpg', width=99, height=99)
                  for n in range(number // 10)]  # yapf: disable
        file.write(json.dumps(dict(images=images, categories=[dict(id=1, name='a')]))[:-1])
        file.write(', "annotations": [')
        for n in range(number):
            entry = dict(annotation, id=n + 1, image_id=n % len(images))
            file.write(', ' * bool(n) + json.dumps(entry))
        file.write(']}')
    return path.stat().st_size / 1e6


@pytest.mark.slow
@pytest.mark.parametrize('reader', READERS)
def test_memory_usage_of_large_files(reader: str, tmp_path: Path) -> None:
    """docs/guides/custom_datasets.md states the factor."""
    write_large_file(tmp_path / 'small.json', 1)
    megabytes = write_large_file(tmp_path / 'large.json', 60)
    peaks = []
    for name in ('small.json', 'large.json'):
        code = f'path = {str(tmp_path / name)!r}\n{READERS[reader]}\n{SIZE}'
        done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]) / 1000)
    factor = (peaks[1] - peaks[0]) / megabytes
    print(f'{reader}: {megabytes:.0f} MB of JSON, {factor:.1f} MB of memory per MB')
    assert factor < 12
