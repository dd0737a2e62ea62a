"""Inconsistent configs are reported before anything is loaded."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, config
from helpers.cached_configs import copy_config
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS
from mmseg.evaluation import IoUMetric

from colonnade.common.errors import UserError
from colonnade.engine.training import TrainOptions, load_training_settings
from colonnade.inference.packages.portable_config import build_portable_config
from colonnade.recipes.config_report import examine
from colonnade.settings.checks.all_checks import check_config, check_model, find_problems
from colonnade.settings.config_types import check_types, find_type_errors
from colonnade.settings.dataset_paths import (check_dataset, find_datasets, get_dataset_paths,
                                              iter_evaluators, read_category_names,
                                              redirect_data_root)
from colonnade.settings.findings import get_errors
from colonnade.settings.reading import read_config

RECIPES = [
    pytest.param(path, id=f'{path.parent.name}/{path.stem}', marks=[] if any(
        part in path.stem for part in ('small_12_p16', 'slim')) else pytest.mark.slow)
    for path in sorted((ROOT / 'configs').glob('[!_]*/*.py'))
]  # yapf: disable
ALL = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def check(path: Path, **changes: Any) -> None:
    cfg = copy_config(path)
    cfg.merge_from_dict(changes)
    check_config(cfg, ALL)


@pytest.mark.parametrize('path', RECIPES)
def test_shipped_configs_have_no_findings(path: Path) -> None:
    assert len(RECIPES) > 200
    assert not find_problems(read_config(path), ALL)


def test_configs_accept_findings(tmp_path: Path) -> None:
    cfg = copy_config(ROOT / 'configs/segmenter/vit_tiny_patch16_384_160k_ade20k.py')
    cfg.model.data_preprocessor.mean = [0, 0, 0]
    assert [each.rule for each in check_config(cfg, ALL)] == ['normalisation']
    cfg.accepted_findings = ['normalisation', 'width']
    with pytest.raises(UserError, match="accepted_findings has 'width', but only channel-order, "):
        check_config(cfg, ALL)
    cfg.accepted_findings = ['normalisation']
    assert not check_config(cfg, ALL) and not check_model(cfg)
    assert not check_model(Config(build_portable_config(cfg, ('disc', ), ((1, 2, 3), ))[0]))
    cfg.accepted_findings = 5  # in a package of a stranger
    assert len(check_model(cfg)) == 1
    cfg.accepted_findings = ['normalisation']
    cfg.optim_wrapper.paramwise_cfg = dict(custom_keys=dict(lost=dict(lr_mult=2.)))
    cfg.dump(tmp_path / 'own.py')
    assert {each.rule for each in examine(tmp_path / 'own.py')} == {'parameter-key', 'not-checked'}
    cfg.accepted_findings += ['parameter-key', 'not-checked']
    cfg.dump(tmp_path / 'own.py')
    assert not examine(tmp_path / 'own.py')
    cfg.model.decode_head.in_channels = 384
    with pytest.raises(UserError, match='is 384'):  # errors prevent training all the same
        check_config(cfg, ALL)


@pytest.mark.parametrize('head, key, value, message', [
    ('mask_rcnn', 'model.rpn_head.anchor_generator.strides', [3.5, 7, 14, 28, 56],
     r'strides is \[3.5, 7, 14, 28, 56\], but the pyramid outputs \[4, 8, 16, 32, 64\]'),
    ('mask_rcnn', 'model.roi_head.bbox_head.num_classes', 80,
     'bbox_head.num_classes is 80, .* has 3 classes: set model.*bbox_head.num_classes=3'),
    ('mask_rcnn', 'model.roi_head.mask_head.num_classes', 200, 'mask_head.num_classes is 200'),
    ('upernet', 'model.auxiliary_head.num_classes', 3, 'auxiliary_head.num_classes is 3, .* has 4'),
    ('sem_fpn', 'model.neck.in_channels', 384,
     r'is 384, but embed_dim of XCiT nano_12_p16 is 128 \(model.backbone.arch\): '
     'set model.neck.in_channels=128'),
    ('sem_fpn', 'model.backbone.arch', 'nano_12_p8',
     'neck.stride is 16, but patch_size of XCiT nano_12_p8 is 8 .*: set model.neck.stride=8'),
    ('sem_fpn', 'model.backbone.out_indices', (3, 7), 'out_indices has 2 blocks, .* 4 strides'),
    ('upernet', 'model.decode_head.in_channels', [384] * 4,
     r'in_channels is \[384, .*set model.decode_head.in_channels=\[128, 128, 128, 128\]'),
    ('upernet', 'model.auxiliary_head.in_index', 4, 'in_index is 4, .* outputs 4 levels'),
    ('sem_fpn', 'model.decode_head.feature_strides', [8, 16, 32, 64], 'feature_strides is'),
    ('mask_rcnn', 'model.rpn_head.in_channels', 256, 'rpn_head.in_channels=64'),
    ('mask_rcnn', 'model.rpn_head.anchor_generator.strides', [8, 16, 32, 64, 128],
     r'anchor_generator.strides=\[4, 8, 16, 32, 64\]'),
    ('mask_rcnn', 'model.roi_head.bbox_roi_extractor.featmap_strides', [8, 16, 32, 64],
     r'bbox_roi_extractor.featmap_strides=\[4, 8, 16, 32\]'),
    ('mask_rcnn', 'model.roi_head.mask_roi_extractor.out_channels', 256, 'out_channels=64'),
    ('upernet', 'train_dataloader.batch_size', 1, 'UPerHead .* normalize over a single value'),
    ('plain_vit', 'model.backbone.return_prefix_tokens', True,
     'prefix_tokens is True, but ColumnarPyramid accepts only feature maps'),
    ('vitdet', 'model.neck.in_channels', 64,
     'embed_dim of XCiT nano_12_p16 is 128 .*: set model.neck.in_channels=128'),
    ('vitdet', 'model.neck.stride', 8,
     'patch_size of XCiT nano_12_p16 is 16 .*: set model.neck.stride=16'),
    ('vitdet', 'model.neck.out_channels', 256,
     'rpn_head.in_channels is 64, but the pyramid outputs 256'),
    ('vitdet', 'model.neck.num_outs', 4, r'anchor_generator.strides=\[4, 8, 16, 32\]'),
    ('vitdet', 'model.neck.out_strides', [8, 16, 32],
     r'anchor_generator.strides=\[8, 16, 32, 64, 128\]'),
    ('adapter', 'model.neck.in_channels', 64, 'set model.neck.in_channels=128'),
    ('adapter', 'model.neck.fpn.out_channels', 32, 'rpn_head.in_channels is 64'),
    ('adapter', 'model.backbone.defer_blocks', False,
     'defer_blocks is False, but the neck runs the blocks: set model.backbone.defer_blocks=True'),
    ('mask_rcnn', 'model.backbone.defer_blocks', True,
     'defer_blocks is True, but the neck does not run the blocks'),
    ('vitdet', 'model.neck.fpn', dict(type='FPN'), r'model.neck \(SimplePyramid\) has no sett'),
])  # yapf: disable
def test_mismatches_are_reported(head: str, key: str, value: Any, message: str) -> None:
    paths = dict(
        plain_vit=config('sem_fpn').with_name('plain_vit_nano_12_slim_shapes.py'),
        adapter=config('mask_rcnn').with_name('xcit_nano_12_p16_slim_shapes_adapter.py'))
    with pytest.raises(ValueError, match=message):
        check(paths[head] if head in paths else config(head), **{key: value})


def test_advice_on_classes() -> None:
    for key, has_advice in (('model.roi_head.bbox_head.num_classes', True),
                            ('model.neck.stride', False)):  # yapf: disable
        with pytest.raises(ValueError) as raised:
            check(config('mask_rcnn'), **{key: 80})
        assert ('with colonnade create-config' in str(raised.value)) == has_advice


def test_all_errors_are_listed() -> None:
    with pytest.raises(ValueError) as error:
        check(
            config('sem_fpn'), **{
                'model.neck.in_channels': 7,
                'model.decode_head.num_classes': 150,
                'model.neck.stride': 8
            })
    assert str(error.value).count('\n') == 4  # the last line is the advice on classes


@pytest.mark.parametrize('kind, patch_size', [('CaiT', 12), ('ResMLP', 12)])
def test_other_patch_and_image_sizes(kind: str, patch_size: int) -> None:
    """img_size overrides 224 of the architecture, which is not a multiple of 12."""
    cfg = copy_config(config('sem_fpn'))
    arch = dict(embed_dim=128, depth=4, patch_size=patch_size)
    cfg.model.backbone = dict(
        type=kind, img_size=96, arch=arch | (dict(num_heads=4) if kind == 'CaiT' else {}))
    cfg.model.neck.update(stride=patch_size, out_strides=[3, 6, 12, 24])
    cfg.model.decode_head.feature_strides = [3, 6, 12, 24]
    check_config(cfg, ALL)
    assert MODELS.build(cfg.model.backbone).settings['img_size'] == 96


@pytest.mark.parametrize('head, key, value', [
    # third-party backbones
    ('sem_fpn', 'model.backbone', dict(type='ResNet', depth=50)),
    ('sem_fpn', 'model.backbone', dict(type='mmdet.SwinTransformer')),
    # heads that read levels differently
    ('upernet', 'model.decode_head',
     dict(type='Mask2FormerHead', in_channels=[128] * 4, num_classes=4)),
    ('upernet', 'model.decode_head',
     dict(type='UPerHead', in_channels=[128] * 4, num_classes=4, channels=64,
          in_index=[0, 1, 2, 3])),
    *(('upernet', 'model.decode_head', dict(type=kind, in_channels=128, in_index=0, num_classes=2))
      for kind in ('STDCHead', 'mmseg.STDCHead')),
    # strides that are none of levels, and several necks
    ('mask_rcnn', 'model.rpn_head.anchor_generator.strides', [7.9, 15.7, 31.]),
    ('sem_fpn', 'model.neck', [dict(type='ColumnarPyramid'), dict(type='FPN')]),
    # one image a process suffices where norms are synchronised
    ('upernet', '', dict(train_dataloader=dict(batch_size=1), launcher='pytorch')),
])  # yapf: disable
def test_unknown_modules_are_not_checked(head: str, key: str, value: Any) -> None:
    cfg = read_config(config(head))
    if not key:
        cfg.merge_from_dict(value)
    else:
        section, (*parents, last) = cfg, key.split('.')
        for parent in parents:
            section = section[parent]
        section[last] = ConfigDict(value) if isinstance(value, dict) else value
    check_config(cfg, ALL)


@pytest.mark.parametrize('kind', ['SOLOHead', 'DecoupledSOLOLightHead', 'SOLOV2Head'])
def test_strides_of_solo_heads(kind: str) -> None:
    cfg = copy_config(config('mask_rcnn'))
    head = dict(type=kind, num_classes=3, in_channels=64, strides=[8, 8, 16, 32, 32])
    cfg.model = ConfigDict(
        type='SOLO', backbone=cfg.model.backbone, neck=cfg.model.neck, mask_head=head)
    check_config(cfg, ALL)
    cfg.model.mask_head.strides = [4, 8, 16, 32, 64]
    with pytest.raises(ValueError, match=r'set model.mask_head.strides=\[8, 8, 16, 32, 32\]'):
        check_config(cfg, ALL)


@pytest.mark.parametrize('classes, message', [
    (('disc', 'square', 'star'), r'metainfo.classes has star, but the categories of .*train2017.*'
     'are disc, square, triangle'),
    (('triangle', 'square', 'disc'),
     'must be in the order of the categories .*: disc, square, tri'),
])
def test_classes_that_the_annotations_lack(classes: tuple[str, ...], message: str,
                                           shapes: Path) -> None:
    cfg = copy_config(config('mask_rcnn'))
    redirect_data_root(cfg, shapes / 'coco')
    for _, dataset in find_datasets(cfg):
        dataset.metainfo.classes = classes
    with pytest.raises(ValueError, match=message):
        check_config(cfg, ALL)


def test_classes_in_a_file(shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'classes.txt').write_text('disc\nsquare\ntriangle\n')
    cfg = copy_config(config('mask_rcnn'))
    redirect_data_root(cfg, shapes / 'coco')
    for _, dataset in find_datasets(cfg):
        dataset.metainfo = dict(classes=str(tmp_path / 'classes.txt'))
    check_config(cfg, ALL)
    (tmp_path / 'classes.txt').write_text('disc\nsquare\n')
    with pytest.raises(ValueError, match='num_classes is 3, .* has 2 classes'):
        check_config(cfg, ALL)


def test_datasets_without_annotation_file(tmp_path: Path) -> None:
    for paths in (dict(data_prefix=dict(img=str(tmp_path))), dict(data_root=str(tmp_path))):
        cfg = copy_config(config('mask_rcnn'))
        cfg.train_dataloader.dataset = Config(
            dict(a=dict(type='CocoDataset', metainfo=cfg.metainfo, **paths))).a
        check_config(cfg, ('train_dataloader', ))


@pytest.mark.parametrize('content, names', [
    (dict(categories=[dict(id=2, name='b'), dict(id=1, name='a')], images=[]), ['b', 'a']),
    (dict(images=[dict(file_name='"categories"')], categories=[dict(id=1, name='a')]), ['a']),
    (dict(categories=[]), []),
    (dict(categories=[dict(id=1)]), None),
    (dict(categories=None), None),
    ([], None),
])
def test_read_category_names(content: Any, names: list[str] | None, tmp_path: Path) -> None:
    (tmp_path / 'a.json').write_text(json.dumps(content))
    assert read_category_names(tmp_path / 'a.json') == names
    (tmp_path / 'a.json').write_text('')
    assert read_category_names(tmp_path / 'a.json') is None


@pytest.mark.parametrize(
    'option, message',
    [
        ('model.backbone.out_indices=[1,2,3,12]',
         'out_indices must be block indices from -12 to 11'),
        ('model.backbone.type=Xcitt', 'type Xcitt is not known; did you mean XCiT'),
        ('model.decode_head.num_classes=7', 'decode_head.num_classes is 7'),
        ('model.backbone.frozen_stages=99', 'frozen_stages must be between -1 and 12, got 99'),
        ('train_cfg.max_iters=two',
         "train_cfg.max_iters: expected a number such as 500, got 'two'"),
        ('model.neck.fpn.out_channel=7', 'did you mean model.neck.fpn.out_channels?'),
        ('model.backbone.arch=nano', "XCiT has no arch 'nano'"),
        ('val_evaluator.type=IoUMetrik', 'the type IoUMetrik is not known; did you mean IoUMetric'),
        # texts of a config file
        ('_base_ = BASE\nmodel = dict(backbone=dict(dorp_path_rate=0.1))',
         'model.backbone (XCiT) has no setting dorp_path_rate; did you mean drop_path'),
        ('_base_ = BASE\nmodel = dict(decode_head=dict(chanels=7))',
         'model.decode_head (FPNHead) has no setting chanels; did you mean channels?'),
        ('_base_ = BASE\nmodel = dict(decode_head=dict(of_others=7))',
         'train: a part of the config cannot be built: '),
        ('_base_ = BASE\nmodel = dict(decode_head=dict(of_others=7))',
         "unexpected keyword argument 'of_others'"),
        ('_base_ = "nowhere.py"', 'cannot be read'),
        ('model = dict(', 'cannot be read: SyntaxError'),
        ('a = b', 'cannot be read: NameError'),
        ('from mmengine.config import read_base\nwith read_base():\n    from .nowhere import *',
         'cannot be read: ConfigParsingError'),
        ('raise ValueError("set DATA")', 'cannot be read: ValueError: set DATA'),
        ('a = 1', 'is not a config of a detector or segmenter'),
        ('model = dict()\ndefault_scope = "mmpretrain"',
         'is not a config of a detector or segmenter'),
        ('custom_imports = dict(imports=["no_such_module"])', 'cannot be read: ImportError'),
    ])
def test_config_errors_of_training(option: str, message: str, shapes: Path, tmp_path: Path,
                                   run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'own.py').write_text(option.replace('BASE', repr(str(config('sem_fpn')))))
    is_option = option.startswith(('model.', 'train_cfg.', 'val_evaluator.'))
    arguments = [config('sem_fpn'), '--cfg-options', option] if is_option else [tmp_path / 'own.py']
    with pytest.raises(SystemExit) as stopped:
        run_tool('train', *arguments, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run')
    output = f'{capsys.readouterr().err}{stopped.value}'
    assert message in output
    assert not is_option or output.startswith('train: ') and 'Traceback' not in output


@pytest.mark.parametrize('key, value, unknown', [
    *(('test_evaluator.type', kind, None)
      for kind in ('IoUMetric', 'mmseg.IoUMetric', 'mmdet.CocoMetric', IoUMetric)),
    ('test_evaluator', dict(type='MultiDatasetsEvaluator', metrics=[dict(type='IoUMetric')],
                            dataset_prefixes=['drawn']), None),
    ('test_evaluator.type', 'Unknown', 'test_evaluator.type'),
    ('test_evaluator', dict(type='MultiEvaluator'), 'test_evaluator.type'),
    ('test_evaluator', dict(type='mmdet.MultiDatasetsEvaluator', metrics=[dict(type='Unknown')],
                            dataset_prefixes=['drawn']), 'test_evaluator.metrics.0.type'),
])  # yapf: disable
def test_unknown_metrics(key: str, value: Any, unknown: str | None) -> None:
    cfg = copy_config(config('sem_fpn'))
    section, _, last = key.rpartition('.')
    (cfg[section] if section else cfg)[last] = value
    findings = [each for each in find_problems(cfg, ALL) if each.rule == 'unknown-type']
    assert [each.places for each in findings] == ([(unknown, )] if unknown else [])


# paths of datasets


def data_config(data_root: str | None, ann_file: str = 'annotations/a.json') -> Config:
    dataset = dict(type='CocoDataset', data_root=data_root, ann_file=ann_file,
                   data_prefix=dict(img='images/'))  # yapf: disable
    path = ann_file if not data_root else f'{data_root}/{ann_file}'
    return Config(
        dict(
            train_dataloader=dict(dataset=dataset),
            val_evaluator=dict(type='CocoMetric', metric='bbox', ann_file=path)))


@pytest.mark.parametrize('old_root', ['', None, 'data/coco', 'data/coco/'])
def test_redirect_data_root(old_root: str | None, tmp_path: Path) -> None:
    cfg = data_config(old_root)
    redirect_data_root(cfg, tmp_path)
    assert cfg.train_dataloader.dataset.data_root == str(tmp_path)
    evaluator = cfg.val_evaluator
    assert (evaluator.type, evaluator.metric) == ('CocoMetric', 'bbox')
    assert evaluator.ann_file == f'{tmp_path}/annotations/a.json'


@pytest.mark.parametrize('ann_file, prefix, paths', [
    (['a.json', '/b.json'], dict(img='images'), ['/x/a.json', '/b.json', '/x/images']),
    (dict(path='a.json'), dict(img=['left', 'right'], depth=None), ['/x/left', '/x/right']),
    (('a.json', ), 'images', ['/x/a.json', '/x/images']),
    (None, None, []),
])
def test_paths_of_custom_datasets(ann_file: Any, prefix: Any, paths: list[str]) -> None:
    dataset = ConfigDict(data_root='/x', ann_file=ann_file, data_prefix=prefix)
    assert get_dataset_paths(dataset) == paths


def test_absolute_paths_are_kept(tmp_path: Path) -> None:
    cfg = data_config('', '/somewhere/a.json')
    redirect_data_root(cfg, tmp_path)
    assert cfg.val_evaluator.ann_file == '/somewhere/a.json'


@pytest.mark.parametrize('inside', [True, False])
def test_data_root_may_be_the_parent_folder(inside: bool, tmp_path: Path) -> None:
    """ADE20K is unpacked to a folder ADEChallengeData2016."""
    cfg = read_config(ROOT / 'configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py')
    folder = tmp_path / 'ADEChallengeData2016'
    for kind in ('images', 'annotations'):
        for split in ('training', 'validation'):
            (folder / kind / split).mkdir(parents=True)
    redirect_data_root(cfg, folder if inside else tmp_path)
    assert cfg.test_dataloader.dataset.data_root == str(folder)
    check_dataset(cfg, ALL)


@pytest.mark.parametrize('text, message', [
    ("model = 'x'", 'model must be a dict of settings, got'),
    ("default_hooks = [dict(type='LoggerHook')]", 'default_hooks must be a dict'),
    ("val_evaluator = 3", 'val_evaluator must be a dict of settings or a list of dicts, got 3'),
    ("custom_hooks = dict(type='EMAHook')", 'custom_hooks must be a list'),
    ("custom_hooks = ['EMAHook']", r'custom_hooks\[0\] must be a dict of settings'),
    ("train_dataloader = dict(dataset=None)", 'train_dataloader.dataset must be a dict'),
    ("train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', dataset='ade'))",
     'train_dataloader.dataset.dataset must be a dict of settings, got'),
    ("train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=dict()))",
     'train_dataloader.dataset.datasets must be a list, got'),
    ("train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=[dict("
     "type='ADE20KDataset', pipeline=['Mosaic'])]))",
     r"train_dataloader.dataset.datasets\[0\].pipeline\[0\] must be a dict .*'Mosaic'"),
    ("train_dataloader = dict(dataset=dict(metainfo=dict(classes=3)))",
     'train_dataloader.dataset.metainfo.classes must be a string or a list of strings, got 3'),
    ("train_dataloader = dict(dataset=dict(ann_file=['a.txt']))",
     'train_dataloader.dataset.ann_file must be a string, got'),
    ("train_cfg = dict(max_iters='x')", "train_cfg.max_iters must be a number, got 'x'"),
])  # yapf: disable
def test_sections_of_wrong_type(text: str, message: str, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text(f'_base_ = {str(config("sem_fpn"))!r}\n{text}\n')
    options = TrainOptions(
        tmp_path / 'own.py', data_root=shapes / 'ade', work_dir=tmp_path / 'run', patience=1)
    with pytest.raises(ValueError, match=message):
        load_training_settings(options)
    if ' must be ' in message and 'a number' not in message:
        assert re.search(message, str(examine(tmp_path / 'own.py')[0]))


@pytest.mark.parametrize('text', [
    "custom_hooks = [dict(type='EMAHook', dataset='train')]",
    "visualizer = dict(vis_backends=[dict(type='WandbVisBackend', "
    "init_kwargs=dict(config=dict(model='x', dataset='y', pipeline=1)))])",
])
def test_keys_of_hooks_and_trackers_are_not_checked(text: str, tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text(f'_base_ = {str(config("sem_fpn"))!r}\n{text}\n')
    check_types(read_config(tmp_path / 'own.py'))


OWN = """
from mmseg.datasets import BaseSegDataset
from mmengine.registry import DATASETS

@DATASETS.register_module(force=True)
class OwnPairs(BaseSegDataset):
    METAINFO = dict(classes=['a', 'b', 'c', 'd'])

    def __init__(self, mixture=None, **options):
        super().__init__(**options)
"""


@pytest.mark.parametrize('settings', [
    dict(ann_file=['a.txt', 'b.txt']),
    dict(ann_file=dict(main='a.txt'), data_prefix='train'),
    dict(pipeline=dict(weak=[], strong=[])),
    dict(mixture=dict(data_root=3, pipeline='weak', ann_file=3)),
])
def test_custom_datasets_accept_any_settings(settings: dict[str, Any], tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'own_pairs.py').write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'own.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\ncustom_imports = dict(imports=["own_pairs"])\n'
        f'train_dataloader = dict(dataset=dict(_delete_=True, type="OwnPairs", **{settings}))')
    assert not find_type_errors(read_config(tmp_path / 'own.py'))
    assert not get_errors(examine(tmp_path / 'own.py'))


@pytest.mark.parametrize('steps', [
    [dict(type='RandomChoice', transforms=[[dict(type='LoadAnnotations')],
                                           [dict(type='LoadAnnotations')]]),
     dict(type='PackSegInputs')],
    [dict(type='TestTimeAug', transforms=[[dict(type='Resize', scale_factor=1., keep_ratio=True)],
                                          [dict(type='LoadAnnotations')],
                                          [dict(type='PackSegInputs')]])],
    ({'type': 'LoadAnnotations'}, {'type': 'PackSegInputs'}),
])  # yapf: disable
def test_nested_steps_load_and_pack(steps: Any) -> None:
    cfg = copy_config(config('sem_fpn'))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.pipeline = [dict(type='LoadImageFromFile'), *steps]
    assert not [each for each in find_problems(cfg, ALL) if 'pipeline' in str(each)]


def test_types_in_pure_python_configs(tmp_path: Path) -> None:
    """Types are names with all modules; mmcv has classes of the same names."""
    (tmp_path / 'own.py').write_text("""
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import LoadAnnotations, PackDetInputs
default_scope = 'mmdet'
model = dict(type='FasterRCNN')
train_dataloader = dict(
    dataset=dict(
        type='CocoDataset',
        pipeline=[
            dict(type=LoadImageFromFile),
            dict(type=LoadAnnotations, with_bbox=True, with_mask=True),
            dict(type=PackDetInputs)
        ]))
""")
    messages = map(str, find_problems(read_config(tmp_path / 'own.py'), ('train_dataloader', )))
    assert not [text for text in messages if 'has no setting' in text or 'not known' in text]


@pytest.mark.parametrize('content, message', [
    (None, 'metainfo.classes: file {} does not exist'),
    (b'\xff\xd8\xff', 'metainfo.classes: {} is not a text file'),
])
def test_unreadable_files_of_classes(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / 'classes.txt'
    if content:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message.format(path)):
        check(config('sem_fpn'), **{'train_dataloader.dataset.metainfo.classes': str(path)})


def test_tuple_of_metrics() -> None:
    cfg = copy_config(config('sem_fpn'))
    cfg.val_evaluator = (cfg.val_evaluator, dict(type='mmseg.IoUMetric', iou_metrics=['mDice']))
    assert [metric.type for metric in iter_evaluators(cfg, ('val_evaluator', ))] == [
        'IoUMetric', 'mmseg.IoUMetric']  # yapf: disable
    assert not find_problems(cfg, ALL)


def test_overrides_of_wrong_type() -> None:
    error, note = examine(config('sem_fpn'), cfg_options={'model.backbone': 'x'})
    assert 'model.backbone must be a dict of settings' in str(error)
    assert str(note) == 'all other rules were not checked: fix the errors first'
