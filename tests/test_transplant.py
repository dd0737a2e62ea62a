"""Our trunks in configs of mmdet and mmseg as they are installed."""
from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_data import draw_instances, draw_label_maps
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS

from colonnade.engine.checks import check_config
from colonnade.engine.classes import class_heads
from colonnade.engine.hooks import QuietFilter
from colonnade.engine.launch import read_config
from colonnade.engine.transplant.command import transplant
from colonnade.engine.transplant.difference import difference
from colonnade.engine.transplant.trial import trial_loss, trial_model

NANO, PATCHES_OF_14 = 'xcit_nano_12_p16', 'vit_small_patch14_dinov2'
#: a detector or segmenter of each kind, and what is particular about it
FIVE = {
    'mmdet::retinanet/retinanet_r50-caffe_fpn_1x_coco.py': PATCHES_OF_14,  # strides
    'mmdet::libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco.py': NANO,  # two necks
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
    'mmseg::dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py': 'gives something else than maps',
}


def step(path: Path, side: int = 128) -> tuple[float, list[str]]:
    """An iteration of training: the loss, and parameters of trunk and neck without gradient."""
    MMLogger.get_current_instance().addFilter(QuietFilter())
    cfg = read_config(path)
    torch.manual_seed(0)
    model = trial_model(cfg, side)
    cfg.optim_wrapper.type = 'OptimWrapper'  # mixed precision needs a GPU
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    loss = trial_loss(model, cfg, side)
    wrapper.backward(loss)
    idle = [
        name for name, parameter in model.named_parameters()
        if name.startswith(('backbone.', 'neck.')) and parameter.grad is None
    ]
    wrapper.step()
    return loss.item(), idle


@pytest.mark.parametrize('name', FIVE)
def test_a_step_of_training(name: str, tmp_path: Path) -> None:
    transplant(name, FIVE[name], tmp_path / 'own.py')
    loss, idle = step(tmp_path / 'own.py')
    assert math.isfinite(loss) and not idle


@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_work_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]):
        transplant(name, NANO, tmp_path / 'own.py')
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('trunk, out, message', [
    ('xcit_smal_12_p16', 'own.py', 'no trunk xcit_smal_12_p16; did you mean xcit_small_12_p16'),
    ('resnet50', 'own.py', "no trunk resnet50: xcit_small_12_p16, or timm's name of a plain ViT"),
    (NANO, 'own', '--out must end in .py'),
    (NANO, 'here.py', 'here.py exists: name another --out'),
])
def test_wrong_arguments_are_named(trunk: str, out: str, message: str, tmp_path: Path,
                                   run_tool: Callable) -> None:
    (tmp_path / 'here.py').touch()
    with pytest.raises(SystemExit) as stopped:
        run_tool('transplant', next(iter(FIVE)), '--trunk', trunk, '--out', tmp_path / out)
    assert message in str(stopped.value)


@pytest.mark.parametrize('name, draw', [
    ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', draw_instances),
    ('mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py', draw_label_maps),
])
def test_then_ones_own_data(name: str, draw: Callable, tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw(tmp_path / 'data')
    run_tool('transplant', name, '--trunk', NANO, '--out', tmp_path / 'theirs.py')
    run_tool('new_config', tmp_path / 'theirs.py', *arguments, '--out', tmp_path / 'own.py')
    cfg = read_config(tmp_path / 'own.py')
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    assert cfg.model.backbone.type == 'XCiT'
    assert {head['num_classes'] for _, head in class_heads(cfg.model)} == {2}
    dataset = DATASETS.build(dict(cfg.train_dataloader.dataset))
    assert dataset[0]['inputs'].ndim == 3
    assert math.isfinite(step(tmp_path / 'own.py')[0])


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


@pytest.mark.slow
def test_twenty_and_more(tmp_path: Path) -> None:
    """Prints the table of docs/own_models.md."""
    failed = []
    for name in STOCK:
        out = tmp_path / f'{name.replace("::", "_").replace("/", "_")}'
        try:
            notes = transplant(name, NANO, out)
            loss, idle = step(out, 256 if 'dino' in name else 128)
            said = '; '.join(notes.undecided)
            print(f'| `{name}` | {loss:.4g} | {len(idle)} | {said} |', flush=True)
        except Exception as error:
            failed.append(name)
            print(f'| `{name}` | {type(error).__name__}: {error} |', flush=True)
    assert not failed
