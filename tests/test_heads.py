"""Every head trains, resumes and is tested by its published recipe, on real images."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS

from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.heads import LinearHead
from colonnade.settings.reading import read_config
from colonnade.weights.files import read_checkpoint


def published_leaf(folder: Path) -> Path:
    """The recipe of a head with XCiT-S12/16, or else with another small backbone."""
    leaves = [leaf for leaf in folder.glob('*.py') if '_slim_' not in leaf.stem]
    leaves.sort(key=lambda leaf: (len(leaf.stem), leaf.stem))  # variants have longer names
    return next(leaf for name in ('xcit_small_12_p16', '_small_') for leaf in leaves
                if name in leaf.stem)  # yapf: disable


LEAVES = {
    folder.name: published_leaf(folder)
    for folder in sorted(ROOT.glob('configs/[!_]*')) if folder.is_dir()
}
METRICS = {'coco': ('coco/bbox_mAP', 'coco/segm_mAP'), 'ade': ('mIoU', )}
SIZES = ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'max_size', 'stride',
         'pad_size_divisor')  # in pixels
FEW = {  # settings of models that take time: how many there are at most
    **dict.fromkeys(('num', 'num_queries', 'nms_pre', 'max_per_img', 'max_per_image'), 20),
    **dict.fromkeys(('channels', 'fc_out_channels', 'feedforward_channels', 'num_points'), 64),
    'num_layers': 2,
}
WITHOUT_MASKS = ('faster_rcnn', 'dino')
FROZEN = ('linear', )  # heads whose recipe freezes the backbone
#: whose small versions are slow too: others with the same data and losses run always
COVERED = ('mask_rcnn', 'cascade_mask_rcnn', 'faster_rcnn', 'vitdet', 'mask2former', 'rtmdet_ins',
           'dino', 'sem_fpn', 'upernet', 'segmenter', 'mask2former_semantic')
RUNS = [
    pytest.param(head, factor, marks=pytest.mark.slow if factor == 1 or head in COVERED else [])
    for head in LEAVES for factor in (8, 1)
]


def smaller(value: Any, factor: int) -> Any:
    """Sizes in pixels, divided; shorter ones than 256 are kept."""
    if isinstance(value, (list, tuple)):
        return type(value)(smaller(item, factor) for item in value)
    return value // factor if isinstance(value, int) and value >= 256 else value


def shrink(settings: Any, factor: int) -> None:
    """Make the images of a part of a config smaller, and what it has many of fewer."""
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    for key, value in list(items):
        if key in SIZES:
            settings[key] = smaller(value, factor)
        elif key in FEW and factor > 1:
            settings[key] = min(value, FEW[key])
        elif isinstance(value, (dict, list)):
            shrink(value, factor)


def recipe(head: str, factor: int) -> Config:
    """A head's recipe for a backbone of two blocks and two images, which are smaller by a factor.

    There is no warm-up: its first steps change nothing.
    """
    cfg = read_config(LEAVES[head])
    backbone = cfg.model.backbone
    width = MODELS.get(backbone.type).variants.complete(backbone.arch)['embed_dim']
    cfg.model.backbone = dict(
        type='XCiT',
        arch=dict(embed_dim=width, depth=2, num_heads=4, patch_size=16, layer_scale_init_value=0.1),
        out_indices=[0] * (len(backbone.get('out_indices') or range(4)) - 1) + [1],
        frozen_stages=min(backbone.get('frozen_stages', -1), 2))
    cfg.val_dataloader = cfg.val_evaluator = cfg.val_cfg = None
    for dataloader in (cfg.train_dataloader, cfg.test_dataloader):
        dataloader.update(num_workers=0, persistent_workers=False)
        dataloader.dataset.indices = 2
        shrink(dataloader.dataset, factor)
    cfg.train_dataloader.batch_size = 2
    shrink(cfg.model, factor)
    for scheduler in cfg.param_scheduler:
        if scheduler.type == 'LinearLR':
            scheduler.start_factor = 1.
    cfg.default_hooks.checkpoint.interval = 2
    return cfg


@pytest.mark.parametrize('head, factor', RUNS)
def test_trains_resumes_and_evaluates(head: str, factor: int, real_data: dict[str, Path],
                                      tmp_path: Path, run_tool: Callable) -> None:
    """Two steps and one more, by the published recipe; a frozen backbone stays what it is."""
    cfg, work_dir, config = recipe(head, factor), tmp_path / 'run', tmp_path / 'config.py'
    layout = 'coco' if cfg.default_scope == 'mmdet' else 'ade'
    data = ('--data-root', real_data[layout], '--work-dir', work_dir)
    limit = 'max_epochs' if 'max_epochs' in cfg.train_cfg else 'max_iters'
    states = []
    for steps, resume in ((2, []), (3, ['--resume'])):
        cfg.train_cfg[limit] = steps
        cfg.dump(config)
        run_tool('train', config, *data, *resume)
        checkpoint = (work_dir / 'last_checkpoint').read_text()
        states.append(read_checkpoint(checkpoint))
    run_tool('test', config, checkpoint, *data, '--out', tmp_path / 'metrics.json')

    first, last = (state['state_dict'] for state in states)
    assert all(value.isfinite().all() for value in last.values())
    assert states[1]['meta'][limit.removeprefix('max_').removesuffix('s')] == 3
    moved = {key for key in first if not first[key].equal(last[key])}
    fixed = {key for key in first if key.startswith('backbone.')} if head in FROZEN else set()
    assert not moved & fixed
    still = {key for key in first if first[key].is_floating_point()} - moved - fixed
    assert len(still) < 0.1 * len(first), still
    metrics = json.loads((tmp_path / 'metrics.json').read_text())['metrics']
    expected = {
        metric
        for metric in METRICS[layout] if head not in WITHOUT_MASKS or 'bbox' in metric
    }
    assert expected <= metrics.keys()
    assert all(0 <= metrics[metric] <= 100 for metric in expected)


def test_a_linear_head_is_a_norm_and_a_matrix() -> None:
    torch.manual_seed(0)
    maps = [torch.randn(2, 8, 5, 7), torch.randn(2, 4, 5, 7)]
    head = LinearHead([8, 4], in_index=[0, 1], input_transform='resize_concat',
                      num_classes=3).train()
    x = torch.cat(maps, dim=1)
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
    weight, bias = head.conv_seg.weight[:, :, 0, 0], head.conv_seg.bias
    expected = torch.einsum('kc,bchw->bkhw', weight, (x - mean) / (variance + 1e-5).sqrt())
    torch.testing.assert_close(head(maps), expected + bias[:, None, None])


@pytest.mark.parametrize('arch', ['xcit_small_12_p16', 'cait_s24', 'resmlp_s24',
                                  'vit_small_patch16_dinov3'])  # yapf: disable
def test_under_the_linear_head_the_backbone_is_frozen(arch: str) -> None:
    """No parameter of it is trained, no layer in training mode, and nothing is stored."""
    leaf = LEAVES['linear'].with_name(f'{arch}_40k_ade20k.py')
    with without_memory():
        model = MODELS.build(read_config(leaf).model).train()
        features = model.extract_feat(torch.empty(1, 3, 64, 64))
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    assert not any(layer.training
                   for layer in model.backbone.modules() if not list(layer.children()))
    assert not any(feature.requires_grad for feature in features)
    assert all(parameter.requires_grad for parameter in model.decode_head.parameters())
