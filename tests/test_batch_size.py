"""Accumulated gradients and scaled rates: as if there were the published number of GPUs."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, ROOT
from helpers.backbones import every_class, tiny
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from test_configs import learning_rates

from colonnade.backbones import XCiT
from colonnade.common.errors import UserError
from colonnade.engine.optim.batch_size import (enable_auto_scale_lr, get_base_batch_size,
                                               set_grad_accumulation)
from colonnade.recipes.custom_data.scaled_schedule import scale_schedule

SEGMENTER = ROOT / 'configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py'
DETECTOR = ROOT / 'configs/mask_rcnn/xcit_small_12_p16_3x_coco.py'


def load(path: Path, **changes: object) -> Config:
    cfg = Config.fromfile(path)
    cfg.launcher = 'none'
    cfg.merge_from_dict(changes)
    return cfg


def test_grad_accum_defaults_to_base_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_grad_accumulation(load(SEGMENTER)) == 8
    cfg = load(DETECTOR, launcher='pytorch')
    monkeypatch.setenv('WORLD_SIZE', '4')
    assert set_grad_accumulation(cfg) == 2
    assert cfg.optim_wrapper.accumulative_counts == 2
    # so that --auto-scale-lr compares the images of a step
    assert get_base_batch_size(cfg) == 8


def test_grad_accum_stretches_iterations() -> None:
    cfg = load(SEGMENTER)
    set_grad_accumulation(cfg, 4)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (320000, 32000)
    assert cfg.default_hooks.checkpoint.interval == 32000
    assert cfg.default_hooks.logger.interval == 50
    rates = learning_rates(cfg, 8000)[::4]  # once a step
    np.testing.assert_allclose(rates, learning_rates(load(SEGMENTER), 2000), rtol=2e-3, atol=1e-10)


def test_grad_accum_keeps_epochs() -> None:
    cfg = load(DETECTOR)
    set_grad_accumulation(cfg, 4)
    warm_up, steps = cfg.param_scheduler
    assert (warm_up.end, steps.milestones, steps.end) == (2000, [27, 33], 36)
    assert (cfg.train_cfg.max_epochs, cfg.default_hooks.checkpoint.interval) == (36, 1)


def test_dumped_config_is_not_changed_twice(tmp_path: Path) -> None:
    cfg = load(SEGMENTER)
    set_grad_accumulation(cfg, 4)
    cfg.dump(tmp_path / 'dumped.py')
    dumped = load(tmp_path / 'dumped.py', **{'train_dataloader.batch_size': 4})
    assert set_grad_accumulation(dumped) == 4
    assert set_grad_accumulation(dumped, 4) == 4
    assert dumped.train_cfg.max_iters == cfg.train_cfg.max_iters == 320000
    assert dumped.param_scheduler == cfg.param_scheduler
    with pytest.raises(UserError, match='--grad-accum 2 does not match .* pass --grad-accum 4, or'):
        set_grad_accumulation(dumped, 2)
    with pytest.raises(UserError, match='written by a run with --grad-accum 4'):
        scale_schedule(dumped, 100)

    cfg = load(SEGMENTER)
    cfg.param_scheduler[-1].eta_min = 1.
    enable_auto_scale_lr(cfg)
    cfg.dump(tmp_path / 'dumped.py')
    dumped = load(tmp_path / 'dumped.py')
    enable_auto_scale_lr(dumped)
    assert dumped.param_scheduler[-1].eta_min == cfg.param_scheduler[-1].eta_min == 0.125


def test_grad_accum_stretches_schedulers() -> None:
    cfg = load(SEGMENTER)
    del cfg.train_cfg['val_interval']
    cfg.param_scheduler = [
        dict(type='CosineRestartLR', periods=[10, 20], by_epoch=False),
        dict(type='OneCycleLR', total_steps=30, eta_max=1., by_epoch=False),
        dict(type='ExponentialLR', gamma=0.81, by_epoch=False),
        dict(type='CosineRestartLR', periods=[3], by_epoch=True),
    ]
    cfg.default_hooks.checkpoint.interval = -1
    cfg.default_hooks.visualization, cfg.custom_hooks = None, None
    set_grad_accumulation(cfg, 2)
    restarts, cycle, exponential, by_epoch = cfg.param_scheduler
    assert (restarts.periods, cycle.total_steps, by_epoch.periods) == ([20, 40], 60, [3])
    assert exponential.gamma == pytest.approx(0.9)
    assert cfg.train_cfg.val_interval == 2000  # mmengine's default, twice
    assert cfg.default_hooks.checkpoint.interval == -1  # never


def test_grad_accum_stretches_schedulers_of_several_optimizers() -> None:
    cfg = load(SEGMENTER)
    cfg.param_scheduler = dict(
        head=[dict(type='PolyLR', end=10, by_epoch=False)],
        backbone=dict(type='LinearLR', end=5, by_epoch=False))
    set_grad_accumulation(cfg, 3)
    assert cfg.param_scheduler.head[0].end == 30
    assert cfg.param_scheduler.backbone.end == 15


@pytest.mark.parametrize('changes, count, message', [
    (dict(train_dataloader=dict(batch_size=3)), None,
     'of 16 .* is not a multiple of 1 process x 3 images'),
    (dict(train_dataloader=dict(batch_size=32)), None,
     'is not a multiple of 1 process x 32 images'),
    (dict(auto_scale_lr=dict(_delete_=True)), None, 'no auto_scale_lr.base_batch_size'),
    ({}, -1, '--grad-accum must be at least 1, got -1'),
])
def test_grad_accum_errors(changes: dict, count: int | None, message: str) -> None:
    cfg = load(SEGMENTER, **changes)
    with pytest.raises(ValueError, match=message):
        set_grad_accumulation(cfg, count)


@every_class
def test_accumulated_gradients_equal_batch(cls: type) -> None:
    images = torch.rand(2, 3, 40, 56)
    steps = {}
    for count in (1, 2):
        backbone = tiny(cls, norm_eval=cls is XCiT).train()
        optimizer = torch.optim.SGD(backbone.parameters(), lr=1.)
        wrapper = OptimWrapper(optimizer, accumulative_counts=count)
        wrapper.initialize_count_status(backbone, 0, 2)
        before = {name: p.detach().clone() for name, p in backbone.named_parameters()}
        for batch in images.chunk(count):
            with wrapper.optim_context(backbone):
                loss = sum(m.square().mean() for m in backbone(batch))
            wrapper.update_params(loss)
        steps[count] = {n: p.detach() - before[n] for n, p in backbone.named_parameters()}
    for name, expected in steps[1].items():
        scale = max(expected.abs().max().item(), 1e-3)
        torch.testing.assert_close(steps[2][name], expected, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize('option, expected', [
    (['--grad-accum', '2'], 'an optimizer step every 2 iterations of 2 images'),
    (['--auto-scale-lr'], 'Scaling the original LR by 0.25'),
])
def test_batch_size_options_in_training(option: list[str], expected: str, shapes: Path,
                                        tmp_path: Path, run_tool: Callable,
                                        capfd: pytest.CaptureFixture[str]) -> None:
    head = 'sem_fpn'
    run_tool('train', ROOT / f'configs/{head}/xcit_nano_12_p16_slim_shapes.py', *option,
             '--data-root', shapes / LAYOUTS[head], '--work-dir', tmp_path, '--cfg-options',
             'train_cfg.max_iters=1', 'train_dataloader.batch_size=2', *NO_VAL, *NO_WORKERS[:1])
    said = ''.join(capfd.readouterr())
    log, = tmp_path.glob('*/*.log')
    assert expected in said + log.read_text()
