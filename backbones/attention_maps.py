"""Attention and mixing matrices of backbones as maps, for visualization.

Shapes: ``B`` images, ``h, w`` grid of tokens, ``N = h w``, ``P`` prefix tokens, ``d``
channels of a head.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError
from colonnade.weights.downloads import fetch
from colonnade.weights.formats import convert_keys
from colonnade.weights.state_dicts import (WeightsError, find_mismatches, format_mismatches,
                                           get_state_dict)

from .cait.talking_heads import BoundedTalkingHeadAttn
from .columnar import ColumnarBackbone
from .plain_vit.blocks import SelfAttention
from .plain_vit.window_attention import Heads
from .resmlp.backbone import ResMLP
from .resmlp.token_mixing import get_mixing_matrix
from .simplified_vit.blocks import PlainAttention, ShapedAttention, split_heads
from .xcit.backbone import XCiT

Grid = tuple[int, int]


class ClassAttentionMap(NamedTuple):
    """Attention of the class token in one layer; all weights of a head sum to 1."""
    maps: Tensor  # (B, heads, h, w), weights of the image's tokens
    to_itself: Tensor  # (B, heads)


class ClassAttentionStage(nn.Module):
    """Class token and class-attention blocks of a backbone's classifier, under timm's names."""

    def __init__(self, backbone: ColumnarBackbone) -> None:
        super().__init__()
        if backbone.class_attention_name is None:
            raise UserError(f'{type(backbone).__name__} has no class attention')
        self.blocks_name = backbone.class_attention_name
        classifier = backbone.build_classifier()
        self.cls_token = classifier.cls_token
        self.add_module(self.blocks_name, classifier.get_submodule(self.blocks_name))

    @property
    def blocks(self) -> nn.ModuleList:
        return self.get_submodule(self.blocks_name)


def load_class_attention(backbone: ColumnarBackbone,
                         source: str | Path,
                         *,
                         trust: bool = False) -> ClassAttentionStage:
    """Load the class-attention stage of a backbone from a classifier's file.

    Args:
        backbone: Backbone with its weights.
        source, trust: Arguments of :func:`~colonnade.weights.loading.load_weights`.

    Raises:
        ValueError: If the backbone has no class attention.
        WeightsError: If the file has no such stage, or one that does not fit.
    """
    stage = ClassAttentionStage(backbone).eval()
    known, state = convert_keys(
        get_state_dict(fetch(source, trust=trust), str(source)), str(source))
    names = tuple(dict.fromkeys(key.split('.')[0] for key in stage.state_dict()))
    state = {key: value for key, value in state.items() if key.split('.')[0] in names}
    if not state:
        raise WeightsError(f'{source} ({known.name}) has no class-attention stage '
                           f'({", ".join(names)}): use the weights of a classifier')
    required = {key: value.shape for key, value in stage.state_dict().items()}
    if problems := find_mismatches(state, required):
        raise WeightsError(f'the class-attention stage of {source} ({known.name}) does not fit '
                           f'{backbone.describe()}:\n{format_mismatches(problems)}')
    stage.load_state_dict(state)
    return stage.to(next(backbone.parameters()))  # its device and precision


@torch.no_grad()
def class_attention(backbone: ColumnarBackbone, stage: ClassAttentionStage,
                    img: Tensor) -> list[ClassAttentionMap]:
    """Compute class attention (CaiT paper, equations 4 to 6; XCiT paper, section 3.3).

    Args:
        backbone: XCiT or CaiT, built to its last block.
        stage: Its class-attention stage, see :func:`load_class_attention`.
        img: Normalized images ``(B, 3, H, W)``.

    Returns:
        Maps of each class-attention layer, first to last.

    Raises:
        ValueError: If the backbone was built without its last blocks.
    """
    if len(backbone.blocks) < backbone.depth:
        raise UserError(f'class attention follows block {backbone.depth - 1}, but this backbone '
                        f'ends with block {len(backbone.blocks) - 1}: add -1 to out_indices')
    last = backbone(img)[-1]  # (B, C, h, w)
    grid, tokens = last.shape[-2:], last.flatten(2).transpose(1, 2)
    layers = [block.attn for block in stage.blocks]
    with capture_calls(layers) as calls:
        backbone.attend_to_class(stage.blocks, stage.cls_token.expand(len(img), -1, -1), tokens)
    maps = []
    for layer, (x, ) in zip(layers, calls, strict=True):  # timm's ClassAttn
        query = layer.q(x[:, :1]).unflatten(2, (layer.num_heads, -1)).transpose(1, 2)
        key = layer.k(x).unflatten(2, (layer.num_heads, -1)).transpose(1, 2)  # (B, heads, 1 + N, d)
        weights = (query * layer.scale @ key.transpose(-2, -1)).softmax(dim=-1)[:, :, 0]
        maps.append(ClassAttentionMap(weights[..., 1:].unflatten(2, grid), weights[..., 0]))
    return maps


@torch.no_grad()
def channel_attention(backbone: XCiT, img: Tensor, block: int = -1) -> Tensor:
    """Compute attention between channels, ``(B, heads, d, d)`` (XCiT paper, section 3.2)."""
    query, key, _ = _compute_unit_queries_and_keys(backbone, img, block)
    return (query @ key.transpose(-2, -1) * backbone.blocks[block].attn.temperature).softmax(dim=-1)


@torch.no_grad()
def query_key_magnitude(backbone: XCiT, img: Tensor, block: int = -1) -> tuple[Tensor, Tensor]:
    """Compute the norms of normalized queries and keys over channels (XCiT paper, section D.5).

    Each is ``(B, heads, h, w)``, and its squares sum to d over the tokens.
    """
    query, key, grid = _compute_unit_queries_and_keys(backbone, img, block)
    return tuple(x.norm(dim=2).unflatten(2, grid) for x in (query, key))


def _compute_unit_queries_and_keys(backbone: XCiT, img: Tensor,
                                   block: int) -> tuple[Tensor, Tensor, list[int]]:
    """Return queries and keys of a block, each ``(B, heads, d, N)`` of norm 1, and the grid."""
    if not isinstance(backbone, XCiT):
        raise UserError(f'{type(backbone).__name__} has no cross-covariance attention')
    chosen = get_block(backbone, block)
    layer = chosen.attn
    with capture_calls([chosen]) as calls:
        backbone(img)
    x, *grid = calls[0]
    qkv = layer.qkv(chosen.norm1(x)).unflatten(2, (3, layer.num_heads, -1)).permute(2, 0, 3, 4, 1)
    return F.normalize(qkv[0], dim=-1), F.normalize(qkv[1], dim=-1), grid


def mixing_rows(backbone: ResMLP, block: int = -1) -> Tensor:
    """Return ResMLP's mixing matrix as maps ``(n, n, n, n)`` (ResMLP paper, figure 2).

    ``mixing_rows(backbone)[i, j]`` are the weights by which the token at row i and column j of the
    native grid reads all tokens.

    Raises:
        ValueError: If the backbone is not a ResMLP, or has no such block.
    """
    if not isinstance(backbone, ResMLP):
        raise UserError(f'{type(backbone).__name__} has no mixing matrices')
    layer, grid = get_block(backbone, block).linear_tokens, backbone.stem.grid_size
    weight = get_mixing_matrix(layer, math.prod(grid), backbone.stem.proj.weight)
    return weight.detach().unflatten(0, grid).unflatten(2, grid)


def get_block(backbone: ColumnarBackbone, block: int) -> nn.Module:
    """Return a block by its index, or raise a ValueError; negative ones count from the last."""
    count = len(backbone.blocks)
    if not -count <= block < count:
        raise UserError(f'block must be between {-count} and {count - 1}, got {block}')
    return backbone.blocks[block]


@contextmanager
def capture_calls(modules: list[nn.Module]) -> Iterator[list[tuple]]:
    """Context manager that collects the positional arguments of all calls of ``modules``."""
    calls: list[tuple] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: calls.append(args)) for module in modules
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class TokenAttention(NamedTuple):
    """Attention of one token in one layer; all weights of a head sum to 1."""
    maps: Tensor  # (B, heads, h, w), weights of the image's tokens, 0 outside of a window
    to_prefix: Tensor  # (B, heads, P)


@torch.no_grad()
def token_attention(backbone: ColumnarBackbone,
                    img: Tensor,
                    token: int | Grid | None = None,
                    block: int = -1) -> TokenAttention:
    """Compute the softmax weights by which a token attends to all others.

    With talking heads (CaiT), these are the weights between the two mixings of heads. With shaped
    attention (SimplifiedViT), they are the matrix A(x), without the gains.

    Args:
        backbone: Backbone for which :func:`has_token_attention` is true.
        img: Normalized images ``(B, 3, H, W)``.
        token: Row and column in the grid, or the index of a prefix token. Defaults to the first
            prefix token, the class token, and without one to the middle of the grid.
        block: Index of the block; negative ones count from the last.

    Raises:
        ValueError: If the backbone has no such attention, or the block or token does not exist.
    """
    if not has_token_attention(backbone):
        raise UserError(f'{backbone.describe()} has no known attention between tokens')
    layer = get_block(backbone, block).attn
    with capture_calls([layer]) as calls:
        last = backbone(img)[-1]
    grid = (last[0] if isinstance(last, tuple) else last).shape[-2:]
    x, *place = calls[0]
    prefix = x.shape[1] - grid[0] * grid[1]
    weights = WEIGHTS[type(layer)](layer, x, _find_token(token, prefix, grid), *place)
    return TokenAttention(weights[..., prefix:].unflatten(2, grid), weights[..., :prefix])


def has_token_attention(backbone: nn.Module) -> bool:
    """Return True if all blocks have a known attention between tokens."""
    return isinstance(backbone, ColumnarBackbone) and backbone.has_feature_maps and all(
        type(dict(block.named_children()).get('attn')) in WEIGHTS for block in backbone.blocks)


def _find_token(token: int | Grid | None, prefix: int, grid: Grid) -> int:
    """Return the index of a token among all, prefix tokens first."""
    if token is None:
        token = 0 if prefix else (grid[0] // 2, grid[1] // 2)
    if isinstance(token, int):
        if not 0 <= token < prefix:
            raise UserError(f'prefix token must be between 0 and {prefix - 1}, got {token}'
                            if prefix else f'the backbone has no prefix tokens, got token {token}')
        return token
    row, column = token
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise UserError(f'token must be within {grid[0]} rows and {grid[1]} columns, got '
                        f'({row}, {column})')
    return prefix + row * grid[1] + column


def _attend_self(layer: SelfAttention,
                 x: Tensor,
                 token: int,
                 grid: Grid,
                 rope: Tensor | None = None) -> Tensor:
    """Compute weights ``(B, heads, P + N)`` of timm's attention, 0 outside of a window."""
    height, width = grid
    heads, grid = layer.padded_heads(x, grid, rope)
    if grid == (height, width):
        return _attend_in_window(layer, heads, token, grid)
    weights = _attend_in_window(layer, heads, token + token // width * (grid[1] - width), grid)
    return weights.unflatten(-1, grid)[..., :height, :width].flatten(-2)


def _attend_in_window(layer: SelfAttention, heads: Heads, token: int, grid: Grid) -> Tensor:
    """Compute weights ``(B, heads, P + N)`` of heads, 0 outside of the token's window."""
    prefix = heads.key.shape[2] - grid[0] * grid[1]
    if layer.window_size is None or token < prefix:
        return _softmax(heads.query, heads.key, token)
    rows, columns = (
        torch.arange(side, device=heads.key.device) // layer.window_size for side in grid)
    window = rows[:, None] * (max(grid) + 1) + columns  # index of the window
    visible = window.flatten() == window.flatten()[token - prefix]
    visible = torch.cat((visible.new_ones(prefix), visible))
    return _softmax(heads.query, heads.key, token, visible)


def _attend_talking_heads(layer: BoundedTalkingHeadAttn, x: Tensor, token: int) -> Tensor:
    """Compute weights ``(B, heads, N)`` of CaiT: softmax of the logits mixed by ``proj_l``."""
    query, key, _ = split_heads(layer.qkv(x), 3, layer.num_heads)
    logits = query[:, :, token:token + 1] * layer.scale @ key.mT  # (B, h, 1, N)
    return layer.proj_l(logits[:, :, 0].mT).mT.softmax(dim=-1)


def _attend_simplified(layer: ShapedAttention | PlainAttention, x: Tensor, token: int) -> Tensor:
    """Compute weights ``(B, heads, N)`` of SimplifiedViT."""
    query, key = split_heads(layer.qk(x), 2, layer.num_heads)
    return _softmax(query, key, token)


def _softmax(query: Tensor, key: Tensor, token: int, visible: Tensor | None = None) -> Tensor:
    """Compute weights ``(B, heads, tokens)`` of a query for its visible keys."""
    logits = query[:, :, token:token + 1] * query.shape[-1]**-0.5 @ key.mT
    if visible is not None:
        logits = logits.masked_fill(~visible, -torch.inf)
    return logits[:, :, 0].softmax(dim=-1)


#: functions from a layer and the arguments of its call to the weights of a token
WEIGHTS: dict[type[nn.Module], Callable[..., Tensor]] = {
    SelfAttention: _attend_self,
    BoundedTalkingHeadAttn: _attend_talking_heads,
    ShapedAttention: _attend_simplified,
    PlainAttention: _attend_simplified,
}
