"""Weights on the command line: conversion, published and pretrained models."""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from conftest import LAYOUTS, NO_WORKERS, ROOT, latest_log
from helpers.layouts_by_hand import (TINY, cait_state, dino_state, mmpretrain_state, original_state,
                                     ours_state, resmlp_dino_state, resmlp_original_state,
                                     resmlp_timm_state, timm_state)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from colonnade.backbones import XCiT
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import load_weights

CONFIGS = {head: ROOT / f'configs/{head}/xcit_nano_12_p16_slim_shapes.py' for head in LAYOUTS}
CONFIG = CONFIGS['sem_fpn']
XCIT_BIAS, RESMLP_ALPHA = 'pos_embed.token_projection.bias', 'blocks.1.norm2.alpha'
ONE_TENSOR = {  # its name in the layout, ours, its shape in ours
    timm_state: (XCIT_BIAS, XCIT_BIAS, (16, )),
    ours_state: (XCIT_BIAS, XCIT_BIAS, (16, )),
    original_state: ('pos_embeder.token_projection.bias', XCIT_BIAS, (16, )),
    dino_state: ('pos_embeder.token_projection.bias', XCIT_BIAS, (16, )),
    mmpretrain_state: ('backbone.pos_embed.token_projection.conv.bias', XCIT_BIAS, (16, )),
    cait_state: ('pos_embed', 'pos_embed', (1, 9, 16)),
    resmlp_timm_state: (RESMLP_ALPHA, RESMLP_ALPHA, (1, 1, 16)),
    resmlp_original_state: ('patch_embed.proj.bias', 'stem.proj.bias', (16, )),
    resmlp_dino_state: (RESMLP_ALPHA, RESMLP_ALPHA, (1, 1, 16)),
}
SHORT = ['train_cfg.max_iters=1', 'train_cfg.val_interval=1', 'train_dataloader.batch_size=2']


def published_state(head: str = 'sem_fpn') -> dict[str, Tensor]:
    """Return a state dict of the slim config in the authors' format."""
    cfg = Config.fromfile(CONFIGS[head])
    init_default_scope(cfg.default_scope)
    state = {}
    for key, value in MODELS.build(cfg.model).state_dict().items():
        for ours, theirs in (('backbone.pos_embed.', 'backbone.pos_embeder.'), ('neck.stride4.',
                                                                                'backbone.fpn1.'),
                             ('neck.stride8.', 'backbone.fpn2.0.'), ('neck.fpn.', 'neck.')):
            if key.startswith(ours):
                key = theirs + key.removeprefix(ours)
                break
        state[key] = value
    return state


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
@pytest.mark.parametrize('make', ONE_TENSOR, ids=lambda make: make.__name__)
def test_converted_backbone(make: Callable, suffix: str, tmp_path: Path, run_tool: Callable,
                            capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(dict(model=make()), tmp_path / 'in.pth')
    run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / f'out{suffix}', '--report')

    read = read_checkpoint(tmp_path / f'out{suffix}')
    state, expected = read if suffix == '.safetensors' else read['state_dict'], ours_state(make)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    lines = capsys.readouterr().out.splitlines()
    old, new, shape = ONE_TENSOR[make]
    fate = f'kept     {new}' if old == new else f'renamed  {old} -> {new}'
    assert f'{fate} {shape}' in lines
    dropped = {line.split()[1] for line in lines if line.startswith('dropped ')}
    assert bool(dropped) == (make is not ours_state)
    assert not dropped & set(expected)
    assert {path.name for path in tmp_path.iterdir()} == {'in.pth', f'out{suffix}'}


def test_converted_segmenter(tmp_path: Path, run_tool: Callable) -> None:
    published = published_state()
    meta = dict(CLASSES=('a', 'b'))
    torch.save(dict(meta=meta, state_dict=published), tmp_path / 'in.pth')
    run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'out.pth')

    read = read_checkpoint(tmp_path / 'out.pth')
    assert read['meta'] == meta
    assert torch.equal(read['state_dict']['neck.stride4.3.weight'],
                       published['backbone.fpn1.3.weight'])
    cfg = Config.fromfile(CONFIG)
    model = MODELS.build(cfg.model)
    assert load_weights(model, tmp_path / 'out.pth').renamed == ()


def test_convert_never_overwrites(tmp_path: Path, run_tool: Callable,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(original_state(), tmp_path / 'in.pth')
    run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'out.pth', '--dry-run')
    assert not (tmp_path / 'out.pth').exists()
    (tmp_path / 'out.pth').write_text('precious')
    with pytest.raises(SystemExit) as stopped:
        run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'out.pth')
    assert (tmp_path / 'out.pth').read_text() == 'precious'
    assert 'out.pth already exists: choose another file, or pass --force' in str(stopped.value)
    run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'out.pth', '--force')
    load_weights(XCiT(TINY), tmp_path / 'out.pth')


@pytest.mark.slow
def test_published_segmenter_in_train_and_test(shapes: Path, tmp_path: Path,
                                               run_tool: Callable) -> None:
    torch.save(dict(meta={}, state_dict=published_state()), tmp_path / 'published.pth')
    data = ['--data-root', shapes / 'ade', '--work-dir', tmp_path]
    published = tmp_path / 'published.pth'
    run_tool('train', CONFIG, *data, '--load-from', published, '--cfg-options', *SHORT, *NO_WORKERS)
    assert f'{published}: XCiT detector or segmenter, original; ' in latest_log(tmp_path)
    run_tool('test', CONFIG, published, *data, '--cfg-options', *NO_WORKERS)
    assert f'{published}: XCiT detector or segmenter, original; ' in latest_log(tmp_path)


@pytest.mark.parametrize('head', LAYOUTS)
def test_published_models_in_openmmlab_inference(head: str, tmp_path: Path) -> None:
    classes = ('disc', 'square', 'triangle', 'star')[:3 if head == 'mask_rcnn' else 4]
    meta = dict(CLASSES=classes, PALETTE=[[i, i, i] for i in range(len(classes))])
    published = published_state(head)
    torch.save(dict(meta=meta, state_dict=published), tmp_path / 'published.pth')
    image = np.zeros((75, 101, 3), np.uint8)

    apis = import_module('mmdet.apis' if head == 'mask_rcnn' else 'mmseg.apis')
    init, infer = ((apis.init_detector, apis.inference_detector) if head == 'mask_rcnn' else
                   (apis.init_model, apis.inference_model))
    model = init(str(CONFIGS[head]), str(tmp_path / 'published.pth'), device='cpu')
    result = infer(model, image)

    assert torch.equal(model.neck.stride8.weight, published['backbone.fpn2.0.weight'])
    assert tuple(model.dataset_meta['classes']) == classes
    assert 'pred_instances' in result if head == 'mask_rcnn' else 'pred_sem_seg' in result


def from_pretrained(checkpoint: str, data_root: Path, work_dir: Path) -> list[str | Path]:
    """Return arguments of one training step from pretrained weights."""
    init_cfg = [
        f'model.backbone.init_cfg.{setting}'
        for setting in ('type=Pretrained', f'checkpoint={checkpoint}')
    ]
    return [
        CONFIG, '--data-root', data_root, '--work-dir', work_dir, '--cfg-options', *SHORT, *init_cfg
    ]


def test_pretrained_weights_from_timm_hub(shapes: Path, tmp_path: Path, run_tool: Callable,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder = 'xcit_nano_12_p16_224.fb_in1k', tmp_path / 'hub'
    repository = folder / f'models--timm--{name}'
    (repository / 'snapshots/1').mkdir(parents=True)
    (repository / 'refs').mkdir()
    (repository / 'refs/main').write_text('1')
    weights = timm.create_model('xcit_nano_12_p16_224').state_dict()
    safetensors.torch.save_file(weights, repository / 'snapshots/1/model.safetensors')

    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(folder))
    run_tool('train', *from_pretrained(f'timm://{name}', shapes / 'ade', tmp_path / 'run'),
             *NO_WORKERS)
    log = latest_log(tmp_path / 'run')
    assert f'timm://{name}: XCiT, timm; ' in log
    assert 'random weights' not in log


def test_wrong_weights_fail_before_datasets_are_built(shapes: Path, tmp_path: Path,
                                                      run_tool: Callable,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(original_state(), tmp_path / 'a.pth')
    monkeypatch.setattr('mmengine.runner.Runner.build_dataloader',
                        lambda *_, **__: pytest.fail('a data set was built'))
    with pytest.raises(SystemExit) as stopped:
        run_tool('train',
                 *from_pretrained(str(tmp_path / 'a.pth'), shapes / 'ade', tmp_path / 'run'))
    said = str(stopped.value)
    assert 'the file has a custom XCiT of embed_dim 16, depth 3' in said
    assert 'the model XCiT nano_12_p16.' in said
    assert 'Traceback' not in said
