"""Faults in configs are found before data are loaded, with both places, in one list."""
from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_VAL, NO_WORKERS, ROOT, SHORT, config, latest_log
from mmcv.transforms import BaseTransform
from mmdet.datasets.transforms import LoadAnnotations, PackDetInputs
from mmengine.config import Config
from mmengine.registry import MODELS
from mmseg.datasets import BaseSegDataset

from colonnade.inference.loading import load
from colonnade.models import build_checks
from colonnade.settings.checks.all_checks import check_model, findings
from colonnade.settings.checks.schedule import number_problems
from colonnade.settings.findings import Finding
from colonnade.settings.known_settings import value_of
from colonnade.settings.reading import read_config
from colonnade.settings.registries import find_class, is_known

ALL = ('train_dataloader', 'val_dataloader', 'test_dataloader')
HEADS = ('mask_rcnn', 'cascade_mask_rcnn', 'faster_rcnn', 'vitdet', 'dino', 'mask2former',
         'rtmdet_ins', 'sem_fpn', 'upernet', 'segformer', 'segmenter', 'linear',
         'mask2former_semantic')  # yapf: disable
TRAINING = 'train_dataloader.dataset'
REDUCES = True  # reduce_zero_label of the drawn shapes


def found_in(cfg: Config) -> list[Finding]:
    return findings(cfg, ALL)


@cache
def healthy(head: str) -> Config:
    """Read once for all tests, which change copies."""
    cfg = read_config(config(head))
    assert not found_in(cfg)
    return cfg


def changed(head: str, changes: dict[str, Any] | None = None) -> Config:
    cfg = deepcopy(healthy(head))
    cfg.merge_from_dict(changes or {})
    return cfg


def one(found: list[Finding], *places: str, severity: str = 'error') -> Finding:
    """The finding that names these places."""
    fitting = [f for f in found if set(places) <= set(f.places) and f.severity == severity]
    assert fitting, [str(each) for each in found]
    assert all(place.rpartition('.')[2].partition('[')[0] in str(fitting[0]) for place in places)
    return fitting[0]


@pytest.mark.parametrize('head', HEADS)
def test_a_backbone_of_another_width_is_named_with_what_it_does_not_fit(head: str) -> None:
    cfg = changed(head)
    plain = cfg.model.backbone.type == 'PlainViT'
    cfg.model.backbone.arch = 'vit_small_patch16_224' if plain else 'small_12_p16'
    key = 'model.neck.in_channels' if cfg.model.neck else 'model.decode_head.in_channels'
    assert 'set ' in one(found_in(cfg), key, 'model.backbone.arch').fix


@pytest.mark.parametrize('kind, arch, meant', [
    ('XCiT', 'smal_12_p16', 'small_12_p16'),
    ('XCiT', 'small_12_p14', 'small_12_p16'),
    ('CaiT', 'xss24', 'xxs24'),
    ('ResMLP', 's25', 's24'),
    ('SimplifiedViT', 'tiny_12_p15', 'tiny_12_p16'),
    ('PlainViT', 'vit_smal_patch16_dinov3', 'vit_small_patch16_dinov3'),
])
def test_an_arch_that_there_is_not(kind: str, arch: str, meant: str) -> None:
    cfg = changed('sem_fpn')
    cfg.model.backbone = dict(type=kind, arch=arch)
    said = str(one(found_in(cfg), 'model.backbone.arch'))
    assert f'no arch {arch!r}' in said and 'did you mean' in said and meant in said


@pytest.mark.parametrize(
    'head, key, value, other',
    [
        # numbers of blocks, patches and strides
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
        # tests in windows
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
        # lengths
        ('sem_fpn', 'val_evaluator', None, 'val_dataloader'),
    ])
def test_two_parts_that_do_not_agree(head: str, key: str, value: Any, other: str) -> None:
    """The setting that is wrong, or what stands around it, and what it does not agree with."""
    said = [each for each in found_in(changed(head, {key: value})) if each.severity == 'error']
    places = [place for each in said for place in each.places]
    assert other in places, list(map(str, said))
    assert any(place.startswith(key.partition('.pipeline.')[0]) for place in places), places


@pytest.mark.parametrize('key, value, place, says', [
    ('train_cfg.val_interval', 501, 'train_cfg.val_interval', 'evaluated at its end alone'),
    ('train_cfg.val_begin', 501, 'train_cfg.val_begin', 'it is never evaluated'),
    ('default_hooks.checkpoint.interval', 501, 'default_hooks.checkpoint.interval',
     'a checkpoint is saved at its end alone'),
    ('default_hooks.checkpoint', dict(save_last=False, save_best=None, interval=900),
     'default_hooks.checkpoint.interval', 'no checkpoint is saved'),
    ('default_hooks.checkpoint.by_epoch', True, 'default_hooks.checkpoint.by_epoch',
     'at its end alone'),
    ('train_cfg.max_iters', 300, 'param_scheduler[1].end', 'the learning rate stops on its way'),
    ('param_scheduler.1.by_epoch', True, 'param_scheduler[1].by_epoch', 'never changes anything'),
    ('param_scheduler.1.begin', 500, 'param_scheduler[1].begin', 'it never starts'),
    ('param_scheduler.1', dict(type='MultiStepLR', milestones=[90, 600], by_epoch=False),
     'param_scheduler[1].milestones', 'has [600], and training ends at 500'),
    ('model.data_preprocessor.seg_pad_val', 0, 'model.decode_head.ignore_index',
     'learnt as a class'),
    ('val_dataloader.dataset.reduce_zero_label', not REDUCES, f'{TRAINING}.reduce_zero_label',
     'reduce_zero_label differs'),
])
def test_what_a_training_survives_is_a_warning(key: str, value: Any, place: str, says: str) -> None:
    cfg = changed('sem_fpn')
    if key == 'param_scheduler.1':
        cfg.param_scheduler[1] = value
    else:
        cfg.merge_from_dict({key: value})
    found = found_in(cfg)
    assert {each.severity for each in found} == {'warning'}
    assert [says in str(each) for each in found if place in each.places] == [True]


@pytest.mark.parametrize('head, key, value, other', [
    ('mask_rcnn', 'val_evaluator.ann_file', 'other.json', 'val_dataloader.dataset.ann_file'),
    ('sem_fpn', 'model.decode_head.ignore_index', 0, f'{TRAINING}.reduce_zero_label'),
])
def test_two_parts_that_may_not_agree(head: str, key: str, value: Any, other: str) -> None:
    one(found_in(changed(head, {key: value})), key, other, severity='warning')


def test_one_file_may_be_spelt_in_two_ways() -> None:
    cfg = changed('mask_rcnn')
    file = Path(cfg.val_evaluator.ann_file)
    for path in (file.absolute(), file.parent / '..' / file.parent.name / file.name):
        cfg.val_evaluator.ann_file = str(path)
        assert not found_in(cfg)


@pytest.mark.parametrize(
    'key, value, place, says',
    [
        (TRAINING, dict(img_sufix='.png'), f'{TRAINING}.img_sufix', 'did you mean img_suffix?'),
        (f'{TRAINING}.pipeline.2', dict(direcion='vertical'), f'{TRAINING}.pipeline.2.direcion',
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
        # texts in place of numbers
        ('optim_wrapper.optimizer', dict(lr='2e-3x'), 'optim_wrapper.optimizer.lr', "got '2e-3x'"),
        ('train_dataloader', dict(batch_size='8'), 'train_dataloader.batch_size', "got '8'"),
        ('default_hooks.checkpoint', dict(interval='250'), 'default_hooks.checkpoint.interval',
         'is a number, -1'),
        (f'{TRAINING}.pipeline.2', dict(
            type='Pad', size_divisor='32'), f'{TRAINING}.pipeline.2.size_divisor', "got '32'"),
    ])
def test_settings_of_a_file_that_no_class_takes(key: str, value: dict[str, Any], place: str,
                                                says: str) -> None:
    cfg = changed('sem_fpn')
    part: Any = cfg
    for name in key.split('.'):
        part = part[int(name)] if name.isdecimal() else part[name]
    if 'type' in value:
        part.clear()
    part.update(value)
    assert says in str(one(found_in(cfg), place))


def test_a_part_that_nothing_reads() -> None:
    cfg = changed('sem_fpn')
    cfg.optim_wraper = dict(clip_grad=None)
    assert one(found_in(cfg), 'optim_wraper', severity='warning').fix == \
        'did you mean optim_wrapper?'


@pytest.mark.parametrize(
    'spelt', [str, 'mmdet.{}'.format, lambda name: find_class(f'mmdet.{name}')],
    ids=['name', 'library', 'class'])
def test_types_are_known_however_they_are_spelt(spelt: Callable[[str], Any]) -> None:
    """Python's own configs have classes."""
    cfg = changed('mask_rcnn', {'default_hooks.checkpoint.by_epoch': True})
    cfg.model.neck.fpn.update(type=spelt('FPN'), out_channels=99)
    cfg.default_hooks.checkpoint.type = spelt('CheckpointHook')
    found = found_in(cfg)
    one(found, 'model.neck.fpn.out_channels', 'model.rpn_head.in_channels')
    one(found, 'default_hooks.checkpoint.by_epoch', severity='warning')


@pytest.mark.parametrize('kind',
                         ['', '..', '../../x', '.neck.FPN', 'mmdet..FPN', 'mmdet.FPN.', 'a\0.b'])
def test_texts_that_can_be_no_type(kind: str) -> None:
    assert find_class(kind) is None
    assert not is_known(kind, MODELS)
    cfg = changed('mask_rcnn', {'model.neck.fpn.type': kind})
    assert f'the type {kind!r} is not known' in str(one(found_in(cfg), 'model.neck.fpn.type'))


def test_names_that_are_no_identifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports them, and libraries that wait may register them."""
    (tmp_path / 'my-project').mkdir()
    (tmp_path / 'my-project/hooks.py'
     ).write_text('from mmengine.hooks import Hook\n\n\nclass Own(Hook):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    cfg = changed('sem_fpn')
    cfg.custom_hooks = [dict(type='my-project.hooks.Own')]
    cfg.train_dataloader.dataset.pipeline.insert(0, dict(type='mmpretrain.torchvision/Resize'))
    assert not [each for each in found_in(cfg) if 'not known' in str(each)]


def test_a_library_that_is_broken_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'broken_library').mkdir()
    (tmp_path / 'broken_library/registry.py').write_text('raise ValueError("made for numpy 1")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match='^made for numpy 1$'):
        is_known('broken_library.Metric', MODELS)


@pytest.mark.parametrize('kind', [3, 0.5, ['FPN']])
def test_types_that_are_no_names(kind: Any) -> None:
    cfg = changed('mask_rcnn', {'model.neck.fpn.type': kind})
    found = one(found_in(cfg), 'model.neck.fpn.type')
    assert str(found) == f'model.neck.fpn.type must be a name or a class, got {kind!r}'


def test_masks_and_annotations_that_nothing_needs() -> None:
    """BoxInst learns masks from boxes; a metric of panoptic maps has a file of its own."""
    cfg = changed('mask_rcnn', {'model.roi_head.mask_head.type': 'BoxInstMaskHead'})
    cfg.train_dataloader.dataset.pipeline[1].with_mask = False
    assert not any(each.places[0].endswith('with_mask') for each in found_in(cfg))
    cfg = changed('mask_rcnn', {'val_evaluator.type': 'CocoPanopticMetric',
                                'val_evaluator.ann_file': 'panoptic.json'})  # yapf: disable
    assert not any('val_evaluator.ann_file' in each.places for each in found_in(cfg))


class OwnSegDataset(BaseSegDataset):
    """Sets what its base has as a default."""
    METAINFO = dict(classes=('background', 'disc', 'square', 'triangle'))

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reduce_zero_label=True, **kwargs)


class OwnLoadAnnotations(LoadAnnotations):

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(with_mask=True, **kwargs)


class OwnPackDetInputs(PackDetInputs):

    def __init__(self) -> None:
        super().__init__(meta_keys=('img_id', 'scale_factor'))


def test_what_users_classes_hand_to_their_bases_is_not_known() -> None:
    cfg = changed('sem_fpn', {f'{TRAINING}.pipeline.1.reduce_zero_label': True})
    dataset = cfg.train_dataloader.dataset
    dataset.type = OwnSegDataset
    del dataset['reduce_zero_label']
    assert not found_in(cfg)
    dataset.type = 'BaseSegDataset'
    one(found_in(cfg), f'{TRAINING}.pipeline[1].reduce_zero_label')
    cfg = changed('mask_rcnn')
    cfg.train_dataloader.dataset.pipeline[1] = dict(type=OwnLoadAnnotations, with_bbox=True)
    cfg.val_dataloader.dataset.pipeline[-1] = dict(type=OwnPackDetInputs)
    assert not found_in(cfg)


def test_palettes_of_some_classes_and_of_all() -> None:
    """mmseg picks the colours of those that are left."""
    cfg = changed('sem_fpn')
    dataset = cfg.train_dataloader.dataset
    del dataset['reduce_zero_label']
    dataset.type, dataset.metainfo = OwnSegDataset, dict(palette=[[0, 0, 0]] * 5)
    one(found_in(cfg), f'{TRAINING}.metainfo.palette')
    dataset.metainfo.classes = ('disc', 'square')
    assert not any(f'{TRAINING}.metainfo.palette' in each.places for each in found_in(cfg))
    dataset.type = 'BaseSegDataset'
    one(found_in(cfg), f'{TRAINING}.metainfo.palette')


def test_old_names_of_classes_and_palettes() -> None:
    cfg = changed('mask_rcnn')
    cfg.train_dataloader.dataset.metainfo = dict(CLASSES=('disc', ), PALETTE=[(1, 2, 3)])
    error, warning = found_in(cfg)
    assert str(error) == f'nothing reads {TRAINING}.metainfo.CLASSES: did you mean classes?'
    assert str(warning) == f'nothing reads {TRAINING}.metainfo.PALETTE: did you mean palette?'
    assert (error.severity, warning.severity) == ('error', 'warning')


def test_libraries_classes_that_pass_settings_on_are_known() -> None:
    ade20k = find_class('mmseg.ADE20KDataset')
    assert value_of(dict(type=ade20k), 'reduce_zero_label') is True
    assert value_of(dict(type='mmdet.Shared2FCBBoxHead'), 'roi_feat_size') == 7
    assert value_of(dict(type=OwnSegDataset), 'reduce_zero_label') is None


def test_pipelines_without_what_the_next_one_needs() -> None:
    cfg = changed('sem_fpn')
    steps = cfg.val_dataloader.dataset.pipeline
    cfg.val_dataloader.dataset.pipeline = steps[:2]
    said = '; '.join(map(str, found_in(cfg)))
    assert "pipeline does not pack what it loads: end it with dict(type='PackSegInputs')" in said
    assert 'loads no annotations, and IoUMetric (val_evaluator) needs them' in said


class OwnStep(BaseTransform):
    """May read label maps, and may pack."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return results


@pytest.mark.parametrize('step', [
    dict(type=OwnStep),
    dict(type='RandomApply', transforms=[dict(type=OwnStep)]),
])
def test_steps_of_users_may_do_what_seems_missing(step: dict[str, Any]) -> None:
    cfg = changed('sem_fpn')
    steps = cfg.train_dataloader.dataset.pipeline
    steps[1:] = [step, steps[-1]]
    note = one(found_in(cfg), f'{TRAINING}.pipeline', severity='note')
    assert str(note) == (f'{TRAINING}.pipeline loads no annotations, and training needs them, '
                         'unless OwnStep does')
    steps[-1:] = []
    said = found_in(cfg)
    assert [each.severity for each in said] == ['note'] * 2
    assert str(said[0]).endswith('.pipeline does not pack what it loads, unless OwnStep does')


def test_steps_that_extend_those_that_pack() -> None:
    cfg = changed('faster_rcnn')
    own = type('ToSamples', (PackDetInputs, ), {})
    cfg.train_dataloader.dataset.pipeline[-1] = dict(type=own)
    assert not found_in(cfg)


def test_steps_that_cannot_be_built() -> None:
    cfg = changed('sem_fpn')
    cfg.train_dataloader.dataset.pipeline[2] = dict(type='RandomResize')
    said = one(found_in(cfg), f'{TRAINING}.pipeline[2]')
    assert "(RandomResize) cannot be built: " in str(said) and "'scale'" in str(said)


@pytest.mark.parametrize('init_cfg, says', [
    ('weights.pth', "init_cfg must be dict(type='Pretrained', checkpoint='weights.pth')"),
    (dict(checkpoint='nowhere.pth'), 'there is no weights file nowhere.pth'),
    (dict(checkpoint='s3://bucket/a.pth'), 'is neither a file nor a URL of http'),
    (dict(checkpoint='timm://xcit_nano_12_p16_38.fb_dist_in1k'), 'timm publishes no weights'),
    (dict(checkpoint='timm://xcit_tiny_12_p16_384.fb_dist_in1k'),
     'of XCiT tiny_12_p16, and model.backbone.arch is XCiT nano_12_p16'),
    (dict(checkpoint='timm://xcit_nano_12_p8_384.fb_dist_in1k'), 'of XCiT nano_12_p8, and'),
    (dict(checkpoint='timm://cait_xxs24_224.fb_dist_in1k'), 'of CaiT, and model.backbone.arch'),
    (dict(checkpoint='timm://resnet50.a1_in1k'), 'is of no backbone that there is'),
    (dict(checkpoint='timm://xcit_nano_12_p16_384.fb_dist_in1k'), ''),
])
def test_weights_of_another_backbone(init_cfg: Any, says: str) -> None:
    cfg = changed('sem_fpn')
    given = isinstance(init_cfg, dict)
    cfg.model.backbone.init_cfg = dict(type='Pretrained', **init_cfg) if given else init_cfg
    said = found_in(cfg)
    assert len(said) == bool(says) and says in ''.join(map(str, said))
    cfg.load_from = __file__  # which holds the backbone's weights too
    assert not given or not found_in(cfg)


def test_images_that_are_normalised_for_other_weights() -> None:
    cfg = changed('sem_fpn', {'model.data_preprocessor.mean': [127.5] * 3})
    cfg.model.backbone.init_cfg = dict(
        type='Pretrained', checkpoint='timm://xcit_nano_12_p16_384.fb_dist_in1k')
    warning = one(found_in(cfg), 'model.data_preprocessor.mean', 'model.backbone.init_cfg',
                  severity='warning')  # yapf: disable
    assert check_model(cfg) == [warning]


def test_images_whose_channels_are_swapped() -> None:
    """Where timm's weights are loaded; a checkpoint was trained as its config says."""
    cfg = changed('sem_fpn', {'model.data_preprocessor.bgr_to_rgb': False})
    assert not found_in(cfg)  # random weights
    cfg.model.backbone.init_cfg = dict(
        type='Pretrained', checkpoint='timm://xcit_nano_12_p16_384.fb_dist_in1k')
    warning = one(found_in(cfg), 'model.data_preprocessor.bgr_to_rgb', severity='warning')
    assert 'set bgr_to_rgb=True' in str(warning)
    assert not check_model(cfg) and not findings(cfg, ('test_dataloader', ))
    steps = cfg.train_dataloader.dataset.pipeline
    for step in (dict(type='LoadImageFromFile', imdecode_backend='tifffile'),
                 dict(type='LoadImageFromFile', color_type='unchanged')):
        steps[0] = step  # which may keep RGB
        assert not found_in(cfg)


# what building tells


def test_a_model_that_cannot_be_built() -> None:
    cfg = changed('dino', {'model.positional_encoding.num_feats': 33})
    assert not found_in(cfg)
    said = [str(each) for each in build_checks.building_problems(cfg, step=False)]
    assert len(said) == 1 and 'embed_dims should be exactly 2 times of num_feats' in said[0]


def test_keys_of_rates_that_match_no_parameter() -> None:
    cfg = changed('sem_fpn')
    cfg.optim_wrapper.paramwise_cfg.custom_keys = dict(absolute_pos_embed=dict(decay_mult=0.))
    one(build_checks.building_problems(cfg, step=False),
        'optim_wrapper.paramwise_cfg.custom_keys.absolute_pos_embed',
        severity='warning')


def test_weights_on_this_disk_that_do_not_fit(tmp_path: Path) -> None:
    cfg = changed('sem_fpn')
    torch.save({}, tmp_path / 'a.pth')
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth'))
    one(build_checks.building_problems(cfg, step=False), 'model.backbone.init_cfg.checkpoint')


@pytest.mark.slow
@pytest.mark.parametrize('width', [64, 32])
def test_a_step_finds_what_rules_do_not(width: int) -> None:
    cfg = changed('dino', {'model.decoder.layer_cfg.ffn_cfg.embed_dims': width})
    assert not found_in(cfg)
    found = build_checks.building_problems(cfg, step=True)
    assert [each.severity for each in found] == ['error'] * (width != 64)


@pytest.mark.parametrize('setting, says', [
    (dict(train_dataloader=dict(batch_size=0)),
     'train_dataloader.batch_size is 0: it is at least 1'),
    (dict(train_dataloader=dict(num_workers=-1)), 'train_dataloader.num_workers is -1: it is at l'),
    (dict(randomness=dict(seed=-1)), 'randomness.seed is -1: it is at least 0'),
    (dict(randomness=dict(seed=2**32)), 'randomness.seed is 4294967296: it is below 4294967296'),
    (dict(optim_wrapper=dict(optimizer=dict(lr=-1.))),
     'optim_wrapper.optimizer.lr is -1.0: it is '),
])
def test_numbers_that_nothing_takes(setting: dict[str, Any], says: str) -> None:
    cfg = read_config(config('sem_fpn'))
    cfg.merge_from_dict(setting)
    finding, = number_problems(cfg, ('train_dataloader', ))
    assert str(finding).startswith(says)


# the tools


def run_check(run_tool: Callable, capsys: pytest.CaptureFixture[str], *arguments: Any) -> Any:
    try:
        run_tool('check_config', *arguments)
    except SystemExit as stopped:
        return stopped.code, capsys.readouterr().out
    return 0, capsys.readouterr().out


def test_the_tool_says_all_at_once(tmp_path: Path, shapes: Path, run_tool: Callable,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    status, said = run_check(run_tool, capsys, config('sem_fpn'), '--data-root', shapes / 'ade',
                             '--json', tmp_path / 'found.json', '--cfg-options',
                             'model.neck.in_channels=7', 'lr=1', 'model.backbone.arhc=x',
                             'model.decode_head.num_classes=9', 'train_cfg.max_iters=100',
                             f'work_dir={__file__}/run')
    assert status == 1
    for part in ('did you mean optim_wrapper.optimizer.lr?', 'did you mean model.backbone.arch?',
                 'set model.neck.in_channels=128', 'decode_head.num_classes is 9',
                 'test_config_faults.py is no folder', 'warning: param_scheduler[1].end is 500',
                 'sem_fpn/xcit_nano_12_p16_slim_shapes.py: 5 errors, '):
        assert part in said
    found = json.loads((tmp_path / 'found.json').read_text())
    assert found['errors'] == len([f for f in found['findings'] if f['severity'] == 'error']) == 5
    assert {'rule', 'says', 'places', 'fix', 'severity'} <= found['findings'][0].keys()


def test_the_tool_needs_no_data(run_tool: Callable, capsys: pytest.CaptureFixture[str],
                                monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = run_check(run_tool, capsys, config('mask_rcnn'))
    assert status == 0 and said.endswith('0 errors, 0 warnings\n')
    assert said.startswith('note: there are no data, as in ')
    assert not os.listdir(tmp_path)


def test_the_tool_names_data_that_are_missing(run_tool: Callable, tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    status, said = run_check(run_tool, capsys, config('mask_rcnn'), '--data-root', tmp_path)
    assert status == 1 and f'{tmp_path}/annotations/instances_val2017.json (val_data' in said
    status, said = run_check(run_tool, capsys, config('mask_rcnn'), '--data-root', tmp_path / 'x')
    assert status == 1 and 'x is no folder' in said


def test_trainings_end_with_the_same_list_and_before_data(shapes: Path, tmp_path: Path,
                                                          run_tool: Callable,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('mmengine.registry.DATASETS.build',
                        lambda *_, **__: pytest.fail('a data set is loaded'))
    (tmp_path / 'own.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        'model = dict(neck=dict(in_channels=7), decode_head=dict(num_classes=9))\n'
        'train_dataloader = dict(batch_size="8", dataset=dict(img_sufix=".png"))\n')
    with pytest.raises(SystemExit) as stopped:
        run_tool('train', tmp_path / 'own.py', '--data-root', shapes / 'ade', '--work-dir',
                 tmp_path / 'run')
    said = str(stopped.value)
    assert said.startswith('train: the config does not fit together:\n')
    for part in ('set model.neck.in_channels=128', 'num_classes is 9', "got '8'", 'img_sufix'):
        assert part in said
    assert not (tmp_path / 'run').exists()


def test_trainings_log_warnings(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir',
             tmp_path / 'run', '--no-report', *SHORT, *NO_WORKERS, *NO_VAL)
    assert ('config: param_scheduler[0].end is 50, param_scheduler[1].end is 500, and training '
            'ends at 2 (train_cfg.max_iters)') in latest_log(tmp_path / 'run')


@pytest.mark.parametrize('key, value, says', [
    ('model.backbone.arch', 'nano_12', "no arch 'nano_12'"),
    ('model.neck.in_channels', 7, 'set model.neck.in_channels=128'),
    ('model.roi_head.bbox_roi_extractor.featmap_strides', [8, 16, 32, 64],
     r'bbox_roi_extractor.featmap_strides=\[4, 8, 16, 32\]'),
])
def test_predictions_name_what_does_not_fit(key: str, value: Any, says: str,
                                            tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        load(config('mask_rcnn'), tmp_path / 'a.pth', cfg_options={key: value})


@pytest.mark.slow
def test_no_config_of_ours_has_a_finding() -> None:
    leaves = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
    assert len(leaves) > 200
    for leaf in leaves:
        found = found_in(read_config(leaf))
        assert not found, (leaf, list(map(str, found)))
