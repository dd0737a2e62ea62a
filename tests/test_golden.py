"""Outputs of commands, compared with files in ``tests/golden``.

    COLONNADE_RECORD=1 python -m pytest tests/test_golden.py    # after an intended change
"""
from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from conftest import NO_WORKERS, ROOT, SHORT, config
from helpers import third_party_formats
from helpers.synthetic_data import draw_instances, draw_label_maps, leaf

from colonnade.__main__ import TOOLS
from colonnade.__main__ import main as run_command

GOLDEN = ROOT / 'tests/golden'
RECORDS = os.environ.get('COLONNADE_RECORD') == '1'

#: arguments of ``check_config`` with different errors
BROKEN_CONFIGS = {
    'width': ('mask_rcnn', 'model.neck.in_channels=96'),
    'misspelt': ('sem_fpn', 'train_cfg.max_iter=2', 'model.backbone.archh=1'),
    'taps': ('sem_fpn', 'model.backbone.out_indices=[3,5,7,12]'),
    'classes': ('upernet', 'model.decode_head.num_classes=7'),
}


def compare(name: str, text: str, *paths: Path) -> None:
    """Compare a text with ``NAME.txt``.

    Args:
        name: Name of the golden file.
        text: Output.
        *paths: Temporary folders, which are replaced by a placeholder.
    """
    for path in paths:
        text = text.replace(str(path), 'TMP')
    text = text.replace(str(ROOT), 'ROOT')
    text = re.sub(r'\x1b\[[0-9;]*m', '', text)
    text = ''.join(f'{line.rstrip()}\n' for line in text.splitlines())
    file = GOLDEN / f'{name}.txt'
    if RECORDS:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding='utf-8')
    assert text == file.read_text(encoding='utf-8'), f'{file} differs'


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_tool: Callable,
            capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a tool, and return its output and its exit message or status."""
    monkeypatch.setenv('COLUMNS', '100')
    monkeypatch.chdir(tmp_path)  # a folder without data

    def run(tool: str, *arguments: object) -> str:
        capsys.readouterr()
        end = ''
        try:
            run_tool(tool, *arguments)
        except SystemExit as error:
            end = f'{error.code}\n'
        out, err = capsys.readouterr()
        return out + err + end

    return run


@pytest.mark.parametrize('tool', TOOLS)
def test_help(tool: str, printed: Callable) -> None:
    compare(f'help_{tool}', printed(tool, '--help'))


@pytest.mark.parametrize('arguments', [['--help'], ['configs'], ['trian']],
                         ids=lambda each: each[0].strip('-'))  # yapf: disable
def test_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch,
                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, 'argv', ['colonnade', *arguments])
    end = ''
    try:
        run_command()
    except SystemExit as error:
        end = str(error.code)
    compare(f'command_{arguments[0].strip("-")}', capsys.readouterr().out + end)


def test_python_api() -> None:
    compare('api', '\n'.join(import_module('colonnade').__all__))


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_parameter_groups(head: str, printed: Callable) -> None:
    compare(f'param_groups_{head}', printed('list_param_groups', config(head)))


@pytest.mark.parametrize('name', BROKEN_CONFIGS)
def test_config_checks(name: str, printed: Callable) -> None:
    head, *settings = BROKEN_CONFIGS[name]
    compare(f'check_config_{name}', printed('check_config', config(head), '--cfg-options',
                                            *settings))


def draw_dataset(name: str, folder: Path) -> list[object]:
    """Draw a dataset of a format, and return the options of ``create_config`` for it."""
    if name == 'coco':
        return draw_instances(folder)
    if name == 'label_maps':
        return draw_label_maps(folder)
    third_party_formats.WRITERS[name](third_party_formats.drawn_parts(folder / 'drawn'),
                                      folder / 'set')
    return ['--data', folder / 'set']


@pytest.mark.parametrize('name', ['coco', 'label_maps', 'yolo_polygons', 'voc_boxes',
                                  'labelme_polygons'])  # yapf: disable
def test_custom_data(name: str, tmp_path: Path, printed: Callable) -> None:
    """Compare the output, the config, and converted annotations."""
    head = 'sem_fpn' if name == 'label_maps' else 'mask_rcnn'
    out = tmp_path / 'own.py'
    arguments = draw_dataset(name, tmp_path)
    if name.startswith('labelme') or name.startswith('voc'):
        arguments += ['--val-fraction', '0.5']
    text = printed('create_config', leaf(head), *arguments, '--out', out)
    texts = [text, out.read_text() if out.exists() else 'no config']
    for part in ('train', 'val'):
        if (file := tmp_path / f'own_data/{part}.json').exists():
            content = json.dumps(json.loads(file.read_text()), sort_keys=True, indent=1)
            texts.append(f'{file.name}\n{content}')
    compare(f'own_data_{name}', '\n'.join(texts), tmp_path)


def iter_names(folder: Path) -> Iterator[str]:
    """Yield the files in a folder, without times in their names."""
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            yield re.sub(r'\d{8}_\d{6}', 'TIME', str(path.relative_to(folder)))


def test_work_dir(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    """Compare names of files, keys and metrics."""
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir',
             tmp_path / 'run', *SHORT, *NO_WORKERS)
    metrics = (tmp_path / 'run/metrics.csv').read_text().splitlines()[0]
    run = json.loads((tmp_path / 'run/record/run.json').read_text())
    compare('work_dir', '\n'.join([*sorted(set(iter_names(tmp_path / 'run'))), metrics, *run]))
