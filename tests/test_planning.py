"""train.py --plan: sizes of images, schedules, memory, and what to change."""
from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import config as slim
from torch import nn

from colonnade.configs import find_config
from colonnade.engine.resource_estimation.data_counts import data_counts, number_of_images
from colonnade.engine.resource_estimation.estimate import Estimate, Setting
from colonnade.engine.resource_estimation.extrapolation import Extrapolation, scaled
from colonnade.engine.resource_estimation.image_sizes import image_sizes
from colonnade.engine.resource_estimation.live_memory import LiveMemory
from colonnade.engine.resource_estimation.measured_steps import Measured, Trial, padded
from colonnade.engine.resource_estimation.memory import (GIB, Memory, Units, over_processes,
                                                         with_outside)
from colonnade.engine.resource_estimation.plan import sizes_of
from colonnade.engine.resource_estimation.planned_config import (PlanOptions, as_if_started,
                                                                 planned_config)
from colonnade.engine.resource_estimation.suggestions import scaled_down
from colonnade.engine.resource_estimation.training_length import Schedule, checkpoints, free_room
from colonnade.engine.training import TrainOptions
from colonnade.settings.reading import read_config

SMALL = ('--plan', '--plan-size', 64, 64, '--cfg-options', 'train_dataloader.batch_size=2')


def test_what_lives_is_counted_once() -> None:
    weight = nn.Parameter(torch.zeros(256, 256))
    with LiveMemory([weight]) as living:
        x = torch.ones(256, 256)  # as many bytes
        view = x[1:].t()
        assert living.now == 2 * weight.nbytes
        y = (x @ weight).relu()  # the product is dropped: relu keeps its own result
        assert living.now == 3 * weight.nbytes and living.peak == 4 * weight.nbytes
        y.sum().backward()
        del x, view, y
        assert living.now == 2 * weight.nbytes  # and its gradient


@pytest.mark.parametrize('leaf, largest', [
    ('mask_rcnn/xcit_nano_12_p16_3x_coco', (800, 1344)),
    ('mask2former/xcit_small_12_p16_50ep_coco_lsj', (1024, 1024)),
    ('sem_fpn/xcit_tiny_12_p16_80k_ade20k', (512, 512)),
])
def test_sizes_are_those_of_the_pipeline(leaf: str, largest: tuple[int, int],
                                         tmp_path: Path) -> None:
    cfg = read_config(find_config(leaf))
    cfg.train_dataloader.dataset.data_root = str(tmp_path)  # nothing is there
    counts = data_counts(cfg)
    assert counts.images is None and counts.objects is None and not counts.sizes
    found, mean = sizes_of(cfg, counts, None)
    assert found == largest or sorted(found) == sorted(largest)
    assert mean[0] * mean[1] <= found[0] * found[1]


def test_sizes_of_data(shapes: Path) -> None:
    for head, folder in (('mask_rcnn', 'coco'), ('sem_fpn', 'ade')):
        options = TrainOptions(slim(head), data_root=shapes / folder)
        cfg = planned_config(options, PlanOptions())
        counts = data_counts(cfg)
        assert counts.images == 12 and counts.sizes == ((64, 64), ) * 12
        assert (counts.objects is None) == (head == 'sem_fpn')
        assert image_sizes(cfg, counts.sizes).largest == (64, 64)
        wrapped = dict(type='RepeatDataset', times=3, dataset=cfg.train_dataloader.dataset)
        cfg.train_dataloader.dataset = wrapped
        assert number_of_images(cfg.train_dataloader.dataset) == 36
    with pytest.raises(ValueError, match='keeps images at their own size.*--plan-size'):
        image_sizes(cfg, ())


def test_batches_are_padded_as_the_model_pads_them() -> None:
    cfg = read_config(find_config('mask_rcnn/xcit_nano_12_p16_3x_coco'))
    assert padded(cfg, (33, 64)) == (64, 64)
    cfg = read_config(find_config('sem_fpn/xcit_tiny_12_p16_80k_ade20k'))
    assert padded(cfg, (100, 512)) == (512, 512)


def test_schedules() -> None:
    options = TrainOptions(find_config('mask_rcnn/xcit_nano_12_p16_3x_coco'), accumulate=0)
    cfg = planned_config(options, PlanOptions(processes=4))
    with as_if_started(cfg, 4):
        found = Schedule.of(cfg, 1000)
        assert found == Schedule(16, 36 * 125, 36 * 63 - 18, 36)
        assert Schedule.of(cfg, None) == Schedule(16, None, None, 36)
        assert checkpoints(cfg, found) == 4  # the fourth is written before the first is deleted
    cfg = planned_config(replace(options, config=slim('sem_fpn'), accumulate=None), PlanOptions())
    assert Schedule.of(cfg, 800) == Schedule(8, 500, 500, 5.)
    assert checkpoints(cfg, Schedule.of(cfg, None)) == 2


def test_room_is_that_of_the_nearest_folder(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    room = {tmp_path: SimpleNamespace(free=5)}  # a disk's own may change meanwhile
    monkeypatch.setattr(shutil, 'disk_usage', room.__getitem__)
    assert free_room(tmp_path / 'not/yet') == free_room(tmp_path) == 5
    assert free_room('s3://bucket/run') is None


def test_shares_of_processes() -> None:
    alone = Memory(weights=800, gradients=800, states=1600, averaged=0, activations=1000)
    assert over_processes(alone, 1, None) is alone
    assert over_processes(alone, 4, None).total == 4200 + 800  # DDP's buckets
    shared = over_processes(alone, 4, Units(block=50, rest=200))
    assert (shared.weights, shared.gradients, shared.states) == (200, 200, 400)
    assert shared.total == 800 + 1000 + 100 + 200 + 250
    assert with_outside(alone, 'cpu', 5000).total > 4200 + 5000


def test_lines_through_what_was_measured() -> None:
    steps = Extrapolation((Measured((10, 10), 1., 1100), Measured((10, 20), 2., 1200)), {
        (10, 10): 5.,
        (10, 20): 10.,
        (20, 20): 30.
    })
    assert steps.memory((20, 20)) == 1400 and steps.seconds((20, 20)) == 6
    assert steps.source((10, 20)) == 'measured'
    assert steps.source((20, 20)) == 'from 10 x 10 and 10 x 20 by products'
    one = Extrapolation(steps.measured[:1], steps.products)
    assert one.memory((20, 20)) == 4400 and one.seconds((10, 20)) == 2
    assert scaled((800, 1344), 1 / 4) == (192, 320) and scaled((10, 30), 1 / 2) == (5, 15)


@pytest.mark.parametrize('options, message', [
    (dict(launcher='pytorch'), 'runs in one process: leave out torchrun.*--processes N'),
    (dict(cfg_options={'train_dataloader': None}), 'has no train_dataloader'),
])
def test_what_cannot_be_planned(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned_config(TrainOptions(slim('sem_fpn'), **options), PlanOptions())


@pytest.mark.parametrize('options, message', [
    (dict(processes=0), '--processes must be at least 1, got 0'),
    (dict(memory=0.), '--plan-memory must be positive, got 0'),
    (dict(size=(0, 8)), '--plan-size must be two positive numbers of pixels, got 0 8'),
])
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanOptions(**options)


def test_advice_keeps_the_images_of_a_step() -> None:
    """16 images of two processes, of which each has room for three or for one."""
    cfg = planned_config(TrainOptions(slim('sem_fpn')), PlanOptions(processes=2))
    setting = Setting(cfg, 'cuda', 'cpu', None, images=8, objects=1, processes=2, fsdp=False)
    alone = Memory(weights=GIB, gradients=GIB, states=2 * GIB, averaged=0, activations=8 * GIB)
    size = (512, 512)
    steps = Extrapolation((Measured(size, 1., 12 * GIB), ), {size: 1.})
    found = Estimate(setting, size, size, steps, alone, Units(block=GIB // 10, rest=GIB // 10), 0)
    room = found.memory.total - 8 * GIB
    text, changed = next(scaled_down(found, room + 3.5 * GIB))
    assert (text, changed.setting.images) == ('--total-batch 4 --accumulate 4', 2)
    assert changed.memory.total == room + 2 * GIB
    found_one = list(scaled_down(found, room + GIB / 2))
    assert [text for text, _ in found_one[:2]] == [
        '--total-batch 2 --accumulate 8', '--fsdp on 2 processes --total-batch 2 --accumulate 8'
    ]
    assert found_one[1][1].memory.total < found_one[0][1].memory.total


def test_a_training_that_fits(run_tool: Callable[..., None], tmp_path: Path,
                              capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_tool('train', slim('sem_fpn'), '--work-dir', tmp_path / 'run', *SMALL)
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and printed.splitlines()[-1] == 'fits'
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert 'unknown: not found here' in printed and 'measured' in printed
    assert not (tmp_path / 'run').exists()


def test_a_training_that_does_not_fit(run_tool: Callable[..., None], tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_tool('train', slim('mask_rcnn'), '--work-dir', tmp_path / 'run', '--plan-memory', 0.63,
                 *SMALL)
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 3 and lines[-1] == 'does not fit into memory'
    first = next(index for index, line in enumerate(lines) if line.startswith('to make it fit'))
    advised = [line.split()[0] for line in lines[first + 1:]]
    assert advised[:2] == ['--amp', 'model.backbone.with_cp=True']
    assert 'time: not measured, because that GPU is not here' in lines


def test_a_gpu_that_is_not_here_stores_what_gpus_store() -> None:
    """GELU and norms are computed anew for the gradients on a CPU only."""
    cfg, peaks = read_config(slim('sem_fpn')), {}
    cfg.model.backbone.drop_path_rate = 0.
    for device in ('cpu', 'cuda'):
        trial = Trial(cfg, 'cpu', None, images=2, objects=1, trains_on=device)
        peaks[device] = trial.measure((256, 256), timed=0).memory
    assert peaks['cuda'] > 1.05 * peaks['cpu']
