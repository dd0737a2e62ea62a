"""Blocks of SimplifiedViT: what the paper writes, how they start, what stochastic depth drops."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.backbones import randomised, tiny
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import SimplifiedViT
from colonnade.backbones.kernels.custom_ops import BLOCK
from colonnade.backbones.simplified_vit.attention import ShapedAttention
from colonnade.backbones.simplified_vit.blocks import ParallelBlock, PlainBlock, SequentialBlock

WIDTH, HEADS, TOKENS = 32, 4, 50


def shaped(attn: ShapedAttention, x: Tensor) -> Tensor:
    """The paper's equation 13 as it is written, head by head."""
    tokens, heads = x.shape[1], []
    query, key = F.linear(x, attn.qk.weight, attn.qk.bias).chunk(2, dim=-1)
    parts = (part.chunk(attn.num_heads, dim=-1) for part in (x, query, key))
    for head, (x_h, query_h, key_h) in enumerate(zip(*parts, strict=True)):
        matrix = attn.alpha[head] * torch.eye(tokens, dtype=x.dtype)
        logits = query_h @ key_h.mT / query_h.shape[-1]**0.5
        matrix = matrix + attn.beta[head] * logits.softmax(dim=-1)
        if attn.gamma is not None:
            matrix = matrix - attn.gamma[head] / tokens
        heads.append(matrix @ x_h)
    return torch.cat(heads, dim=-1)


def written_out(block: nn.Module, x: Tensor) -> Tensor:
    if isinstance(block, ParallelBlock):
        x = block.norm(x)
        return shaped(block.attn, x) + block.mlp(x)
    y = shaped(block.attn, block.norm1(x))
    return y + block.mlp(y)


def results(function: Callable, module: nn.Module, x: Tensor) -> list[Tensor]:
    """What a function of tokens gives, and all gradients."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = function(x)
    (out * out.detach().cos()).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize('centring', [False, True])
@pytest.mark.parametrize('kind', [ParallelBlock, SequentialBlock])
def test_blocks_are_what_the_paper_writes(kind: type, centring: bool) -> None:
    block = randomised(kind(WIDTH, HEADS, centring=centring).double())
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for a, b in zip(
            results(block, block, x), results(partial(written_out, block), block, x), strict=True):
        torch.testing.assert_close(a, b)
    x = torch.randn(1, BLOCK + 10, WIDTH, dtype=torch.float64)
    before = x.clone()
    with torch.no_grad():  # the MLP runs in blocks of tokens
        torch.testing.assert_close(block(x), written_out(block, x))
    assert torch.equal(x, before)


def test_plain_blocks_are_timms() -> None:
    ours = randomised(PlainBlock(WIDTH, HEADS).double())
    theirs = Block(WIDTH, HEADS, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6)).double()
    merged = {name: value for name, value in ours.state_dict().items()
              if name.split('.')[1] not in ('qk', 'v')}  # yapf: disable
    for part in ('weight', 'bias'):
        layers = [getattr(ours.attn.qk, part), getattr(ours.attn.v, part)]
        merged[f'attn.qkv.{part}'] = torch.cat(layers)
    theirs.load_state_dict(merged)
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for a, b in zip(results(ours, ours, x)[:2], results(theirs, theirs, x)[:2], strict=True):
        torch.testing.assert_close(a, b)
    for name in ('norm1', 'attn.proj', 'mlp.fc1', 'norm2'):
        own, timms = (block.get_submodule(name).weight.grad for block in (ours, theirs))
        torch.testing.assert_close(own, timms)


@pytest.mark.parametrize('init, gains', [
    ('dynamic', [(1, 0), (1 / 2, 1 / 2), (1 / 3, 2 / 3), (1 / 4, 3 / 4)]),
    ('inverse_dynamic', [(0, 1), (1 / 2, 1 / 2), (2 / 3, 1 / 3), (3 / 4, 1 / 4)]),
    ((0.5, 0.5), [(0.5, 0.5)] * 4),
    ((1, 0), [(1, 0)] * 4),
    ([0, 1], [(0, 1)] * 4),
])
@pytest.mark.parametrize('centring', [False, True])
def test_attention_starts_as_its_gains_say(init: Any, gains: list, centring: bool) -> None:
    """Queries are zero: each token is alpha of itself and beta of the mean, or alpha alone."""
    backbone = tiny(SimplifiedViT, init=init, centring=centring)
    x = torch.randn(2, TOKENS, WIDTH)
    for block, (alpha, beta) in zip(backbone.blocks, gains, strict=True):
        assert torch.allclose(block.attn.alpha, torch.tensor(float(alpha)))
        assert torch.allclose(block.attn.beta, torch.tensor(float(beta)))
        expected = alpha * x + (0 if centring else beta * x.mean(dim=1, keepdim=True))
        torch.testing.assert_close(block.attn(x), expected, rtol=1e-5, atol=1e-6)
        keys = block.attn.qk.weight[WIDTH:]
        assert keys.std().item() == pytest.approx(0.02, rel=0.2)


def test_dynamic_is_the_default() -> None:
    default, named = tiny(SimplifiedViT), tiny(SimplifiedViT, init='dynamic')
    assert all(torch.equal(a, b) for a, b in zip(default.parameters(), named.parameters(),
                                                 strict=True))  # yapf: disable


@pytest.mark.parametrize('kind', [ParallelBlock, SequentialBlock])
def test_stochastic_depth_leaves_attention_alone(kind: type) -> None:
    """A dropped MLP leaves what attention gives."""
    module = randomised(kind(WIDTH, HEADS, drop_path=0.5)).train()
    x = torch.randn(64, 8, WIDTH)
    with torch.no_grad():
        norm = module.norm if kind is ParallelBlock else module.norm1
        attended, out = module.attn(norm(x)), module(x)
    kept = (out - attended).abs().amax(dim=(1, 2)) < 1e-6
    assert 10 < kept.sum() < 54
