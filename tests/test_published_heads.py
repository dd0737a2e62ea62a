"""Published recipes of heads, compared with the configs of mmdet and mmseg."""
from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import DATASETS, HOOKS, init_default_scope
from torch import nn

from colonnade.models.building import build_on_meta
from colonnade.settings.reading import read_config

SYNC_BN = {'decode_head.norm_cfg.type', 'decode_head.norm_cfg.requires_grad'}  # ours says BN
STOCK = {  # folder -> recipe, the library's config, differences of the model
    'mask_rcnn': ('3x_coco', 'mmdet/mask_rcnn/mask-rcnn_r50_fpn_1x_coco', set()),
    'faster_rcnn': ('3x_coco', 'mmdet/faster_rcnn/faster-rcnn_r50_fpn_1x_coco',
                    {'train_cfg.rcnn.mask_size', 'test_cfg.rcnn.mask_thr_binary'}),  # unused
    'cascade_mask_rcnn': ('3x_coco', 'mmdet/cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco', set()),
    'mask2former': ('50ep_coco_lsj', 'mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco',
                    {'panoptic_head.in_channels'}),
    'dino': ('12ep_coco', 'mmdet/dino/dino-4scale_r50_8xb2-12e_coco', set()),
    'rtmdet_ins': ('300ep_coco', 'mmdet/rtmdet/rtmdet-ins_l_8xb32-300e_coco',
                   {'bbox_head.norm_cfg.type', 'bbox_head.norm_cfg.requires_grad',  # SyncBN
                    'use_syncbn'}),  # the runner does it
    'sem_fpn': ('80k_ade20k', 'mmseg/sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512',
                {'decode_head.in_channels', *SYNC_BN}),
    'upernet': ('160k_ade20k', 'mmseg/upernet/upernet_r50_4xb4-160k_ade20k-512x512',
                {'decode_head.in_channels', 'auxiliary_head.in_channels', *SYNC_BN,
                 *(path.replace('decode', 'auxiliary') for path in SYNC_BN)}),
    'segformer': ('160k_ade20k', 'mmseg/segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512',
                  {'decode_head.in_channels', *SYNC_BN}),
    'segmenter': ('160k_ade20k', 'mmseg/segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512',
                  {'train_cfg'}),  # empty or absent
    'mask2former_semantic':
        ('160k_ade20k', 'mmseg/mask2former/mask2former_r50_8xb2-160k_ade20k-512x512',
         {'decode_head.in_channels', 'decode_head.strides',  # nothing reads the strides
          'decode_head.transformer_decoder.layer_cfg.ffn_cfg.add_identity',  # the defaults
          'decode_head.pixel_decoder.encoder.layer_cfg.self_attn_cfg.im2col_step'}),
}  # yapf: disable
SCHEDULES = {  # library's schedules, with differences; the others have XCiT's
    'mask2former': set(), 'dino': set(), 'rtmdet_ins': {'1.eta_min'},
    'segformer': {'1.begin'},  # as the original, see adamw_80k.py
    'segmenter': set(), 'mask2former_semantic': set(),
}  # yapf: disable


ZERO = {'1.reduce_zero_label'}  # the dataset sets it
PIPELINES = {  # training pipelines, with differences
    'mask2former': {'0.to_float32', '3.resize_type'},  # in 8 bits; the default type
    'dino': set(), 'rtmdet_ins': set(),
    'segformer': ZERO, 'segmenter': ZERO, 'mask2former_semantic': ZERO,
}  # yapf: disable


def recipe(head: str) -> Config:
    return read_config(ROOT / f'configs/{head}/xcit_small_12_p16_{STOCK[head][0]}.py')


def stock(head: str) -> Config:
    package, _, name = STOCK[head][1].partition('/')
    return Config.fromfile(Path(find_spec(package).origin).parent / f'.mim/configs/{name}.py')


def differences(ours: Any, theirs: Any, path: str = '') -> Iterator[str]:
    """Paths to what two configs have otherwise; absent is what is None, and drops nothing."""
    if isinstance(ours, (list, tuple)) and any(isinstance(item, dict) for item in ours):
        ours, theirs = (dict(enumerate(value)) for value in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        ours, theirs = (
            {key: value for key, value in each.items() if value or 'drop' not in str(key)}
            for each in (ours, theirs))  # yapf: disable
        for key in ours.keys() | theirs.keys():
            yield from differences(ours.get(key), theirs.get(key), f'{path}.{key}'.lstrip('.'))
    elif path.endswith('type') and ours and theirs:
        if ours.removeprefix('mmdet.') != theirs.removeprefix('mmdet.'):
            yield path
    elif ours != theirs:
        yield path


@pytest.mark.parametrize('head', STOCK)
def test_models_have_library_settings(head: str) -> None:
    own = {'backbone', 'neck', 'data_preprocessor', 'pretrained'}
    ours, theirs = ({key: value for key, value in cfg.model.items() if key not in own}
                    for cfg in (recipe(head), stock(head)))  # yapf: disable
    assert set(differences(ours, theirs)) == STOCK[head][2]


def head_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if not name.startswith(('backbone.', 'neck.'))
    }


@pytest.mark.parametrize('head', STOCK)
def test_heads_have_library_parameters(head: str) -> None:
    theirs, ours = stock(head).model, recipe(head).model
    for name, part in ours.items():  # some heads begin with projections of the backbone's width
        if name.endswith('_head') and 'in_channels' in part:
            theirs[name].in_channels = part.in_channels
    expected = head_shapes(build_on_meta(theirs))
    assert head_shapes(build_on_meta(ours)) == expected


@pytest.mark.parametrize('head', SCHEDULES)
def test_schedules_equal_library(head: str) -> None:
    ours, theirs = recipe(head), stock(head)
    changed = set(differences(ours.train_cfg, theirs.train_cfg))
    # One evaluation after the last multiple of 5,000, which mmengine adds to any interval.
    assert changed == ({'dynamic_intervals'} if head == 'mask2former' else set())
    schedule = theirs.param_scheduler
    schedule = schedule if isinstance(schedule, list) else [schedule]
    halved = head == 'rtmdet_ins'  # rates, as for mmdet's RTMDet on Swin
    assert set(differences(ours.param_scheduler, schedule)) == SCHEDULES[head]
    batch = theirs.train_dataloader.batch_size
    assert ours.train_dataloader.batch_size == batch
    assert ours.auto_scale_lr.base_batch_size == 8 * batch
    ours, theirs = ours.optim_wrapper, theirs.optim_wrapper
    for key in ('type', 'weight_decay', 'momentum'):
        assert ours.optimizer.get(key) == theirs.optimizer.get(key)
    assert ours.optimizer.lr == theirs.optimizer.lr * (0.5 if halved else 1)
    assert (ours.get('clip_grad') or {}).get('max_norm') == (theirs.get('clip_grad')
                                                             or {}).get('max_norm')
    for key, value in (theirs.get('paramwise_cfg') or {}).get('custom_keys', {}).items():
        if key != 'pos_block':  # SegFormer's, of no backbone of ours
            assert ours.paramwise_cfg.custom_keys[key].get('lr_mult', 1) == value.get('lr_mult', 1)


@pytest.mark.parametrize('head', PIPELINES)
def test_pipelines_equal_library(head: str) -> None:
    pipelines = [cfg.train_dataloader.dataset.pipeline for cfg in (recipe(head), stock(head))]
    assert set(differences(*pipelines)) == PIPELINES[head]


def test_vitdet_matching_equals_detectron2() -> None:
    cfg = read_config(ROOT / 'configs/vitdet/vit_base_patch16_224_mae_100ep_coco_lsj.py')
    assert cfg.model.train_cfg.rpn.assigner.match_low_quality
    assert not cfg.model.train_cfg.rcnn.assigner.match_low_quality
    shrunk, = (step for step in cfg.train_dataloader.dataset.pipeline
               if step.type == 'FilterAnnotations')  # yapf: disable
    assert shrunk.min_gt_bbox_wh == (1e-5, 1e-5) and shrunk.by_mask


@pytest.mark.parametrize('head', ['faster_rcnn', 'dino'])
def test_box_detectors_load_no_masks(head: str) -> None:
    cfg = recipe(head)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert not any(step.get('with_mask') for step in loader.dataset.pipeline)
    assert cfg.val_evaluator.metric == cfg.test_evaluator.metric == 'bbox'


def test_rtmdet_switches_pipeline(shapes: Path) -> None:
    cfg = recipe('rtmdet_ins')
    init_default_scope('mmdet')
    average, switch = cfg.custom_hooks
    assert switch.switch_epoch == cfg.train_cfg.max_epochs - 20
    cached = {'CachedMosaic', 'CachedMixUp'}
    assert cached <= {step.type for step in cfg.train_dataloader.dataset.pipeline}
    assert not cached & {step.type for step in switch.switch_pipeline}
    cfg.train_dataloader.dataset.data_root = str(shapes / 'coco')
    dataset = cfg.train_dataloader.dataset
    dataset.metainfo = dict(classes=('disc', 'square', 'triangle'))
    dataset.pipeline[1].poly2mask = True  # masks of synthetic shapes are not polygons
    dataset = DATASETS.build(dataset)
    assert dataset[0]['inputs'].shape == (3, 640, 640)
    for hook in (average, switch):
        HOOKS.build(hook)
