"""Every backbone under a detector and a segmenter on real images; test_heads.py has XCiT under all."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LAYOUTS, ROOT
from helpers.backbones import ARCHS, OURS
from mmengine.config import Config

from colonnade.weights.files import read_checkpoint

BACKBONES = {
    cls.__name__: dict(type=cls.__name__, arch=arch | dict(embed_dim=128, patch_size=16))
    for cls, arch in ARCHS.items() if cls in OURS
}
BACKBONES['ResMLP by windows'] = BACKBONES['ResMLP'] | dict(token_mixing='window')
BACKBONES['DINOv3 by windows'] = dict(
    type='PlainViT',
    arch=BACKBONES['PlainViT']['arch'] | dict(model='vit_small_patch16_dinov3'),
    window_size=3,
    global_blocks=(1, ))
RECIPES = {'coco': 'slim_coco', 'ade': 'slim_ade20k'}
METRICS = {'coco': ('coco/bbox_mAP', 'coco/segm_mAP'), 'ade': ('mIoU', )}
STEPS = """
randomness = dict(seed=0)
train_cfg = dict(max_iters={}, val_interval=2)
train_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False,
                        dataset=dict(indices=4))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(indices=2))
test_dataloader = val_dataloader
default_hooks = dict(checkpoint=dict(interval=1))
"""

FEW = ('CaiT', 'sem_fpn')  # the one that runs always


@pytest.mark.parametrize('family, head', [
    pytest.param(family, head, marks=[] if (family, head) == FEW else pytest.mark.slow)
    for family in BACKBONES if family != 'XCiT' for head in ('mask_rcnn', 'sem_fpn')
])  # yapf: disable
def test_trains_resumes_and_evaluates(family: str, head: str, real_data: dict[str, Path],
                                      tmp_path: Path, run_tool: Callable) -> None:
    layout = LAYOUTS[head]
    config, work_dir = tmp_path / 'config.py', tmp_path / 'run'
    base = ROOT / f'configs/{head}/xcit_nano_12_p16_{RECIPES[layout]}.py'

    def write_config(max_iters: int) -> None:
        arch = BACKBONES[family]['arch'] | dict(_delete_=True)
        model = dict(backbone=BACKBONES[family] | dict(arch=arch))
        config.write_text(f'_base_ = {str(base)!r}\nmodel = {model}\n{STEPS.format(max_iters)}')

    data = ('--data-root', real_data[layout], '--work-dir', work_dir)
    write_config(2)
    run_tool('train', config, *data)
    first = read_checkpoint(work_dir / 'iter_2.pth')
    write_config(3)
    run_tool('train', config, *data, '--resume')
    last = read_checkpoint(work_dir / 'iter_3.pth')
    run_tool('test', config, work_dir / 'iter_3.pth', *data, '--out', tmp_path / 'metrics.json')

    assert last['meta']['iter'] == 3
    backbone = {k: v for k, v in first['state_dict'].items() if k.startswith('backbone.')}
    moved = {key for key, value in backbone.items() if not value.equal(last['state_dict'][key])}
    assert len(moved) > 0.9 * len(backbone), set(backbone) - moved
    metrics = json.loads((tmp_path / 'metrics.json').read_text())['metrics']
    assert all(0 <= metrics[name] <= 100 for name in METRICS[layout])


@pytest.mark.slow
def test_averaged_weights_are_saved_evaluated_and_resumed(shapes: Path, tmp_path: Path,
                                                          run_tool: Callable) -> None:
    """The hook of the _ema leaves, through our loading."""
    base = ROOT / 'configs/sem_fpn/resmlp_nano_12_slim_shapes.py'
    leaf = Config.fromfile(ROOT / 'configs/sem_fpn/xcit_small_12_p16_80k_ade20k_ema.py')
    config, work_dir = tmp_path / 'config.py', tmp_path / 'run'
    data = ('--data-root', shapes / 'ade', '--work-dir', work_dir)
    for max_iters, resume in ((2, []), (3, ['--resume'])):
        config.write_text(f'_base_ = {str(base)!r}\n{STEPS.format(max_iters)}\n'
                          f'custom_hooks = {leaf.to_dict()["custom_hooks"]}\n')
        run_tool('train', config, *data, *resume)
        saved = read_checkpoint(work_dir / f'iter_{max_iters}.pth')
        averaged, trained = saved['state_dict'], saved['ema_state_dict']
        key = 'backbone.blocks.3.linear_tokens.weight'
        assert not averaged[key].equal(trained[f'module.{key}'])
    assert saved['meta']['iter'] == 3
    assert trained['steps'] == 3
