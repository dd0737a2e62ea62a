"""Parameters and multiply-adds of backbones, pyramids and heads.

What runs is counted, product by product (torch's FlopCounterMode), on tensors without memory. That
includes the products of XCA (in the paper's form), talking heads, class attention and token mixing,
which counters of layers miss. One multiply-add counts once, as in the papers.
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
from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.common.errors import UserCodeError, UserError
from colonnade.settings.reading import build_error, read_config

from .meta_device import build_on_meta

CONFIGS = Path(__file__).resolve().parent.parent / 'configs'
HEADS = {'mask_rcnn': '3x_coco', 'sem_fpn': '80k_ade20k', 'upernet': '160k_ade20k'}
NUM_PROPOSALS, NUM_DETECTIONS = 1000, 100  # what the heads of a detector see of an image


@runtime_checkable
class HasTransformer(Protocol):
    """A detector of the DETR family: an encoder and a decoder stand beside its head."""

    def forward_transformer(self, img_feats: tuple, batch_data_samples: list) -> dict:
        """What the head gets of the pyramid."""


@dataclass(frozen=True)
class Part:
    """A part of a model."""
    name: str
    parameters: int
    multiply_adds: int | None  # None: does not run on an image that is tested

    def __str__(self) -> str:
        work = '         –' if self.multiply_adds is None else f'{self.multiply_adds / 1e9:10.2f}'
        return f'{self.name:24} {self.parameters / 1e6:10.3f} M {work} G'


def multiply_adds(function: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    """Of one call, and what it returns."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = function(*arguments)
    return counter.get_total_flops() // 2, result


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(config: Path) -> tuple[nn.Module, Config]:
    """The model of a config, without memory."""
    cfg = read_config(config)
    with build_error():
        model = build_on_meta(cfg.model)
    return model.eval().requires_grad_(False), cfg


def parts_of(model: nn.Module, height: int, width: int) -> Iterator[Part]:
    """Backbone, neck and heads of a detector or segmenter, for one image.

    Raises:
        ValueError: If the image is too small, or a part cannot be counted.
    """
    if min(height, width) < 1:
        raise UserError(f'--size must be two positive numbers of pixels, got {height} {width}')
    if not hasattr(model, 'backbone'):
        raise UserError(f'{type(model).__name__} has no backbone of its own, and cannot be counted')
    image = torch.empty(1, 3, height, width, device='meta')
    work, levels = count_part('backbone', model.backbone, image)
    before = [Part('backbone', count_parameters(model.backbone), work)]
    if getattr(model, 'neck', None) is not None:
        work, levels = count_part('neck', model.neck, levels)
        before.append(Part('pyramid', count_parameters(model.neck), work))
    yield from before
    if isinstance(model, HasTransformer):
        whole = count_for_real('forward', model, image, height, width, mode='tensor')
        parameters = count_parameters(model) - total_of(before).parameters
        yield Part('transformer', parameters, whole - (total_of(before).multiply_adds or 0))
        return
    for name, head in model.named_children():
        if 'head' not in name or not count_parameters(head):
            continue
        if name == 'roi_head':
            yield from parts_of_roi_head(head)
        elif name == 'auxiliary_head':
            yield Part(name, count_parameters(head), None)
        else:
            yield Part(name, count_parameters(head), count_head(name, head, levels, height, width))


def count_part(name: str, part: nn.Module, *given: Any, **options: Any) -> tuple[int, Any]:
    """Its multiply-adds and what it returns."""
    try:
        return multiply_adds(partial(part, **options), *given)
    except ValueError:
        raise
    except (TypeError, RuntimeError, AttributeError, IndexError) as error:
        line = str(error).splitlines()[0]
        raise UserCodeError(f'model.{name} ({type(part).__name__}) cannot be counted by itself: '
                            f'{line}') from error


def count_head(name: str, head: nn.Module, levels: Any, height: int, width: int) -> int:
    """Multiply-adds of a head on the levels; some also take the images' sizes, and real tensors."""
    if 'batch_data_samples' in signature(head.forward).parameters:
        return count_for_real(name, head, levels, height, width)
    return count_part(name, head, levels)[0]


def count_for_real(name: str, part: nn.Module, given: Any, height: int, width: int,
                   **options: Any) -> int:
    """Multiply-adds of a part that looks at values, and at the size of an image: all are zero."""
    part.to_empty(device='cpu')
    for tensor in (*part.parameters(), *part.buffers()):
        tensor.zero_()
    given = tree_map(lambda tensor: torch.zeros(tensor.shape), given)
    return count_part(name, part, given, [blank_sample(height, width)], **options)[0]


def blank_sample(height: int, width: int) -> BaseDataElement:
    """What models are told of an image that was not resized: its size."""
    size = dict.fromkeys(('img_shape', 'ori_shape', 'batch_input_shape', 'pad_shape'),
                         (height, width))
    return BaseDataElement(metainfo=dict(size, scale_factor=(1., 1.)))


def parts_of_roi_head(head: nn.Module) -> Iterator[Part]:
    """Box and mask heads, if there are any, on as many boxes as a test image has at most.

    A cascade has one of each for every stage, and all see all boxes.
    """
    for name, rois in (('bbox_head', NUM_PROPOSALS), ('mask_head', NUM_DETECTIONS)):
        part = getattr(head, name, None)
        if part is None:
            continue
        extractor = getattr(head, name.replace('head', 'roi_extractor'))
        several = isinstance(part, nn.ModuleList)
        work = 0
        for stage, its_extractor in zip(
                part if several else [part], extractor if several else [extractor], strict=True):
            side = its_extractor.roi_layers[0].output_size
            features = torch.empty(rois, its_extractor.out_channels, *side, device='meta')
            work += count_part(f'roi_head.{name}', stage, features)[0]
        stages = f' x {len(part)}' if several else ''
        yield Part(f'{name}{stages}, {rois} boxes', count_parameters(part), work)


def total_of(parts: list[Part]) -> Part:
    return Part('whole model', sum(part.parameters for part in parts),
                sum(part.multiply_adds or 0 for part in parts))


def classifier_complexity(backbone: ColumnarBackbone, img_size: int) -> tuple[int, int]:
    """Parameters and multiply-adds of the classifier that the papers list."""
    with without_memory():
        model = backbone.timm_module(img_size, num_classes=1000).eval().requires_grad_(False)
    image = torch.empty(1, 3, img_size, img_size, device='meta')
    return count_parameters(model), multiply_adds(model, image)[0]


def backbone_rows() -> Iterator[tuple[str, str, float, float]]:
    """Name, quantity, ours and the paper's, of each backbone."""
    sizes = [(backbone, size) for backbone in BACKBONES.values()
             for size in backbone.published_sizes]
    named = set()
    for backbone, size in sizes:
        with without_memory():
            parameters, work = classifier_complexity(backbone(size.arch), size.img_size)
        name = f'{backbone.__name__} {size.arch}'
        if name not in named:
            yield name, 'parameters, M', parameters / 1e6, size.parameters
        yield name, f'multiply-adds at {size.img_size}, G', work / 1e9, size.multiply_adds
        named.add(name)


# Millions of parameters. Table 5 (Mask R-CNN): whole models; Table 6 (Semantic FPN, UperNet):
# without the pyramid's own layers. Cut, not rounded.
XCIT_TABLES_5_AND_6 = {
    'tiny_12_p16': (26.1, 8.4, 33.7), 'tiny_12_p8': (25.8, 8.4, 33.7),
    'small_12_p16': (44.3, 30.4, 52.4), 'small_12_p8': (43.1, 30.4, 52.3),
    'small_24_p16': (65.8, 51.8, 73.8), 'small_24_p8': (64.5, 51.8, 73.8),
    'medium_24_p16': (101.1, 90.8, 109.0), 'medium_24_p8': (98.9, 90.8, 108.9),
}  # yapf: disable


def whole_model_rows() -> Iterator[tuple[str, str, float, float]]:
    """As :func:`backbone_rows`, of the published detectors and segmenters."""
    for arch, expected in XCIT_TABLES_5_AND_6.items():
        for (head, recipe), millions in zip(HEADS.items(), expected, strict=True):
            name = f'xcit_{arch}_{recipe}'
            model, _ = build(CONFIGS / head / f'{name}.py')
            count = count_parameters(model)
            if head != 'mask_rcnn':
                count -= sum(p.numel() for key, p in model.neck.named_parameters()
                             if key.startswith('stride'))
            yield f'{head}/{name}', 'parameters, M', math.floor(count / 1e5) / 10, millions


def default_size(cfg: Config) -> tuple[int, int]:
    """Height and width at which the papers count: detectors at 800 x 1280, segmenters at 512²."""
    return (800, 1280) if cfg.default_scope == 'mmdet' else (512, 512)


def model_table(config: Path, size: tuple[int, int] | None) -> Iterator[str]:
    """Lines: the parts of a config's model and their sum.

    Args:
        config: Of a detector or segmenter.
        size: Height and width of the input; ``None`` is :func:`default_size`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no config of a detector or segmenter, or cannot be counted.
    """
    model, cfg = build(config)
    height, width = size or default_size(cfg)
    parts = list(parts_of(model, height, width))
    yield f'{config.stem} at {height} x {width}: parameters, multiply-adds for one image'
    yield from map(str, [*parts, total_of(parts)])


def published_table() -> Iterator[str]:
    """Lines: all of the papers' numbers beside ours."""
    yield f'{"":44} {"":26} {"ours":>9} {"paper":>9} {"":>8}'
    for rows in (backbone_rows(), whole_model_rows()):
        for name, quantity, ours, paper in rows:
            yield f'{name:44} {quantity:26} {ours:9.2f} {paper:9.1f} {ours / paper - 1:8.1%}'
