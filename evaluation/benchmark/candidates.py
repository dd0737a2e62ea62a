"""What tools/benchmark.py compares: our backbones, timm's modules, and whole detectors of mmdet.

A contestant is named ``ours``, ``timm`` or, for whole detectors, ``detector`` (on our spec),
``resnet50``, ``swin_t``; with ``-compiled`` or ``-fused`` behind it, it is compiled or fused.
"""
from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import mmdet
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from colonnade.backbones import BACKBONES, ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.models.fusion import fuse
from colonnade.models.half_precision import compute_in
from colonnade.necks import ColumnarPyramid
from colonnade.necks.pyramid import scale_stride

SUFFIXES = ('', '-compiled', '-fused')
KINDS = ('ours', 'timm')
DETECTORS = {  # configs of mmdet, in its package
    'resnet50': 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'swin_t': 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
}
NAMES = [
    kind + suffix for kind in (*KINDS, 'detector', *DETECTORS) for suffix in SUFFIXES
    if suffix != '-fused' or kind in ('ours', 'detector')
]


class Intermediates(nn.Module):
    """timm module that returns the maps of some blocks."""

    def __init__(self,
                 backbone: nn.Module,
                 indices: tuple[int, ...],
                 *,
                 norm: bool = False) -> None:
        super().__init__()
        self.backbone, self.indices, self.norm = backbone, list(indices), norm

    def forward(self, img: Tensor) -> list[Tensor]:
        """Maps ``(B, C, h, w)``."""
        return self.backbone.forward_intermediates(
            img, indices=self.indices, intermediates_only=True, norm=self.norm)


class Detect(nn.Module):
    """A detector, from images to detections."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, img: Tensor) -> list[DetDataSample]:
        """What is found in images ``(B, 3, H, W)``."""
        shape = tuple(img.shape[-2:])
        samples = [
            DetDataSample(
                metainfo=dict(
                    img_shape=shape,
                    ori_shape=shape,
                    batch_input_shape=shape,
                    scale_factor=(1., 1.))) for _ in img
        ]
        return self.detector(img, samples, mode='predict')


def pyramid_for(backbone: ColumnarBackbone, **options: Any) -> dict[str, Any]:
    """The config of a pyramid of strides 4 to 32, or around a patch that does not reach these."""
    stride = backbone.patch_size
    strides = (4, 8, 16, 32) if stride in (8, 16) else scale_stride(stride, 1 / 4, 1 / 2, 1, 2)
    return dict(in_channels=backbone.embed_dim, stride=stride, out_strides=strides, **options)


def build_backbone(name: str) -> ColumnarBackbone:
    """``CLASS:ARCH``, or ``CLASS:ARCH:ARGUMENT=VALUE``, without stochastic depth.

    Raises:
        ValueError: If there is no such spec.
    """
    kind, *rest = name.split(':')
    options = [option.partition('=')[::2] for option in rest[1:]]
    if kind not in BACKBONES or not rest or not all(value for _, value in options):
        raise UserError(
            f'a backbone is named CLASS:ARCH, with {", ".join(BACKBONES)} for CLASS, or '
            'CLASS:ARCH:ARGUMENT=VALUE, as ResMLP:s24:token_mixing=window; '
            f'got {name!r}')
    arguments = {key: parsed(value) for key, value in options}
    try:
        return BACKBONES[kind](rest[0], drop_path_rate=0., **arguments)
    except TypeError as error:  # an argument that it does not have
        raise UserError(f'{name}: {error}') from error


def parsed(value: str) -> Any:
    """A value of the command line: a Python literal, or else text."""
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value


def mask_rcnn(backbone: ColumnarBackbone, opponent: str) -> nn.Module:
    """mmdet's Mask R-CNN on our backbone and pyramid, or on a backbone of mmdet's, untrained."""
    configs = Path(mmdet.__file__).parent / '.mim/configs'
    init_default_scope('mmdet')
    if opponent in DETECTORS:
        cfg = Config.fromfile(configs / DETECTORS[opponent]).model
        cfg.backbone.init_cfg = None
        return MODELS.build(cfg)
    cfg = Config.fromfile(configs / DETECTORS['resnet50']).model
    fpn = dict(type='FPN', out_channels=256, num_outs=5)
    cfg.neck = pyramid_for(backbone, type='ColumnarPyramid', fpn=fpn)
    cfg.backbone.init_cfg = None
    detector = MODELS.build(cfg)
    detector.backbone = backbone
    return detector


def build_contestant(name: str,
                     spec: str,
                     size: tuple[int, int],
                     *,
                     train: bool,
                     pyramid: bool,
                     device: str,
                     amp: torch.dtype | None = None) -> nn.Module:
    """A module from images to maps (or, of a detector, detections), in the mode to be measured.

    Evaluated with ``amp``, it computes under autocast in that type.
    """
    kind, _, suffix = name.partition('-')
    backbone = build_backbone(spec)
    detects = kind in ('detector', *DETECTORS)
    model: nn.Module = Detect(mask_rcnn(backbone, kind)) if detects else backbone
    if kind == 'timm':
        model = Intermediates(
            backbone.build_timm_module(size), backbone.out_indices, norm=backbone.tap_norm)
    if pyramid and not detects:
        model = nn.Sequential(model, ColumnarPyramid(**pyramid_for(backbone)))
    model.train(train).to(device)
    if suffix == 'fused':
        fuse(model, amp)
    elif suffix == 'compiled':
        parts = (model.detector.backbone, model.detector.neck) if detects else (model, )
        for part in model if isinstance(model, nn.Sequential) else parts:
            part.compile()
    if amp is not None and not train:
        compute_in(model, amp)
    return model
