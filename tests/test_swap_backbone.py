"""Colonnade backbones in the stock configs of mmdet and mmseg."""
from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.synthetic_data import draw_instances, draw_label_maps, leaf
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS

from colonnade.engine.runner.log_filters import QuietFilter
from colonnade.models.trial_step import build_trial_model, compute_trial_loss
from colonnade.recipes.backbone_swap.config_changes import Notes, compute_changes
from colonnade.recipes.backbone_swap.swap import swap_backbone
from colonnade.recipes.backbone_swap.training_settings import adapt_training
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.classes import iter_class_heads
from colonnade.settings.reading import read_config

NANO, PATCHES_OF_14 = 'xcit_nano_12_p16', 'eva02_tiny_patch14_224'
#: config -> backbone; the comment says what is special about the config
SPECIAL = {
    'mmdet::retinanet/retinanet_r50-caffe_fpn_1x_coco.py': PATCHES_OF_14,  # strides
    'mmdet::libra_rcnn/libra-retinanet_r50_fpn_1x_coco.py': NANO,  # two necks
    'mmdet::yolof/yolof_r50-c5_8xb8-1x_coco.py': NANO,  # a neck that reads one map
    'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py': NANO,  # dilated
    'mmseg::knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py': NANO,  # nested heads
}  # yapf: disable
#: configs of packages, without suffix
STOCK = {
    'mmdet':
    '''
        retinanet/retinanet_r50_fpn_1x_coco atss/atss_r50_fpn_1x_coco
        fcos/fcos_r50-caffe_fpn_gn-head_1x_coco gfl/gfl_r50_fpn_1x_coco vfnet/vfnet_r50_fpn_1x_coco
        tood/tood_r50_fpn_1x_coco reppoints/reppoints-moment_r50_fpn_1x_coco
        yolof/yolof_r50-c5_8xb8-1x_coco yolox/yolox_s_8xb8-300e_coco
        rtmdet/rtmdet_s_8xb32-300e_coco yolo/yolov3_d53_8xb8-ms-416-273e_coco
        centernet/centernet_r18_8xb16-crop512-140e_coco
        cornernet/cornernet_hourglass104_8xb6-210e-mstest_coco
        nas_fpn/retinanet_r50_nasfpn_crop640-50e_coco faster_rcnn/faster-rcnn_r50_fpn_1x_coco
        cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco htc/htc-without-semantic_r50_fpn_1x_coco
        pafpn/faster-rcnn_r50_pafpn_1x_coco libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco
        hrnet/faster-rcnn_hrnetv2p-w18-1x_coco swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco
        panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco point_rend/point-rend_r50-caffe_fpn_ms-1x_coco
        solov2/solov2_r50_fpn_1x_coco condinst/condinst_r50_fpn_ms-poly-90k_coco_instance
        sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco queryinst/queryinst_r50_fpn_1x_coco
        detr/detr_r50_8xb2-150e_coco deformable_detr/deformable-detr_r50_16xb2-50e_coco
        dab_detr/dab-detr_r50_8xb2-50e_coco dino/dino-4scale_r50_8xb2-12e_coco
        mask2former/mask2former_r50_8xb2-lsj-50e_coco maskformer/maskformer_r50_ms-16xb1-75e_coco
    ''',
    'mmseg':
    '''
        pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512
        deeplabv3/deeplabv3_r50-d8_4xb4-80k_ade20k-512x512
        deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512
        fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512 danet/danet_r50-d8_4xb4-80k_ade20k-512x512
        ann/ann_r50-d8_4xb4-80k_ade20k-512x512 isanet/isanet_r50-d8_4xb4-80k_ade20k-512x512
        encnet/encnet_r50-d8_4xb4-80k_ade20k-512x512
        fastfcn/fastfcn_r50-d32_jpu_aspp_4xb4-80k_ade20k-512x512
        ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512
        ocrnet/ocrnet_r101-d8_4xb2-40k_cityscapes-512x1024
        point_rend/pointrend_r50_4xb4-160k_ade20k-512x512
        upernet/upernet_r50_4xb4-80k_ade20k-512x512
        swin/swin-base-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512
        vit/vit_deit-b16_mln_upernet_8xb2-160k_ade20k-512x512
        mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512
        beit/beit-base_upernet_8xb2-160k_ade20k-640x640 sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512
        segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512
        segnext/segnext_mscan-t_1xb16-adamw-160k_ade20k-512x512
        segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512
        setr/setr_vit-l_naive_8xb1-80k_cityscapes-768x768
        setr/setr_vit-l_mla_8xb2-160k_ade20k-512x512
        knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512
        mask2former/mask2former_r50_8xb2-160k_ade20k-512x512
        maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512
    ''',
}
REFUSED = {
    'mmdet::ssd/ssd300_coco.py': 'SSDVGG cannot be replaced: its levels beyond stride 16',
    'mmdet::faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py': 'roi_head.shared_head',
    'mmdet::detectors/cascade-rcnn_r50-rfp_1x_coco.py': 'the neck runs a second backbone',
    'mmseg::unet/unet-s5-d16_deeplabv3_4xb4-40k_drive-64x64.py': 'UNet cannot be replaced',
    'mmseg::bisenetv1/bisenetv1_r18-d32-in1k-pre_4xb4-160k_cityscapes-1024x1024.py': 'BiSeNetV1',
    'mmseg::mobilenet_v3/mobilenet-v3-d8_lraspp_4xb4-320k_cityscapes-512x1024.py':
    r'strides \[2, 4, 8\], but a pyramid on patches of 16 has 4 to 64',
    'mmseg::dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py': 'outputs more than just feature maps',
}


def run_step(path: Path, side: int = 128) -> tuple[float, list[str]]:
    """Run a training step; return the loss and the parameters without gradient before the heads."""
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
def without_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the training step of the command, if a test runs one itself."""
    monkeypatch.setattr('colonnade.recipes.backbone_swap.swap.find_trial_error', lambda cfg: None)


@pytest.mark.usefixtures('no_layout', 'without_trial')
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[] if 'retinanet_r50-caffe' in name else pytest.mark.slow)
    for name in SPECIAL
])
def test_training_step_reaches_all_parameters(name: str, tmp_path: Path) -> None:
    swap_backbone(name, SPECIAL[name], tmp_path / 'own.py')
    loss, idle = run_step(tmp_path / 'own.py')
    assert math.isfinite(loss) and not idle


@pytest.mark.usefixtures('no_layout', 'without_trial')
@pytest.mark.parametrize('name', [
    'mmdet::gn+ws/faster-rcnn_r50_fpn_gn-ws-all_1x_coco.py',
    'mmdet::legacy_1.x/retinanet_r50_fpn_1x_coco_v1.py',
    'mmdet::strong_baselines/mask-rcnn_r50_fpn_rpn-2conv_4conv1fc_syncbn-all_lsj-100e_coco.py',
])
def test_names_mmengine_cannot_read_and_sync_bn(name: str, tmp_path: Path) -> None:
    swap_backbone(name, NANO, tmp_path / 'own.py')
    assert read_config(tmp_path / 'own.py').model.backbone.type == 'XCiT'


@pytest.mark.parametrize(
    'name, message',
    [*REFUSED.items(), (str(leaf('mask_rcnn')), 'XCiT is already a Colonnade backbone')])
def test_unsupported_models_are_rejected(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        swap_backbone(name, NANO, tmp_path / 'own.py')
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('backbone, out, message', [
    ('xcit_smal_12_p16', 'own.py',
     "unknown backbone 'xcit_smal_12_p16': did you mean xcit_small_12_p16"),
    ('vit_small_patch16_dinov', 'own.py', 'did you mean vit_small_patch16_dinov3'),
    ('vit_small_patch16_dinov3.no', 'own.py',
     "timm has no weights named 'vit_small_patch16_dinov3.no'"),
    ('none', 'own.py',
     "unknown backbone 'none': pass xcit_small_12_p16, or the timm name of a plain ViT"),
    (NANO, 'own', '--out must end in .py'),
    (NANO, 'here.py', 'here.py already exists: choose another --out'),
])
def test_error_messages(backbone: str, out: str, message: str, tmp_path: Path,
                        run_tool: Callable) -> None:
    (tmp_path / 'here.py').touch()
    with pytest.raises(SystemExit) as stopped:
        run_tool('swap_backbone', next(iter(SPECIAL)), '--backbone', backbone, '--out',
                 tmp_path / out)
    assert message in str(stopped.value)


@pytest.mark.usefixtures('without_trial')
@pytest.mark.parametrize('name, draw', [
    ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', draw_instances),
    pytest.param('mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py', draw_label_maps,
                 marks=pytest.mark.slow),
])  # yapf: disable
def test_result_can_be_adapted_to_a_custom_dataset(name: str, draw: Callable, tmp_path: Path,
                                                   run_tool: Callable) -> None:
    arguments = draw(tmp_path / 'data')
    run_tool('swap_backbone', name, '--backbone', NANO, '--out', tmp_path / 'swapped.py')
    run_tool('create_config', tmp_path / 'swapped.py', *arguments, '--out', tmp_path / 'own.py')
    cfg = read_config(tmp_path / 'own.py')
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    assert cfg.model.backbone.type == 'XCiT'
    assert {head['num_classes'] for _, head in iter_class_heads(cfg.model)} == {2}
    assert DATASETS.build(dict(cfg.train_dataloader.dataset))[0]['inputs'].ndim == 3
    assert math.isfinite(run_step(tmp_path / 'own.py')[0])


SGD = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
PARAMETERS = ('backbone.blocks.0.norm1.weight', 'decode_head.conv_seg.weight')


def adapt(wrapper: dict[str, Any], **top: Any) -> tuple[dict[str, Any], Notes]:
    notes = Notes()
    cfg = dict(default_scope='mmseg', optim_wrapper=wrapper, **top)
    return adapt_training(cfg, PARAMETERS, notes), notes


def test_sgd_becomes_adamw() -> None:
    """eta_min is scaled too: mmseg's 1e-4 would exceed the new learning rate."""
    clipped = SGD | dict(clip_grad=dict(max_norm=35), paramwise_cfg=dict(bias_lr_mult=2.))
    new, notes = adapt(clipped, param_scheduler=[dict(type='PolyLR', eta_min=1e-4)])
    assert new['optim_wrapper'] == dict(
        optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01, fused=True),
        clip_grad=dict(max_norm=35),
        paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.)}))
    assert new['param_scheduler'] == [dict(type='PolyLR', eta_min=6e-7)]
    assert new['auto_scale_lr']['base_batch_size'] == 16
    assert not notes.open_questions
    new, _ = adapt(SGD | dict(paramwise_cfg=dict(norm_decay_mult=0.)))
    assert new['optim_wrapper']['paramwise_cfg'] == dict(norm_decay_mult=0.)
    new, notes = adapt(SGD, auto_scale_lr=dict(base_batch_size=64))
    assert new['optim_wrapper']['optimizer']['lr'] == pytest.approx(2.4e-4)
    assert 'lower it if training diverges' in notes.open_questions[0]


def test_layer_decay_and_idle_keys() -> None:
    adamw = dict(type='AdamW', lr=1e-4)
    new, _ = adapt(
        dict(
            optimizer=adamw,
            constructor='LearningRateDecayOptimizerConstructor',
            paramwise_cfg=dict(decay_rate=0.7, decay_type='layer_wise', num_layers=12)))
    assert new['optim_wrapper'] == dict(
        optimizer=adamw,
        constructor='LayerDecayConstructor',
        paramwise_cfg=dict(layer_decay_rate=0.7, flat_decay_mult=0.))
    keys = dict(absolute_pos_embed=dict(decay_mult=0.), head=dict(lr_mult=10.))
    new, notes = adapt(dict(optimizer=adamw, paramwise_cfg=dict(custom_keys=keys)))
    assert new['optim_wrapper']['paramwise_cfg']['custom_keys'] == dict(head=keys['head'])
    assert 'absolute_pos_embed' in notes.reasons['optim_wrapper'][0]


@pytest.mark.parametrize('wrapper, message', [
    (dict(optimizer=dict(type='AdamW', lr=4e-3)), 'AdamW keeps its learning rate 0.004'),
    (dict(optimizer=dict(type='Adam', lr=1e-4)), 'optim_wrapper.optimizer is Adam'),
    (SGD | dict(constructor='Own'), 'optim_wrapper.constructor is Own'),
    (dict(), 'the config has no optim_wrapper.optimizer'),
])
def test_open_questions_about_training(wrapper: dict[str, Any], message: str) -> None:
    assert message in adapt(wrapper)[1].open_questions[0]


@pytest.mark.parametrize('old, new', [
    (dict(a=1, b=2), dict(a=1, b=3)),
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='A', x=1, y=2))),
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='A', y=2))),
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='B', x=dict(z=1)))),
    (dict(a=[1, 2]), dict(a=dict(x=1))),
    (dict(a=None), dict(a=dict(x=dict(y=1)), b=dict(z=1))),
    (dict(a=dict(b=dict(c=1, d=2))), dict(a=dict(b=dict(c=1)))),
])
def test_mmengine_merges_changes(old: dict[str, Any], new: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / 'base.py').write_text(''.join(f'{key} = {old[key]!r}\n' for key in old))
    changes = compute_changes(old, new)
    (tmp_path / 'own.py').write_text('_base_ = "base.py"\n' + ''.join(f'{key} = {changes[key]!r}\n'
                                                                      for key in changes))
    assert Config.fromfile(tmp_path / 'own.py').to_dict() == new


def describe_neck(path: Path) -> str:
    """Return the strides of a config's pyramid, and the necks after it."""
    model = Config.fromfile(path).model
    neck = model.get('neck') or []
    necks = neck if isinstance(neck, list) else [neck]
    strides = [each.get('out_strides', [4, 8, 16, 32]) for each in necks if 'stride' in each]
    types = [each.fpn.type for each in necks if each.get('fpn')]
    types += [each.type for each in necks if 'stride' not in each]
    return f'{", ".join(map(str, strides[0])) if strides else "16"} | {", ".join(types)}'


@pytest.mark.slow
def test_stock_configs(tmp_path: Path) -> None:
    """Prints the table of the docs."""
    failed = []
    for name in (f'{library}::{each}.py' for library, text in STOCK.items()
                 for each in text.split()):  # yapf: disable
        out = tmp_path / name.replace('::', '_').replace('/', '_')
        try:
            swap_backbone(name, NANO, out)
            loss, idle = run_step(out, 256 if 'dino' in name else 128)
            assert math.isfinite(loss) and not idle
            result = f'{describe_neck(out)} | yes'
        except Exception as error:  # goes into the table
            failed.append(name)
            result = f'{type(error).__name__}: {error}'
        print(f'\n| `{name.rpartition("/")[2].removesuffix(".py")}` | {result} |', flush=True)
    assert not failed
