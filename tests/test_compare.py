"""Runs side by side."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import NO_WORKERS, SHORT, config

from colonnade.engine.reporting import Table
from colonnade.engine.run_report.comparison import compare, read_runs
from colonnade.engine.run_report.terminal import text_of


def changed(run: Path, name: str, **values: Any) -> Path:
    """A copy of a run that says something else of itself."""
    copy = shutil.copytree(run, run.parent / name)
    path = copy / 'record/run.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return copy


@pytest.fixture(scope='module')
def detector(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a detector, of one iteration."""
    from conftest import tool_runner
    work_dir = tmp_path_factory.mktemp('detector') / 'detector'
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))
        tool_runner(monkeypatch)('train', config('mask_rcnn'), '--data-root', shapes / 'coco',
                                 '--work-dir', work_dir, *SHORT, 'train_cfg.max_iters=1',
                                 'train_cfg.val_interval=1', *NO_WORKERS)
    return work_dir


def cells(table: Table) -> dict[Any, list[Any]]:
    return {row[0]: list(row[1:]) for row in table.rows}


def test_two_runs(trained: Path, tmp_path: Path) -> None:
    about = json.loads((trained / 'record/run.json').read_text())
    setting = 'optim_wrapper.optimizer.lr'
    other = changed(trained, 'other', config=about['config'] | {setting: '0.5'})
    tables, warnings = compare([trained, other], tmp_path / 'page.html')
    runs, metrics, settings = map(cells, tables)
    assert warnings == [] and runs['model'] == ['segmenter', 'segmenter']
    assert metrics['mIoU'][0] == metrics['mIoU'][3] > 0
    assert settings == {setting: ['0.002', '0.5']}
    text = (tmp_path / 'page.html').read_text()
    assert 'run | other' in text and 'src="http' not in text
    for title in ('Classes', 'Settings that differ', 'Data', 'Samples'):
        assert f'<h2>{title}</h2>' in text


def test_other_data_is_said(trained: Path, tmp_path: Path) -> None:
    about = json.loads((trained / 'record/run.json').read_text())
    data = {**about['data'], 'validation': dict(images=4, files={'a.json': '0'})}
    other, silent = changed(trained, 'other', data=data), changed(trained, 'silent', data={})
    _, warnings = compare([trained, other, silent], tmp_path / 'page.html')
    assert warnings == [
        'Warning: the runs were evaluated on different data.',
        'Warning: what silent evaluated on is not recorded.'
    ]
    assert 'evaluated on different data' in (tmp_path / 'page.html').read_text()


def test_runs_of_two_kinds(trained: Path, detector: Path, tmp_path: Path) -> None:
    (runs, metrics, _), _ = compare([trained, detector], tmp_path / 'page.html')
    assert cells(runs)['model'] == ['segmenter', 'detector with masks']
    assert cells(metrics)['mIoU'][1] is None and cells(metrics)['coco/bbox_mAP'][0] is None
    assert '<h2>Classes' not in (tmp_path / 'page.html').read_text()


def test_a_run_without_record(trained: Path, tmp_path: Path) -> None:
    bare = tmp_path / 'bare'
    bare.mkdir()
    (bare / 'metrics.csv').write_text('iter,epoch,time,loss,mIoU\n1,0.1,1.0,2.5,\n2,0.2,2.0,,3\n')
    (runs, metrics, _), warnings = compare([trained, bare], tmp_path / 'page.html')
    assert cells(runs)['state'] == ['finished', 'not recorded']
    assert cells(metrics)['mIoU'][1] == 3.0
    assert warnings == ['Warning: what bare evaluated on is not recorded.']


def test_what_cannot_be_compared(trained: Path, tmp_path: Path) -> None:
    for folders, message in (([trained], '1 runs'), ([trained, trained], 'named twice'),
                             ([trained, tmp_path], f'{tmp_path} is no work dir of a run')):
        with pytest.raises(ValueError, match=message):
            read_runs(folders)
    with pytest.raises(FileNotFoundError, match='none is no folder'):
        read_runs([trained, tmp_path / 'none'])


def test_runs_of_one_name(trained: Path, tmp_path: Path) -> None:
    other = shutil.copytree(trained, tmp_path / 'there' / 'run')
    assert list(read_runs([trained, other])) == [str(trained), str(other)]


def test_the_tool(run_tool: Callable, trained: Path, tmp_path: Path,
                  capsys: pytest.CaptureFixture[str]) -> None:
    other, page = changed(trained, '<script>'), tmp_path / 'page.html'
    run_tool('compare', trained, other, '--out', page)
    printed = capsys.readouterr().out
    assert 'metric' in printed and 'mIoU' in printed and printed.endswith(f'{page.as_uri()}\n')
    assert '<script' not in page.read_text()
    with pytest.raises(SystemExit, match='compare: .* is no work dir of a run'):
        run_tool('compare', trained, tmp_path, '--out', page)


def test_a_table_in_a_terminal() -> None:
    table = Table(['name', 'value'], [['a\nb', 1.5], ['c' * 99, None]], 'caption')
    lines = text_of(table).splitlines()
    assert lines[:3] == ['caption', 'name' + ' ' * 38 + 'value', 'a b' + ' ' * 41 + '1.5']
    assert lines[3].startswith('c' * 39 + '…') and lines[3].endswith('–')
    assert text_of(Table(['n'], [[n] for n in range(50)])).endswith('39\nand 10 more')
