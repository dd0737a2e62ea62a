"""Every config can be built, and matches its name."""
from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import ROOT, SHARED
from helpers.backbones import OURS
from helpers.cases import case
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS, init_default_scope
from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.models.building import build_on_meta
from colonnade.necks import Pyramid, ViTAdapter
from colonnade.settings.classes import get_num_classes, iter_class_heads

PATHS = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
HEADS = sorted({path.parent.name for path in PATHS})
PUBLISHED = [path for path in PATHS if '_slim_' not in path.stem]
CLASSES = {cls.__module__.split('.')[2]: cls for cls in OURS}  # folder -> backbone class
ARCHS = {  # backbone -> architecture -> drop path rate of the full recipes
    'xcit': {
        'nano_12_p16': 0., 'tiny_12_p16': 0., 'tiny_12_p8': 0., 'tiny_24_p16': 0.05,
        'small_12_p16': 0.05, 'small_12_p8': 0.05, 'small_24_p16': 0.1, 'small_24_p8': 0.1,
        'medium_24_p16': 0.15, 'medium_24_p8': 0.15, 'large_24_p16': 0.25,
    },
    'cait': {'xxs24': 0.05, 'xs24': 0.05, 's24': 0.1, 's36': 0.2},
    'resmlp': {'s12': 0.05, 's24': 0.1, 'b24': 0.15},
    'simplified_vit': {'tiny_12_p16': 0., 'small_12_p16': 0.05},
    'plain_vit': dict.fromkeys(('vit_small_patch16_dinov3', 'vit_base_patch16_dinov3',
                                'vit_small_patch14_dinov2', 'vit_base_patch14_dinov2',
                                'deit3_small_patch16_224', 'deit3_base_patch16_224',
                                'vit_base_patch16_siglip_512'), 0.1),
}  # yapf: disable
RECIPES = {'mask_rcnn': '3x_coco', 'sem_fpn': '80k_ade20k', 'upernet': '160k_ade20k'}
RECIPES_OF_SUBSET = {
    'faster_rcnn': '3x_coco', 'cascade_mask_rcnn': '3x_coco', 'mask2former': '50ep_coco_lsj',
    'dino': '12ep_coco', 'rtmdet_ins': '300ep_coco', 'segformer': '160k_ade20k',
    'segmenter': '160k_ade20k', 'linear': '40k_ade20k', 'mask2former_semantic': '160k_ade20k',
}  # yapf: disable
PANOPTIC_OF_SUBSET = {'mask2former': '50ep_coco_panoptic', 'panoptic_fpn': '3x_coco_panoptic'}
HEAD_TYPES = {  # type of the detector, or of the head of the segmenter
    'mask_rcnn': 'MaskRCNN', 'faster_rcnn': 'FasterRCNN', 'cascade_mask_rcnn': 'CascadeRCNN',
    'vitdet': 'MaskRCNN', 'cascade_vitdet': 'CascadeRCNN', 'mask2former': 'Mask2Former',
    'dino': 'DINO', 'rtmdet_ins': 'RTMDet',
    'sem_fpn': 'FPNHead', 'upernet': 'UPerHead', 'segformer': 'SegformerHead',
    'segmenter': 'SegmenterMaskTransformerHead', 'linear': 'LinearHead',
    'mask2former_semantic': 'Mask2FormerHead', 'pmt': 'Mask2Former',
    'pmt_semantic': 'SemanticPMTHead', 'eomt': 'Mask2Former',
    'eomt_semantic': 'SemanticEoMTHead', 'panoptic_fpn': 'PanopticFPN',
    'setr_naive': 'SETRUPHead', 'setr_pup': 'SETRUPHead', 'setr_mla': 'SETRMLAHead',
    'dpt': 'DPTHead',
}  # yapf: disable
SCHEDULES = {  # name -> epochs, iterations
    '3x': (36, None), '12ep': (12, None), '24ep': (24, None), '75ep': (75, None),
    '100ep': (100, None),
    '300ep': (300, None), '50ep': (None, 368750), '40k': (None, 40000), '60k': (None, 60000),
    '80k': (None, 80000),
    '160k': (None, 160000), '31ep': (None, 39122), '16ep': (None, 20192),
}  # yapf: disable
SUBSET = ('xcit_small_12_p16', 'cait_s24', 'resmlp_s24', 'vit_small_patch16_dinov3',
          'vit_base_patch16_dinov3', 'vit_small_patch14_dinov2', 'vit_base_patch14_dinov2',
          'deit3_small_patch16_224', 'deit3_base_patch16_224')
VITDET = ('vit_small_patch16_dinov3', 'vit_base_patch16_dinov3')
MAE = (('base_patch16', 100), ('large_patch16', 100), ('huge_patch14', 75))
SLIDING = ('segmenter', 'linear', 'pmt_semantic', 'eomt_semantic', 'setr_naive', 'setr_pup',
           'setr_mla')  # heads with sliding windows
FROZEN = ('linear', 'pmt', 'pmt_semantic')  # heads on a frozen backbone
MMSEG_NECKS = ('MultiLevelNeck', 'Feature2Pyramid', 'MLANeck')  # of published segmenters
EOMT = ('eomt', 'eomt_semantic')  # heads without stochastic depth
PMT = ('xcit_small_12_p16', 'cait_s24', 'vit_small_patch16_dinov3', 'vit_base_patch16_dinov3',
       'vit_large_patch16_dinov3')
PARTS = (  # of file names; plain ViTs have timm names
    rf'(?:(?P<backbone>{"|".join(CLASSES)})_)?(?P<arch>\w+)',
    f'(?P<schedule>{"|".join(SCHEDULES)}|slim)', '(?P<data>coco|lvis|ade20k|shapes)'
    '(?P<variant>_lld|_lsj|_ema|_slide|_panoptic|_adapter|_mln|_normed|_beit|_mae|_ms)?')
NAME = re.compile('_'.join(PARTS))


def format_name(backbone: str, arch: str) -> str:
    return arch if backbone == 'plain_vit' else f'{backbone}_{arch}'


@functools.cache
def read_config(path: Path) -> Config:
    """Read a config that no test modifies."""
    return Config.fromfile(path)


def build(cfg: Config) -> nn.Module:
    init_default_scope(cfg.default_scope)
    return build_on_meta(cfg.model)


@functools.cache
def build_backbone(settings: str) -> ColumnarBackbone:
    """Build a backbone on the meta device, once for all heads."""
    return build_on_meta(ConfigDict(json.loads(settings)))


def test_configs_of_each_head_exist() -> None:
    names = {(path.parent.name, path.stem) for path in PATHS}
    for head, recipe in RECIPES.items():
        for backbone, archs in ARCHS.items():
            for arch in archs:
                assert (head, f'{format_name(backbone, arch)}_{recipe}') in names
        for backbone in CLASSES:  # configs of the demo
            assert any(other == head and path.startswith(f'{backbone}_nano_12')
                       and path.endswith('_slim_shapes') for other, path in names)
    for head, recipe in RECIPES_OF_SUBSET.items():
        assert {(head, f'{path}_{recipe}') for path in SUBSET} <= names
        assert (head, 'xcit_nano_12_p16_slim_shapes') in names
    for head, recipe in PANOPTIC_OF_SUBSET.items():
        assert {(head, f'{path}_{recipe}') for path in SUBSET} <= names
        assert {(head, f'xcit_{name}_panoptic')
                for name in ('nano_12_p16_slim_shapes', 'small_12_p16_160k_ade20k')} <= names
    assert {('eomt', 'vit_large_patch14_reg4_dinov2_31ep_ade20k_panoptic'),
            ('pmt', 'vit_large_patch16_dinov3_40k_ade20k_panoptic')} <= names
    assert {('vitdet', f'{path}_100ep_coco_lsj') for path in VITDET} <= names
    assert ('vitdet', 'xcit_nano_12_p16_slim_shapes') in names
    assert {('mask_rcnn', 'deit_base_patch16_224_3x_coco_adapter'),
            ('mask_rcnn', 'xcit_nano_12_p16_slim_shapes_adapter'),
            ('upernet', 'deit_base_patch16_224_160k_ade20k_adapter')} <= names
    for head in ('vitdet', 'cascade_vitdet'):
        assert {(head, f'vit_{arch}_224_mae_{epochs}ep_coco_lsj') for arch, epochs in MAE} <= names
        assert {(head, f'vit_{arch}_224_mae_100ep_lvis_lsj') for arch, _ in MAE} <= names
    assert {('linear', f'vit_{size}_patch14_dinov2_40k_ade20k{suffix}')
            for size in ('small', 'base', 'large', 'giant')
            for suffix in ('', '_ms')} <= names
    assert {('cascade_vitdet', f'eva02_{arch}_60k_coco_lsj')
            for arch in ('base_patch14_224_mim_in22k', 'large_patch14_224_mim_m38m')} <= names
    for path in PMT:
        assert {('pmt', f'{path}_24ep_coco'), ('pmt', f'{path}_24ep_coco_panoptic'),
                ('pmt_semantic', f'{path}_40k_ade20k')} <= names  # yapf: disable
    for head in ('pmt', 'pmt_semantic'):
        assert (head, 'xcit_nano_12_p16_slim_shapes') in names
    assert ('pmt', 'xcit_nano_12_p16_slim_shapes_panoptic') in names
    for size, epochs in (('small', 24), ('base', 24), ('large', 12)):
        for arch, length in (('patch14_reg4_dinov2', 31), ('patch16_dinov3', 16)):
            name = f'vit_{size}_{arch}'
            assert {('eomt', f'{name}_{epochs}ep_coco'),
                    ('eomt', f'{name}_{epochs}ep_coco_panoptic'),
                    ('eomt_semantic', f'{name}_{length}ep_ade20k')} <= names  # yapf: disable
    for head, variant in (('eomt', ''), ('eomt', '_panoptic'), ('eomt_semantic', '')):
        assert (head, f'plain_vit_nano_12_slim_shapes{variant}') in names


def check_name(path: Path, cfg: Config) -> None:
    name, model, head = NAME.fullmatch(path.stem), cfg.model, path.parent.name
    assert name, f'{path.stem} is not BACKBONE_ARCH_SCHEDULE_DATA'
    backbone = name['backbone'] or 'plain_vit'
    assert model.backbone.type == CLASSES[backbone].__name__
    assert (model.get('decode_head') or model).type == HEAD_TYPES[head]
    classes = {'coco': 80, 'lvis': 1203, 'ade20k': 150}.get(name['data'])
    if name['data'] == 'coco' and name['variant'] == '_panoptic':
        classes = 133  # 80 things, 53 of stuff
    classes = classes or len(cfg.train_dataloader.dataset.metainfo.classes)
    counts = {get_num_classes(part) for _, part in iter_class_heads(model)}
    if head == 'panoptic_fpn':  # boxes are things
        counts.remove(model.panoptic_fusion_head.num_things_classes)
    assert counts == {classes}
    if name['schedule'] == 'slim':  # width and depth of XCiT-N12
        settings = CLASSES[backbone].variants.resolve(model.backbone.arch)
        assert (settings['embed_dim'], settings['depth']) == (128, 12)
        assert name['arch'].startswith('nano_12')
        return
    arch = model.backbone.arch
    arch = arch if isinstance(arch, str) else arch.model
    assert arch.replace('.', '_') == name['arch']
    length = cfg.train_cfg.get('max_epochs'), cfg.train_cfg.get('max_iters')
    assert length == SCHEDULES[name['schedule']]
    rate = ARCHS.get(backbone, {}).get(name['arch'], model.backbone.drop_path_rate)
    if head == 'sem_fpn' and name['arch'].startswith('medium_24'):
        rate = 0.2  # as published
    assert model.backbone.drop_path_rate == (0. if head in FROZEN + EOMT else rate)


def check_variant(path: Path, cfg: Config) -> None:
    head, variant = path.parent.name, NAME.fullmatch(path.stem)['variant']
    paramwise_cfg = cfg.optim_wrapper.get('paramwise_cfg') or {}
    is_vitdet = head in ('vitdet', 'cascade_vitdet', *EOMT) or '_100ep_' in path.stem
    assert ('layer_decay_rate' in paramwise_cfg) == (variant == '_lld' or is_vitdet)
    has_ema = any(hook.type == 'EMAHook' for hook in cfg.get('custom_hooks', []))
    assert has_ema == (variant == '_ema' or head == 'rtmdet_ins')
    is_sliding = cfg.model.test_cfg.get('mode') == 'slide'
    assert is_sliding == (
        variant in ('_slide', '_beit', '_mae') or head in SLIDING
        or path.stem.endswith('ade20k_adapter'))
    dataset = cfg.train_dataloader.dataset
    pipeline = dataset.get('pipeline') or dataset.dataset.pipeline
    has_lsj = any(step.get('scale') == (1024, 1024) for step in pipeline)
    assert has_lsj == (variant == '_lsj' or '_50ep_' in path.stem)
    if has_lsj:  # square images of full patches
        stride = cfg.model.backbone.get('patch_size') or cfg.model.neck.stride
        assert cfg.model.data_preprocessor.pad_size_divisor == -(-1024 // stride) * stride


def check_sizes(path: Path, cfg: Config) -> None:
    """Check that neck, head and optimizer match the backbone."""
    head, neck = path.parent.name, cfg.model.neck
    settings = {key: value for key, value in cfg.model.backbone.items() if key != 'drop_path_rate'}
    backbone = build_backbone(json.dumps(settings))
    assert isinstance(backbone, ColumnarBackbone)
    if head in FROZEN and path in PUBLISHED:
        assert cfg.model.backbone.frozen_stages == len(backbone.blocks)
    if neck is None:
        head_cfg = cfg.model.get('decode_head') or cfg.model.panoptic_head
        widths = head_cfg.in_channels
        assert {backbone.embed_dim} == set(widths if isinstance(widths, list) else [widths])
    elif neck.type not in MMSEG_NECKS:
        assert neck.in_channels == backbone.embed_dim
        assert neck.type == 'ViTAdapter' or neck.stride == backbone.patch_size
    if head == 'sem_fpn' and path in PUBLISHED:  # the FPN is as wide as the backbone
        assert set(cfg.model.decode_head.in_channels) == {backbone.embed_dim}
    known = {'custom_keys', 'layer_decay_rate', 'flat_decay_mult'}
    assert known & (cfg.optim_wrapper.get('paramwise_cfg') or {}).keys() or head in FROZEN + SLIDING


def check_model(cfg: Config) -> None:
    model = build(cfg)
    assert cfg.model.neck is None or cfg.model.neck.type in MMSEG_NECKS or isinstance(
        model.neck, (Pyramid, ViTAdapter))
    names = [name for name, _ in model.named_parameters()]
    for key in (cfg.optim_wrapper.get('paramwise_cfg') or {}).get('custom_keys', {}):
        assert any(key in name for name in names), key


def check_dump(cfg: Config, dumped: Path) -> None:
    cfg.dump(dumped)
    assert Config.fromfile(dumped).to_dict() == cfg.to_dict()


@pytest.mark.usefixtures('no_layout')
@pytest.mark.parametrize('head, all_models', [
    pytest.param(head, all_models, marks=pytest.mark.slow if all_models else [])
    for all_models in (False, True) for head in HEADS
])  # yapf: disable
def test_configs_match_their_names(head: str, all_models: bool, tmp_path: Path) -> None:
    """Full models are built for one config per backbone and variant, or all in slow tests."""
    paths = [path for path in PATHS if path.parent.name == head]
    built: set[tuple[str, ...]] = set()
    for path in paths:
        with case(path):
            assert len([line for line in path.read_text().splitlines() if line.strip()]) <= 8
            cfg = read_config(path)
            check_name(path, cfg)
            if path in PUBLISHED:
                check_variant(path, cfg)
            check_sizes(path, cfg)
            name = NAME.fullmatch(path.stem)
            kind = (cfg.model.backbone.type, name['variant'] or '')
            if all_models or kind not in built:
                check_model(cfg)
            if name['backbone'] == 'xcit' and kind not in built:
                check_dump(cfg, tmp_path / f'{path.stem}.py')
            built.add(kind)
    assert len({str(read_config(path).to_dict()) for path in paths}) == len(paths)


def test_only_backbone_norms_do_not_decay() -> None:
    cfg = Config.fromfile(ROOT / 'configs/mask_rcnn/xcit_tiny_12_p16_3x_coco.py')
    model = build(cfg)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    free = {names[id(g['params'][0])] for g in groups if g['weight_decay'] == 0}
    assert free == {
        f'backbone.blocks.{i}.norm{j}.{kind}'
        for i in range(12)
        for j in (1, 2, 3)
        for kind in ('weight', 'bias')
    }
    assert {g['weight_decay'] for g in groups} == {0., 0.05}


def learning_rates(cfg: Config, num_iters: int) -> np.ndarray:
    """Return the learning rate of each of the first iterations."""
    init_default_scope(cfg.default_scope)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = [
        PARAM_SCHEDULERS.build(scheduler, default_args=dict(optimizer=optimizer))
        for scheduler in cfg.param_scheduler if not scheduler.by_epoch
    ]
    rates = []
    for _ in range(num_iters):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return np.array(rates)


@pytest.mark.parametrize('name, total', [('sem_fpn/xcit_small_12_p16_80k_ade20k', 80000),
                                         ('upernet/xcit_small_12_p16_160k_ade20k', 160000)])
def test_poly_schedule_equals_original(name: str, total: int) -> None:
    rates = learning_rates(Config.fromfile(ROOT / f'configs/{name}.py'), 1600)
    t = np.arange(1600)
    warm_up = np.minimum(1, 1e-6 + (1 - 1e-6) * t / 1500)
    # mmengine ends both ramps one iteration earlier than mmcv 1.
    np.testing.assert_allclose(rates, 6e-5 * (1 - t / total) * warm_up, rtol=2e-3)


def test_detection_schedule() -> None:
    cfg = Config.fromfile(ROOT / 'configs/mask_rcnn/xcit_small_12_p16_3x_coco.py')
    rates = learning_rates(cfg, 600)
    assert rates[0] == pytest.approx(1e-7)
    assert rates[250] == pytest.approx(1e-4 * (0.001 + 0.999 * 250 / 499))
    assert rates[500:] == pytest.approx(1e-4)
    steps = cfg.param_scheduler[1]
    assert (steps.milestones, steps.gamma, steps.by_epoch) == ([27, 33], 0.1, True)


def test_slim_segmenters_train_on_images_of_any_size(tmp_path: Path) -> None:
    cfg = Config.fromfile(ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_shapes.py')
    init_default_scope(cfg.default_scope)
    pipeline = Compose(cfg.train_dataloader.dataset.pipeline)
    image, mask = tmp_path / 'a.png', tmp_path / 'a_mask.png'
    for size in (128, 128), (150, 200), (300, 90):
        cv2.imwrite(str(image), np.zeros((*size, 3), np.uint8))
        cv2.imwrite(str(mask), np.ones(size, np.uint8))
        sample = pipeline({
            'img_path': str(image),
            'seg_map_path': str(mask),
            'reduce_zero_label': True,
            'seg_fields': []
        })
        assert sample['inputs'].shape == (3, 128, 128)
        assert sample['data_samples'].gt_sem_seg.data.shape == (1, 128, 128)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f'no reference outputs in {SHARED}')
@pytest.mark.parametrize(
    'path', [ROOT / f'configs/{h}/xcit_small_12_p16_{r}.py' for h, r in RECIPES.items()],
    ids=lambda p: p.parent.name)
def test_parameter_counts_equal_original(path: Path) -> None:
    reference = json.loads((SHARED / 'reference/downstream_keys.json').read_text())
    expected = reference[f'{path.parent.name}_{path.stem}']
    model = build(Config.fromfile(path))
    assert sum(p.numel() for p in model.parameters()) == expected['total_params']
    assert sum(p.numel() for p in model.backbone.parameters()) + sum(
        p.numel() for name, p in model.neck.named_parameters()
        if name.startswith('stride')) == expected['backbone_params']
