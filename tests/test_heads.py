"""Training, resuming and testing every head by its published recipe, and every backbone."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LAYOUTS, NO_WORKERS, ROOT, latest_log
from helpers.backbones import ARCHS, OURS
from mmengine.config import Config
from mmengine.registry import MODELS
from test_reference import Case, cases
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.heads import LinearHead
from colonnade.models.building import build_on_meta
from colonnade.settings.reading import read_config
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import load_weights
from colonnade.weights.state_dicts import WeightsError


def published_leaf(folder: Path) -> Path:
    """Return the recipe of a head with XCiT-S12/16 or else another small backbone."""
    leaves = [leaf for leaf in folder.glob('*.py') if not re.search('_slim_|_panoptic', leaf.stem)]
    leaves.sort(key=lambda leaf: (len(leaf.stem), leaf.stem))  # variants have longer names
    return next(leaf for name in ('xcit_small_12_p16', '_small_') for leaf in leaves
                if name in leaf.stem)  # yapf: disable


SLIM = sorted(
    [*ROOT.glob('configs/[!_]*/*_slim_coco.py'), *ROOT.glob('configs/[!_]*/*_slim_ade20k.py')])
LEAVES = {
    folder.name: published_leaf(folder)
    for folder in sorted({path.parent
                          for path in ROOT.glob('configs/[!_]*/*_slim_shapes.py')})
}
VARIANTS = [
    path for head in LAYOUTS for path in sorted((ROOT / 'configs' / head).glob('*small_12_p16_*'))
    if path.stem.endswith(('_ema', '_lld', '_lsj', '_slide'))
]
METRICS = {'coco': ('coco/bbox_mAP', 'coco/segm_mAP'), 'ade': ('mIoU', )}
SIZES = ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'max_size', 'stride',
         'pad_size_divisor')  # in pixels
FEW = {  # settings of models that take time: how many there are at most
    **dict.fromkeys(('num', 'num_queries', 'nms_pre', 'max_per_img', 'max_per_image'), 20),
    **dict.fromkeys(('channels', 'fc_out_channels', 'feedforward_channels', 'num_points'), 64),
    'num_layers': 2,
}
WITHOUT_MASKS = ('faster_rcnn', 'dino')
FROZEN = ('linear', 'pmt', 'pmt_semantic')  # heads whose recipe freezes the backbone
#: whose small versions are slow too: others with the same data and losses run always
COVERED = ('mask_rcnn', 'cascade_mask_rcnn', 'faster_rcnn', 'vitdet', 'mask2former', 'rtmdet_ins',
           'dino', 'sem_fpn', 'upernet', 'segmenter', 'mask2former_semantic', 'pmt', 'pmt_semantic',
           'eomt')
TYPICAL = ('mask_rcnn', 'sem_fpn', 'upernet', 'mask2former', 'eomt')  # for quick tests of all heads
FAMILIES = {
    cls.__name__: dict(type=cls.__name__, arch=arch | dict(embed_dim=128, patch_size=16))
    for cls, arch in ARCHS.items() if cls in OURS
}
FAMILIES['ResMLP by windows'] = FAMILIES['ResMLP'] | dict(token_mixing='window')
FAMILIES['DINOv3 by windows'] = dict(
    type='PlainViT',
    arch=FAMILIES['PlainViT']['arch'] | dict(model='vit_small_patch16_dinov3'),
    window_size=3,
    global_blocks=(1, ))


def smaller(value: Any, factor: int) -> Any:
    """Divide sizes in pixels of at least 256."""
    if isinstance(value, (list, tuple)):
        return type(value)(smaller(item, factor) for item in value)
    return value // factor if isinstance(value, int) and value >= 256 else value


def shrink(settings: Any, factor: int) -> None:
    """Make images smaller and layers fewer in a part of a config."""
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    for key, value in list(items):
        if key in SIZES:
            settings[key] = smaller(value, factor)
        elif key in FEW and factor > 1:
            settings[key] = min(value, FEW[key])
        elif isinstance(value, (dict, list)):
            shrink(value, factor)


def shorten(cfg: Config) -> None:
    """Train on two images without validation and without warm-up, whose steps change nothing."""
    cfg.val_dataloader = cfg.val_evaluator = cfg.val_cfg = None
    for dataloader in (cfg.train_dataloader, cfg.test_dataloader):
        dataloader.update(num_workers=0, persistent_workers=False)
        dataloader.dataset.indices = 2
    cfg.train_dataloader.batch_size = 2
    for scheduler in cfg.param_scheduler:
        if scheduler.type == 'LinearLR':
            scheduler.start_factor = 1.
    cfg.default_hooks.checkpoint.interval = 2


def head_recipe(leaf: Path, factor: int) -> Config:
    """Return a recipe with a backbone of two blocks, and images smaller by a factor."""
    cfg = read_config(leaf)
    backbone = cfg.model.backbone
    width = MODELS.get(backbone.type).variants.complete(backbone.arch)['embed_dim']
    cfg.model.backbone = dict(
        type='XCiT',
        arch=dict(embed_dim=width, depth=2, num_heads=4, patch_size=16, layer_scale_init_value=0.1),
        out_indices=[0] * (len(backbone.get('out_indices') or range(4)) - 1) + [1],
        frozen_stages=min(backbone.get('frozen_stages', -1), 2))
    if 'num_query_blocks' in backbone:  # only PlainViT has them
        cfg.model.backbone = dict(
            type='PlainViT',
            arch=dict(embed_dim=width, depth=3, num_heads=4, init_values=0.1),
            norm_features=True,
            num_query_blocks=2)
    shorten(cfg)
    for part in (cfg.train_dataloader.dataset, cfg.test_dataloader.dataset, cfg.model):
        shrink(part, factor)
    return cfg


def family_recipe(family: str, head: str) -> Config:
    """Return the slim recipe of a head with a small backbone of a family."""
    slim = {'coco': 'slim_coco', 'ade': 'slim_ade20k'}[LAYOUTS[head]]
    cfg = read_config(ROOT / f'configs/{head}/xcit_nano_12_p16_{slim}.py')
    cfg.model.backbone = FAMILIES[family]
    shorten(cfg)
    return cfg


RUNS = [
    *(pytest.param(head, partial(head_recipe, leaf, factor), id=f'{head}-{factor}',
                   marks=pytest.mark.slow if factor == 1 or head in COVERED else [])
      for head, leaf in LEAVES.items() for factor in (8, 1)),
    *(pytest.param(leaf.parent.name, partial(head_recipe, leaf, 8), id=f'{leaf.parent.name}-8-'
                   f'{leaf.stem[18:]}', marks=pytest.mark.slow) for leaf in VARIANTS),
    *(pytest.param(head, partial(family_recipe, family, head), id=f'{family}-{head}',
                   marks=[] if (family, head) == ('CaiT', 'sem_fpn') else pytest.mark.slow)
      for family in FAMILIES if family != 'XCiT' for head in ('mask_rcnn', 'sem_fpn')),
]  # yapf: disable


@pytest.mark.parametrize('head, make', RUNS)
def test_training_resumes_and_evaluates(head: str, make: partial[Config], real_data: dict[str,
                                                                                          Path],
                                        tmp_path: Path, run_tool: Callable) -> None:
    cfg, work_dir, config = make(), tmp_path / 'run', tmp_path / 'config.py'
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
    for options in ([], ['--tta'])[:1 + (make.args[0] in VARIANTS)]:
        run_tool('test', config, checkpoint, *data, *options, '--out', tmp_path / 'metrics.json')

    first, last = (state['state_dict'] for state in states)
    assert all(value.isfinite().all() for value in last.values())
    assert states[1]['meta'][limit.removeprefix('max_').removesuffix('s')] == 3
    trained = [  # the averages, if any, have hardly moved yet
        {
            key.removeprefix('module.'): value
            for key, value in state.get('ema_state_dict', state['state_dict']).items()
        } for state in states
    ]
    moved = {key for key in first if not trained[0][key].equal(trained[1][key])}
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


def test_linear_head_is_norm_and_matrix() -> None:
    torch.manual_seed(0)
    maps = [torch.randn(2, 8, 5, 7), torch.randn(2, 4, 5, 7)]
    head = LinearHead([8, 4], in_index=[0, 1], input_transform='resize_concat',
                      num_classes=3).train()
    x = torch.cat(maps, dim=1)
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
    weight, bias = head.conv_seg.weight[:, :, 0, 0], head.conv_seg.bias
    expected = torch.einsum('kc,bchw->bkhw', weight, (x - mean) / (variance + 1e-5).sqrt())
    torch.testing.assert_close(head(maps), expected + bias[:, None, None])


@pytest.mark.slow
@pytest.mark.parametrize('leaf', SLIM, ids=lambda leaf: leaf.parent.name)
def test_slim_configs_train_on_real_data(leaf: Path, real_data: dict[str, Path], tmp_path: Path,
                                         run_tool: Callable) -> None:
    """Two iterations and an evaluation, in the shipped form but for the workers."""
    layout = 'coco' if leaf.stem.endswith('coco') else 'ade'
    run_tool('train', leaf, '--data-root', real_data[layout], '--work-dir', tmp_path / 'run',
             '--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
             'default_hooks.checkpoint.interval=2', *NO_WORKERS)
    lines = latest_log(tmp_path / 'run')
    assert ('coco/bbox_mAP' if layout == 'coco' else 'mIoU') in lines
    state = read_checkpoint(tmp_path / 'run/iter_2.pth')['state_dict']
    assert all(bool(value.isfinite().all()) for value in state.values())


@cases('dinov2_*_head_*')
@torch.no_grad()
def test_published_linear_heads(name: str, tmp_path: Path) -> None:
    case = Case(name)
    trunk, made = (case.json['constructor'][key] for key in ('trunk', 'decode_head'))
    state = case.fill.state_dict_from(case.json['base_keys'])
    torch.save({
        key: torch.from_numpy(np.array(value))
        for key, value in state.items()
    }, tmp_path / 'backbone.pth')
    several = len(made['in_index']) > 1
    model = MODELS.build(
        dict(
            type='mmseg.EncoderDecoder',
            backbone=dict(
                type='PlainViT',
                arch=dict(
                    model='vit_small_patch14_dinov2',
                    embed_dim=trunk['embed_dim'],
                    depth=trunk['depth'],
                    num_heads=trunk['num_heads']),
                img_size=trunk['img_size'],
                out_indices=case.json['constructor']['out_indices'],
                center_padding=True,
                pos_embed_resize='dinov2',
                init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'backbone.pth'))),
            decode_head=dict(
                type='LinearHead',
                in_channels=made['in_channels'] if several else made['in_channels'][0],
                in_index=made['in_index'] if several else made['in_index'][0],
                input_transform='resize_concat' if several else None,
                num_classes=made['num_classes'],
                init_cfg=dict(type='Pretrained', checkpoint=str(case.checkpoint(tmp_path))))))
    model.init_weights()
    for dtype in (torch.float32, torch.float64):
        model.to(dtype).eval()
        image = case.image().to(dtype)
        maps = model.backbone(image)
        for index, output in enumerate(maps):
            case.compare(f'tap_{index}', output, 1e-5)
        logits = model.decode_head(maps)
        case.compare('head_logits', logits, 3e-5)
        resized = F.interpolate(logits, image.shape[2:], mode='bilinear')
        case.compare('logits', resized, 3e-5)
    with pytest.raises(WeightsError, match='head but no backbone'):
        load_weights(model, case.checkpoint(tmp_path))


@pytest.mark.parametrize('arch', ['xcit_small_12_p16', 'cait_s24', 'resmlp_s24',
                                  'vit_small_patch16_dinov3'])  # yapf: disable
def test_linear_head_recipes_freeze_backbone(arch: str) -> None:
    leaf = LEAVES['linear'].with_name(f'{arch}_40k_ade20k.py')
    with on_meta_device():
        model = MODELS.build(read_config(leaf).model).train()
        features = model.extract_feat(torch.empty(1, 3, 64, 64))
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    assert not any(layer.training
                   for layer in model.backbone.modules() if not list(layer.children()))
    assert not any(feature.requires_grad for feature in features)
    assert all(parameter.requires_grad for parameter in model.decode_head.parameters())


@pytest.mark.parametrize('size, width, depth', [('small', 384, 12), ('base', 768, 12),
                                                ('large', 1024, 24), ('giant', 1536, 40)])
@pytest.mark.parametrize('suffix, blocks', [('', 1), ('_ms', 4)])
def test_recipes_of_published_linear_heads(size: str, width: int, depth: int, suffix: str,
                                           blocks: int) -> None:
    leaf = LEAVES['linear'].with_name(f'vit_{size}_patch14_dinov2_40k_ade20k{suffix}.py')
    with on_meta_device():
        model = MODELS.build(read_config(leaf).model)
        logits = model(torch.empty(1, 3, 56, 70))
    assert logits.shape == (1, 150, 4, 5)
    assert model.decode_head.conv_seg.weight.shape == (150, blocks * width, 1, 1)
    assert len(model.backbone.blocks) == model.backbone.frozen_stages == depth


@pytest.mark.parametrize('head', [
    pytest.param(head, marks=[] if head in TYPICAL else pytest.mark.slow) for head in LEAVES
])  # yapf: disable
def test_forward_pass_waits_for_no_gpu(head: str) -> None:
    """A fake GPU raises an error if a value is copied to the host, or a shape depends on one."""
    model = build_on_meta(read_config(LEAVES[head]).model)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device('cuda'), torch.no_grad():
        model.to_empty(device='cuda').eval()
        maps = model.extract_feat(torch.empty(2, 3, 128, 96))
        assert all(each.is_cuda for each in maps if isinstance(each, torch.Tensor))
        part = getattr(model, 'decode_head', None) or getattr(model, 'rpn_head', None)
        if part is None and head == 'rtmdet_ins':
            part = model.bbox_head
        if part is not None and not hasattr(part, 'query_embed'):
            part(maps)
