"""Figures of attention and token mixing.

Shapes: ``h, w`` grid of tokens, ``N = h w``, ``d`` channels of a head.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.attention_maps import (channel_attention, class_attention,
                                                load_class_attention, mixing_rows,
                                                query_key_magnitude, token_attention)
from colonnade.common.errors import UserError
from colonnade.inference.model import Model

from ..options import VisualizationOptions
from .figure_inputs import PreparedImage
from .layout import Drawing, Panel, PanelRow, Scale

Drawer = Callable[[PreparedImage], Drawing]
Images = Callable[[], Iterable[PreparedImage]]
#: tokens whose mixing rows are shown, as fractions of the grid's height and width
PLACES = ((0.5, 0.5), (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))


def make_class_attention_drawer(model: Model, options: VisualizationOptions, _: Images) -> Drawer:
    """Draw class attention of each layer and head (XCiT paper, Fig. 4; CaiT paper, Figs. 6, 7)."""
    backbone = model.module.backbone
    if options.classifier is None:
        raise UserError('class-attention needs the class-attention stage of a classifier, which '
                        'detectors and segmenters lack: pass its weights with --classifier')
    stage = load_class_attention(backbone, options.classifier, trust=options.trust)
    layers = select_indices(options.blocks, len(stage.blocks), 'class-attention layer')
    select_indices(options.heads, backbone.settings.get('num_heads', 1), 'head')

    def draw(image: PreparedImage) -> Drawing:
        attention = class_attention(backbone, stage, image.inputs)
        rows = [(f'layer {layer}', draw_heads(attention[layer].maps, options, backbone))
                for layer in layers]  # yapf: disable
        return draw_attention('Class attention', image, rows, options)

    return draw


def make_attention_drawer(model: Model, options: VisualizationOptions, _: Images) -> Drawer:
    """Draw the attention of one token to all others, head by head."""
    backbone = model.module.backbone
    blocks, side = select_blocks(backbone, options), backbone.patch_size

    def draw(image: PreparedImage) -> Drawing:
        point, token = None, None
        if options.point is not None:
            point = image.scale_point(options.point)
            token = int(point[1] // side), int(point[0] // side)
        attention = [token_attention(backbone, image.inputs, token, block) for block in blocks]
        if point is None and not attention[0].to_prefix.shape[-1]:  # without a class token
            height, width = attention[0].maps.shape[-2:]
            point = (width // 2 + 0.5) * side, (height // 2 + 0.5) * side
        rows = [(f'block {block}', draw_heads(each.maps, options, backbone))
                for block, each in zip(blocks, attention, strict=True)]  # yapf: disable
        title = 'Attention of the class token' if point is None else 'Attention of the marked token'
        return draw_attention(title, image, rows, options, point)

    return draw


def draw_heads(maps: Tensor, options: VisualizationOptions,
               backbone: ColumnarBackbone) -> list[Panel]:
    """Return the mean and the selected heads of weights ``(1, heads, h, w)``, relative to uniform
    weights."""
    relative = to_array(maps * maps[0, 0].numel())
    mean = [] if options.heads else [Panel(relative.mean(0), 'mean of heads', backbone.patch_size)]
    return [*mean, *select_heads(relative, options, backbone.patch_size)]


def draw_attention(title: str,
                   image: PreparedImage,
                   rows: list[PanelRow],
                   options: VisualizationOptions,
                   mark: tuple[float, float] | None = None) -> Drawing:
    """Return the figure of attention, with a mark at the attending token."""
    scale = Scale.fit('weight / uniform weight', rows, power=0.5)
    marks = () if mark is None else (mark, )
    return Drawing(title, image.pixels, rows, scale, marks, options.interpolation)


def make_magnitude_drawer(model: Model, options: VisualizationOptions, _: Images) -> Drawer:
    """Draw the norms of XCA's normalized queries and keys of each token (XCiT paper, Fig. D.2)."""
    backbone, blocks = model.module.backbone, select_blocks(model.module.backbone, options)

    def draw(image: PreparedImage) -> Drawing:
        rows = []
        for block in blocks:
            queries, keys = map(to_array, query_key_magnitude(backbone, image.inputs, block))
            panels = select_heads(queries, options, backbone.patch_size, 'queries, head')
            panels += select_heads(keys, options, backbone.patch_size, 'keys, head')
            rows.append((f'block {block}', panels))
        scale = Scale.fit('norm over channels', rows, 'range')
        return Drawing('Magnitude of queries and keys', image.pixels, rows, scale,
                       interpolation=options.interpolation)  # yapf: disable

    return draw


def make_channel_attention_drawer(model: Model, options: VisualizationOptions,
                                  _: Images) -> Drawer:  # yapf: disable
    """Draw XCA's attention between the channels of each head (XCiT paper, section 3.2)."""
    backbone, blocks = model.module.backbone, select_blocks(model.module.backbone, options)

    def draw(image: PreparedImage) -> Drawing:
        maps = [to_array(channel_attention(backbone, image.inputs, block)) for block in blocks]
        rows = [(f'block {block}', select_heads(values, options))
                for block, values in zip(blocks, maps, strict=True)]  # yapf: disable
        scale = Scale.fit('weight of a column', rows)
        return Drawing('Attention between channels', image.pixels, rows, scale)

    return draw


def make_mixing_drawer(model: Model, options: VisualizationOptions, _: Images) -> Drawer:
    """Draw rows of ResMLP's mixing matrices: what some tokens read (ResMLP paper, Fig. 2).

    The matrices are learned for one grid of tokens and are the same for every image, which shows
    where on that grid the tokens are.
    """
    backbone, blocks = model.module.backbone, select_blocks(model.module.backbone, options)
    matrices = {f'block {block}': mixing_rows(backbone, block).float().cpu().numpy()
                for block in blocks}  # yapf: disable
    side = len(next(iter(matrices.values())))

    def draw(image: PreparedImage) -> Drawing:
        (height, width), places = image.pixels.shape[:2], list(PLACES)
        if options.point is not None:
            x, y = image.scale_point(options.point)
            places = [(y / height, x / width)]
        tokens = [(int(down * side), int(along * side)) for down, along in places]
        rows = [(label, [Panel(matrix[row, column], f'row {row}, column {column}',
                               marks=((column, row), )) for row, column in tokens])
                for label, matrix in matrices.items()]  # yapf: disable
        scale = Scale.fit('weight', rows, 'diverging')
        marks = tuple((along * width, down * height) for down, along in places)
        title = f'Mixing of tokens on the learned grid, {side} × {side}'
        return Drawing(title, image.pixels, rows, scale, marks)

    return draw


def select_heads(values: np.ndarray,
                 options: VisualizationOptions,
                 stride: float | None = None,
                 title: str = 'head') -> list[Panel]:
    """Return a panel for each selected head of ``values``, ``(heads, h, w)``."""
    heads = select_indices(options.heads, len(values), 'head')
    return [Panel(values[head], f'{title} {head}', stride) for head in heads]


def to_array(values: Tensor) -> np.ndarray:
    """Return the values of the only image of a batch."""
    return values[0].float().cpu().numpy()


def select_blocks(backbone: ColumnarBackbone, options: VisualizationOptions) -> list[int]:
    """Return the indices of the selected blocks, after checking blocks and heads."""
    select_indices(options.heads, backbone.settings.get('num_heads', 1), 'head')
    blocks = [len(backbone.blocks) - 1] if options.blocks is None else options.blocks
    return select_indices(blocks, len(backbone.blocks), 'block')


def select_indices(indices: Sequence[int] | None, count: int, what: str) -> list[int]:
    """Return the non-negative form of indices, or all indices."""
    for index in indices or ():
        if not -count <= index < count:
            raise UserError(f'{what} must be between {-count} and {count - 1}, got {index}')
    return list(range(count)) if not indices else [index % count for index in indices]
