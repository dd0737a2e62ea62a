"""Detectors on our trunks have the heads, losses and settings of mmdet's own configs of them."""
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

from colonnade.engine.launch import read_config
from colonnade.engine.without_memory import build_without_memory

MMDET = Path(find_spec('mmdet').origin).parent / '.mim/configs'
STOCK = {  # folder -> recipe, mmdet's config, what differs of the model beside trunk and neck
    'mask_rcnn': ('3x_coco', 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco', set()),
    'faster_rcnn': ('3x_coco', 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco',
                    {'train_cfg.rcnn.mask_size', 'test_cfg.rcnn.mask_thr_binary'}),  # unused
    'cascade_mask_rcnn': ('3x_coco', 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco', set()),
    'mask2former': ('50ep_coco_lsj', 'mask2former/mask2former_r50_8xb2-lsj-50e_coco',
                    {'panoptic_head.in_channels'}),
    'dino': ('12ep_coco', 'dino/dino-4scale_r50_8xb2-12e_coco', set()),
    'rtmdet_ins': ('300ep_coco', 'rtmdet/rtmdet-ins_l_8xb32-300e_coco',
                   {'bbox_head.norm_cfg.type', 'bbox_head.norm_cfg.requires_grad'}),  # SyncBN
}  # yapf: disable
SCHEDULES = ('mask2former', 'dino', 'rtmdet_ins')  # from there too; the others have XCiT's


def recipe(head: str) -> Config:
    return read_config(ROOT / f'configs/{head}/xcit_small_12_p16_{STOCK[head][0]}.py')


def stock(head: str) -> Config:
    return Config.fromfile(MMDET / f'{STOCK[head][1]}.py')


def differences(ours: Any, theirs: Any, path: str = '') -> Iterator[str]:
    """Paths to what two configs have otherwise; what is None counts as absent."""
    if isinstance(ours, (list, tuple)) and any(isinstance(item, dict) for item in ours):
        ours, theirs = (dict(enumerate(value)) for value in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            yield from differences(ours.get(key), theirs.get(key), f'{path}.{key}'.lstrip('.'))
    elif ours != theirs:
        yield path


@pytest.mark.parametrize('head', STOCK)
def test_models_are_configured_as_in_mmdet(head: str) -> None:
    own = {'backbone', 'neck', 'data_preprocessor'}
    ours, theirs = ({key: value for key, value in cfg.model.items() if key not in own}
                    for cfg in (recipe(head), stock(head)))  # yapf: disable
    assert set(differences(ours, theirs)) == STOCK[head][2]


def head_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if not name.startswith(('backbone.', 'neck.'))
    }


@pytest.mark.usefixtures('no_filling')
@pytest.mark.parametrize('head', STOCK)
def test_heads_have_the_parameters_of_mmdets(head: str) -> None:
    theirs = stock(head).model
    if head == 'mask2former':  # its head begins with a projection of the trunk's width
        theirs.panoptic_head.in_channels = [384] * 4
    init_default_scope('mmdet')
    expected = head_shapes(build_without_memory(theirs))
    assert head_shapes(build_without_memory(recipe(head).model)) == expected


@pytest.mark.parametrize('head', SCHEDULES)
def test_schedules_are_mmdets(head: str) -> None:
    ours, theirs = recipe(head), stock(head)
    for key in ('max_epochs', 'max_iters'):
        assert ours.train_cfg.get(key) == theirs.train_cfg.get(key)
    schedule = theirs.param_scheduler
    schedule = schedule if isinstance(schedule, list) else [schedule]
    halved = head == 'rtmdet_ins'  # rates, as for mmdet's RTMDet on Swin
    found = set(differences(ours.param_scheduler, schedule))
    assert found == ({'1.eta_min'} if halved else set())
    batch = theirs.train_dataloader.batch_size
    assert ours.train_dataloader.batch_size == batch
    assert ours.auto_scale_lr.base_batch_size == 8 * batch
    ours, theirs = ours.optim_wrapper, theirs.optim_wrapper
    assert ours.optimizer.weight_decay == theirs.optimizer.weight_decay
    assert ours.optimizer.lr == theirs.optimizer.lr * (0.5 if halved else 1)
    assert (ours.get('clip_grad') or {}).get('max_norm') == (theirs.get('clip_grad')
                                                             or {}).get('max_norm')
    for key, value in theirs.paramwise_cfg.get('custom_keys', {}).items():
        assert ours.paramwise_cfg.custom_keys[key].get('lr_mult', 1) == value.get('lr_mult', 1)


@pytest.mark.parametrize('head', ['faster_rcnn', 'dino'])
def test_detectors_of_boxes_load_no_masks(head: str) -> None:
    cfg = recipe(head)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert not any(step.get('with_mask') for step in loader.dataset.pipeline)
    assert cfg.val_evaluator.metric == cfg.test_evaluator.metric == 'bbox'


def test_rtmdet_ends_on_whole_images(shapes: Path) -> None:
    """Its pipelines build; the second has neither mosaics nor mixtures."""
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
    dataset.pipeline[1].poly2mask = True  # of drawn shapes, masks are no polygons
    dataset = DATASETS.build(dataset)
    assert dataset[0]['inputs'].shape == (3, 640, 640)
    for hook in (average, switch):
        HOOKS.build(hook)
