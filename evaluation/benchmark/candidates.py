"""Candidates of ``colonnade benchmark``: backbones, timm's modules, and mmdet's detectors.

A candidate is named ``ours`` or ``timm``, or for full detectors ``detector`` (with one of
Colonnade's backbones), ``resnet50`` or ``swin_t``. The suffixes ``-compiled`` and ``-fused``
compile or fuse it; ``ours-onnx`` and ``ours-openvino`` are exported.
"""
from __future__ import annotations

import ast
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mmdet
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from colonnade.backbones import BACKBONES, ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.export.exporter import FORMATS
from colonnade.export.features import build_features_graph
from colonnade.export.graphs import write_graph
from colonnade.export.verification import build_file_runner, list_files
from colonnade.models.fusion import fuse
from colonnade.models.half_precision import compute_in
from colonnade.necks import ColumnarPyramid
from colonnade.necks.pyramid import scale_stride

DETECTORS = {  # configs of mmdet, in its package
    'resnet50': 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'swin_t': 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
}
EXPORTED = {'ours-onnx': 'onnx', 'ours-openvino': 'openvino'}  # candidate -> format
NAMES = [
    kind + suffix for kind in ('ours', 'timm', 'detector', *DETECTORS)
    for suffix in ('', '-compiled', '-fused') if suffix != '-fused' or kind in ('ours', 'detector')
] + [*EXPORTED]


class Intermediates(nn.Module):
    """timm backbone that returns the feature maps of some blocks."""

    def __init__(self,
                 backbone: nn.Module,
                 indices: tuple[int, ...],
                 *,
                 norm: bool = False) -> None:
        super().__init__()
        self.backbone, self.indices, self.norm = backbone, list(indices), norm

    def forward(self, img: Tensor) -> list[Tensor]:
        """Return feature maps ``(B, C, h, w)``."""
        return self.backbone.forward_intermediates(
            img, indices=self.indices, intermediates_only=True, norm=self.norm)


class Exported(nn.Module):
    """Exported backbone, with its pyramid if there is one, on the threads of torch.

    Attributes:
        nbytes: Size of its files.
    """

    def __init__(self, backbone: nn.Module, pyramid: nn.Module | None, name: str) -> None:
        super().__init__()
        graph = build_features_graph(nn.ModuleDict(dict(backbone=backbone, neck=pyramid)))
        with TemporaryDirectory() as folder:
            path = Path(folder, f'backbone{FORMATS[name][0]}')
            write_graph(graph, path)
            self.nbytes = sum(file.stat().st_size for file in list_files(path))
            self.run = build_file_runner(graph, path)

    def forward(self, img: Tensor) -> list[Tensor]:
        """Return feature maps ``(B, C, h, w)``."""
        return [torch.from_numpy(array) for array in self.run((img, ))]


class Detect(nn.Module):
    """Detector from images to detections."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, img: Tensor) -> list[DetDataSample]:
        """Return the detections in images ``(B, 3, H, W)``."""
        shape = tuple(img.shape[-2:])
        metainfo = dict(
            img_shape=shape, ori_shape=shape, batch_input_shape=shape, scale_factor=(1., 1.))
        return self.detector(img, [DetDataSample(metainfo=metainfo) for _ in img], mode='predict')


def configure_pyramid(backbone: ColumnarBackbone, **options: Any) -> dict[str, Any]:
    """Return the config of a pyramid of strides 4 to 32, or around an unusual patch size."""
    stride = backbone.patch_size
    strides = (4, 8, 16, 32) if stride in (8, 16) else scale_stride(stride, 1 / 4, 1 / 2, 1, 2)
    return dict(in_channels=backbone.embed_dim, stride=stride, out_strides=strides, **options)


def build_backbone(spec: str) -> ColumnarBackbone:
    """Return the backbone ``CLASS:ARCH[:ARGUMENT=VALUE...]`` without stochastic depth."""
    name, *rest = spec.split(':')
    options = [option.partition('=')[::2] for option in rest[1:]]
    if name not in BACKBONES or not rest or not all(value for _, value in options):
        raise UserError(f'expected CLASS:ARCH, with CLASS one of {", ".join(BACKBONES)}, or '
                        'CLASS:ARCH:ARGUMENT=VALUE, such as ResMLP:s24:token_mixing=window; got '
                        f'{spec!r}')
    arguments: dict[str, Any] = {}
    for key, value in options:
        try:
            arguments[key] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            arguments[key] = value
    try:
        return BACKBONES[name](rest[0], drop_path_rate=0., **arguments)
    except TypeError as error:  # an unknown argument
        raise UserError(f'{spec}: {error}') from error


def build_mask_rcnn(backbone: ColumnarBackbone, name: str) -> nn.Module:
    """Return mmdet's Mask R-CNN with random weights, with a backbone of mmdet or of Colonnade."""
    configs = Path(mmdet.__file__).parent / '.mim/configs'
    init_default_scope('mmdet')
    cfg = Config.fromfile(configs / DETECTORS.get(name, DETECTORS['resnet50'])).model
    cfg.backbone.init_cfg = None
    if name in DETECTORS:
        return MODELS.build(cfg)
    fpn = dict(type='FPN', out_channels=256, num_outs=5)
    cfg.neck = configure_pyramid(backbone, type='ColumnarPyramid', fpn=fpn)
    detector = MODELS.build(cfg)
    detector.backbone = backbone
    return detector


def build_candidate(name: str,
                    spec: str,
                    size: tuple[int, int],
                    *,
                    train: bool,
                    pyramid: bool,
                    device: str,
                    amp: torch.dtype | None = None) -> nn.Module:
    """Return a module from images to feature maps or detections.

    In evaluation, it computes under autocast to ``amp``.
    """
    kind, _, suffix = name.partition('-')
    backbone = build_backbone(spec)
    is_detector = kind in ('detector', *DETECTORS)
    model: nn.Module = Detect(build_mask_rcnn(backbone, kind)) if is_detector else backbone
    if kind == 'timm':
        model = Intermediates(
            backbone.build_timm_module(size),
            backbone.out_indices,
            norm=bool(backbone.norm_features))
    if name in EXPORTED:
        neck = ColumnarPyramid(**configure_pyramid(backbone)) if pyramid else None
        return Exported(backbone, neck, EXPORTED[name])
    if pyramid and not is_detector:
        model = nn.Sequential(model, ColumnarPyramid(**configure_pyramid(backbone)))
    model.train(train).to(device)
    if suffix == 'fused':
        fuse(model, amp)
    elif suffix == 'compiled':
        parts = (model.detector.backbone, model.detector.neck) if is_detector else (model, )
        for part in model if isinstance(model, nn.Sequential) else parts:
            part.compile()
    if amp is not None and not train:
        compute_in(model, amp)
    return model
