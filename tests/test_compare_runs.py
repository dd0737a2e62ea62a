"""Comparison of runs: tables, plots, samples and warnings."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colonnade.evaluation.plots import COLORS
from colonnade.visualization.html_pages import Table
from colonnade.visualization.run_report.comparison import (compare_runs, compare_samples,
                                                           plot_metrics, read_runs)
from colonnade.visualization.run_report.record_folder import RecordedRun


def copy_run(run: Path, name: str, **values: Any) -> Path:
    """Return a copy of a run with other values in its ``run.json``."""
    copy = shutil.copytree(run, run.parent / name)
    path = copy / 'record/run.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return copy


def to_dict(table: Table) -> dict[Any, list[Any]]:
    return {row[0]: list(row[1:]) for row in table.rows}


def test_compare_two_runs(trained: Path, tmp_path: Path) -> None:
    about = json.loads((trained / 'record/run.json').read_text())
    setting = 'optim_wrapper.optimizer.lr'
    other = copy_run(trained, 'other', config=about['config'] | {setting: '0.5', 'lr': '0.5'})
    tables, warnings = compare_runs([trained, other], tmp_path / 'page.html')
    runs, metrics, settings = map(to_dict, tables)
    assert warnings == [] and runs['model'] == ['segmenter', 'segmenter']
    assert runs['parameters'][0] == f'{about["parameters"]:,}'
    assert metrics['mIoU'][0] == metrics['mIoU'][3] > 0
    assert settings == {setting: ['0.002', '0.5']}
    text = (tmp_path / 'page.html').read_text()
    assert 'run | other' in text and 'src="http' not in text
    assert '>The same images, at the best evaluation' in text
    for title in ('Classes', 'Different settings', 'Data', 'Samples'):
        assert f'<h2>{title}</h2>' in text


def test_warn_about_different_data(trained: Path, tmp_path: Path) -> None:
    about = json.loads((trained / 'record/run.json').read_text())
    data = {**about['data'], 'validation': dict(images=4, files={'a.json': '0'})}
    other, silent = copy_run(trained, 'other', data=data), copy_run(trained, 'silent', data={})
    _, warnings = compare_runs([trained, other, silent], tmp_path / 'page.html')
    assert warnings == [
        'Warning: the runs were evaluated on different data.',
        'Warning: the validation data of silent are not recorded.'
    ]
    text = (tmp_path / 'page.html').read_text()
    assert 'evaluated on different data' in text


def test_group_runs_with_same_samples(trained: Path) -> None:
    about = json.loads((trained / 'record/run.json').read_text())
    files = {**about['data'], 'validation': dict(images=4, files={'a.json': '0'})}
    palette = [[1, 2, 3], *about['palette'][1:]]
    runs = read_runs([
        trained,
        copy_run(trained, 'same'),
        copy_run(trained, 'images', data=files),
        copy_run(trained, 'silent', data={}),
        copy_run(trained, 'colors', palette=palette)
    ])
    sections = {section.title: section for section in compare_samples(runs)}
    assert list(sections) == [
        'Samples: run, same', 'Samples: images', 'Samples: silent', 'Samples: colors'
    ]
    for title, section in sections.items():
        names = title.removeprefix('Samples: ').split(', ')
        assert [each for each, _ in section.tiles[0][1]] == ['ground truth', *names]
        assert ('The same images' in section.text) == (len(names) > 1)
    assert sections['Samples: colors'].legend[0][1] == (1, 2, 3)
    assert sections['Samples: silent'].legend[0][1] == tuple(about['palette'][0])


def test_run_has_same_color_in_all_plots(tmp_path: Path) -> None:
    metrics = ('mIoU', 'mAP'), ('mAP', )
    runs = {
        f'{number}': RecordedRun(tmp_path, {},
                                 [dict(iteration=1, metrics=dict.fromkeys(keys, 0.5))])
        for number, keys in enumerate(metrics)
    }
    found = {
        key: {line.get_label(): line.get_color() for line in drawn.axes[0].lines}
        for key, drawn in plot_metrics(runs)
    }  # yapf: disable
    assert found == {'mIoU': {'0': COLORS[0]}, 'mAP': {'0': COLORS[0], '1': COLORS[1]}}
    assert all(drawn.legends for _, drawn in plot_metrics(runs))


def test_compare_segmenter_with_detector(trained: Path, tmp_path: Path) -> None:
    detector = copy_run(trained, 'detector', kind='masks', main_metric='coco/bbox_mAP')
    path = detector / 'record/iter_2/evaluation.json'
    evaluation = json.loads(path.read_text()) | dict(metrics={'coco/bbox_mAP': 0.5})
    path.write_text(json.dumps(evaluation))
    (path.parent / 'details.json').write_text('{"classes": {"bbox_ap": [0.5, 0.5, 0.5, 0.5]}}')
    (runs, metrics, _), _ = compare_runs([trained, detector], tmp_path / 'page.html')
    assert to_dict(runs)['model'] == ['segmenter', 'detector with masks']
    assert to_dict(metrics)['mIoU'][1] is None and to_dict(metrics)['coco/bbox_mAP'][0] is None
    assert '<h2>Classes' not in (tmp_path / 'page.html').read_text()


def test_compare_run_without_record(trained: Path, tmp_path: Path) -> None:
    bare = tmp_path / 'bare'
    bare.mkdir()
    (bare / 'metrics.csv').write_text('iter,epoch,time,loss,mIoU\n1,0.1,1.0,2.5,\n2,0.2,2.0,,3\n')
    (runs, metrics, _), warnings = compare_runs([trained, bare], tmp_path / 'page.html')
    assert to_dict(runs)['state'] == ['finished', 'not recorded']
    assert to_dict(runs)['time'][1] == '0:00:02' and to_dict(runs)['iterations'] == ['2 of 2', '2']
    assert to_dict(metrics)['mIoU'][1] == 3.0
    assert warnings == ['Warning: the validation data of bare are not recorded.']


def test_reject_invalid_runs(trained: Path, tmp_path: Path) -> None:
    for folders, message in (([trained], 'got 1$'), ([trained, trained], 'passed twice'),
                             ([trained, tmp_path], f'{tmp_path} is not the work dir of a run')):
        with pytest.raises(ValueError, match=message):
            read_runs(folders)
    with pytest.raises(FileNotFoundError, match='none is not a folder'):
        read_runs([trained, tmp_path / 'none'])


def test_runs_with_equal_names(trained: Path, tmp_path: Path) -> None:
    other = shutil.copytree(trained, tmp_path / 'there' / 'run')
    assert list(read_runs([trained, other])) == [str(trained), str(other)]


def test_command_line(run_tool: Callable, trained: Path, tmp_path: Path,
                      capsys: pytest.CaptureFixture[str]) -> None:
    other, page = copy_run(trained, '<script>'), tmp_path / 'page.html'
    about = json.loads((other / 'record/run.json').read_text())
    copy_run(trained, 'third', data={**about['data'], 'training': dict(images=1, files={})})
    run_tool('compare_runs', trained, other, tmp_path / 'third', '--out', page)
    printed = capsys.readouterr().out
    assert printed.startswith('Warning: the runs were trained on different data.\n\n')
    assert 'metric' in printed and 'mIoU' in printed and printed.endswith(f'{page.as_uri()}\n')
    assert '<script' not in page.read_text()
    before = page.read_bytes()
    with pytest.raises(SystemExit, match='page.html already exists: choose another --out'):
        run_tool('compare_runs', trained, other, '--out', page)
    assert page.read_bytes() == before
    with pytest.raises(SystemExit, match='compare-runs: .* is not the work dir of a run'):
        run_tool('compare_runs', trained, tmp_path, '--out', tmp_path / 'new.html')
    assert not (tmp_path / 'new.html').exists()


def test_format_table_as_text() -> None:
    table = Table(['name', 'value'], [['a\nb', 1.5], ['c' * 99, None]], 'caption')
    lines = table.format_text().splitlines()
    assert lines[:3] == ['caption', 'name' + ' ' * 38 + 'value', 'a b' + ' ' * 41 + '1.5']
    assert lines[3].startswith('…' + 'c' * 39) and lines[3].endswith('–')
    assert Table(['', ''], [['a' * 60 + '.type', 'b' * 60]]).format_text().endswith('b…')
    assert Table(['n'], [[n] for n in range(50)]).format_text().endswith('39\nand 10 more')
