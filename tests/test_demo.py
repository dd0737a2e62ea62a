"""Demo without training: its configs, the tools that it runs, and its output."""
from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from mmengine.config import Config

from colonnade.engine.options import TrainOptions
from colonnade.tools.command_line import parse_options
from colonnade.tools.demo import HEADS, list_configs

Calls = list[tuple[str, list[str]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record the tools that the demo runs, and write metrics for each run."""
    recorded: Calls = []

    def run_tool(tool: str, log: Path, config: Path, *arguments: object, show: bool) -> None:
        recorded.append((tool, [str(config), *map(str, arguments)]))
        names = ('coco/bbox_mAP', 'coco/bbox_mAP_50') if HEADS[config.parent.name][1] == 'coco' \
            else ('mIoU', )
        (log.parent / 'a.pth').touch()
        (log.parent / 'last_checkpoint').write_text(str(log.parent / 'a.pth'))
        row = dict(iter=1, epoch=1, time=1) | dict.fromkeys(names, 0.5)
        lines = [','.join(map(str, values)) for values in (row, row.values())]
        (log.parent / 'metrics.csv').write_text('\n'.join([*lines, '']))

    monkeypatch.setattr('colonnade.tools.demo.run_tool', run_tool)
    monkeypatch.setattr('colonnade.tools.demo.create_dataset', lambda folder: None)
    monkeypatch.setattr('colonnade.tools.demo.write_report',
                        lambda *arguments: arguments[-1] / 'report.html')
    return recorded


def test_all_heads_with_slim_configs() -> None:
    folders = {path.parent.name for path in ROOT.glob('configs/[!_]*/*_slim_shapes.py')}
    assert folders <= HEADS.keys()
    for head in folders:
        scopes = {'coco': 'mmdet', 'ade': 'mmseg'}
        for path in list_configs(head).values():
            assert Config.fromfile(path).default_scope == scopes[HEADS[head][1]]


def test_options_are_passed_to_tools(calls: Calls, tmp_path: Path, run_tool: Callable) -> None:
    run_tool('demo', '--out', tmp_path, '--backbone', 'cait', '--cfg-options',
             'train_cfg.max_iters=2')
    assert [tool for tool, _ in calls] == ['train.py'] * 2
    assert [Path(words[0]).parent.name for _, words in calls] == ['sem_fpn', 'mask_rcnn']
    for _, words in calls:
        assert Path(words[0]).name == 'cait_nano_12_slim_shapes.py'
        assert words[words.index('--data-root') + 1].startswith(f'{tmp_path}/shapes/')
        assert words[-1] == 'train_cfg.max_iters=2'  # after the demo's own settings


def test_later_heads_start_from_the_first_backbone(calls: Calls, tmp_path: Path,
                                                   run_tool: Callable) -> None:
    run_tool('demo', '--out', tmp_path, '--head', 'sem_fpn', 'mask_rcnn', 'mask2former')
    started = [words for _, words in calls]
    assert '--pretrained' not in started[0]
    for words, iterations, rate in zip(started, (400, 160, 240), (3e-3, 2e-3, 1e-3), strict=True):
        if words is not started[0]:
            assert Path(words[words.index('--pretrained') + 1]).parent.name == 'sem_fpn'
        cfg = Config.fromfile(words[0])
        options = parse_options(ArgumentParser(), TrainOptions, words=words)
        cfg.merge_from_dict(options.cfg_options)
        assert cfg.param_scheduler[1].type == 'CosineAnnealingLR'
        assert cfg.param_scheduler[1].end == cfg.train_cfg.max_iters == \
            cfg.train_cfg.val_interval == iterations
        assert cfg.optim_wrapper.optimizer.lr == rate


def test_backbones_with_further_tensors_start_from_scratch(calls: Calls, tmp_path: Path,
                                                           run_tool: Callable) -> None:
    """EoMT's has a final norm."""
    for heads, expected in ((('sem_fpn', 'eomt'), False), (('eomt', 'sem_fpn'), True)):
        calls.clear()
        run_tool('demo', '--out', tmp_path / heads[0], '--backbone', 'plain_vit', '--head', *heads)
        words = calls[1][1]
        assert ('--pretrained' in words) == expected == ('train_cfg.max_iters=160' in words)


def test_table(calls: Calls, tmp_path: Path, run_tool: Callable,
               capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('demo', '--out', tmp_path, '--head', 'mask_rcnn', 'segformer', 'upernet')
    lines = capsys.readouterr().out.splitlines()
    start = lines.index('xcit_nano_12_p16 on the validation split (percent)')
    *rows, where, page = lines[start + 1:]
    assert [row.strip().rpartition('  ')[0].strip() or row for row in rows] == [
        'Mask R-CNN', 'box mAP', 'box AP50', 'time', 'SegFormer', 'mIoU', 'time', 'UperNet', 'mIoU',
        'time'
    ]
    assert rows[1].endswith(' 50.0') and rows[5].endswith(' 0.5')
    assert str(tmp_path) in where and page.split()[-1].startswith(f'file://{tmp_path}/')


def test_backbone_without_config(calls: Calls, tmp_path: Path, run_tool: Callable) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool('demo', '--out', tmp_path, '--head', 'sem_fpn', 'segformer', '--backbone', 'cait')
    assert stopped.value.code == 'demo: --backbone cait: segformer has slim configs only for xcit'
    assert not calls
