"""``--cfg-options``: unknown keys are errors with suggestions."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from helpers.cached_configs import copy_config
from mmengine.config import Config

from colonnade.engine.options import TrainOptions
from colonnade.settings import overrides
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.known_settings import is_typo
from colonnade.settings.overrides import get_value, merge_options
from colonnade.settings.reading import load_config
from colonnade.tools import train

DETECTOR = ROOT / 'configs/mask_rcnn/xcit_small_12_p16_3x_coco.py'
SEGMENTER = ROOT / 'configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py'


def override(path: Path, key: str, value: Any = 1) -> Config:
    cfg = copy_config(path)
    merge_options(cfg, {key: value})
    return cfg


@pytest.mark.parametrize(
    'key, message',
    [
        ('optim_wraper.optimizer.lr', 'did you mean optim_wrapper.optimizer.lr?'),
        ('train_cfgg.max_epochs', 'did you mean train_cfg.max_epochs?'),
        ('modle.x', 'unknown setting modle; did you mean model?'),
        ('rcnn.score_thresh', 'did you mean model.test_cfg.rcnn.score_thr?'),
        ('lr', 'did you mean optim_wrapper.optimizer.lr?'),
        ('batch_size', 'did you mean train_dataloader.batch_size'),
        ('train_pipeline.3.scale', 'copied .* set train_dataloader.dataset.pipeline instead'),
        ('data_root', 'set train_dataloader.dataset.data_root, val_dataloader.dataset.data_root'),
        ('train_cfg.max_epoch', 'did you mean train_cfg.max_epochs?'),
        ('train_dataloader.num_worker', 'did you mean train_dataloader.num_workers?'),
        ('train_dataloader.dataset.pipeline.0.colour_type',
         'pipeline.0 has no setting colour_type'),
        ('model.backbone.dorp_path_rate', 'did you mean model.backbone.drop_path_rate?'),
        ('model.test_cfg.rcnn.score_thresh', 'did you mean model.test_cfg.rcnn.score_thr?'),
        ('model.roi_head.bbox_head.num_class', 'did you mean .*bbox_head.num_classes?'),
        ('optim_wrapper.optimizer.momentum', 'optimizer has no setting momentum'),
        ('optim_wrapper.optimizer.epss', 'did you mean optim_wrapper.optimizer.eps?'),
        ('optim_wrapper.optimiser.lr', 'did you mean optim_wrapper.optimizer?'),
        ('default_hooks.logger.intervall', 'did you mean default_hooks.logger.interval?'),
        ('auto_scale_lr.enabled', 'did you mean auto_scale_lr.enable?'),
        ('param_scheduler.0.endd', 'did you mean param_scheduler.0.end?'),
        ('test_evaluator.metrik', 'did you mean test_evaluator.metric?'),
        # keys that cannot be set
        ('train_dataloader.dataset.pipeline.9.scale', 'a list of 5 items, expected an index from '
         '0 to 4, got 9'),
        ('train_dataloader.dataset.pipeline.-1.scale',
         'a list of 5 items, expected an index from 0 to 4, got -1'),
        ('train_dataloader.dataset.pipeline.x', 'a list of 5 items, expected an index from 0 to '
         '4, got x'),
        ('model.data_preprocessor.mean.5', 'a list of 3 items, expected an index from 0 '
         'to 2, got 5'),
        ('custom_hooks.0.type', 'custom_hooks is not a list, so it has no item 0'),
        ('model.backbone.arch.embed_dim', "arch is 'small_12_p16' and has no settings"),
    ])
def test_unknown_keys_are_errors(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(DETECTOR, key)


KNOWN = {
    DETECTOR: (
        'model.backbone.init_cfg.type', 'model.backbone.init_cfg.checkpoint',
        'model.backbone.with_cp', 'model.backbone.frozen_stages', 'model.backbone.arch',
        'optim_wrapper.clip_grad.max_norm', 'optim_wrapper.accumulative_counts',
        'optim_wrapper.optimizer.eps', 'optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult',
        'train_dataloader.dataset.indices', 'train_dataloader.pin_memory',
        'train_dataloader.dataset.pipeline.0.color_type', 'train_cfg.val_begin',
        'default_hooks.visualization.draw', 'default_hooks.early_stopping.type',
        'default_hooks.checkpoint.save_best', 'test_evaluator.classwise', 'val_dataloader',
        'randomness.seed', 'visualizer.save_dir', 'resume', 'default_hooks.logger.priority',
        'param_scheduler.1.convert_to_iter_based', 'optim_wrapper.paramwise_cfg.bias_decay_mult',
        'model.train_cfg.rpn.ga_assigner'),
    SEGMENTER: (
        'model.decode_head.norm_cfg.requires_grad', 'model.test_cfg.crop_size',
        'model.decode_head.loss_decode.avg_non_ignore',
        'train_dataloader.dataset.reduce_zero_label'),
}  # yapf: disable


@pytest.mark.parametrize('path, key', [(path, key) for path in KNOWN for key in KNOWN[path]])
def test_known_keys_are_set(path: Path, key: str) -> None:
    value: Any = override(path, key, 'x').to_dict()
    for part in key.split('.'):
        value = value[int(part) if isinstance(value, list) else part]
    assert value == 'x'


@pytest.mark.parametrize('options, expected', [
    ({'_delete_': True, 'type': 'SGD', 'lr': 0.1}, dict(type='SGD', lr=0.1)),
    ({'type': 'SGD', 'momentum': 0.9},
     dict(type='SGD', momentum=0.9, lr=0.0001, betas=(0.9, 0.999), weight_decay=0.05,
          fused=True)),
])  # yapf: disable
def test_replace_or_update_dict(options: dict[str, Any], expected: dict[str, Any]) -> None:
    cfg = copy_config(DETECTOR)
    merge_options(cfg, {f'optim_wrapper.optimizer.{key}': options[key] for key in options})
    assert cfg.optim_wrapper.optimizer == expected


@pytest.mark.parametrize('name, other, misspelt', [
    ('score_thresh', 'score_thr', True),
    ('mod', 'mode', True),
    ('max_per_image', 'max_per_img', True),
    ('stage4', 'stage3', False),
    ('unsup_weight', 'sup_weight', False),
    ('bias_decay_mult', 'flat_decay_mult', False),
    ('crop_size', 'mode', False),
])
def test_misspelt_names(name: str, other: str, misspelt: bool) -> None:
    assert is_typo(name, other) == misspelt


def test_keys_that_may_be_unread_get_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    override(SEGMENTER, 'model.test_cfg.crop_size', (512, 512))
    assert 'model.test_cfg has no crop_size in the config' in capsys.readouterr().out


def test_variables_that_may_be_unread_get_a_warning(tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'own.py').write_text(f'_base_ = {str(DETECTOR)!r}\nmy_threshold = 0.123\n')
    assert override(tmp_path / 'own.py', 'my_threshold', 0.5).my_threshold == 0.5
    assert 'my_threshold is a variable of the config file' in capsys.readouterr().out


def test_quoted_settings(monkeypatch: pytest.MonkeyPatch,
                         capsys: pytest.CaptureFixture[str]) -> None:
    option = 'train_cfg.max_iters=4 train_cfg.val_interval=2'
    monkeypatch.setattr('sys.argv', ['train', str(DETECTOR), '--cfg-options', option])
    with pytest.raises(SystemExit, match='2'):
        train.main()
    assert f'remove the quotes around {option}' in capsys.readouterr().err


@pytest.mark.parametrize('option', ['resume', 'a=[(1,2]', 'a=dict(b=1,c=2)'])
def test_invalid_settings(option: str, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr('sys.argv', ['train', str(DETECTOR), '--cfg-options', option])
    with pytest.raises(SystemExit, match='2'):
        train.main()
    assert f'--cfg-options takes KEY=VALUE, such as train_cfg.max_epochs=12, got {option}\n' \
        in capsys.readouterr().err


def test_a_setting_without_equals_sign(monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    words = ['train', str(DETECTOR), '--cfg-options', 'a=1', 'train_cfg.max_iters', '4']
    monkeypatch.setattr('sys.argv', words)
    with pytest.raises(SystemExit, match='2'):
        train.main()
    assert capsys.readouterr().err.endswith(
        'got train_cfg.max_iters; did you mean train_cfg.max_iters=4?\n')


@pytest.mark.parametrize('key, value, path, expected', [
    ('model.data_preprocessor.mean.0', 120., 'model.data_preprocessor.mean',
     [120., 116.28, 103.53]),
    ('model.data_preprocessor.mean.2', None, 'model.data_preprocessor.mean.2', None),
    ('train_dataloader.dataset.pipeline.0', dict(type='LoadImageFromFile', to_float32=True),
     'train_dataloader.dataset.pipeline.0.to_float32', True),
])  # yapf: disable
def test_set_items_of_lists(key: str, value: Any, path: str, expected: Any) -> None:
    """mmengine can only set items that are dicts."""
    assert get_value(override(DETECTOR, key, value).to_dict(), path) == expected


def test_later_option_removes_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(overrides, 'print_log', lambda text, **_: messages.append(text))
    options = {'randomness.seed': 1, 'randomness': dict(_delete_=True, deterministic=True)}
    cfg = copy_config(DETECTOR)
    merge_options(cfg, options)
    assert cfg.randomness == dict(deterministic=True)
    assert messages == [
        '--cfg-options randomness.seed: it has no effect, because '
        'a later option removes it'
    ]
    assert options['randomness'] == dict(_delete_=True, deterministic=True)  # not modified


def test_conflicting_settings() -> None:
    with pytest.raises(ValueError, match='drop_last is 0.5 and has no settings'):
        merge_options(
            copy_config(DETECTOR), {
                'test_dataloader.drop_last': 0.5,
                'test_dataloader.drop_last.x': 'y'
            })


@pytest.mark.parametrize('name, checkpoint', [
    ('xcit_small_12_p16_384.fb_dist_in1k', 'timm://xcit_small_12_p16_384.fb_dist_in1k'),
    ('https://a.b/c.pth', 'https://a.b/c.pth'),
    (__file__, __file__),
])
def test_pretrained(name: str, checkpoint: str) -> None:
    options = TrainOptions(DETECTOR, pretrained=name, cfg_options={'train_cfg.max_epochs': 1})
    cfg = load_config(options)
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=checkpoint)
    assert cfg.train_cfg.max_epochs == 1


@pytest.mark.parametrize('options, message', [
    (dict(pretrained='xcit_small_12_p16_384'), 'has no pretrained weights named .*; did you mean '
     'xcit_small'),
    (dict(pretrained='xcit_tiny_12_p16_384.fb_dist_in1k'), 'is timm://xcit_tiny.*arch is XCiT'),
    (dict(pretrained='a', load_from='b.pth'), 'pretrained has no effect with --load-from b.pth'),
    (dict(pretrained='weights/a.pth'), '--pretrained: no such weights file: weights/a.pth'),
    (dict(pretrained='a', resume='b.pth'), '--pretrained has no effect with --resume b.pth'),
])
def test_wrong_pretrained(options: dict[str, str], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        check_config(
            load_config(TrainOptions(DETECTOR, **options)),  # type: ignore[arg-type]
            ('train_dataloader', ))
