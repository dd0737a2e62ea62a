"""SimplifiedViT: blocks of the paper, counts of the study, files and hooks."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from helpers.backbones import ARCHS, randomised, tiny
from helpers.modified_layers import LoRA, bent
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import SimplifiedViT
from colonnade.backbones.kernels.custom_ops import BLOCK
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.simplified_vit.blocks import (BLOCKS, ParallelBlock, PlainBlock,
                                                       SequentialBlock, ShapedAttention)
from colonnade.weights.formats import detect_format
from colonnade.weights.loading import plan_loading

every_block = pytest.mark.parametrize('block', BLOCKS)


def build_vit(block: str, **kwargs: Any) -> SimplifiedViT:
    """A small one, whose weights are at no special point."""
    made = tiny(SimplifiedViT, ARCHS[SimplifiedViT] | dict(depth=2), block=block,
                out_indices=(0, 1), **kwargs)  # yapf: disable
    return randomised(made)


@pytest.mark.parametrize('arch, plain, simplified', [
    ('study_96_8', 358186, 209210),
    ('study_128_8', 629130, 364954),
    ('study_128_12', 927370, 531106),
])
def test_parameter_counts_of_study(arch: str, plain: int, simplified: int) -> None:
    with on_meta_device():
        backbones = {block: SimplifiedViT(arch, block=block) for block in ('plain', 'parallel')}
    width, depth = backbones['plain'].embed_dim, backbones['plain'].depth
    classifier = width + 2 * width + width**2 + width + 10 * width + 10
    feed_forward = width**2 // 2 + 5 * width // 2  # with a norm
    for block, published in (('plain', plain), ('parallel', simplified)):
        backbone = backbones[block]
        count = sum(p.numel() for p in backbone.patch_embed.parameters()) + classifier
        count += backbone.pos_embed.numel()
        for module in backbone.blocks:
            layers = [layer for layer in module.attn.modules() if isinstance(layer, nn.Linear)]
            count += sum(p.numel() for layer in layers for p in layer.parameters())
            gains = [name for name, _ in module.attn.named_parameters(recurse=False)]
            count += len(gains) + feed_forward
        assert (len(backbone.blocks), count) == (depth, published), block


@every_block
def test_no_tensor_is_quadratic_in_tokens(block: str) -> None:
    backbone, sizes = tiny(SimplifiedViT, block=block, out_indices=(0, )), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t,
                                                  lambda t: t):
        backbone(torch.randn(1, 3, 256, 256))[0].sum().backward()
    assert sizes and max(sizes) < 1024**2


@every_block
@pytest.mark.parametrize('other', [*BLOCKS, 'centred'])
def test_infers_block_type_of_files(block: str, other: str) -> None:
    backbone = build_vit(block)
    kinds = dict(block='parallel', centring=True) if other == 'centred' else dict(block=other)
    state = build_vit(**kinds).state_dict()
    assert detect_format(state).name == 'SimplifiedViT'
    assert SimplifiedViT.infer_arch(state) == dict(
        embed_dim=32, depth=2, patch_size=8, img_size=64, centring=other == 'centred',
        block='parallel' if other == 'centred' else other)  # yapf: disable
    if block == other:
        assert plan_loading(backbone, state, 'a.pth').resized == ()
        return
    with pytest.raises(ValueError, match=f'the file has .*block {kinds["block"]}, centring'):
        plan_loading(backbone, state, 'a.pth')


def test_rejects_files_of_vision_transformers() -> None:
    with on_meta_device():
        state = timm.create_model('vit_tiny_patch16_224').state_dict()
    layout = detect_format(state)
    assert layout is None or not layout.name.startswith('SimplifiedViT')
    with pytest.raises(KeyError):
        SimplifiedViT.infer_arch(state)


@every_block
def test_hooks_are_called(block: str) -> None:
    backbone, image = build_vit(block).double(), torch.randn(1, 3, 40, 56, dtype=torch.float64)
    with torch.no_grad():
        before = backbone(image)[1]
    for name, layer in backbone.blocks[1].named_modules():
        kept: list[tuple[Tensor, Tensor]] = []
        handles = [
            layer.register_forward_hook(lambda _, __, out: bent(out)),
            layer.register_forward_hook(lambda _, __, out, to=kept: to.append((out, out.clone())))
        ]
        found = backbone(image)[1]
        with torch.no_grad():
            torch.testing.assert_close(backbone(image)[1], found)
        assert not torch.allclose(found, before), name
        assert kept and all(torch.equal(seen, then) for seen, then in kept), name
        for handle in handles:
            handle.remove()


@every_block
def test_replaced_layers_are_called(block: str) -> None:
    backbone, image = build_vit(block).double(), torch.randn(1, 3, 40, 56, dtype=torch.float64)
    before = backbone(image)[1]
    attn = backbone.blocks[1].attn
    attn.qk = LoRA(attn.qk)
    up = attn.qk.up.data.clone()
    attn.qk.up.data.zero_()
    torch.testing.assert_close(backbone(image)[1], before)
    attn.qk.up.data.copy_(up)
    assert not torch.allclose(backbone(image)[1], before)


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


def compute_results(function: Callable, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output of a function of tokens, and all gradients."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = function(x)
    (out * out.detach().cos()).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize('centring', [False, True])
@pytest.mark.parametrize('kind', [ParallelBlock, SequentialBlock])
def test_blocks_match_paper(kind: type, centring: bool) -> None:
    block = randomised(kind(WIDTH, HEADS, centring=centring).double())
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for a, b in zip(
            compute_results(block, block, x),
            compute_results(partial(written_out, block), block, x),
            strict=True):
        torch.testing.assert_close(a, b)
    x = torch.randn(1, BLOCK + 10, WIDTH, dtype=torch.float64)
    before = x.clone()
    with torch.no_grad():  # the MLP runs in blocks of tokens
        torch.testing.assert_close(block(x), written_out(block, x))
    assert torch.equal(x, before)


def test_plain_blocks_equal_timm() -> None:
    ours = randomised(PlainBlock(WIDTH, HEADS).double())
    theirs = Block(WIDTH, HEADS, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6)).double()
    merged = {name: value for name, value in ours.state_dict().items()
              if name.split('.')[1] not in ('qk', 'v')}  # yapf: disable
    for part in ('weight', 'bias'):
        layers = [getattr(ours.attn.qk, part), getattr(ours.attn.v, part)]
        merged[f'attn.qkv.{part}'] = torch.cat(layers)
    theirs.load_state_dict(merged)
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for a, b in zip(
            compute_results(ours, ours, x)[:2], compute_results(theirs, theirs, x)[:2],
            strict=True):
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
def test_initial_attention_follows_gains(init: Any, gains: list, centring: bool) -> None:
    backbone = tiny(SimplifiedViT, init=init, centring=centring)
    x = torch.randn(2, TOKENS, WIDTH)
    for block, (alpha, beta) in zip(backbone.blocks, gains, strict=True):
        assert torch.allclose(block.attn.alpha, torch.tensor(float(alpha)))
        assert torch.allclose(block.attn.beta, torch.tensor(float(beta)))
        expected = alpha * x + (0 if centring else beta * x.mean(dim=1, keepdim=True))
        torch.testing.assert_close(block.attn(x), expected, rtol=1e-5, atol=1e-6)
        keys = block.attn.qk.weight[WIDTH:]
        assert keys.std().item() == pytest.approx(0.02, rel=0.2)


def test_dynamic_init_is_default() -> None:
    default, named = tiny(SimplifiedViT), tiny(SimplifiedViT, init='dynamic')
    assert all(torch.equal(a, b) for a, b in zip(default.parameters(), named.parameters(),
                                                 strict=True))  # yapf: disable


@pytest.mark.parametrize('kind', [ParallelBlock, SequentialBlock])
def test_stochastic_depth_keeps_attention(kind: type) -> None:
    module = randomised(kind(WIDTH, HEADS, drop_path=0.5)).train()
    x = torch.randn(64, 8, WIDTH)
    with torch.no_grad():
        norm = module.norm if kind is ParallelBlock else module.norm1
        attended, out = module.attn(norm(x)), module(x)
    kept = (out - attended).abs().amax(dim=(1, 2)) < 1e-6
    assert 10 < kept.sum() < 54
