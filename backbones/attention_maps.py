"""What backbones attend to and mix, as images: for looking at, not for training.

Shapes: ``B`` images, ``h, w`` grid of tokens, ``N = h w``, ``d`` channels of a head.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError
from colonnade.weights.downloads import fetch
from colonnade.weights.layouts import remap
from colonnade.weights.state_dicts import WeightsError, listed, mismatches, state_dict_of

from .columnar import ColumnarBackbone
from .resmlp.backbone import ResMLP
from .resmlp.token_mixing import matrix_of
from .xcit.backbone import XCiT


class ClassAttentionMap(NamedTuple):
    """Where a class-attention layer's class token looks.

    Attributes:
        maps: Weights of the image's tokens, ``(B, heads, h, w)``.
        to_itself: Weight of the class token, ``(B, heads)``; with it, the weights of a head sum
            to 1.
    """
    maps: Tensor
    to_itself: Tensor


class ClassAttentionStage(nn.Module):
    """The class token and class-attention blocks of a backbone's classifier, under timm's names.

    Raises:
        ValueError: If the backbone is of a kind without class attention.
    """

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
    """The class-attention stage for a backbone, from a classifier's file.

    Args:
        backbone: The backbone, with weights of its own.
        source, trust: As for :func:`~colonnade.weights.loading.load_weights`.

    Raises:
        ValueError: If the backbone is of a kind without class attention.
        WeightsError: If the file has no such stage, or one that does not fit.
    """
    stage = ClassAttentionStage(backbone).eval()
    layout, state = remap(state_dict_of(fetch(source, trust=trust), str(source)), str(source))
    names = tuple(dict.fromkeys(key.split('.')[0] for key in stage.state_dict()))
    state = {key: value for key, value in state.items() if key.split('.')[0] in names}
    if not state:
        raise WeightsError(f'{source} ({layout.name}) has no class-attention stage '
                           f'({", ".join(names)}): take the file of a classifier')
    required = {key: value.shape for key, value in stage.state_dict().items()}
    if problems := mismatches(state, required):
        raise WeightsError(f'the class-attention stage of {source} ({layout.name}) does not fit '
                           f'{backbone.describe()}:\n{listed(problems)}')
    stage.load_state_dict(state)
    return stage.to(next(backbone.parameters()))  # its device and precision


@torch.no_grad()
def class_attention(backbone: ColumnarBackbone, stage: ClassAttentionStage,
                    img: Tensor) -> list[ClassAttentionMap]:
    """Class attention of each layer (CaiT paper, equations 4 to 6; XCiT paper, section 3.3).

    Args:
        backbone: XCiT or CaiT, built to its last block.
        stage: Its class-attention stage, see :func:`load_class_attention`.
        img: ``(B, 3, H, W)``, normalised.

    Returns:
        Maps of each class-attention layer, first to last.

    Raises:
        ValueError: If the backbone was built without its last blocks.
    """
    if len(backbone.blocks) < backbone.depth:
        raise UserError(f'class attention follows block {backbone.depth - 1}, and this backbone '
                        f'ends with block {len(backbone.blocks) - 1}: out_indices must reach it')
    found = backbone(img)[-1]  # (B, C, h, w)
    grid, tokens = found.shape[-2:], found.flatten(2).transpose(1, 2)
    layers = [block.attn for block in stage.blocks]
    with captured_calls(layers) as calls:
        backbone.attend_to_class(stage.blocks, stage.cls_token.expand(len(img), -1, -1), tokens)
    weights = [_class_weights(layer, x) for layer, (x, ) in zip(layers, calls, strict=True)]
    return [ClassAttentionMap(w[..., 1:].unflatten(2, grid), w[..., 0]) for w in weights]


def _class_weights(layer: nn.Module, x: Tensor) -> Tensor:
    """Softmax weights ``(B, heads, 1 + N)`` of timm's ClassAttn for ``(B, 1 + N, C)``."""
    query = layer.q(x[:, :1]).unflatten(2, (layer.num_heads, -1)).transpose(1, 2)
    key = layer.k(x).unflatten(2, (layer.num_heads, -1)).transpose(1, 2)  # (B, heads, 1 + N, d)
    return (query * layer.scale @ key.transpose(-2, -1)).softmax(dim=-1)[:, :, 0]


@torch.no_grad()
def channel_attention(backbone: XCiT, img: Tensor, block: int = -1) -> Tensor:
    """XCA's attention between channels, ``(B, heads, d, d)`` (XCiT paper, section 3.2)."""
    query, key, _ = _normalised_queries_and_keys(backbone, img, block)
    return (query @ key.transpose(-2, -1) * backbone.blocks[block].attn.temperature).softmax(dim=-1)


@torch.no_grad()
def query_key_magnitude(backbone: XCiT, img: Tensor, block: int = -1) -> tuple[Tensor, Tensor]:
    """How much each token weighs in XCA (XCiT paper, section D.5).

    Returns:
        For queries and for keys, the norm over a head's channels of what is normalised along the
        tokens, ``(B, heads, h, w)``; its squares sum to d over the tokens.
    """
    query, key, grid = _normalised_queries_and_keys(backbone, img, block)
    return tuple(x.norm(dim=2).unflatten(2, grid) for x in (query, key))


def _normalised_queries_and_keys(backbone: XCiT, img: Tensor,
                                 block: int) -> tuple[Tensor, Tensor, list[int]]:
    """Queries and keys of a block, each ``(B, heads, d, N)`` of norm 1 along N, and the grid."""
    if not isinstance(backbone, XCiT):
        raise UserError(f'{type(backbone).__name__} has no cross-covariance attention')
    chosen = chosen_block(backbone, block)
    layer = chosen.attn
    with captured_calls([chosen]) as calls:
        backbone(img)
    x, *grid = calls[0]
    qkv = layer.qkv(chosen.norm1(x)).unflatten(2, (3, layer.num_heads, -1)).permute(2, 0, 3, 4, 1)
    return F.normalize(qkv[0], dim=-1), F.normalize(qkv[1], dim=-1), grid


def mixing_rows(backbone: ResMLP, block: int = -1) -> Tensor:
    """ResMLP's mixing matrix as images ``(n, n, n, n)`` (ResMLP paper, figure 2).

    ``mixing_rows(backbone)[i, j]`` is what the token at row i, column j of the native grid reads.

    Raises:
        ValueError: If the backbone is no ResMLP or has no such block.
    """
    if not isinstance(backbone, ResMLP):
        raise UserError(f'{type(backbone).__name__} has no mixing matrices')
    layer, grid = chosen_block(backbone, block).linear_tokens, backbone.stem.grid_size
    weight = matrix_of(layer, math.prod(grid), backbone.stem.proj.weight)
    return weight.detach().unflatten(0, grid).unflatten(2, grid)


def chosen_block(backbone: ColumnarBackbone, block: int) -> nn.Module:
    """A block by its number; negative ones count from the last that was built.

    Raises:
        ValueError: If there is none of this number.
    """
    count = len(backbone.blocks)
    if not -count <= block < count:
        raise UserError(f'block must be in {-count} ... {count - 1}, got {block}')
    return backbone.blocks[block]


@contextmanager
def captured_calls(modules: list[nn.Module]) -> Iterator[list[tuple]]:
    """The positional arguments of each call of ``modules``, in the order of the calls."""
    calls: list[tuple] = []
    handles = [
        module.register_forward_pre_hook(lambda _, given: calls.append(given)) for module in modules
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
