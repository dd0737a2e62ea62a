"""Parameters and multiply-adds of backbones, pyramids and heads.

Operators that run are counted by torch's FlopCounterMode, on the meta device. That includes XCA (as
in the paper), talking heads, class attention and token mixing, which counters of layers miss. One
multiply-add counts once, as in the papers.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from colonnade.backbones import BACKBONES, ColumnarBackbone
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.common.errors import UserCodeError, UserError
from colonnade.settings.reading import read_config, report_build_errors

from .building import build_on_meta

CONFIGS = Path(__file__).resolve().parent.parent / 'configs'
HEADS = {'mask_rcnn': '3x_coco', 'sem_fpn': '80k_ade20k', 'upernet': '160k_ade20k'}
NUM_PROPOSALS, NUM_DETECTIONS = 1000, 100  # RoIs of an image


@runtime_checkable
class HasTransformer(Protocol):
    """Detector of the DETR family, with an encoder and a decoder next to its head."""

    def forward_transformer(self, img_feats: tuple, batch_data_samples: list) -> dict:
        """Return the inputs of the head."""


@dataclass(frozen=True)
class Part:
    """Component of a model."""
    name: str
    parameters: int
    multiply_adds: int | None  # None if it does not run in inference

    def __str__(self) -> str:
        work = '         –' if self.multiply_adds is None else f'{self.multiply_adds / 1e9:10.2f}'
        return f'{self.name:24} {self.parameters / 1e6:10.3f} M {work} G'


def count_multiply_adds(function: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    """Count multiply-adds of a call, and return its result too."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = function(*arguments)
    return counter.get_total_flops() // 2, result


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build_from_file(config: Path) -> tuple[nn.Module, Config]:
    """Build the model of a config file on the meta device."""
    cfg = read_config(config)
    with report_build_errors():
        model = build_on_meta(cfg.model)
    return model.eval().requires_grad_(False), cfg


def iter_parts(model: nn.Module, height: int, width: int) -> Iterator[Part]:
    """Count backbone, neck and heads of a detector or segmenter, for one image."""
    if min(height, width) < 1:
        raise UserError(f'--size must be two positive integers, got {height} {width}')
    children = dict(model.named_children())
    if 'backbone' not in children:
        raise UserError(f'{type(model).__name__} has no backbone, so its cost cannot be counted')
    image = torch.empty(1, count_input_channels(model), height, width, device='meta')
    work, levels = _count_part('backbone', model.backbone, image)
    before = [Part('backbone', count_parameters(model.backbone), work)]
    if 'neck' in children:
        work, levels = _count_part('neck', model.neck, levels)
        before.append(Part('pyramid', count_parameters(model.neck), work))
    yield from before
    if isinstance(model, HasTransformer):
        total = _count_on_zeros('forward', model, image, height, width, mode='tensor')
        parameters = count_parameters(model) - sum_parts(before).parameters
        yield Part('transformer', parameters, total - (sum_parts(before).multiply_adds or 0))
        return
    for name, head in children.items():
        if 'head' not in name or not count_parameters(head):
            continue
        if name == 'roi_head':
            yield from _iter_roi_parts(head)
        elif name == 'auxiliary_head':
            yield Part(name, count_parameters(head), None)
        elif needs_samples(head):
            work = _count_on_zeros(name, head, levels, height, width)
            yield Part(name, count_parameters(head), work)
        else:
            yield Part(name, count_parameters(head), _count_part(name, head, levels)[0])


def needs_samples(head: nn.Module) -> bool:
    """Return True if a head reads data samples."""
    parameter = signature(head.forward).parameters.get('batch_data_samples')
    return parameter is not None and parameter.default is parameter.empty


def _count_part(name: str, part: nn.Module, *inputs: Any, **options: Any) -> tuple[int, Any]:
    """Count multiply-adds of a part, and return its result too."""
    try:
        return count_multiply_adds(partial(part, **options), *inputs)
    except ValueError:
        raise
    except (TypeError, RuntimeError, AttributeError, IndexError) as error:
        line = str(error).splitlines()[0]
        raise UserCodeError(f'model.{name} ({type(part).__name__}) cannot be counted separately: '
                            f'{line}') from error


def _count_on_zeros(name: str, part: nn.Module, inputs: Any, height: int, width: int,
                    **options: Any) -> int:
    """Count multiply-adds of a part that reads values and image sizes, on zeros."""
    part.to_empty(device='cpu')
    for tensor in (*part.parameters(), *part.buffers()):
        tensor.zero_()
    inputs = tree_map(lambda tensor: torch.zeros(tensor.shape), inputs)
    return _count_part(name, part, inputs, [build_blank_sample(height, width)], **options)[0]


def build_blank_sample(height: int, width: int) -> BaseDataElement:
    """Return the data sample of an image that was not resized."""
    size = dict.fromkeys(('img_shape', 'ori_shape', 'batch_input_shape', 'pad_shape'),
                         (height, width))
    return BaseDataElement(metainfo=dict(size, scale_factor=(1., 1.)))


def _iter_roi_parts(head: nn.Module) -> Iterator[Part]:
    """Count box and mask heads on the maximum number of boxes, for all stages of a cascade."""
    for name, rois in (('bbox_head', NUM_PROPOSALS), ('mask_head', NUM_DETECTIONS)):
        part = dict(head.named_children()).get(name)
        if part is None:
            continue
        extractors = head.get_submodule(name.replace('head', 'roi_extractor'))
        is_cascade, work = isinstance(part, nn.ModuleList), 0
        stages = zip(part, extractors, strict=True) if is_cascade else [(part, extractors)]
        for stage, extractor in stages:
            side = extractor.roi_layers[0].output_size
            features = torch.empty(rois, extractor.out_channels, *side, device='meta')
            work += _count_part(f'roi_head.{name}', stage, features)[0]
        suffix = f' x {len(part)}' if is_cascade else ''
        yield Part(f'{name}{suffix}, {rois} boxes', count_parameters(part), work)


def count_input_channels(model: nn.Module) -> int:
    """Return the channels of images, those of the first convolution of the backbone."""
    return next(
        (part.in_channels for part in model.backbone.modules() if isinstance(part, nn.Conv2d)), 3)


def sum_parts(parts: list[Part]) -> Part:
    return Part('full model', sum(part.parameters for part in parts),
                sum(part.multiply_adds or 0 for part in parts))


def count_classifier(backbone: ColumnarBackbone, img_size: int) -> tuple[int, int]:
    """Count parameters and multiply-adds of the classifier, as in the papers."""
    with on_meta_device():
        model = backbone.build_timm_module(img_size, num_classes=1000).eval().requires_grad_(False)
    image = torch.empty(1, backbone.in_channels, img_size, img_size, device='meta')
    return count_parameters(model), count_multiply_adds(model, image)[0]


def iter_backbone_rows() -> Iterator[tuple[str, str, float, float]]:
    """Yield name, quantity, value and the paper's value of each backbone."""
    sizes = [(backbone, size) for backbone in BACKBONES.values()
             for size in backbone.published_sizes]
    named = set()
    for backbone, size in sizes:
        with on_meta_device():
            parameters, work = count_classifier(backbone(size.arch), size.img_size)
        name = f'{backbone.__name__} {size.arch}'
        if name not in named:
            yield name, 'parameters, M', parameters / 1e6, size.parameters
        yield name, f'multiply-adds at {size.img_size}, G', work / 1e9, size.multiply_adds
        named.add(name)


# Millions of parameters, truncated. Table 5 (Mask R-CNN) counts full models, Table 6 (Semantic FPN,
# UperNet) not the layers of the pyramid.
XCIT_TABLES_5_AND_6 = {
    'tiny_12_p16': (26.1, 8.4, 33.7), 'tiny_12_p8': (25.8, 8.4, 33.7),
    'small_12_p16': (44.3, 30.4, 52.4), 'small_12_p8': (43.1, 30.4, 52.3),
    'small_24_p16': (65.8, 51.8, 73.8), 'small_24_p8': (64.5, 51.8, 73.8),
    'medium_24_p16': (101.1, 90.8, 109.0), 'medium_24_p8': (98.9, 90.8, 108.9),
}  # yapf: disable


def iter_model_rows() -> Iterator[tuple[str, str, float, float]]:
    """Yield name, quantity, value and the paper's value of published detectors and segmenters."""
    for arch, expected in XCIT_TABLES_5_AND_6.items():
        for (head, recipe), millions in zip(HEADS.items(), expected, strict=True):
            name = f'xcit_{arch}_{recipe}'
            model, _ = build_from_file(CONFIGS / head / f'{name}.py')
            count = count_parameters(model)
            if head != 'mask_rcnn':
                count -= sum(p.numel() for key, p in model.neck.named_parameters()
                             if key.startswith('stride'))
            yield f'{head}/{name}', 'parameters, M', math.floor(count / 1e5) / 10, millions


def get_default_size(cfg: Config) -> tuple[int, int]:
    """Return height and width as in the papers: 800 x 1280 for detectors, 512² for segmenters."""
    return (800, 1280) if cfg.default_scope == 'mmdet' else (512, 512)


def format_model(config: Path, size: tuple[int, int] | None) -> Iterator[str]:
    """Yield lines with the parts of a config's model and their sum.

    Args:
        config: Config of a detector or segmenter.
        size: Height and width of the input. Defaults to :func:`get_default_size`.
    """
    model, cfg = build_from_file(config)
    height, width = size or get_default_size(cfg)
    parts = list(iter_parts(model, height, width))
    yield f'{config.stem} at {height} x {width}: parameters, multiply-adds for one image'
    yield from map(str, [*parts, sum_parts(parts)])


def format_published() -> Iterator[str]:
    """Yield lines that compare counted values with those of the papers."""
    yield f'{"":44} {"":26} {"ours":>9} {"paper":>9} {"":>8}'
    for rows in (iter_backbone_rows(), iter_model_rows()):
        for name, quantity, ours, paper in rows:
            yield f'{name:44} {quantity:26} {ours:9.2f} {paper:9.1f} {ours / paper - 1:8.1%}'
