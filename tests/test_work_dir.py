"""The work dir: best and last checkpoints, metrics.csv, early stopping, trackers, progress line."""
from __future__ import annotations

import csv
import io
import json
import logging
import math
import operator
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, SHORT, config, latest_log
from mmdet.evaluation import CocoMetric
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS, METRICS
from mmengine.runner import Runner

from colonnade.common.console_logging import CocoOutputFilter
from colonnade.engine.work_dir import configure_run
from colonnade.engine.work_dir.best_checkpoint import BestCheckpoint
from colonnade.engine.work_dir.best_metric import find_best_metric, save_best_checkpoint
from colonnade.engine.work_dir.last_checkpoint import find_checkpoint_hook, replace_checkpoint_hook
from colonnade.engine.work_dir.metric_values import fill_missing_metrics, is_at_minimum
from colonnade.engine.work_dir.metrics_table import MetricsTable
from colonnade.engine.work_dir.trackers import resume_wandb_run
from colonnade.settings.reading import read_config
from colonnade.weights.checkpoint_files import SUMS

EVERY = [
    'train_cfg.val_interval=1', 'val_dataloader.dataset.indices=1', 'val_evaluator.type=Written',
    'default_hooks.checkpoint.save_best=score', 'default_hooks.checkpoint.rule=greater', *SHORT[3:]
]
TINY = '''
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=4, num_heads=2, patch_size=16)),
    neck=dict(in_channels=32))
'''
BY_EPOCH = '''
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop')
train_dataloader = dict(sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
default_hooks = dict(checkpoint=dict(by_epoch=True))
visualizer = dict(vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')])
'''
SMOOTHED = """
log_processor = dict(window_size=2, custom_cfg=[
    dict(data_src='lr', log_name='mean_lr', method_name='mean', window_size='global')])
"""
AVERAGED = "custom_hooks = [dict(type='EMAHook', momentum=0.5)]"


@METRICS.register_module(force=True)
class Written(BaseMetric):
    """Evaluations with the numbers that a test wrote down, by iteration."""

    numbers: dict[int, Any] = {}
    evaluated = 0

    def __init__(self, iou_metrics: list[str]) -> None:
        super().__init__()  # a setting of the metric that it replaces

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        self.results += [None] * len(data_samples)

    def compute_metrics(self, results: list) -> dict[str, Any]:
        Written.evaluated += 1
        number = self.numbers.get(Written.evaluated)
        if isinstance(number, dict):
            return number
        return {} if number is None else dict(score=number, parts={1: dict(a=1)}, shares='0.1 0.2')


@HOOKS.register_module(force=True)
class Interrupted(Hook):
    """Ctrl-C while the second checkpoint is saved, the last or the best."""

    def __init__(self, *, best: bool = False) -> None:
        self.best = best

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if checkpoint['meta']['iter'] == 2 and ('optimizer' not in checkpoint) == self.best:
            raise KeyboardInterrupt


@HOOKS.register_module(force=True)
class WithoutTable(Hook):
    """Keeps metrics.csv from being written in the second iteration: a folder has its name."""

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        table, kept = (Path(runner.work_dir, name) for name in ('metrics.csv', 'kept.csv'))
        if runner.iter == 1:
            table.rename(kept)
            table.mkdir()
        elif runner.iter == 2:
            table.rmdir()
            kept.rename(table)


@pytest.fixture
def evaluated(run_tool: Callable, shapes: Path, tmp_path: Path) -> Callable[..., Path]:
    """Train a segmenter, evaluated at every iteration; returns its work dir."""

    def run(numbers: list[Any], *arguments: str, own: str = '',
            iterations: int | None = None, options: Sequence[str] = ()) -> Path:  # yapf: disable
        Written.numbers = {at + 1: number for at, number in enumerate(numbers)}
        (tmp_path / 'own.py').write_text(f'_base_ = {str(config("sem_fpn"))!r}\n{TINY}{own}')
        length = 'max_epochs' if 'Epoch' in own else 'max_iters'
        run_tool('train', tmp_path / 'own.py', '--data-root', shapes / LAYOUTS['sem_fpn'],
                 '--work-dir', tmp_path / 'run', '--no-report', *arguments, '--cfg-options',
                 f'train_cfg.{length}={iterations or len(numbers)}', *EVERY, *options, *NO_WORKERS)
        return tmp_path / 'run'

    Written.evaluated = 0
    return run


def rows(work_dir: Path) -> list[dict[str, str]]:
    with open(work_dir / 'metrics.csv', newline='') as file:
        return list(csv.DictReader(file))


def test_table_is_complete_after_each_row(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / 'm.csv')
    table.append(dict(iter=1, epoch=0.5, time=1.5, loss=2))
    table.append({'iter': 2, 'time': 3., 'a person, standing': 1 / 3})
    table.append(dict(iter=3, time=float('nan'), loss=1e-7))
    text = (tmp_path / 'm.csv').read_text()
    assert text == ('iter,epoch,time,loss,"a person, standing"\n1,0.5,1.5,2,\n2,,3,,0.333333\n'
                    '3,,nan,1e-07,\n')
    (tmp_path / 'm.csv').write_text(text + '4,1.0,9')  # cut off
    table = MetricsTable(tmp_path / 'm.csv')
    assert table.values('loss') == [2, 1e-7]
    assert table.keep_until(2) == 1
    table.append(dict(iter=3, loss=5))
    assert [row['iter'] for row in table.rows()] == ['1', '2', '3']
    assert table.last('loss') == 5 and table.last('nothing') == 0
    assert table.keep_until(0) == 3 and not (tmp_path / 'm.csv').exists()

    (tmp_path / 'folder').mkdir()
    with pytest.raises(ValueError, match='folder is not the metrics table of a run'):
        MetricsTable(tmp_path / 'folder')
    for text in ('name,price\n1,2\n', 'iter\none\n'):
        (tmp_path / 'm.csv').write_text(text)
        with pytest.raises(
                ValueError, match='m.csv is not the metrics table of a run: move it elsewhere'):
            MetricsTable(tmp_path / 'm.csv')


def test_table_drops_truncated_row(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / 'm.csv')
    table.append(dict(iter=1, time=1.5))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)  # simulates a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (table.path.stat().st_size + 3, limits[1]))
    try:
        for row in (dict(iter=2, time=2.5), dict(iter=2, loss=0.5)):
            with pytest.raises(OSError):
                table.append(row)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not table.path.read_text().endswith('\n')
    table.append(dict(iter=3, time=3.5))
    assert table.path.read_text() == 'iter,epoch,time,loss\n1,,1.5,\n3,,3.5,\n'


@pytest.mark.parametrize('evaluator, expected', [
    (dict(type='CocoMetric', metric=['bbox', 'segm']), 'coco/segm_mAP'),
    (dict(type='mmdet.CocoMetric', metric='bbox', prefix='mine'), 'mine/bbox_mAP'),
    (dict(type='CocoMetric'), 'coco/bbox_mAP'),
    (dict(type='CocoMetric', metric='proposal'), None),
    (dict(type='CocoMetric', metric_items=['mAP_50']), None),
    (dict(type='CocoMetric', format_only=True), None),
    ([dict(type='VOCMetric', metric='mAP'), dict(type='CocoMetric', metric='segm', prefix='b')],
     'b/segm_mAP'),
    ([dict(type='VOCMetric', metric='mAP'), dict(type='CocoMetric')], 'pascal_voc/mAP'),
    ([dict(type='CocoMetric', metric='segm'), dict(type='CocoPanopticMetric')], 'coco_panoptic/PQ'),
    (dict(type='LVISMetric', metric=['bbox']), 'lvis/bbox_AP'),
    (dict(type='colonnade.evaluation.lvis_metric.FasterLVISMetric'), 'lvis/segm_AP'),
    (dict(type='MultiDatasetsEvaluator', metrics=[dict(type='CocoMetric')],
          dataset_prefixes=['a']), None),
    (dict(type='Written'), None),
])  # yapf: disable
def test_best_metric_of_evaluators(evaluator: Any, expected: str | None) -> None:
    cfg = read_config(config('mask_rcnn'))
    cfg.val_evaluator = evaluator
    assert find_best_metric(cfg) == expected
    cfg.default_hooks = None  # mmengine adds them
    save_best_checkpoint(cfg)
    assert cfg.default_hooks.checkpoint.get('save_best') == expected


def test_save_best_of_config_is_kept() -> None:
    cfg = read_config(config('sem_fpn'))
    for hook in (dict(type='CheckpointHook', save_best=None), None):
        cfg.default_hooks.checkpoint = hook
        save_best_checkpoint(cfg)
        assert cfg.default_hooks.checkpoint == hook
    for number, expected in ((['mDice', 'mIoU'], 'mIoU'), (['mFscore'], 'mFscore')):
        cfg.val_evaluator.iou_metrics = number
        assert find_best_metric(cfg) == expected
    cfg.merge_from_dict(dict(option.split('=') for option in NO_VAL))
    cfg.val_cfg = None
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook')
    save_best_checkpoint(cfg)
    assert cfg.default_hooks.checkpoint == dict(type='CheckpointHook')


def test_best_metric_unknown_for_third_party_loop(capsys: pytest.CaptureFixture[str]) -> None:
    cfg = read_config(config('mask_rcnn'))
    assert find_best_metric(cfg) == 'coco/segm_mAP'
    cfg.val_cfg.type = 'TeacherStudentValLoop'
    assert find_best_metric(cfg) is None
    save_best_checkpoint(cfg)
    assert 'no best checkpoint will be saved' in capsys.readouterr().out
    with pytest.raises(
            ValueError, match='main metric of val_evaluator is unknown: pass --cfg-options'):
        configure_run(cfg, 1, None, ())
    found = {'teacher/coco/bbox_mAP': 0.5}
    assert fill_missing_metrics(found, [CocoMetric(metric='bbox')]) == found


def test_auto_save_best_uses_stopping_metric() -> None:
    cfg = read_config(config('sem_fpn'))
    cfg.default_hooks.checkpoint.save_best = 'auto'  # the first: aAcc
    configure_run(cfg, None, None, ())
    assert cfg.default_hooks.checkpoint.save_best == 'auto'
    configure_run(cfg, 1, None, ())
    assert cfg.default_hooks.checkpoint.save_best == 'mIoU'
    assert cfg.default_hooks.checkpoint.rule == 'greater'


@pytest.mark.slow
def test_best_checkpoint_ignores_nan_metrics(evaluated: Callable) -> None:
    work_dir = evaluated([math.nan, None, 0.5, 'none'],
                         options=['default_hooks.checkpoint.max_keep_ckpts=1'])
    best = work_dir / 'best_score_iter_3.pth'
    assert (work_dir / 'best_checkpoint').read_text() == str(best)
    assert {path.name for path in work_dir.glob('*.pth')} == {best.name, 'iter_4.pth'}
    log = latest_log(work_dir)
    assert 'the evaluation returned no number for score; it returned: none' in log
    assert 'the evaluation returned no number for score; it returned: score, parts, shares' in log
    assert f'the best score is 0.5: {best}' in log
    assert f'colonnade test {work_dir}/own.py {best}' in log
    found = rows(work_dir)
    assert [row['iter'] for row in found] == list('11223344')
    assert [row['score'] for row in found[1::2]] == ['nan', 'nan', '0.5', 'nan']
    assert all(row['loss'] and row['lr'] and row['iter_time'] for row in found[::2])
    assert [row['epoch'] for row in found[::2]] == ['0.167', '0.333', '0.5', '0.667']


@pytest.mark.slow
def test_best_checkpoint_is_last_of_equal_ones(evaluated: Callable) -> None:
    work_dir = evaluated([0.5, 0.5, 0.25])
    best = work_dir / 'best_score_iter_2.pth'
    assert (work_dir / 'best_checkpoint').read_text() == str(best)
    assert list(work_dir.glob('best_*.pth')) == [best]
    evaluated([0.5, 0.5, 0.25, 0.5], '--resume')
    assert (work_dir / 'best_checkpoint').read_text() == str(work_dir / 'best_score_iter_4.pth')


@pytest.mark.slow
def test_last_checkpoint_replaces_missing_best(evaluated: Callable) -> None:
    by_iou = ['default_hooks.checkpoint.save_best=mIoU']
    work_dir = evaluated([dict(mIoU=0.), dict(mIoU=0.)], options=by_iou)
    last = work_dir / 'iter_2.pth'
    assert (work_dir / 'best_checkpoint').read_text() == str(last)
    assert not list(work_dir.glob('best_*.pth'))
    log = latest_log(work_dir)
    assert f'above its minimum: best_checkpoint points to the last checkpoint, {last}' in log
    assert f'colonnade test {work_dir}/own.py {last}' in log
    evaluated([dict(mIoU=0.), dict(mIoU=0.), dict(mIoU=1.)], '--resume', options=by_iou)
    best = work_dir / 'best_mIoU_iter_3.pth'
    assert (work_dir / 'best_checkpoint').read_text() == str(best) and best.is_file()


@pytest.mark.parametrize('name, value, expected', [
    ('coco/segm_mAP', 0., True),
    ('coco/bbox_mAP_50', -1., True),
    ('lvis/bbox_AP', 0., True),
    ('pascal_voc/mAP', torch.zeros(()), True),
    ('teacher/coco/bbox_mAP', 0., True),
    ('mIoU', np.float32(0), True),
    ('mIoU', 0.01, False),
    ('mIoU', math.nan, False),
    ('mIoU', None, False),
    ('gain', 0., False),
    ('gain', -1., False),
])
def test_is_lowest(name: str, value: Any, expected: bool) -> None:
    assert is_at_minimum(name, value) == expected


@pytest.mark.slow
def test_resume_keeps_best_patience_and_rows(evaluated: Callable) -> None:
    work_dir = evaluated([0.5, 0.25, 0.25], '--patience', '3', own=SMOOTHED)
    seconds = float(rows(work_dir)[-1]['time'])
    MetricsTable(work_dir / 'metrics.csv').append(dict(iter=9, score=1.))  # after the checkpoint
    evaluated([0.5, 0.25, 0.25, 0.25], '--patience', '3', '--resume', own=SMOOTHED, iterations=9)
    assert 'did not improve on 0.5 in 3 evaluations (--patience 3)' in latest_log(work_dir)
    assert 'training stops at iteration 4 of 9' in latest_log(work_dir)
    found = rows(work_dir)
    assert [row['iter'] for row in found] == list('11223344')
    assert float(found[-1]['time']) > seconds
    assert (work_dir / 'best_checkpoint').read_text().endswith('best_score_iter_1.pth')
    assert (work_dir / 'last_checkpoint').read_text().endswith('iter_4.pth')
    logged = torch.load(work_dir / 'iter_4.pth', weights_only=False)['message_hub']['log_scalars']
    lengths = {name: len(logged[name].data[0]) for name in ('train/loss', 'val/time', 'train/lr')}
    assert lengths == {'train/loss': 2, 'val/time': 2, 'train/lr': 4}

    evaluated([], '--patience', '3', '--resume', iterations=9)
    assert 'Iter(train)' not in latest_log(work_dir)  # it had stopped already


@pytest.mark.slow
def test_resume_keeps_best_of_other_folder(evaluated: Callable, tmp_path: Path) -> None:
    first = evaluated([0.5]).rename(tmp_path / 'first')
    for file in ('last_checkpoint', 'best_checkpoint'):
        (first / file).unlink()
    state = torch.load(first / 'iter_1.pth', weights_only=False)
    infos = state['message_hub']['runtime_info']
    infos['best_ckpt'] = str(first / Path(infos['best_ckpt']).name)
    torch.save(state, first / 'iter_1.pth')
    (first / SUMS).unlink()
    work_dir = evaluated([0.5, 0.75], '--resume', first / 'iter_1.pth')
    assert Path(infos['best_ckpt']).is_file()
    assert (work_dir / 'best_checkpoint').read_text() == str(work_dir / 'best_score_iter_2.pth')


@pytest.mark.parametrize('metrics', [['mIoU'], ['mIoU', 'mAcc']])
def test_best_checkpoint_of_moved_run(metrics: list[str], tmp_path: Path) -> None:
    hub = MessageHub.get_instance(f'moved_{len(metrics)}')
    hook, was = BestCheckpoint(save_best=metrics, rule='greater'), []
    for name in metrics:
        was.append(f'/gone/best_{name}_iter_2.pth')
        hub.update_info(hook.get_key(name), was[-1])
    (tmp_path / 'best_mIoU_iter_2.pth').touch()
    hook.before_train(
        SimpleNamespace(message_hub=hub, work_dir=str(tmp_path), logger=logging.getLogger()))
    own = str(tmp_path / 'best_mIoU_iter_2.pth')
    assert hook.paths == [own, *was[1:]]
    assert hub.get_info(hook.get_key('mIoU')) == own == (tmp_path / 'best_checkpoint').read_text()


class OwnCheckpoints(CheckpointHook):
    """A hook with a name of its own for files, and another rule_map."""
    rule_map = {'greater': min, 'equal': max}

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict) -> None:
        self.last_ckpt = f'{self.interval}_{step}'


class NamedCheckpoints(CheckpointHook):
    """A hook with an attribute of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ['a']


def test_third_party_checkpoint_hooks() -> None:
    warned: list[str] = []
    runner: Any = SimpleNamespace(logger=SimpleNamespace(warning=warned.append))
    for kind, is_stock in ((CheckpointHook, True), (OwnCheckpoints, False)):
        runner.hooks = [kind(interval=3, save_best='auto')]
        saving = replace_checkpoint_hook(runner)
        assert saving is runner.hooks[0] is find_checkpoint_hook(runner)
        assert isinstance(saving, kind) and saving.is_stock == is_stock
    assert saving.rule_map['equal'] is max and saving.rule_map['greater'] is operator.ge
    saving.file_backend = MagicMock()
    saving.write(runner, 6, dict(iter=6))
    assert saving.last_ckpt == '3_6' and saving.saved_at == 6 and not warned
    runner.hooks = [named := NamedCheckpoints()]
    assert replace_checkpoint_hook(runner) is None and named.names == ['a']
    assert 'NamedCheckpoints overrides the attributes names of' in warned[0]


def test_last_checkpoint_survives_failed_save(evaluated: Callable, tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        evaluated([],
                  own="custom_hooks = [dict(type='Interrupted')]",
                  iterations=3,
                  options=['default_hooks.checkpoint.max_keep_ckpts=1'])
    last = tmp_path / 'run/iter_1.pth'
    assert stop.value.code == 130
    said = capsys.readouterr().err
    assert f'train: stopped; progress since {last} is lost; resume with: ' in said
    assert said.endswith(' --resume\n')
    assert (tmp_path / 'run/last_checkpoint').read_text() == str(last) and last.is_file()


@pytest.mark.slow
def test_resume_reruns_missing_evaluation(evaluated: Callable, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        evaluated([0.5, 0.75], own="custom_hooks = [dict(type='Interrupted', best=True)]")
    assert torch.load(
        tmp_path / 'run/iter_2.pth',
        weights_only=False)['message_hub']['runtime_info']['best_score'] == 0.5
    work_dir = evaluated([0.5, 0.75, 0.75], '--resume', iterations=2)
    assert 'running the evaluation of iteration 2, which the' in latest_log(work_dir)
    assert [row['iter'] for row in rows(work_dir)] == list('1122')
    infos = torch.load(work_dir / 'iter_2.pth', weights_only=False)['message_hub']['runtime_info']
    assert infos['best_score'] == 0.75
    assert infos['best_ckpt'] == (work_dir / 'best_checkpoint').read_text()


@pytest.mark.slow
def test_training_survives_unwritable_table(evaluated: Callable) -> None:
    work_dir = evaluated([0.5, 0.75, 0.25], own="custom_hooks = [dict(type='WithoutTable')]")
    assert [row['iter'] for row in rows(work_dir)] == list('1133')
    lines = [line for line in latest_log(work_dir).splitlines() if 'cannot write' in line]
    assert len(lines) == 1
    assert 'Rows from iteration 2 on will be missing until it can be written' in lines[0]


@pytest.mark.slow
def test_runs_in_one_process_have_own_visualizers(evaluated: Callable, tmp_path: Path) -> None:
    own = "visualizer = dict(name='the same')"
    first = evaluated([0.5], own=own).rename(tmp_path / 'first')
    second = evaluated([0.5, 0.25], own=own)
    for folder, number in ((first, 2), (second, 4)):
        scalars, = folder.glob('*/vis_data/scalars.json')
        assert len(scalars.read_text().splitlines()) == number


@pytest.mark.slow
@pytest.mark.parametrize('numbers, arguments, options, own, stop, saved', [
    ([0.5, 0.54], ['1', '--min-delta', '0.05'], [], '', '2 of 9', 'iter_2.pth'),
    ([0.5] * 4, ['2'], ['optim_wrapper.accumulative_counts=2'], '', '4 of 9', 'iter_4.pth'),
    ([2., 1.], ['1', '--tracker', 'tensorboard'],
     ['train_dataloader.dataset.indices=4'], BY_EPOCH, '4 of 18', 'epoch_2.pth'),
], ids=['between iterations', 'between steps', 'between epochs'])  # yapf: disable
def test_early_stopping_saves_last_state(numbers: list[float], arguments: list[str],
                                         options: list[str], own: str, stop: str, saved: str,
                                         evaluated: Callable) -> None:
    work_dir = evaluated(
        numbers,
        '--patience',
        *arguments,
        own=own,
        iterations=9,
        options=['default_hooks.checkpoint.interval=9', *options])
    assert f'training stops at iteration {stop}' in latest_log(work_dir)
    assert (work_dir / 'last_checkpoint').read_text() == str(work_dir / saved)
    meta = torch.load(work_dir / saved, weights_only=False)['meta']
    assert meta['iter'] == int(stop.split()[0])
    if own:  # the config has the tracker already
        assert [row['epoch'] for row in rows(work_dir)] == ['0.5', '1', '1', '1.5', '2', '2']
        assert len(list(work_dir.rglob('events.*'))) == 1
        assert not (work_dir / 'tensorboard').exists()


def test_third_party_early_stopping_keeps_checkpoint(evaluated: Callable) -> None:
    own = ("custom_hooks = [dict(type='EarlyStoppingHook', monitor='score', patience=1, "
           "rule='greater')]")
    options = ['optim_wrapper.accumulative_counts=2', 'default_hooks.checkpoint.interval=3']
    work_dir = evaluated([0.5, 0.75, 0.25], own=own, iterations=9, options=options)
    assert (work_dir / 'last_checkpoint').read_text() == str(work_dir / 'iter_3.pth')
    assert torch.load(work_dir / 'iter_3.pth', weights_only=False)['meta']['iter'] == 3


@pytest.mark.slow
def test_training_without_detections(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    run_tool('train', config('mask_rcnn'), '--data-root', shapes / 'coco', '--work-dir',
             tmp_path / 'run', '--tracker', 'tensorboard', '--no-report', *SHORT,
             'train_cfg.val_interval=1', 'val_dataloader.dataset.indices=1',
             'model.test_cfg.rcnn.score_thr=1.0', *NO_WORKERS)
    last = tmp_path / 'run/iter_2.pth'  # no mAP was better than another
    assert (tmp_path / 'run/best_checkpoint').read_text() == str(last) and last.is_file()
    assert rows(tmp_path / 'run')[1]['coco/segm_mAP'] == '0'

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(tmp_path / 'run/tensorboard'))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars('loss')}
    table = {int(row['iter']): float(row['loss']) for row in rows(tmp_path / 'run') if row['loss']}
    assert logged == pytest.approx(table, rel=1e-4)
    assert [event.value for event in events.Scalars('coco/segm_mAP')] == [0, 0]


@pytest.mark.slow
def test_best_checkpoint_holds_ema_weights(evaluated: Callable) -> None:
    work_dir = evaluated([0.5, 0.75, 0.25], own=AVERAGED)
    path = (work_dir / 'best_checkpoint').read_text()
    best, last = (torch.load(file, weights_only=False) for file in (path, work_dir / 'iter_2.pth'))
    for key, value in best['state_dict'].items():
        assert torch.equal(value, last['state_dict'][key]), key
    assert any(not torch.equal(value, best['ema_state_dict'][f'module.{key}'])
               for key, value in best['state_dict'].items())  # yapf: disable
    with pytest.raises(
            SystemExit, match='or is the best checkpoint of a run. Resume from the last'):
        evaluated([1.], '--resume', path, own=AVERAGED)


@pytest.mark.parametrize('arguments, says', [
    (['--patience', '2', *SHORT[:1], *NO_VAL], '--patience requires evaluation during training'),
    (['--min-delta', '2'], '--min-delta has no effect without --patience N'),
    (['--patience', '0'], '--patience must be at least 1, got 0'),
    (['--patience', '1', '--min-delta', '-1'], '--min-delta must not be negative, got -1.0'),
    (['--patience', '1', '--cfg-options', 'default_hooks.checkpoint.save_best=auto',
      'val_evaluator.type=Written'], 'the main metric of val_evaluator is unknown'),
    pytest.param(['--tracker', 'tensorboard', 'wandb'], 'needs a package that is not installed: '
                 'pip install wandb', marks=pytest.mark.skipif(
                     bool(find_spec('wandb')), reason='it is there')),
])  # yapf: disable
def test_options_are_checked_before_training(arguments: list[str], says: str, run_tool: Callable,
                                             shapes: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=says):
        run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir',
                 tmp_path / 'run', *arguments)
    assert not (tmp_path / 'run').exists()


def test_patience_without_effect_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr('colonnade.engine.work_dir.configuration.print_log',
                        lambda text, **_: said.append(text))
    cfg = read_config(config('sem_fpn'))
    configure_run(cfg, 1, None, ())
    assert '--patience 1 has no effect, because training has only 1 evaluation:' in said[0]
    cfg.train_cfg.val_interval = 250
    configure_run(cfg, 1, None, ())
    assert len(said) == 1


def test_two_hooks_do_not_stop_a_training(evaluated: Callable) -> None:
    with pytest.raises(SystemExit, match='the EarlyStoppingHook in the config cannot'):
        evaluated([1.],
                  '--patience',
                  '1',
                  own='custom_hooks = [dict(type="EarlyStoppingHook", monitor="score")]')


def test_wandb_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('WANDB_RUN_ID', 'WANDB_RESUME'):
        monkeypatch.delenv(name, raising=False)
    backends = [dict(type='LocalVisBackend'), dict(type='mmengine.WandbVisBackend')]
    cfg = Config(dict(work_dir=str(tmp_path), launcher='none', resume=False))

    def run_id(resume: bool, trackers: Sequence[str] = ('wandb', )) -> str | None:
        cfg.resume = resume
        with resume_wandb_run(cfg, trackers):
            if found := os.environ.get('WANDB_RUN_ID'):
                assert os.environ['WANDB_RESUME'] == 'allow'
        assert 'WANDB_RUN_ID' not in os.environ and 'WANDB_RESUME' not in os.environ
        return found

    assert run_id(False, ['tensorboard']) is None
    first = run_id(True)  # the earlier run had no tracker
    assert first == (tmp_path / 'wandb_run_id').read_text()
    assert run_id(True) == first != run_id(False)
    cfg.visualizer = dict(vis_backends=backends)
    assert run_id(True, []) == (tmp_path / 'wandb_run_id').read_text()
    monkeypatch.setenv('WANDB_RUN_ID', 'of_a_sweep')
    with resume_wandb_run(cfg, ['wandb']):
        assert os.environ['WANDB_RUN_ID'] == 'of_a_sweep'


def test_terminal_shows_progress_line(evaluated: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    printed: list[bytes] = []

    def read() -> None:
        while chunk := os.read(master, 4096):
            printed.append(chunk)
            if b'THE END' in b''.join(printed[-2:]):
                return

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv('TERM', 'xterm')
    with os.fdopen(slave, 'w') as terminal:
        monkeypatch.setattr(sys, 'stdout', terminal)
        work_dir = evaluated([0.5, 0.25])
        print('THE END', flush=True)
        reader.join(timeout=20)
    monkeypatch.undo()
    text = b''.join(printed).decode()
    assert 'Iter(train) [' not in text and 'Iter(val) [1/1]  \x1b' not in text
    assert 'System environment' not in text and 'Config:' not in text
    for shown in ('loss ', 'evaluation: batch 1 of 1'):
        assert f'iteration 1 of 2, {shown}' in text
    assert 'iteration 2 of 2, score 0.25' in text
    for logged in ('Iter(train) [1/2]', 'System environment', 'Config:'):
        assert logged in latest_log(work_dir)
    assert 'the best score is 0.5' in text


def test_coco_output_is_hidden() -> None:
    shown = io.StringIO()
    with redirect_stdout(CocoOutputFilter(shown)):
        print('loading', 'annotations into memory...')
        print('Done (t=0.01s)\ncreating', end=' ')
        print('index...\nindexed', end='')
        print(' it')
    assert shown.getvalue() == 'indexed it\n'


@pytest.mark.slow
def test_overfitting_stops_early(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    data = ['--data-root', shapes / 'ade']
    run_tool('train', config('sem_fpn'), *data, '--work-dir', tmp_path / 'run', '--patience', '3',
             '--cfg-options', 'train_cfg.max_iters=600', 'train_cfg.val_interval=20',
             'default_hooks.checkpoint.interval=20', 'train_dataloader.dataset.indices=2',
             'train_dataloader.batch_size=2', 'randomness.seed=0', *NO_WORKERS)
    found = [float(row['mIoU']) for row in rows(tmp_path / 'run') if row.get('mIoU')]
    best = (tmp_path / 'run/best_checkpoint').read_text()
    assert len(found) < 30 and max(found) > max(found[-3:])
    assert best.endswith(f'best_mIoU_iter_{20 * (1 + found.index(max(found)))}.pth')
    run_tool('test', config('sem_fpn'), best, *data, '--work-dir', tmp_path, '--out',
             tmp_path / 'm.json', *['--cfg-options', *NO_WORKERS])
    assert json.loads((tmp_path / 'm.json').read_text())['metrics']['mIoU'] == pytest.approx(
        max(found), rel=1e-4)
