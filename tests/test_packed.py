"""Layers with packed weights: the same products, whatever they are called with."""
from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from colonnade.backbones import XCiT
from colonnade.backbones.kernels import matmul_backend, private_torch
from colonnade.backbones.kernels.folding import FusedError
from colonnade.backbones.kernels.layers import gram
from colonnade.backbones.kernels.packed import PackedDepthwise, PackedHalving, PackedLinear
from colonnade.weights import load_weights

pytestmark = pytest.mark.skipif(not private_torch.HAS_PACKING, reason='needs oneDNN')


@pytest.mark.parametrize('keep', [False, True])
@pytest.mark.parametrize('gelu', [False, True])
def test_linear_layers(keep: bool, gelu: bool) -> None:
    layer = nn.Linear(24, 40)
    packed = PackedLinear(layer.weight, layer.bias, torch.float32, keep=keep)
    assert not list(packed.parameters()) and torch.equal(packed.weight, layer.weight)
    for tokens in (0, 1, 7, 1500):
        x = torch.randn(2, tokens, 24)
        expected = F.gelu(layer(x)) if gelu else layer(x)
        with torch.no_grad():
            torch.testing.assert_close(packed(x, gelu=gelu), expected)
            twin = pickle.loads(pickle.dumps(copy.deepcopy(packed)))
            torch.testing.assert_close(twin(x, gelu=gelu), expected)
        x.requires_grad_()
        grads = [
            torch.autograd.grad((F.gelu(layer(x)) if gelu else layer(x)).sum(), x)[0],
            torch.autograd.grad(packed(x, gelu=gelu).sum(), x)[0]
        ]
        torch.testing.assert_close(*grads)


@torch.no_grad()
def test_other_precisions_than_that_of_the_weights() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip('oneDNN has no bfloat16 on this processor')
    layer, x = nn.Linear(32, 32), torch.randn(1, 9, 32)
    single, half = (
        PackedLinear(layer.weight, layer.bias, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half(x).dtype == torch.float32 and single(x.double()).dtype == torch.float64
    torch.testing.assert_close(half(x), layer(x), atol=0.02, rtol=0.02)
    with torch.autocast('cpu', torch.bfloat16):
        for packed in (single, half):
            assert packed(x).dtype == torch.bfloat16
            torch.testing.assert_close(packed(x).float(), layer(x).float(), atol=0.02, rtol=0.02)


@pytest.mark.parametrize('size', [(16, 16), (17, 30), (1, 1)])
@pytest.mark.parametrize('padding', [(1, 1), (0, 1)])
@torch.no_grad()
def test_halving_convolutions(size: tuple[int, int], padding: tuple[int, int]) -> None:
    if padding == (0, 1) and size == (1, 1):
        size = (3, 1)
    conv, x = nn.Conv2d(6, 10, 3), torch.randn(2, 6, *size)
    x = x.contiguous(memory_format=torch.channels_last)
    expected = F.gelu(F.conv2d(x, conv.weight, conv.bias, stride=2, padding=padding))
    packed = PackedHalving(conv.weight, conv.bias, torch.float32)
    for layer in (packed, copy.deepcopy(packed)):
        torch.testing.assert_close(layer(x, padding, gelu=True), expected)


@pytest.mark.parametrize('size', [(9, 14), (1, 1)])
def test_depthwise_convolutions(size: tuple[int, int]) -> None:
    conv = nn.Conv2d(20, 20, 3, padding=1, groups=20)
    packed = PackedDepthwise(conv.weight, conv.bias, torch.float32)
    x, other = (
        torch.randn(2, 20, *size).contiguous(memory_format=torch.channels_last) for _ in range(2))
    grads = [torch.autograd.grad(layer(x.requires_grad_()).sum(), x)[0] for layer in (conv, packed)]
    torch.testing.assert_close(*grads)
    with torch.no_grad():
        for layer in (packed, copy.deepcopy(packed)):
            torch.testing.assert_close(layer(x), conv(x))
            torch.testing.assert_close(layer.forward_add(other.clone(), x), other + conv(x))
        double = packed.forward_add(other.double(), x)
        assert double.dtype == torch.float64
        torch.testing.assert_close(double.float(), other + conv(x))


@pytest.mark.parametrize('grad', [False, True])
def test_linear_layers_with_a_summand(grad: bool) -> None:
    layer, x, other = nn.Linear(24, 40), torch.randn(2, 7, 24), torch.randn(2, 7, 40)
    packed = PackedLinear(layer.weight, layer.bias, torch.float32)
    with torch.set_grad_enabled(grad):
        out = packed.forward_add(other, x.requires_grad_(grad))
        torch.testing.assert_close(out, other + layer(x))
        assert out.requires_grad is grad


@pytest.mark.parametrize('width', [1, 6, 7])
@torch.no_grad()
def test_gram_of_halves(width: int) -> None:
    x = torch.randn(2, 11, width, dtype=torch.float64)
    torch.testing.assert_close(gram(x), x.mT @ x)


def test_the_library_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, chosen in (('onednn', True), ('blas', False)):
        monkeypatch.setenv(matmul_backend.VARIABLE, name)
        assert matmul_backend.onednn_is_faster() is chosen
    monkeypatch.setenv(matmul_backend.VARIABLE, 'mkl')
    with pytest.raises(ValueError, match="COLONNADE_MATMUL must be blas or onednn, got 'mkl'"):
        matmul_backend.onednn_is_faster()
    with pytest.raises(ValueError, match="COLONNADE_MATMUL must be"):  # once, not per image
        XCiT('nano_12_p16')
    monkeypatch.delenv(matmul_backend.VARIABLE)
    assert matmul_backend.onednn_is_faster() in (False, True)


@pytest.mark.parametrize(
    'arch',
    [
        dict(embed_dim=64, depth=1, num_heads=4, patch_size=16),
        dict(embed_dim=128, depth=1, num_heads=4, patch_size=8),  # by the covariance form
    ])
def test_backbones_by_either_library(arch: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = XCiT(arch, out_indices=(0, ))
    image, found = torch.randn(2, 3, 264, 280), []
    for name in matmul_backend.CHOICES:
        monkeypatch.setenv(matmul_backend.VARIABLE, name)
        maps = backbone(image)[0]
        found.append(
            (maps, *torch.autograd.grad(maps.square().mean(), backbone.blocks.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * one.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize('keep', [False, True])
def test_weights_are_moved_and_cast(keep: bool) -> None:
    layer, x = nn.Linear(24, 40), torch.randn(2, 7, 24)
    packed = PackedLinear(layer.weight, layer.bias, torch.float32, keep=keep)
    packed(x)
    expected = copy.deepcopy(layer).double()(x.double())
    torch.testing.assert_close(packed.double()(x.double()), expected, rtol=1e-6, atol=1e-6)
    assert packed.weight.dtype == packed.bias.dtype == torch.float64 and packed.packed is None
    torch.testing.assert_close(packed.float()(x), layer(x))
    assert packed.packed is not None and (packed.kept is not None) == keep
    packed.half()
    assert packed.weight.dtype == torch.float16 and packed(x.half()).dtype == torch.float16
    assert packed.to('meta').weight.is_meta and packed(x.half().to('meta')).is_meta


@torch.no_grad()
def test_fused_backbones_are_cast_but_not_to_float16(tmp_path: Path) -> None:
    arch = dict(embed_dim=16, depth=1, num_heads=2, patch_size=16)
    backbone, image = XCiT(arch, out_indices=(0, )).eval(), torch.randn(1, 3, 64, 64)
    expected, = backbone(image)
    torch.save(backbone.state_dict(), tmp_path / 'backbone.pth')
    backbone.fuse().double()
    torch.testing.assert_close(backbone(image.double())[0].float(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(FusedError, match=r'then call fuse\(torch.float16\)'):
        backbone.half()
    torch.testing.assert_close(backbone.float()(image)[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(FusedError, match='load, then fuse'):
        load_weights(backbone, tmp_path / 'backbone.pth')
    half = XCiT(arch, out_indices=(0, )).eval().half().fuse(torch.float16).half()
    assert next(half.parameters()).dtype == torch.float16
