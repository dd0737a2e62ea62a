"""All errors of a config are reported before data are loaded, with both settings."""
from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_VAL, NO_WORKERS, SHORT, config, latest_log
from helpers.cached_configs import copy_config
from mmcv.transforms import BaseTransform
from mmdet.datasets.transforms import LoadAnnotations, PackDetInputs
from mmengine.config import Config
from mmengine.registry import MODELS
from mmseg.datasets import BaseSegDataset

from colonnade.inference.loading import load
from colonnade.models import build_checks
from colonnade.settings.checks.all_checks import check_model, find_problems
from colonnade.settings.checks.schedule import find_number_problems
from colonnade.settings.findings import Finding
from colonnade.settings.known_settings import get_setting
from colonnade.settings.reading import read_config
from colonnade.settings.registries import find_class, is_known

ALL = ('train_dataloader', 'val_dataloader', 'test_dataloader')
HEADS = ('mask_rcnn', 'cascade_mask_rcnn', 'faster_rcnn', 'vitdet', 'dino', 'mask2former',
         'rtmdet_ins', 'sem_fpn', 'upernet', 'segformer', 'segmenter', 'linear',
         'mask2former_semantic')  # yapf: disable
TRAINING = 'train_dataloader.dataset'
REDUCES = True  # reduce_zero_label of the synthetic shapes


def check(cfg: Config) -> list[Finding]:
    return find_problems(cfg, ALL)


def change(head: str, changes: dict[str, Any] | None = None) -> Config:
    cfg = copy_config(config(head))
    cfg.merge_from_dict(changes or {})
    return cfg


def get_finding(findings: list[Finding], *places: str, severity: str = 'error') -> Finding:
    """Return the finding about these config keys."""
    matches = [f for f in findings if set(places) <= set(f.places) and f.severity == severity]
    assert matches, [str(each) for each in findings]
    assert all(place.rpartition('.')[2].partition('[')[0] in str(matches[0]) for place in places)
    return matches[0]


@pytest.mark.parametrize('head', HEADS)
def test_width_of_another_backbone(head: str) -> None:
    cfg = change(head)
    is_plain = cfg.model.backbone.type == 'PlainViT'
    cfg.model.backbone.arch = 'vit_small_patch16_224' if is_plain else 'small_12_p16'
    key = 'model.neck.in_channels' if cfg.model.neck else 'model.decode_head.in_channels'
    assert 'set ' in get_finding(check(cfg), key, 'model.backbone.arch').fix


@pytest.mark.parametrize('kind, arch, meant', [
    ('XCiT', 'smal_12_p16', 'small_12_p16'),
    ('XCiT', 'small_12_p14', 'small_12_p16'),
    ('CaiT', 'xss24', 'xxs24'),
    ('ResMLP', 's25', 's24'),
    ('SimplifiedViT', 'tiny_12_p15', 'tiny_12_p16'),
    ('PlainViT', 'vit_smal_patch16_dinov3', 'vit_small_patch16_dinov3'),
])
def test_unknown_arch(kind: str, arch: str, meant: str) -> None:
    cfg = change('sem_fpn')
    cfg.model.backbone = dict(type=kind, arch=arch)
    message = str(get_finding(check(cfg), 'model.backbone.arch'))
    assert f'no arch {arch!r}' in message and 'did you mean' in message and meant in message


@pytest.mark.parametrize(
    'head, key, value, other',
    [
        # block indices and strides
        ('sem_fpn', 'model.backbone.out_indices', [1, 2, 3, 12], 'model.backbone.arch'),
        ('linear', 'model.backbone.frozen_stages', 13, 'model.backbone.arch'),
        ('dino', 'model.neck.out_strides', [4, 8, 16, 32], 'model.backbone.out_indices'),
        ('rtmdet_ins', 'model.bbox_head.anchor_generator.strides', [4, 8, 16
                                                                    ], 'model.neck.out_strides'),
        ('mask2former', 'model.panoptic_head.strides', [8, 16, 32, 64], 'model.neck.out_strides'),
        # widths of neck and heads
        ('mask_rcnn', 'model.neck.fpn.out_channels', 256, 'model.rpn_head.in_channels'),
        ('faster_rcnn', 'model.roi_head.bbox_head.in_channels', 256,
         'model.roi_head.bbox_roi_extractor.out_channels'),
        ('mask_rcnn', 'model.roi_head.mask_head.in_channels', 32,
         'model.roi_head.mask_roi_extractor.out_channels'),
        ('mask_rcnn', 'model.roi_head.bbox_roi_extractor.roi_layer.output_size', 14,
         'model.roi_head.bbox_head.roi_feat_size'),
        ('vitdet', 'model.neck.out_channels', 256, 'model.rpn_head.in_channels'),
        ('rtmdet_ins', 'model.neck.fpn.out_channels', 32, 'model.bbox_head.in_channels'),
        ('dino', 'model.neck.fpn.out_channels', 256,
         'model.encoder.layer_cfg.self_attn_cfg.embed_dims'),
        ('dino', 'model.neck.fpn.num_outs', 5, 'model.num_feature_levels'),
        ('dino', 'model.bbox_head.embed_dims', 256, 'model.neck.fpn.out_channels'),
        ('mask2former', 'model.panoptic_head.in_channels', [64] * 4, 'model.neck.in_channels'),
        ('mask2former_semantic', 'model.decode_head.in_channels', [64] * 4,
         'model.neck.in_channels'),
        ('segformer', 'model.decode_head.in_channels', [32, 64, 160, 256
                                                        ], 'model.neck.in_channels'),
        ('segmenter', 'model.decode_head.in_channels', 384, 'model.backbone.arch'),
        # classes
        ('dino', 'model.bbox_head.num_classes', 80, f'{TRAINING}.metainfo.classes'),
        ('rtmdet_ins', 'model.bbox_head.num_classes', 80, f'{TRAINING}.metainfo.classes'),
        ('mask2former', 'model.panoptic_head.num_things_classes', 80,
         f'{TRAINING}.metainfo.classes'),
        ('segmenter', 'model.decode_head.num_classes', 150, f'{TRAINING}.metainfo.classes'),
        ('mask_rcnn', f'{TRAINING}.metainfo.palette', [(1, 2, 3)], f'{TRAINING}.metainfo.classes'),
        # sliding windows
        ('segmenter', 'model.test_cfg.stride', (200, 200), 'model.test_cfg.crop_size'),
        ('sem_fpn', 'model.test_cfg.mode', 'slide', 'model.test_cfg.crop_size'),
        # labels
        ('sem_fpn', f'{TRAINING}.pipeline.1.reduce_zero_label', not REDUCES,
         f'{TRAINING}.reduce_zero_label'),
        # metrics
        ('faster_rcnn', 'val_evaluator.metric', ['bbox', 'segm'], 'model.roi_head'),
        ('dino', 'test_evaluator.metric', ['segm'], 'model.bbox_head'),
        ('mask_rcnn', 'val_evaluator', dict(type='mmseg.IoUMetric'), 'val_dataloader.dataset.type'),
        ('mask_rcnn', f'{TRAINING}.pipeline.1.with_mask', False, 'model.roi_head.mask_head'),
        ('mask_rcnn', 'val_dataloader.dataset.pipeline.3.meta_keys',
         ('ori_shape', 'img_shape'), 'val_evaluator'),
        # loops
        ('sem_fpn', 'val_evaluator', None, 'val_dataloader'),
    ])
def test_mismatched_settings(head: str, key: str, value: Any, other: str) -> None:
    """The finding names the wrong setting, or its section, and the other one."""
    errors = [each for each in check(change(head, {key: value})) if each.severity == 'error']
    places = [place for each in errors for place in each.places]
    assert other in places, list(map(str, errors))
    assert any(place.startswith(key.partition('.pipeline.')[0]) for place in places), places


@pytest.mark.parametrize('key, value, place, message', [
    ('train_cfg.val_interval', 501, 'train_cfg.val_interval', 'evaluated only at the end'),
    ('train_cfg.val_begin', 501, 'train_cfg.val_begin', 'the model is never evaluated'),
    ('default_hooks.checkpoint.interval', 501, 'default_hooks.checkpoint.interval',
     'a checkpoint is saved only at the end'),
    ('default_hooks.checkpoint', dict(save_last=False, save_best=None, interval=900),
     'default_hooks.checkpoint.interval', 'no checkpoint is saved'),
    ('default_hooks.checkpoint.by_epoch', True, 'default_hooks.checkpoint.by_epoch',
     'saved only at the end'),
    ('train_cfg.max_iters', 300, 'param_scheduler[1].end',
     'the learning rate does not reach its final value'),
    ('param_scheduler.1.by_epoch', True, 'param_scheduler[1].by_epoch', 'never takes effect'),
    ('param_scheduler.1.begin', 500, 'param_scheduler[1].begin', 'it never starts'),
    ('param_scheduler.1', dict(type='MultiStepLR', milestones=[90, 600], by_epoch=False),
     'param_scheduler[1].milestones', 'contains [600], but training ends at 500'),
    ('model.data_preprocessor.seg_pad_val', 0, 'model.decode_head.ignore_index',
     'learned as a class'),
    ('val_dataloader.dataset.reduce_zero_label', not REDUCES, f'{TRAINING}.reduce_zero_label',
     'reduce_zero_label differs'),
])
def test_warnings(key: str, value: Any, place: str, message: str) -> None:
    cfg = change('sem_fpn')
    if key == 'param_scheduler.1':
        cfg.param_scheduler[1] = value
    else:
        cfg.merge_from_dict({key: value})
    warnings = check(cfg)
    assert {each.severity for each in warnings} == {'warning'}
    assert [message in str(each) for each in warnings if place in each.places] == [True]


@pytest.mark.parametrize('head, key, value, other', [
    ('mask_rcnn', 'val_evaluator.ann_file', 'other.json', 'val_dataloader.dataset.ann_file'),
    ('sem_fpn', 'model.decode_head.ignore_index', 0, f'{TRAINING}.reduce_zero_label'),
])
def test_mismatched_settings_with_warning(head: str, key: str, value: Any, other: str) -> None:
    get_finding(check(change(head, {key: value})), key, other, severity='warning')


def test_equivalent_paths() -> None:
    cfg = change('mask_rcnn')
    file = Path(cfg.val_evaluator.ann_file)
    for path in (file.absolute(), file.parent / '..' / file.parent.name / file.name):
        cfg.val_evaluator.ann_file = str(path)
        assert not check(cfg)


@pytest.mark.parametrize(
    'key, value, place, message',
    [
        (TRAINING, dict(img_sufix='.png'), f'{TRAINING}.img_sufix', 'did you mean img_suffix?'),
        (f'{TRAINING}.pipeline.4', dict(direcion='vertical'), f'{TRAINING}.pipeline.4.direcion',
         'did you mean direction?'),
        ('val_evaluator', dict(iou_metric=['mIoU']), 'val_evaluator.iou_metric', 'did you mean'),
        ('default_hooks.checkpoint', dict(max_keep=2), 'default_hooks.checkpoint.max_keep',
         'did you mean max_keep_ckpts?'),
        ('optim_wrapper.optimizer', dict(weight_decy=0.1), 'optim_wrapper.optimizer.weight_decy',
         'did you mean weight_decay?'),
        ('model.decode_head', dict(align_corner=True), 'model.decode_head.align_corner',
         'did you mean align_corners?'),
        ('model.neck', dict(out_stride=[4]), 'model.neck.out_stride', 'did you mean out_strides?'),
        ('train_dataloader', dict(num_worker=1), 'train_dataloader.num_worker', 'num_workers?'),
        # types
        (TRAINING, dict(type='ADE20KDatset'), f'{TRAINING}.type', 'did you mean ADE20KDataset'),
        (f'{TRAINING}.pipeline.2', dict(type='RandomResise'), f'{TRAINING}.pipeline.2.type',
         'did you mean RandomResize'),
        ('optim_wrapper.optimizer', dict(type='AdmW'), 'optim_wrapper.optimizer.type', 'AdamW'),
        ('default_hooks.checkpoint', dict(type='CheckpointHok'), 'default_hooks.checkpoint.type',
         'CheckpointHook'),
        ('model.decode_head', dict(type='FPNHed'), 'model.decode_head.type', 'FPNHead'),
        # strings in place of numbers
        ('optim_wrapper.optimizer', dict(lr='2e-3x'), 'optim_wrapper.optimizer.lr', "got '2e-3x'"),
        ('train_dataloader', dict(batch_size='8'), 'train_dataloader.batch_size', "got '8'"),
        ('default_hooks.checkpoint', dict(interval='250'), 'default_hooks.checkpoint.interval',
         'must be a number (default -1)'),
        (f'{TRAINING}.pipeline.2', dict(
            type='Pad', size_divisor='32'), f'{TRAINING}.pipeline.2.size_divisor', "got '32'"),
    ])
def test_unknown_settings_and_types(key: str, value: dict[str, Any], place: str,
                                    message: str) -> None:
    cfg = change('sem_fpn')
    part: Any = cfg
    for name in key.split('.'):
        part = part[int(name)] if name.isdecimal() else part[name]
    if 'type' in value:
        part.clear()
    part.update(value)
    assert message in str(get_finding(check(cfg), place))


def test_unread_section() -> None:
    cfg = change('sem_fpn')
    cfg.optim_wraper = dict(clip_grad=None)
    assert get_finding(check(cfg), 'optim_wraper', severity='warning').fix == \
        'did you mean optim_wrapper?'


@pytest.mark.parametrize(
    'spell', [str, 'mmdet.{}'.format, lambda name: find_class(f'mmdet.{name}')],
    ids=['name', 'library', 'class'])
def test_spellings_of_types(spell: Callable[[str], Any]) -> None:
    """Pure Python configs contain classes."""
    cfg = change('mask_rcnn', {'default_hooks.checkpoint.by_epoch': True})
    cfg.model.neck.fpn.update(type=spell('FPN'), out_channels=99)
    cfg.default_hooks.checkpoint.type = spell('CheckpointHook')
    findings = check(cfg)
    get_finding(findings, 'model.neck.fpn.out_channels', 'model.rpn_head.in_channels')
    get_finding(findings, 'default_hooks.checkpoint.by_epoch', severity='warning')


@pytest.mark.parametrize('kind',
                         ['', '..', '../../x', '.neck.FPN', 'mmdet..FPN', 'mmdet.FPN.', 'a\0.b'])
def test_malformed_types(kind: str) -> None:
    assert find_class(kind) is None
    assert not is_known(kind, MODELS)
    cfg = change('mask_rcnn', {'model.neck.fpn.type': kind})
    assert f'the type {kind!r} is not known' in str(get_finding(check(cfg), 'model.neck.fpn.type'))


def test_types_with_unusual_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be imported, or registered by libraries that are not loaded yet."""
    (tmp_path / 'my-project').mkdir()
    (tmp_path / 'my-project/hooks.py'
     ).write_text('from mmengine.hooks import Hook\n\n\nclass Own(Hook):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    cfg = change('sem_fpn')
    cfg.custom_hooks = [dict(type='my-project.hooks.Own')]
    cfg.train_dataloader.dataset.pipeline.insert(0, dict(type='mmpretrain.torchvision/Resize'))
    assert not [each for each in check(cfg) if 'not known' in str(each)]


def test_broken_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'broken_library').mkdir()
    (tmp_path / 'broken_library/registry.py').write_text('raise ValueError("made for numpy 1")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match='^made for numpy 1$'):
        is_known('broken_library.Metric', MODELS)


@pytest.mark.parametrize('kind', [3, 0.5, ['FPN']])
def test_types_of_wrong_type(kind: Any) -> None:
    cfg = change('mask_rcnn', {'model.neck.fpn.type': kind})
    finding = get_finding(check(cfg), 'model.neck.fpn.type')
    assert str(finding) == f'model.neck.fpn.type must be a name or a class, got {kind!r}'


def test_masks_that_are_not_required() -> None:
    """BoxInst learns masks from boxes; a panoptic metric reads another file."""
    cfg = change('mask_rcnn', {'model.roi_head.mask_head.type': 'BoxInstMaskHead'})
    cfg.train_dataloader.dataset.pipeline[1].with_mask = False
    assert not any(each.places[0].endswith('with_mask') for each in check(cfg))
    cfg = change('mask_rcnn', {'val_evaluator.type': 'CocoPanopticMetric',
                               'val_evaluator.ann_file': 'panoptic.json'})  # yapf: disable
    assert not any('val_evaluator.ann_file' in each.places for each in check(cfg))


class OwnSegDataset(BaseSegDataset):
    """Dataset that passes a constant to its base."""
    METAINFO = dict(classes=('background', 'disc', 'square', 'triangle'))

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reduce_zero_label=True, **kwargs)


class OwnLoadAnnotations(LoadAnnotations):

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(with_mask=True, **kwargs)


class OwnPackDetInputs(PackDetInputs):

    def __init__(self) -> None:
        super().__init__(meta_keys=('img_id', 'scale_factor'))


def test_arguments_of_custom_classes_are_unknown() -> None:
    cfg = change('sem_fpn', {f'{TRAINING}.pipeline.1.reduce_zero_label': True})
    dataset = cfg.train_dataloader.dataset
    dataset.type = OwnSegDataset
    del dataset['reduce_zero_label']
    assert not check(cfg)
    dataset.type = 'BaseSegDataset'
    get_finding(check(cfg), f'{TRAINING}.pipeline[1].reduce_zero_label')
    cfg = change('mask_rcnn')
    cfg.train_dataloader.dataset.pipeline[1] = dict(type=OwnLoadAnnotations, with_bbox=True)
    cfg.val_dataloader.dataset.pipeline[-1] = dict(type=OwnPackDetInputs)
    assert not check(cfg)


def test_palette_lengths() -> None:
    """mmseg selects the colors of the classes that are used."""
    cfg = change('sem_fpn')
    dataset = cfg.train_dataloader.dataset
    del dataset['reduce_zero_label']
    dataset.type, dataset.metainfo = OwnSegDataset, dict(palette=[[0, 0, 0]] * 5)
    get_finding(check(cfg), f'{TRAINING}.metainfo.palette')
    dataset.metainfo.classes = ('disc', 'square')
    assert not any(f'{TRAINING}.metainfo.palette' in each.places for each in check(cfg))
    dataset.type = 'BaseSegDataset'
    get_finding(check(cfg), f'{TRAINING}.metainfo.palette')


def test_legacy_names_of_classes_and_palettes() -> None:
    cfg = change('mask_rcnn')
    cfg.train_dataloader.dataset.metainfo = dict(CLASSES=('disc', ), PALETTE=[(1, 2, 3)])
    error, warning = check(cfg)
    assert str(error) == f'{TRAINING}.metainfo.CLASSES has no effect: did you mean classes?'
    assert str(warning) == f'{TRAINING}.metainfo.PALETTE has no effect: did you mean palette?'
    assert (error.severity, warning.severity) == ('error', 'warning')


def test_defaults_of_library_classes() -> None:
    ade20k = find_class('mmseg.ADE20KDataset')
    assert get_setting(dict(type=ade20k), 'reduce_zero_label') is True
    assert get_setting(dict(type='mmdet.Shared2FCBBoxHead'), 'roi_feat_size') == 7
    assert get_setting(dict(type=OwnSegDataset), 'reduce_zero_label') is None


def test_missing_pipeline_steps() -> None:
    cfg = change('sem_fpn')
    steps = cfg.val_dataloader.dataset.pipeline
    cfg.val_dataloader.dataset.pipeline = steps[:2]
    messages = '; '.join(map(str, check(cfg)))
    assert "does not pack its inputs: end it with dict(type='PackSegInputs')" in messages
    assert 'IoUMetric (val_evaluator) needs annotations, but' in messages


class OwnStep(BaseTransform):
    """Step that may load label maps, and may pack."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return results


@pytest.mark.parametrize('step', [
    dict(type=OwnStep),
    dict(type='RandomApply', transforms=[dict(type=OwnStep)]),
])
def test_custom_steps_turn_errors_into_notes(step: dict[str, Any]) -> None:
    cfg = change('sem_fpn')
    steps = cfg.train_dataloader.dataset.pipeline
    steps[1:] = [step, steps[-1]]
    note = get_finding(check(cfg), f'{TRAINING}.pipeline', severity='note')
    assert str(note) == (f'training needs annotations, but {TRAINING}.pipeline loads none, '
                         'unless OwnStep does')
    steps[-1:] = []
    notes = check(cfg)
    assert [each.severity for each in notes] == ['note'] * 2
    assert str(notes[0]).endswith('.pipeline does not pack its inputs, unless OwnStep does')


def test_subclasses_of_packing_steps() -> None:
    cfg = change('faster_rcnn')
    own = type('ToSamples', (PackDetInputs, ), {})
    cfg.train_dataloader.dataset.pipeline[-1] = dict(type=own)
    assert not check(cfg)


def test_invalid_steps() -> None:
    cfg = change('sem_fpn')
    cfg.train_dataloader.dataset.pipeline[2] = dict(type='RandomResize')
    message = str(get_finding(check(cfg), f'{TRAINING}.pipeline[2]'))
    assert '(RandomResize) cannot be built: ' in message and "'scale'" in message


@pytest.mark.parametrize('init_cfg, message', [
    ('weights.pth', "init_cfg must be dict(type='Pretrained', checkpoint='weights.pth')"),
    (dict(checkpoint='nowhere.pth'), 'no such weights file: nowhere.pth'),
    (dict(checkpoint='s3://bucket/a.pth'), 'is neither a file nor an HTTP URL'),
    (dict(checkpoint='timm://xcit_nano_12_p16_38.fb_dist_in1k'), 'timm has no pretrained weights '
     'named'),
    (dict(checkpoint='timm://xcit_tiny_12_p16_384.fb_dist_in1k'),
     '(XCiT tiny_12_p16), but model.backbone.arch is XCiT nano_12_p16'),
    (dict(checkpoint='timm://xcit_nano_12_p8_384.fb_dist_in1k'), '(XCiT nano_12_p8), but'),
    (dict(checkpoint='timm://cait_xxs24_224.fb_dist_in1k'), '(CaiT), but model.backbone.arch'),
    (dict(checkpoint='timm://resnet50.a1_in1k'), 'does not match any backbone'),
    (dict(checkpoint='timm://xcit_nano_12_p16_384.fb_dist_in1k'), ''),
])
def test_mismatched_weights(init_cfg: Any, message: str) -> None:
    cfg = change('sem_fpn')
    is_dict = isinstance(init_cfg, dict)
    cfg.model.backbone.init_cfg = dict(type='Pretrained', **init_cfg) if is_dict else init_cfg
    errors = check(cfg)
    assert len(errors) == bool(message) and message in ''.join(map(str, errors))
    cfg.load_from = __file__  # a full model, with weights of the backbone
    assert not is_dict or not check(cfg)


def test_normalization_of_weights() -> None:
    cfg = change('sem_fpn', {'model.data_preprocessor.mean': [127.5] * 3})
    cfg.model.backbone.init_cfg = dict(
        type='Pretrained', checkpoint='timm://xcit_nano_12_p16_384.fb_dist_in1k')
    warning = get_finding(check(cfg), 'model.data_preprocessor.mean', 'model.backbone.init_cfg',
                          severity='warning')  # yapf: disable
    assert check_model(cfg) == [warning]


def test_channel_order() -> None:
    """This is checked for timm weights; checkpoints were trained with their config."""
    cfg = change('sem_fpn', {'model.data_preprocessor.bgr_to_rgb': False})
    assert not check(cfg)  # random weights
    cfg.model.backbone.init_cfg = dict(
        type='Pretrained', checkpoint='timm://xcit_nano_12_p16_384.fb_dist_in1k')
    warning = get_finding(check(cfg), 'model.data_preprocessor.bgr_to_rgb', severity='warning')
    assert 'set bgr_to_rgb=True' in str(warning)
    assert not check_model(cfg) and not find_problems(cfg, ('test_dataloader', ))
    steps = cfg.train_dataloader.dataset.pipeline
    for step in (dict(type='LoadImageFromFile', imdecode_backend='tifffile'),
                 dict(type='LoadImageFromFile', color_type='unchanged')):
        steps[0] = step  # may load RGB
        assert not check(cfg)


# checks of built models


def test_model_cannot_be_built() -> None:
    cfg = change('dino', {'model.positional_encoding.num_feats': 33})
    assert not check(cfg)
    message, = map(str, build_checks.check_model(cfg, step=False))
    assert 'embed_dims should be exactly 2 times of num_feats' in message


def test_unused_custom_keys() -> None:
    cfg = change('sem_fpn')
    cfg.optim_wrapper.paramwise_cfg.custom_keys = dict(absolute_pos_embed=dict(decay_mult=0.))
    get_finding(
        build_checks.check_model(cfg, step=False),
        'optim_wrapper.paramwise_cfg.custom_keys.absolute_pos_embed',
        severity='warning')


def test_mismatched_local_weights(tmp_path: Path) -> None:
    cfg = change('sem_fpn')
    torch.save({}, tmp_path / 'a.pth')
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth'))
    get_finding(build_checks.check_model(cfg, step=False), 'model.backbone.init_cfg.checkpoint')


@pytest.mark.slow
@pytest.mark.parametrize('width', [64, 32])
def test_training_step_finds_more(width: int) -> None:
    cfg = change('dino', {'model.decoder.layer_cfg.ffn_cfg.embed_dims': width})
    assert not check(cfg)
    findings = build_checks.check_model(cfg, step=True)
    assert [each.severity for each in findings] == ['error'] * (width != 64)


@pytest.mark.parametrize('setting, message', [
    (dict(train_dataloader=dict(batch_size=0)), 'train_dataloader.batch_size is 0: set it to at '
     'least 1'),
    (dict(train_dataloader=dict(num_workers=-1)), 'train_dataloader.num_workers is -1: set it to '
     'at l'),
    (dict(randomness=dict(seed=-1)), 'randomness.seed is -1: set it to at least 0'),
    (dict(randomness=dict(seed=2**32)), 'randomness.seed is 4294967296: set it to at most '
     '4294967295'),
    (dict(optim_wrapper=dict(optimizer=dict(lr=-1.))),
     'optim_wrapper.optimizer.lr is -1.0: set it to at '),
])
def test_numbers_out_of_range(setting: dict[str, Any], message: str) -> None:
    cfg = read_config(config('sem_fpn'))
    cfg.merge_from_dict(setting)
    finding, = find_number_problems(cfg, ('train_dataloader', ))
    assert str(finding).startswith(message)


# commands


def run_check(run_tool: Callable, capsys: pytest.CaptureFixture[str], *arguments: Any) -> Any:
    try:
        run_tool('check_config', *arguments)
    except SystemExit as stopped:
        return stopped.code, capsys.readouterr().out
    return 0, capsys.readouterr().out


def test_check_config_lists_everything(tmp_path: Path, shapes: Path, run_tool: Callable,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    status, output = run_check(run_tool, capsys, config('sem_fpn'), '--data-root', shapes / 'ade',
                               '--json', tmp_path / 'found.json', '--cfg-options',
                               'model.neck.in_channels=7', 'lr=1', 'model.backbone.arhc=x',
                               'model.decode_head.num_classes=9', 'train_cfg.max_iters=100',
                               f'work_dir={__file__}/run')
    assert status == 1
    for part in ('did you mean optim_wrapper.optimizer.lr?', 'did you mean model.backbone.arch?',
                 'set model.neck.in_channels=128', 'decode_head.num_classes is 9',
                 'test_config_faults.py is not a directory',
                 'warning: param_scheduler[1].end is 500',
                 'sem_fpn/xcit_nano_12_p16_slim_shapes.py: 5 errors, '):
        assert part in output
    report = json.loads((tmp_path / 'found.json').read_text())
    assert report['errors'] == len([f for f in report['findings'] if f['severity'] == 'error']) == 5
    assert {'rule', 'says', 'places', 'fix', 'severity'} <= report['findings'][0].keys()


def test_check_config_without_data(run_tool: Callable, capsys: pytest.CaptureFixture[str],
                                   monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = run_check(run_tool, capsys, config('mask_rcnn'))
    assert status == 0 and output.endswith('0 errors, 0 warnings\n')
    assert output.startswith('note: classes and labels were not compared with the data: ')
    assert not os.listdir(tmp_path)


def test_check_config_reports_missing_data(run_tool: Callable, tmp_path: Path,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    status, output = run_check(run_tool, capsys, config('mask_rcnn'), '--data-root', tmp_path)
    assert status == 1 and f'{tmp_path}/annotations/instances_val2017.json (val_data' in output
    status, output = run_check(run_tool, capsys, config('mask_rcnn'), '--data-root', tmp_path / 'x')
    assert status == 1 and 'x is not a directory' in output


def test_training_reports_errors_before_loading_data(shapes: Path, tmp_path: Path,
                                                     run_tool: Callable,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('mmengine.registry.DATASETS.build',
                        lambda *_, **__: pytest.fail('a dataset is loaded'))
    (tmp_path / 'own.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        'model = dict(neck=dict(in_channels=7), decode_head=dict(num_classes=9))\n'
        'train_dataloader = dict(batch_size="8", dataset=dict(img_sufix=".png"))\n')
    with pytest.raises(SystemExit) as stopped:
        run_tool('train', tmp_path / 'own.py', '--data-root', shapes / 'ade', '--work-dir',
                 tmp_path / 'run')
    output = str(stopped.value)
    assert output.startswith('train: the config is inconsistent:\n')
    for part in ('set model.neck.in_channels=128', 'num_classes is 9', "got '8'", 'img_sufix'):
        assert part in output
    assert not (tmp_path / 'run').exists()


def test_training_logs_warnings(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir',
             tmp_path / 'run', '--no-report', *SHORT, *NO_WORKERS, *NO_VAL)
    assert ('config: param_scheduler[0].end is 50, param_scheduler[1].end is 500, but training '
            'ends at 2 (train_cfg.max_iters)') in latest_log(tmp_path / 'run')


@pytest.mark.parametrize('key, value, message', [
    ('model.backbone.arch', 'nano_12', "no arch 'nano_12'"),
    ('model.neck.in_channels', 7, 'set model.neck.in_channels=128'),
    ('model.roi_head.bbox_roi_extractor.featmap_strides', [8, 16, 32, 64],
     r'bbox_roi_extractor.featmap_strides=\[4, 8, 16, 32\]'),
])
def test_prediction_reports_mismatches(key: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(config('mask_rcnn'), tmp_path / 'a.pth', cfg_options={key: value})
