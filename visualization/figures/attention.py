"""What trunks attend to and mix, as panels.

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
from .layout import Drawing, Panel, Row
from .scales import Scale

Draw = Callable[[Seen], Drawing]
Images = Callable[[], Iterable[Seen]]
SHARE = 0.995  # of values within the colours; the rest has the last one
#: tokens of which mixing rows are shown, in shares of the grid's height and width
PLACES = ((0.5, 0.5), (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))


def class_attention_panels(model: Model, options: Options, _: Images) -> Draw:
    """Class attention of each layer and head (XCiT paper, Fig. 4; CaiT paper, Figs. 6 and 7).

    Raises:
        ValueError: If there is no classifier, or the trunk ends before its last block.
        WeightsError: If the classifier's stage does not fit the trunk.
    """
    trunk = model.module.backbone
    if options.classifier is None:
        raise UserError('class-attention needs the weights of a classifier (--classifier): a '
                        'detector or segmenter has none of its class-attention stage')
    stage = load_class_attention(trunk, options.classifier, trust=options.trust)
    layers = chosen(options.blocks, len(stage.blocks), 'layer of class attention')
    check_heads(trunk, options)

    def draw(seen: Seen) -> Drawing:
        found = class_attention(trunk, stage, seen.inputs)
        maps = {f'layer {layer}': found[layer].maps[0] for layer in layers}
        return attention_drawing('Class attention', maps, seen, options, trunk.patch_size)

    return draw


def attention_panels(model: Model, options: Options, _: Images) -> Draw:
    """Attention of one token to all others, head by head."""
    trunk, blocks = model.module.backbone, blocks_of(model.module.backbone, options)

    def draw(seen: Seen) -> Drawing:
        point, token = token_at(options, seen, trunk)
        found = [(b, token_attention(trunk, seen.inputs, token, b)) for b in blocks]
        maps = {f'block {block}': each.maps[0] for block, each in found}
        if point is None and not found[0][1].to_prefix.shape[-1]:
            height, width = found[0][1].maps.shape[-2:]
            point = centre_of((height // 2, width // 2), trunk.patch_size)
        title = 'Attention of the class token' if point is None else 'Attention of the marked token'
        return attention_drawing(title, maps, seen, options, trunk.patch_size, point)

    return draw


def token_at(options: Options, seen: Seen, trunk: ColumnarBackbone) -> \
        tuple[tuple[float, float] | None, tuple[int, int] | None]:
    """The point that is marked, and row and column of its token; None for what is not chosen."""
    if options.point is None:
        return None, None
    x, y = seen.to_seen(options.point)
    return (x, y), (int(y // trunk.patch_size), int(x // trunk.patch_size))


def centre_of(token: tuple[int, int], patch_size: int) -> tuple[float, float]:
    """The middle ``(x, y)`` of a token in pixels."""
    return (token[1] + 0.5) * patch_size, (token[0] + 0.5) * patch_size


def attention_drawing(title: str,
                      maps: dict[str, Tensor],
                      seen: Seen,
                      options: Options,
                      stride: float,
                      mark: tuple[float, float] | None = None) -> Drawing:
    """The mean of all heads and the chosen ones, in multiples of a uniform weight.

    Args:
        title: What stands above.
        maps: Weights ``(heads, h, w)`` by the name of their row.
        seen: The image.
        options: Which heads.
        stride: Pixels of a token.
        mark: The token whose attention it is.
    """
    rows = []
    for label, values in maps.items():
        relative = (values * values[0].numel()).float().cpu().numpy()
        panels = [] if options.heads else [Panel(relative.mean(0), 'mean of heads', stride)]
        heads = chosen(options.heads, len(relative), 'head')
        panels += [Panel(relative[head], f'head {head}', stride) for head in heads]
        rows.append(Row(label, panels))
    scale = Scale.from_zero('weight / uniform weight', values_of(rows), SHARE, power=0.5)
    marks = () if mark is None else (mark, )
    return Drawing(title, seen.image, rows, scale, marks=marks, nearest=options.nearest)


def magnitude_panels(model: Model, options: Options, _: Images) -> Draw:
    """Norms of XCA's normalised queries and keys, token by token (XCiT paper, Fig. D.2)."""
    trunk, blocks = model.module.backbone, blocks_of(model.module.backbone, options)

    def draw(seen: Seen) -> Drawing:
        rows = []
        for block in blocks:
            found = query_key_magnitude(trunk, seen.inputs, block)
            for kind, values in zip(('queries', 'keys'), found, strict=True):
                maps = values[0].float().cpu().numpy()
                panels = [
                    Panel(maps[head], f'{kind}, head {head}', trunk.patch_size)
                    for head in chosen(options.heads, len(maps), 'head')
                ]
                rows.append(Row(f'block {block}', panels))
        scale = Scale.between('norm over channels', values_of(rows), SHARE)
        return Drawing(
            'Magnitude of queries and keys', seen.image, rows, scale, nearest=options.nearest)

    return draw


def channel_panels(model: Model, options: Options, _: Images) -> Draw:
    """XCA's attention between the channels of each head (XCiT paper, section 3.2)."""
    trunk, blocks = model.module.backbone, blocks_of(model.module.backbone, options)

    def draw(seen: Seen) -> Drawing:
        rows = []
        for block in blocks:
            maps = channel_attention(trunk, seen.inputs, block)[0].float().cpu().numpy()
            heads = chosen(options.heads, len(maps), 'head')
            rows.append(
                Row(f'block {block}', [Panel(maps[head], f'head {head}') for head in heads]))
        scale = Scale.from_zero('weight of a column', values_of(rows), SHARE)
        return Drawing('Attention between channels', seen.image, rows, scale)

    return draw


def mixing_panels(model: Model, options: Options, _: Images) -> Draw:
    """Rows of ResMLP's mixing matrices: what some tokens read (ResMLP paper, Fig. 2).

    The matrices are learned for one grid of tokens, and are the same for every image. The image
    shows where on that grid the tokens lie.
    """
    trunk, blocks = model.module.backbone, blocks_of(model.module.backbone, options)

    def draw(seen: Seen) -> Drawing:
        rows, places = [], list(PLACES)
        if options.point is not None:
            x, y = seen.to_seen(options.point)
            places = [(y / seen.image.shape[0], x / seen.image.shape[1])]
        for block in blocks:
            found = mixing_rows(trunk, block).float().cpu().numpy()  # (n, n, n, n)
            side = len(found)
            tokens = [(int(down * side), int(along * side)) for down, along in places]
            panels = [
                Panel(found[row, column], f'row {row}, column {column}', marks=((column, row), ))
                for row, column in tokens
            ]
            rows.append(Row(f'block {block}', panels))
        scale = Scale.around_zero('weight', values_of(rows), SHARE)
        height, width = seen.image.shape[:2]
        marks = tuple((along * width, down * height) for down, along in places)
        return Drawing(
            f'Mixing of tokens on the learned grid, {side} × {side}',
            seen.image,
            rows,
            scale,
            marks=marks)

    return draw


def blocks_of(trunk: ColumnarBackbone, options: Options) -> list[int]:
    """The blocks that are shown.

    Raises:
        ValueError: If there is no block or no head of a number.
    """
    check_heads(trunk, options)
    last = [len(trunk.blocks) - 1]
    return chosen(last if options.blocks is None else options.blocks, len(trunk.blocks), 'block')


def check_heads(trunk: ColumnarBackbone, options: Options) -> None:
    """Raise a ValueError for a head that there is not, before anything is computed."""
    chosen(options.heads, trunk.settings.get('num_heads', 1), 'head')


def chosen(numbers: Sequence[int] | None, count: int, what: str) -> list[int]:
    """Numbers from 0, of those given or of all.

    Raises:
        ValueError: If there is none of a number.
    """
    for number in numbers or ():
        if not -count <= number < count:
            raise UserError(f'there is no {what} {number}: there are 0 ... {count - 1}')
    return list(range(count)) if not numbers else [number % count for number in numbers]


def values_of(rows: Iterable[Row]) -> list[np.ndarray]:
    return [panel.values for row in rows for panel in row.panels]
