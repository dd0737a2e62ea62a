"""Patches of 14 pixels: levels of stride 3.5, 7, 14 and 28, under the heads of mmdet and mmseg."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LAYOUTS, NO_WORKERS, SHORT, config
from helpers.backbones import ARCHS
from mmengine.config import Config

from colonnade.backbones import CaiT, PlainViT, ResMLP
from colonnade.settings.checks.all_checks import check_config

STRIDES = [3.5, 7, 14, 28]
BACKBONES = {
    cls: dict(type=cls.__name__, arch=ARCHS[cls] | dict(patch_size=14, img_size=56))
    for cls in (ResMLP, CaiT, PlainViT)
}
COLUMNAR = dict(type='ColumnarPyramid', in_channels=32, stride=14, out_strides=STRIDES)
NECKS = {
    'ColumnarPyramid': COLUMNAR | dict(fpn=dict(type='FPN', out_channels=64, num_outs=5)),
    'SimplePyramid': dict(type='SimplePyramid', in_channels=32, stride=14, out_channels=64),
}


def detector(backbone: type, neck: str) -> Config:
    cfg = Config.fromfile(config('mask_rcnn'))
    cfg.model.backbone, cfg.model.neck = BACKBONES[backbone], NECKS[neck]
    cfg.model.data_preprocessor.pad_size_divisor = 28
    cfg.model.rpn_head.anchor_generator.strides = [*STRIDES, 56]
    for name in ('bbox_roi_extractor', 'mask_roi_extractor'):
        cfg.model.roi_head[name].update(featmap_strides=STRIDES, finest_scale=49)
    return cfg


def segmenter(backbone: type, feature_strides: list[float] | None = None) -> Config:
    cfg = Config.fromfile(config('sem_fpn'))
    cfg.model.backbone = BACKBONES[backbone]
    cfg.model.neck = COLUMNAR | dict(fpn=dict(type='FPN', out_channels=64, num_outs=4))
    cfg.model.decode_head.feature_strides = feature_strides or [4, 8, 16, 32]
    return cfg


def run(cfg: Config, head: str, shapes: Path, out: Path, run_tool: Callable) -> None:
    """Train two iterations, and predict."""
    cfg.dump(out / 'own.py')
    run_tool('train', out / 'own.py', '--data-root', shapes / LAYOUTS[head], '--work-dir',
             out / 'run', *SHORT, *NO_WORKERS)
    assert (out / 'run/iter_2.pth').is_file()


@pytest.mark.slow
@pytest.mark.parametrize('backbone, neck', [(ResMLP, 'ColumnarPyramid'),
                                            (PlainViT, 'SimplePyramid')])
def test_mask_rcnn(backbone: type, neck: str, shapes: Path, tmp_path: Path,
                   run_tool: Callable) -> None:
    run(detector(backbone, neck), 'mask_rcnn', shapes, tmp_path, run_tool)


@pytest.mark.parametrize('backbone', [CaiT, pytest.param(PlainViT, marks=pytest.mark.slow)])
def test_semantic_fpn(backbone: type, shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    run(segmenter(backbone), 'sem_fpn', shapes, tmp_path, run_tool)


@pytest.mark.parametrize('make, key, value, says', [
    (detector, 'rpn_head.anchor_generator.strides', [4, 8, 16, 32, 64
                                                     ], r'strides=\[3.5, 7, 14, 28, 56\]'),
    (detector, 'roi_head.mask_roi_extractor.featmap_strides', [4, 8, 16, 32],
     r'featmap_strides=\[3.5, 7, 14, 28\]'),
    (segmenter, 'decode_head.feature_strides', STRIDES,
     r'FPNHead, which rounds logarithms down, needs \[4, 8, 16, 32\] .*: set .*=\[4, 8, 16, 32\]'),
    (segmenter, 'decode_head.feature_strides', [8, 16, 32, 64], r'set .*=\[4, 8, 16, 32\]'),
])
def test_reports_wrong_strides(make: Callable, key: str, value: Any, says: str) -> None:
    cfg = make(ResMLP, 'ColumnarPyramid') if make is detector else make(ResMLP)
    check_config(cfg, ())
    cfg.merge_from_dict({f'model.{key}': value})
    with pytest.raises(ValueError, match=says):
        check_config(cfg, ())


def test_patch_size_argument_sets_stride() -> None:
    cfg = detector(PlainViT, 'SimplePyramid')
    cfg.model.backbone.update(arch=ARCHS[PlainViT], patch_size=14)
    check_config(cfg, ())
    cfg.model.backbone.patch_size = None
    with pytest.raises(
            ValueError, match='patch_size of PlainViT .* is 16 .*: set model.neck.stride=16'):
        check_config(cfg, ())
