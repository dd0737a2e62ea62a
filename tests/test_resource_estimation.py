"""train.py --estimate: sizes of images, schedules, memory, and what to change."""
from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import config as slim
from conftest import run_python
from torch import nn

from colonnade.common.process_memory import get_peak_memory
from colonnade.configs import find_config
from colonnade.engine.resource_estimation.estimate import (GIB, EstimateOptions, ModelMemory,
                                                           TrainingEstimate, get_free_disk,
                                                           load_estimated_config)
from colonnade.engine.resource_estimation.table import suggest_changes
from colonnade.engine.resource_estimation.training_images import (compute_batch_sizes,
                                                                  compute_model_sizes, count_data,
                                                                  count_images)
from colonnade.engine.resource_estimation.trial_steps import (LiveMemory, Measurement, Setting,
                                                              Trial, extrapolate, scale_size)
from colonnade.engine.training import TrainOptions
from colonnade.settings.reading import read_config

SMALL = ('--estimate', '--image-size', 64, 64, '--cfg-options', 'train_dataloader.batch_size=2')


def test_live_memory() -> None:
    weight = nn.Parameter(torch.zeros(256, 256))
    with LiveMemory([weight]) as living:
        x = torch.ones(256, 256)  # the same number of bytes
        view = x[1:].t()
        assert living.now == 2 * weight.nbytes
        y = (x @ weight).relu()  # the product is dropped: relu keeps its own result
        assert living.now == 3 * weight.nbytes and living.peak == 4 * weight.nbytes
        y.sum().backward()
        del x, view, y
        assert living.now == 2 * weight.nbytes  # and its gradient


@pytest.mark.parametrize('leaf, largest', [
    ('mask_rcnn/xcit_nano_12_p16_3x_coco', (800, 1344)),
    pytest.param(
        'mask2former/xcit_small_12_p16_50ep_coco_lsj', (1024, 1024), marks=pytest.mark.slow),
    ('sem_fpn/xcit_tiny_12_p16_80k_ade20k', (512, 512)),
])
def test_image_sizes_of_pipeline(leaf: str, largest: tuple[int, int], tmp_path: Path) -> None:
    cfg = read_config(find_config(leaf))
    cfg.train_dataloader.dataset.data_root = str(tmp_path)  # nothing is there
    counts = count_data(cfg)
    assert counts.images is None and counts.objects is None and not counts.sizes
    size, mean_pixels = compute_model_sizes(cfg, counts.sizes, None)
    assert sorted(size) == sorted(largest)
    assert mean_pixels <= prod(largest)


def test_image_sizes_of_dataset(shapes: Path) -> None:
    for head, folder, size in (('sem_fpn', 'ade', 128), ('mask_rcnn', 'coco', 64)):
        options = TrainOptions(slim(head), data_root=shapes / folder)
        cfg = load_estimated_config(options, EstimateOptions())
        counts = count_data(cfg)
        assert counts.images == 12 and counts.sizes == ((64, 64), ) * 12
        assert (counts.objects is None) == (head == 'sem_fpn')
        assert compute_batch_sizes(cfg, counts.sizes) == ((size, size), size**2)
        wrapped = dict(type='RepeatDataset', times=3, dataset=cfg.train_dataloader.dataset)
        cfg.train_dataloader.dataset = wrapped
        assert count_images(cfg.train_dataloader.dataset) == 36
    with pytest.raises(ValueError, match='does not resize images.*--image-size'):
        compute_batch_sizes(cfg, ())


def test_padded_size() -> None:
    cfg = read_config(find_config('mask_rcnn/xcit_nano_12_p16_3x_coco'))
    assert compute_model_sizes(cfg, (), (33, 64)) == ((64, 64), 64 * 64)
    cfg = read_config(find_config('sem_fpn/xcit_tiny_12_p16_80k_ade20k'))
    assert compute_model_sizes(cfg, (), (100, 512)) == ((512, 512), 512 * 512)


def estimated(options: TrainOptions | None = None,
              *,
              num_images: int | None = None,
              **changes: Any) -> TrainingEstimate:
    """Return the estimate of 8 images whose activations take 8 GiB."""
    options = options or TrainOptions(slim('sem_fpn'))
    cfg = load_estimated_config(options, EstimateOptions(num_processes=2))
    setting = Setting(cfg, 'cuda', 'cpu', None, images=8, objects=1, processes=2, fsdp=False)
    parts = ModelMemory(weights=GIB, gradients=GIB, states=2 * GIB, averaged=0, gathered=GIB / 2)
    steps = [Measurement((512, 512), 1., 12 * GIB)]
    return TrainingEstimate(
        replace(setting, **changes), num_images, (512, 512), 512**2, steps, parts, 5000, GIB)


def test_schedule_estimate() -> None:
    options = TrainOptions(find_config('mask_rcnn/xcit_nano_12_p16_3x_coco'), grad_accum=4)
    found = estimated(options, num_images=1000, images=2)
    # the fourth checkpoint is written before the first is deleted
    assert (found.length, found.accumulated, found.num_checkpoints) == ((36 * 250, 36), 4, 4)
    assert estimated(options, images=2).length == (None, 36)
    found = estimated(num_images=800, images=4)
    assert (found.length, found.accumulated, found.num_checkpoints) == ((500, 5.), 1, 2)
    assert estimated().num_checkpoints == 2


def test_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = {tmp_path: SimpleNamespace(free=5)}  # a disk's own may change meanwhile
    monkeypatch.setattr(shutil, 'disk_usage', room.__getitem__)
    assert get_free_disk(tmp_path / 'not/yet') == get_free_disk(tmp_path) == 5
    assert get_free_disk('s3://bucket/run') is None


def test_memory_of_process() -> None:
    assert estimated(processes=1).memory['between processes'] == 0
    memory = estimated().memory  # DDP's buckets
    assert memory == {
        'weights': GIB, 'gradients': GIB, 'optimizer states': 2 * GIB, 'EMA weights': 0,
        'between processes': GIB, 'activations': 8 * GIB, 'CUDA': 0.6 * GIB
    }  # yapf: disable
    memory = estimated(fsdp=True).memory
    assert (memory['weights'], memory['gradients'], memory['optimizer states']) == (GIB / 2,
                                                                                    GIB / 2, GIB)
    assert memory['between processes'] == GIB / 2
    assert estimated(device='cpu').memory['libraries and freed blocks'] > 0.14 * 13 * GIB + 5000


def test_extrapolate() -> None:
    assert extrapolate([(100, 1100), (200, 1200)], 400) == 1400
    assert extrapolate([(100, 1100)], 400) == extrapolate([(50, 2000), (100, 1100)], 400) == 4400
    assert scale_size((800, 1344), 1 / 4) == (192, 320) and scale_size((10, 30), 1 / 2) == (5, 15)


@pytest.mark.parametrize('options, message', [
    (dict(launcher='pytorch'), 'runs in one process: remove torchrun.*--num-processes N'),
    (dict(cfg_options={'train_dataloader': None}), 'has no train_dataloader'),
])
def test_estimate_needs_training_config(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_estimated_config(TrainOptions(slim('sem_fpn'), **options), EstimateOptions())


@pytest.mark.parametrize('options, message', [
    (dict(num_processes=0), '--num-processes must be at least 1, got 0'),
    (dict(gpu_memory=0.), '--gpu-memory must be positive, got 0'),
    (dict(image_size=(0, 8)), '--image-size must be two positive integers, got 0 8'),
])
def test_estimate_option_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EstimateOptions(**options)


def test_suggestions_keep_images_per_step() -> None:
    batch = '--total-batch-size 8 --grad-accum 2'
    assert list(suggest_changes(estimated())) == [
        '--amp', '--cfg-options model.backbone.with_cp=True', batch, '--fsdp --num-processes N',
        '--image-size HEIGHT WIDTH, and a train pipeline of smaller images', 'a smaller backbone'
    ]
    options = TrainOptions(slim('sem_fpn'), cfg_options={'model.backbone.with_cp': True})
    left = suggest_changes(estimated(options, fsdp=True, half=torch.float16, images=1))
    assert [text.split()[0] for text in left] == ['--image-size', 'a']


def test_estimate_that_fits(run_tool: Callable[..., None], tmp_path: Path,
                            capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('train', slim('sem_fpn'), '--work-dir', tmp_path / 'run', *SMALL)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == 'fits'
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert 'unknown: not found here' in printed and 'measured' in printed
    assert not (tmp_path / 'run').exists()


def test_estimate_that_does_not_fit(run_tool: Callable[..., None], tmp_path: Path,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_tool('train', slim('mask_rcnn'), '--work-dir', tmp_path / 'run', '--gpu-memory', 0.63,
                 *SMALL)
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 3 and lines[-1] == 'does not fit into memory'
    first = next(index for index, line in enumerate(lines) if line.startswith('to make it fit'))
    advised = [line.split()[0] for line in lines[first + 1:]]
    assert advised[:2] == ['--amp', '--cfg-options']
    assert 'time: not measured, because that GPU is not present' in lines


@pytest.mark.slow
def test_estimate_for_absent_gpu() -> None:
    cfg, peaks = read_config(slim('sem_fpn')), {}
    cfg.model.backbone.drop_path_rate = 0.
    for device in ('cpu', 'cuda'):
        trial = Trial(Setting(cfg, device, 'cpu', None, 2, 1, 1, False))
        peaks[device] = trial.measure((256, 256), num_timed=0).memory
    assert peaks['cuda'] > 1.05 * peaks['cpu']


def test_peak_memory_is_that_of_the_process() -> None:
    code = 'from colonnade.common.process_memory import get_peak_memory; print(get_peak_memory())'
    assert 2**20 < int(run_python('-c', code)) < get_peak_memory() / 2


def test_memory_of_a_process_with_a_cut_name(monkeypatch: pytest.MonkeyPatch,
                                             tmp_path: Path) -> None:
    (tmp_path / 'status').write_bytes('Name:\tобучени'.encode()[:-1] + b'\nVmHWM:\t  3 kB\n')
    monkeypatch.setattr('colonnade.common.process_memory.STATUS', tmp_path / 'status')
    assert get_peak_memory() == 3072
