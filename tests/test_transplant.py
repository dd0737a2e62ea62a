"""Our backbones in configs of mmdet and mmseg as they are installed."""
from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.drawn_data import draw_instances, draw_label_maps, leaf
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS

from colonnade.engine.runner.hooks import QuietFilter
from colonnade.models.trial_step import build_trial_model, compute_trial_loss
from colonnade.recipes.backbone_swap.config_diff import difference
from colonnade.recipes.backbone_swap.notes import Notes
from colonnade.recipes.backbone_swap.swap import transplant
from colonnade.recipes.backbone_swap.training_settings import new_training
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.classes import class_heads
from colonnade.settings.reading import read_config

NANO, PATCHES_OF_14 = 'xcit_nano_12_p16', 'eva02_tiny_patch14_224'
#: a detector or segmenter of each kind, and what is particular about it
FIVE = {
    'mmdet::retinanet/retinanet_r50-caffe_fpn_1x_coco.py': PATCHES_OF_14,  # strides
    'mmdet::libra_rcnn/libra-retinanet_r50_fpn_1x_coco.py': NANO,  # two necks
    'mmdet::yolof/yolof_r50-c5_8xb8-1x_coco.py': NANO,  # a neck that takes one map
    'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py': NANO,  # dilated
    'mmseg::knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py': NANO,  # heads within heads
}  # yapf: disable
STOCK = [
    'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
    'mmdet::atss/atss_r50_fpn_1x_coco.py',
    'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py',
    'mmdet::gfl/gfl_r50_fpn_1x_coco.py',
    'mmdet::vfnet/vfnet_r50_fpn_1x_coco.py',
    'mmdet::tood/tood_r50_fpn_1x_coco.py',
    'mmdet::reppoints/reppoints-moment_r50_fpn_1x_coco.py',
    'mmdet::yolof/yolof_r50-c5_8xb8-1x_coco.py',
    'mmdet::yolox/yolox_s_8xb8-300e_coco.py',
    'mmdet::rtmdet/rtmdet_s_8xb32-300e_coco.py',
    'mmdet::yolo/yolov3_d53_8xb8-ms-416-273e_coco.py',
    'mmdet::centernet/centernet_r18_8xb16-crop512-140e_coco.py',
    'mmdet::cornernet/cornernet_hourglass104_8xb6-210e-mstest_coco.py',
    'mmdet::nas_fpn/retinanet_r50_nasfpn_crop640-50e_coco.py',
    'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py',
    'mmdet::htc/htc-without-semantic_r50_fpn_1x_coco.py',
    'mmdet::pafpn/faster-rcnn_r50_pafpn_1x_coco.py',
    'mmdet::libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco.py',
    'mmdet::hrnet/faster-rcnn_hrnetv2p-w18-1x_coco.py',
    'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    'mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py',
    'mmdet::point_rend/point-rend_r50-caffe_fpn_ms-1x_coco.py',
    'mmdet::solov2/solov2_r50_fpn_1x_coco.py',
    'mmdet::condinst/condinst_r50_fpn_ms-poly-90k_coco_instance.py',
    'mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py',
    'mmdet::queryinst/queryinst_r50_fpn_1x_coco.py',
    'mmdet::detr/detr_r50_8xb2-150e_coco.py',
    'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
    'mmdet::dab_detr/dab-detr_r50_8xb2-50e_coco.py',
    'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py',
    'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
    'mmdet::maskformer/maskformer_r50_ms-16xb1-75e_coco.py',
    'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::deeplabv3/deeplabv3_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::danet/danet_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::ann/ann_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::isanet/isanet_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::encnet/encnet_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mmseg::fastfcn/fastfcn_r50-d32_jpu_aspp_4xb4-80k_ade20k-512x512.py',
    'mmseg::ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512.py',
    'mmseg::ocrnet/ocrnet_r101-d8_4xb2-40k_cityscapes-512x1024.py',
    'mmseg::point_rend/pointrend_r50_4xb4-160k_ade20k-512x512.py',
    'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
    'mmseg::swin/swin-base-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
    'mmseg::vit/vit_deit-b16_mln_upernet_8xb2-160k_ade20k-512x512.py',
    'mmseg::mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512.py',
    'mmseg::beit/beit-base_upernet_8xb2-160k_ade20k-640x640.py',
    'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py',
    'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
    'mmseg::segnext/segnext_mscan-t_1xb16-adamw-160k_ade20k-512x512.py',
    'mmseg::segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512.py',
    'mmseg::setr/setr_vit-l_naive_8xb1-80k_cityscapes-768x768.py',
    'mmseg::setr/setr_vit-l_mla_8xb2-160k_ade20k-512x512.py',
    'mmseg::knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py',
    'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
    'mmseg::maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512.py',
]
REFUSED = {
    'mmdet::ssd/ssd300_coco.py': 'SSDVGG cannot be replaced: its levels beyond stride 16',
    'mmdet::faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py': 'roi_head.shared_head',
    'mmdet::detectors/cascade-rcnn_r50-rfp_1x_coco.py': 'the neck runs a second one',
    'mmseg::unet/unet-s5-d16_deeplabv3_4xb4-40k_drive-64x64.py': 'UNet cannot be replaced',
    'mmseg::bisenetv1/bisenetv1_r18-d32-in1k-pre_4xb4-160k_cityscapes-1024x1024.py': 'BiSeNetV1',
    'mmseg::mobilenet_v3/mobilenet-v3-d8_lraspp_4xb4-320k_cityscapes-512x1024.py':
    r'maps of the strides \[2, 4, 8\], and a pyramid on patches of 16 has 4 to 64',
    'mmseg::dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py': 'outputs other than feature maps',
}


def step(path: Path, side: int = 128) -> tuple[float, list[str]]:
    """An iteration of training: the loss, and parameters of backbone and neck without gradient."""
    MMLogger.get_current_instance().addFilter(QuietFilter())
    cfg = read_config(path)
    torch.manual_seed(0)
    model = build_trial_model(cfg, side)
    cfg.optim_wrapper.type = 'OptimWrapper'  # mixed precision needs a GPU
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    loss = compute_trial_loss(model, cfg, side)
    wrapper.backward(loss)
    idle = [
        name for name, parameter in model.named_parameters()
        if name.startswith(('backbone.', 'neck.')) and parameter.grad is None
    ]
    wrapper.step()
    return loss.item(), idle


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs are written without a trial, where a test does the same with gradients."""
    monkeypatch.setattr('colonnade.recipes.backbone_swap.swap.find_trial_error', lambda cfg: None)


@pytest.mark.usefixtures('no_layout', 'untried')
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow if 'libra' in name or 'deeplab' in name else [])
    for name in FIVE
])
def test_a_step_of_training(name: str, tmp_path: Path) -> None:
    transplant(name, FIVE[name], tmp_path / 'own.py')
    loss, idle = step(tmp_path / 'own.py')
    assert math.isfinite(loss) and not idle


@pytest.mark.usefixtures('no_layout', 'untried')
@pytest.mark.parametrize('name', [
    'mmdet::gn+ws/faster-rcnn_r50_fpn_gn-ws-all_1x_coco.py',
    'mmdet::legacy_1.x/retinanet_r50_fpn_1x_coco_v1.py',
    'mmdet::strong_baselines/mask-rcnn_r50_fpn_rpn-2conv_4conv1fc_syncbn-all_lsj-100e_coco.py',
])
def test_names_that_mmengine_cannot_read_and_norms_of_several_processes(name: str,
                                                                        tmp_path: Path) -> None:
    transplant(name, NANO, tmp_path / 'own.py')
    assert read_config(tmp_path / 'own.py').model.backbone.type == 'XCiT'


@pytest.mark.usefixtures('no_layout', 'untried')
def test_a_neck_that_counts_on_maps_it_does_not_read(tmp_path: Path) -> None:
    name = 'mmdet::nas_fcos/nas-fcos_r50-caffe_fpn_nashead-gn-head_4xb4-1x_coco.py'
    transplant(name, NANO, tmp_path / 'own.py')
    neck = read_config(tmp_path / 'own.py').model.neck
    maps = neck[0] if isinstance(neck, list) else neck
    reader = neck[1] if isinstance(neck, list) else neck.fpn
    assert 'out_strides' not in maps and reader.type == 'NASFCOS_FPN' and reader.start_level == 1


@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_work_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]):
        transplant(name, NANO, tmp_path / 'own.py')
    assert not any(tmp_path.iterdir())


def test_a_backbone_of_ours_is_not_exchanged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='XCiT is one of ours already'):
        transplant(str(leaf('mask_rcnn')), NANO, tmp_path / 'own.py')


@pytest.mark.parametrize('backbone, out, message', [
    ('xcit_smal_12_p16', 'own.py', 'no backbone xcit_smal_12_p16; did you mean xcit_small_12_p16'),
    ('vit_small_patch16_dinov', 'own.py', 'did you mean vit_small_patch16_dinov3'),
    ('vit_small_patch16_dinov3.no', 'own.py', "timm has no weights 'vit_small_patch16_dinov3.no'"),
    ('none', 'own.py', "no backbone none: xcit_small_12_p16, or timm's name of a plain ViT"),
    (NANO, 'own', '--out must end in .py'),
    (NANO, 'here.py', 'here.py exists: name another --out'),
])
def test_wrong_arguments_are_named(backbone: str, out: str, message: str, tmp_path: Path,
                                   run_tool: Callable) -> None:
    (tmp_path / 'here.py').touch()
    with pytest.raises(SystemExit) as stopped:
        run_tool('swap_backbone', next(iter(FIVE)), '--backbone', backbone, '--out', tmp_path / out)
    assert message in str(stopped.value)


@pytest.mark.usefixtures('untried')
@pytest.mark.parametrize('name, draw', [
    ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', draw_instances),
    pytest.param('mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py', draw_label_maps,
                 marks=pytest.mark.slow),
])  # yapf: disable
def test_then_ones_own_data(name: str, draw: Callable, tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw(tmp_path / 'data')
    run_tool('swap_backbone', name, '--backbone', NANO, '--out', tmp_path / 'theirs.py')
    run_tool('create_config', tmp_path / 'theirs.py', *arguments, '--out', tmp_path / 'own.py')
    cfg = read_config(tmp_path / 'own.py')
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    assert cfg.model.backbone.type == 'XCiT'
    assert {head['num_classes'] for _, head in class_heads(cfg.model)} == {2}
    dataset = DATASETS.build(dict(cfg.train_dataloader.dataset))
    assert dataset[0]['inputs'].ndim == 3
    assert math.isfinite(step(tmp_path / 'own.py')[0])


SGD = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
PARAMETERS = ('backbone.blocks.0.norm1.weight', 'decode_head.conv_seg.weight')


def trained(wrapper: dict[str, Any], **top: Any) -> tuple[dict[str, Any], Notes]:
    """What training becomes of an optimizer's settings, and what is said of it."""
    notes = Notes()
    cfg = dict(default_scope='mmseg', optim_wrapper=wrapper, **top)
    return new_training(cfg, PARAMETERS, notes), notes


def test_sgd_becomes_adamw() -> None:
    """Final rates fall with it: mmseg's 1e-4 would be above the new rate itself."""
    clipped = SGD | dict(clip_grad=dict(max_norm=35), paramwise_cfg=dict(bias_lr_mult=2.))
    new, notes = trained(clipped, param_scheduler=[dict(type='PolyLR', eta_min=1e-4)])
    assert new['optim_wrapper'] == dict(
        optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
        clip_grad=dict(max_norm=35),
        paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.)}))
    assert new['param_scheduler'] == [dict(type='PolyLR', eta_min=6e-7)]
    assert new['auto_scale_lr']['base_batch_size'] == 16
    assert not notes.undecided


def test_norms_that_do_not_decay_are_not_named_twice() -> None:
    new, _ = trained(SGD | dict(paramwise_cfg=dict(norm_decay_mult=0.)))
    assert new['optim_wrapper']['paramwise_cfg'] == dict(norm_decay_mult=0.)


def test_the_rate_follows_the_batch() -> None:
    new, notes = trained(SGD, auto_scale_lr=dict(base_batch_size=64))
    assert new['optim_wrapper']['optimizer']['lr'] == pytest.approx(2.4e-4)
    assert 'lower it if training diverges' in notes.undecided[0]


def test_layers_decay_by_our_constructor() -> None:
    new, _ = trained(
        dict(
            optimizer=dict(type='AdamW', lr=1e-4),
            constructor='LearningRateDecayOptimizerConstructor',
            paramwise_cfg=dict(decay_rate=0.7, decay_type='layer_wise', num_layers=12)))
    assert new['optim_wrapper'] == dict(
        optimizer=dict(type='AdamW', lr=1e-4),
        constructor='LayerDecayConstructor',
        paramwise_cfg=dict(layer_decay_rate=0.7, flat_decay_mult=0.))


@pytest.mark.parametrize('wrapper, says', [
    (dict(optimizer=dict(type='AdamW', lr=4e-3)), 'AdamW keeps its rate of 0.004'),
    (dict(optimizer=dict(type='Adam', lr=1e-4)), 'optim_wrapper.optimizer is Adam'),
    (SGD | dict(constructor='Own'), 'optim_wrapper.constructor is Own'),
    (dict(), 'there is no optim_wrapper.optimizer'),
])
def test_what_is_undecided_of_training(wrapper: dict[str, Any], says: str) -> None:
    assert says in trained(wrapper)[1].undecided[0]


def test_rules_for_no_parameter_are_left_out() -> None:
    keys = dict(absolute_pos_embed=dict(decay_mult=0.), head=dict(lr_mult=10.))
    wrapper = dict(optimizer=dict(type='AdamW'), paramwise_cfg=dict(custom_keys=keys))
    new, notes = trained(wrapper)
    assert new['optim_wrapper']['paramwise_cfg']['custom_keys'] == dict(head=keys['head'])
    assert 'absolute_pos_embed' in notes.reasons['optim_wrapper'][0]


@pytest.mark.parametrize('old, new', [
    (dict(a=1, b=2), dict(a=1, b=3)),
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='A', x=1, y=2))),
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='A', y=2))),
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='B', x=dict(z=1)))),
    (dict(a=[1, 2]), dict(a=dict(x=1))),
    (dict(a=None), dict(a=dict(x=dict(y=1)), b=dict(z=1))),
    (dict(a=dict(b=dict(c=1, d=2))), dict(a=dict(b=dict(c=1)))),
])
def test_a_difference_is_merged(old: dict[str, Any], new: dict[str, Any], tmp_path: Path) -> None:
    """As mmengine merges a config into its base."""
    (tmp_path / 'base.py').write_text(''.join(f'{key} = {old[key]!r}\n' for key in old))
    changes = difference(old, new)
    (tmp_path / 'own.py').write_text('_base_ = "base.py"\n' + ''.join(f'{key} = {changes[key]!r}\n'
                                                                      for key in changes))
    assert Config.fromfile(tmp_path / 'own.py').to_dict() == new


def described(path: Path) -> str:
    """The strides that a config's pyramid gives, and what stands behind it."""
    model = Config.fromfile(path).model
    neck = model.get('neck') or []
    necks = neck if isinstance(neck, list) else [neck]
    strides = [each.get('out_strides', [4, 8, 16, 32]) for each in necks if 'stride' in each]
    fpns = [each.fpn.type for each in necks if each.get('fpn')]
    behind = [*fpns, *(each.type for each in necks if 'stride' not in each)]
    return f'{", ".join(map(str, strides[0])) if strides else "16"} | {", ".join(behind)}'


@pytest.mark.slow
def test_twenty_and_more(tmp_path: Path) -> None:
    """Prints the table of docs/own_models.md."""
    failed = []
    for name in STOCK:
        out = tmp_path / name.replace('::', '_').replace('/', '_')
        try:
            transplant(name, NANO, out)
            loss, idle = step(out, 256 if 'dino' in name else 128)
            assert math.isfinite(loss) and not idle
            result = f'{described(out)} | yes'
        except Exception as error:  # of one config; the others go on
            failed.append(name)
            result = f'{type(error).__name__}: {error}'
        print(f'\n| `{name.rpartition("/")[2].removesuffix(".py")}` | {result} |', flush=True)
    assert not failed
