"""What backbones attend to and mix, as panels.

Shapes: ``h, w`` grid of tokens, ``N = h w``, ``d`` channels of a head.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.attention_maps import (channel_attention, class_attention,
                                                load_class_attention, mixing_rows,
                                                query_key_magnitude)
from colonnade.backbones.token_attention import token_attention
from colonnade.common.errors import UserError
from colonnade.inference.model import Model

from .activations import Seen
from .figure_options import Options
from .layout import Drawing, Panel, PanelRow
from .scales import Scale

Draw = Callable[[Seen], Drawing]
Images = Callable[[], Iterable[Seen]]
SHOWN = 0.995  # fraction of values within the colors; the rest has the last one
#: tokens of which mixing rows are shown, in fractions of the grid's height and width
PLACES = ((0.5, 0.5), (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))


def class_attention_panels(model: Model, options: Options, _: Images) -> Draw:
    """Class attention of each layer and head (XCiT paper, Fig. 4; CaiT paper, Figs. 6 and 7).

    Raises:
        ValueError: If there is no classifier, or the backbone ends before its last block.
        WeightsError: If the classifier's stage does not fit the backbone.
    """
    backbone = model.module.backbone
    if options.classifier is None:
        raise UserError('class-attention needs the weights of a classifier (--classifier): a '
                        'detector or segmenter has none of its class-attention stage')
    stage = load_class_attention(backbone, options.classifier, trust=options.trust)
    layers = select_indices(options.blocks, len(stage.blocks), 'layer of class attention')
    check_heads(backbone, options)

    def draw(seen: Seen) -> Drawing:
        attention = class_attention(backbone, stage, seen.inputs)
        rows = []
        for layer in layers:
            panels = attention_panels_of(attention[layer].maps, options, backbone)
            rows.append(PanelRow(f'layer {layer}', panels))
        return draw_attention('Class attention', seen, rows, options)

    return draw


def attention_panels(model: Model, options: Options, _: Images) -> Draw:
    """Attention of one token to all others, head by head."""
    backbone = model.module.backbone
    blocks, side = select_blocks(backbone, options), backbone.patch_size

    def draw(seen: Seen) -> Drawing:
        point, token = None, None
        if options.point is not None:
            point = seen.to_seen(options.point)
            token = int(point[1] // side), int(point[0] // side)
        attention = [token_attention(backbone, seen.inputs, token, block) for block in blocks]
        if point is None and not attention[0].to_prefix.shape[-1]:  # there is no class token
            height, width = attention[0].maps.shape[-2:]
            point = (width // 2 + 0.5) * side, (height // 2 + 0.5) * side
        rows = [PanelRow(f'block {block}', attention_panels_of(each.maps, options, backbone))
                for block, each in zip(blocks, attention, strict=True)]  # yapf: disable
        title = 'Attention of the class token' if point is None else 'Attention of the marked token'
        return draw_attention(title, seen, rows, options, point)

    return draw


def attention_panels_of(maps: Tensor, options: Options, backbone: ColumnarBackbone) -> list[Panel]:
    """Return the mean of all heads and the chosen ones, in multiples of a uniform weight.

    Args:
        maps: Weights, ``(1, heads, h, w)``.
        options: Which heads.
        backbone: Backbone.
    """
    relative = to_array(maps * maps[0, 0].numel())
    mean = [] if options.heads else [Panel(relative.mean(0), 'mean of heads', backbone.patch_size)]
    return [*mean, *head_panels(relative, options, backbone.patch_size)]


def draw_attention(title: str,
                   seen: Seen,
                   rows: list[PanelRow],
                   options: Options,
                   mark: tuple[float, float] | None = None) -> Drawing:
    """Return the figure of attention, of the token at ``mark``."""
    scale = Scale.from_zero('weight / uniform weight', values_in(rows), SHOWN, power=0.5)
    marks = () if mark is None else (mark, )
    return Drawing(title, seen.image, rows, scale, marks=marks, nearest=options.nearest)


def magnitude_panels(model: Model, options: Options, _: Images) -> Draw:
    """Norms of XCA's normalised queries and keys, token by token (XCiT paper, Fig. D.2)."""
    backbone, blocks = model.module.backbone, select_blocks(model.module.backbone, options)

    def draw(seen: Seen) -> Drawing:
        rows = []
        for block in blocks:
            queries, keys = map(to_array, query_key_magnitude(backbone, seen.inputs, block))
            rows.append(
                PanelRow(f'block {block}', [
                    *head_panels(queries, options, backbone.patch_size, 'queries, head'),
                    *head_panels(keys, options, backbone.patch_size, 'keys, head')
                ]))
        scale = Scale.between('norm over channels', values_in(rows), SHOWN)
        title = 'Magnitude of queries and keys'
        return Drawing(title, seen.image, rows, scale, nearest=options.nearest)

    return draw


def channel_panels(model: Model, options: Options, _: Images) -> Draw:
    """XCA's attention between the channels of each head (XCiT paper, section 3.2)."""
    backbone, blocks = model.module.backbone, select_blocks(model.module.backbone, options)

    def draw(seen: Seen) -> Drawing:
        maps = [to_array(channel_attention(backbone, seen.inputs, block)) for block in blocks]
        rows = [PanelRow(f'block {block}', head_panels(values, options))
                for block, values in zip(blocks, maps, strict=True)]  # yapf: disable
        scale = Scale.from_zero('weight of a column', values_in(rows), SHOWN)
        return Drawing('Attention between channels', seen.image, rows, scale)

    return draw


def mixing_panels(model: Model, options: Options, _: Images) -> Draw:
    """Rows of ResMLP's mixing matrices: what some tokens read (ResMLP paper, Fig. 2).

    The matrices are learned for one grid of tokens, and are the same for every image. The image
    shows where on that grid the tokens are.
    """
    backbone, blocks = model.module.backbone, select_blocks(model.module.backbone, options)
    matrices = {f'block {block}': mixing_rows(backbone, block).float().cpu().numpy()
                for block in blocks}  # yapf: disable
    side = len(next(iter(matrices.values())))

    def draw(seen: Seen) -> Drawing:
        (height, width), places = seen.image.shape[:2], list(PLACES)
        if options.point is not None:
            x, y = seen.to_seen(options.point)
            places = [(y / height, x / width)]
        tokens = [(int(down * side), int(along * side)) for down, along in places]
        rows = [
            PanelRow(label, [
                Panel(matrix[row, column], f'row {row}, column {column}', marks=((column, row), ))
                for row, column in tokens
            ]) for label, matrix in matrices.items()
        ]
        scale = Scale.around_zero('weight', values_in(rows), SHOWN)
        marks = tuple((along * width, down * height) for down, along in places)
        title = f'Mixing of tokens on the learned grid, {side} × {side}'
        return Drawing(title, seen.image, rows, scale, marks=marks)

    return draw


def head_panels(values: np.ndarray,
                options: Options,
                stride: float | None = None,
                title: str = 'head') -> list[Panel]:
    """Return a panel for each chosen head of ``values``, ``(heads, h, w)``."""
    heads = select_indices(options.heads, len(values), 'head')
    return [Panel(values[head], f'{title} {head}', stride) for head in heads]


def to_array(values: Tensor) -> np.ndarray:
    """Return the values of the only image of a batch."""
    return values[0].float().cpu().numpy()


def values_in(rows: Iterable[PanelRow]) -> list[np.ndarray]:
    """Return the values of all panels."""
    return [panel.values for row in rows for panel in row.panels]


def select_blocks(backbone: ColumnarBackbone, options: Options) -> list[int]:
    """Return the blocks that are shown.

    Raises:
        ValueError: If there is no block or no head of a number.
    """
    check_heads(backbone, options)
    last = [len(backbone.blocks) - 1]
    blocks = last if options.blocks is None else options.blocks
    return select_indices(blocks, len(backbone.blocks), 'block')


def check_heads(backbone: ColumnarBackbone, options: Options) -> None:
    """Raise a ValueError for a head that does not exist, before anything is computed."""
    select_indices(options.heads, backbone.settings.get('num_heads', 1), 'head')


def select_indices(indices: Sequence[int] | None, count: int, what: str) -> list[int]:
    """Return indices from 0, of those given or of all.

    Raises:
        ValueError: If one is out of range.
    """
    for index in indices or ():
        if not -count <= index < count:
            raise UserError(f'there is no {what} {index}: there are 0 ... {count - 1}')
    return list(range(count)) if not indices else [index % count for index in indices]
