"""Kernels: packed layers, custom operators, and private names of torch."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.rounding import check_all_rounding, check_rounding
from timm.layers import RotaryEmbeddingDinoV3
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import XCiT
from colonnade.backbones.kernels import matmul_backend, private_torch
from colonnade.backbones.kernels.custom_ops import depthwise, outer_products, products
from colonnade.backbones.kernels.devices import HAS_AVX512
from colonnade.backbones.kernels.folding import FusedError
from colonnade.backbones.kernels.layers import gram
from colonnade.backbones.kernels.packed import (PIXELS_HINT, PackedDepthwise, PackedHalving,
                                                PackedLinear)
from colonnade.backbones.plain_vit.blocks import embed_grid
from colonnade.weights import load_weights

needs_packing = pytest.mark.skipif(not private_torch.HAS_PACKING, reason='needs oneDNN')


@needs_packing
@pytest.mark.parametrize('keep', [False, True])
@pytest.mark.parametrize('gelu', [False, True])
def test_packed_linear(keep: bool, gelu: bool) -> None:
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


@needs_packing
@torch.no_grad()
def test_packed_weights_under_other_types() -> None:
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


@needs_packing
@pytest.mark.parametrize('size', [(32, 16), (17, 30), (1, 1)])
@pytest.mark.parametrize('padding', [(1, 1), (0, 1)])
@torch.no_grad()
def test_packed_halving(size: tuple[int, int], padding: tuple[int, int]) -> None:
    if padding == (0, 1) and size == (1, 1):
        size = (3, 1)
    conv, x = nn.Conv2d(6, 10, 3), torch.randn(2, 6, *size)
    x = x.contiguous(memory_format=torch.channels_last)
    expected = F.gelu(F.conv2d(x, conv.weight, conv.bias, stride=2, padding=padding))
    packed = PackedHalving(conv.weight, conv.bias, torch.float32)
    for layer in (packed, copy.deepcopy(packed)):
        torch.testing.assert_close(layer(x, padding, gelu=True), expected)
        assert layer.packed_for == (PIXELS_HINT if HAS_AVX512 and size == (32, 16) else (2, *size))
    other = torch.randn(1, 6, 9, 7).contiguous(memory_format=torch.channels_last)  # packed again
    for image in (other, x[:0], x):
        expected = F.conv2d(image, conv.weight, conv.bias, stride=2, padding=padding)
        torch.testing.assert_close(packed(image, padding), expected)


@needs_packing
@pytest.mark.parametrize('size', [(9, 14), (1, 1)])
def test_packed_depthwise(size: tuple[int, int]) -> None:
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


@needs_packing
@pytest.mark.parametrize('grad', [False, True])
def test_packed_linear_forward_add(grad: bool) -> None:
    layer, x, other = nn.Linear(24, 40), torch.randn(2, 7, 24), torch.randn(2, 7, 40)
    packed = PackedLinear(layer.weight, layer.bias, torch.float32)
    with torch.set_grad_enabled(grad):
        out = packed.forward_add(other, x.requires_grad_(grad))
        torch.testing.assert_close(out, other + layer(x))
        assert out.requires_grad is grad


@pytest.mark.parametrize('products', ['blas', 'onednn'])
@pytest.mark.parametrize('num_tokens', [11, 1500])
@pytest.mark.parametrize('width', [1, 6, 7])
def test_gram(width: int, num_tokens: int, products: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(matmul_backend.VARIABLE, products)
    x = torch.randn(2, num_tokens, width, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(2, 1, width, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(gram(x, shift), (x - shift).mT @ (x - shift))
    single = gram(x.float(), shift.float())
    torch.testing.assert_close(single.double(), gram(x, shift), rtol=1e-5, atol=1e-2)
    assert torch.autograd.gradcheck(gram, (x[:, :11], shift))
    assert torch.autograd.gradgradcheck(gram, (x[:, :11], shift))
    grad = torch.func.grad(lambda z: gram(z, shift).square().sum())(x.detach())
    torch.testing.assert_close(grad, 4 * (x - shift) @ gram(x, shift))


def test_matmul_backend_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, chosen in (('onednn', True), ('blas', False)):
        monkeypatch.setenv(matmul_backend.VARIABLE, name)
        assert matmul_backend.is_onednn_faster() is chosen
    monkeypatch.setenv(matmul_backend.VARIABLE, 'mkl')
    with pytest.raises(ValueError, match="COLONNADE_MATMUL must be blas or onednn, got 'mkl'"):
        matmul_backend.is_onednn_faster()
    with pytest.raises(ValueError, match="COLONNADE_MATMUL must be"):  # once, not per image
        XCiT('nano_12_p16')
    monkeypatch.delenv(matmul_backend.VARIABLE)
    assert matmul_backend.is_onednn_faster() in (False, True)


@pytest.mark.parametrize(
    'arch',
    [
        dict(embed_dim=64, depth=1, num_heads=4, patch_size=16),
        dict(embed_dim=128, depth=1, num_heads=4, patch_size=8),  # by the covariance form
    ])
def test_both_matmul_backends_agree(arch: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = XCiT(arch, out_indices=(0, ))
    image, found = torch.randn(2, 3, 264, 280), []
    for name in matmul_backend.CHOICES:
        monkeypatch.setenv(matmul_backend.VARIABLE, name)
        maps = backbone(image)[0]
        found.append(
            (maps, *torch.autograd.grad(maps.square().mean(), backbone.blocks.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * one.abs().max().item())


@needs_packing
@torch.no_grad()
@pytest.mark.parametrize('keep', [False, True])
def test_packed_weights_move_and_cast(keep: bool) -> None:
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


@needs_packing
@torch.no_grad()
def test_fused_backbone_rejects_float16(tmp_path: Path) -> None:
    arch = dict(embed_dim=16, depth=1, num_heads=2, patch_size=16)
    backbone, image = XCiT(arch, out_indices=(0, )).eval(), torch.randn(1, 3, 64, 64)
    expected, = backbone(image)
    torch.save(backbone.state_dict(), tmp_path / 'backbone.pth')
    backbone.fuse().double()
    torch.testing.assert_close(backbone(image.double())[0].float(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(FusedError, match=r'then call fuse\(torch.float16\)'):
        backbone.half()
    torch.testing.assert_close(backbone.float()(image)[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(FusedError, match='load them first'):
        load_weights(backbone, tmp_path / 'backbone.pth')
    half = XCiT(arch, out_indices=(0, )).eval().half().fuse(torch.float16).half()
    assert next(half.parameters()).dtype == torch.float16


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize('batch', [0, 1, 2])
@pytest.mark.parametrize('operator, shapes, more', [
    (products, [(5, 3), (4, 3), (4, )], ()),
    (products, [(5, 3), (4, 3)], (None, )),
    (outer_products, [(5, 3), (5, 4)], ()),
    (outer_products, [(2500, 2), (2500, 3)], ()),
    (depthwise, [(12, 4), (4, 1, 3, 3), (4, )], (3, )),
])
def test_operator_gradients(operator: Callable, shapes: list[tuple[int, ...]], more: tuple,
                            batch: int) -> None:
    shared = 1 if operator is not outer_products else 2  # number of batched arguments
    given = [double(batch, *shape) for shape in shapes[:shared]]
    given += [double(*shape) for shape in shapes[shared:]]
    torch.autograd.gradcheck(
        lambda *tensors: operator(*tensors, *more), given, fast_mode=True, eps=1e-5)
    utilities = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    torch.library.opcheck(operator, (*given, *more), test_utils=utilities)


@pytest.mark.parametrize('batch', [0, 1, 2])
def test_products_with_weights_per_image(batch: int) -> None:
    given = double(batch, 5, 3), double(batch, 4, 3), double(batch, 4)
    expected = torch.baddbmm(given[2].unsqueeze(1), given[0], given[1].mT)
    torch.testing.assert_close(products(*given), expected)
    torch.autograd.gradcheck(products, given, fast_mode=True)


def test_rounding_bounds_detect_errors() -> None:
    a, b = torch.randn(300, 2000), torch.randn(2000, 300)
    plain, exact = a @ b, a.double() @ b.double()
    found = sum(a[:, i:i + 100] @ b[i:i + 100] for i in range(0, 2000, 100))
    check_rounding(found, plain, exact)
    check_all_rounding([found, 1e-6 * found], [plain, 1e-6 * plain], [exact, 1e-6 * exact])
    for floor in (16., 1000.):
        with pytest.raises(AssertionError, match='is off by 0.001'):
            check_rounding(found * 1.001, plain, exact, floor=floor)
    with pytest.raises(AssertionError, match='1 is off by'):
        check_all_rounding([found, 1e-2 * found * 1.001], [plain, 1e-2 * plain],
                           [exact, 1e-2 * exact])


@pytest.mark.parametrize('register', [
    lambda layer: layer.register_forward_hook(lambda *_: None),
    lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    lambda layer: layer.register_full_backward_hook(lambda *_: None),
    lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
])
def test_has_hooks(register: Callable) -> None:
    layer = nn.Linear(2, 2)
    assert not private_torch.has_hooks(layer)
    handle = register(layer)
    assert private_torch.has_hooks(layer)
    handle.remove()
    assert not private_torch.has_hooks(layer)


@pytest.mark.parametrize('register', [
    nn.modules.module.register_module_forward_hook,
    nn.modules.module.register_module_forward_pre_hook,
    nn.modules.module.register_module_full_backward_hook,
    nn.modules.module.register_module_full_backward_pre_hook,
])
def test_has_global_hooks(register: Callable) -> None:
    assert not private_torch.has_global_hooks()
    handle = register(lambda *_: None)
    assert private_torch.has_global_hooks()
    handle.remove()
    assert not private_torch.has_global_hooks()


def test_is_transforming() -> None:
    seen = []
    torch.func.vmap(lambda x: seen.append(private_torch.is_transforming()) or x)(torch.ones(2))
    assert seen == [True] and not private_torch.is_transforming()


def test_get_parameters_and_children() -> None:
    module = nn.ModuleDict(dict(a=nn.Linear(2, 2, bias=False), b=None))
    parameters = private_torch.get_parameters(module['a'])
    assert parameters['weight'] is module['a'].weight and parameters['bias'] is None
    assert dict(private_torch.get_children(module)) == dict(a=module['a'], b=None)


@pytest.mark.parametrize('settings', [
    dict(),
    dict(rotate_half=False, normalize_coords='max', grid_indexing='xy'),
])
def test_exported_positions_of_a_grid(settings: dict) -> None:

    class Positions(nn.Module):
        rope = RotaryEmbeddingDinoV3(8, **settings)

        def forward(self, x: Tensor) -> Tensor:
            return embed_grid(self.rope, x.shape)

    sizes = (torch.export.Dim.AUTO, ) * 2
    exported = torch.export.export(Positions(), (torch.ones(3, 4), ), dynamic_shapes=[sizes])
    expected = Positions.rope.get_embed(shape=[5, 2])
    torch.testing.assert_close(exported.module()(torch.ones(5, 2)), expected)


@needs_packing
@torch.no_grad()
def test_pack_linear() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(1, 5, 8)
    packed = private_torch.pack_linear(layer.weight.detach().contiguous(), 5)
    found = private_torch.run_linear(x, packed, layer.bias, 'none', [], '')
    torch.testing.assert_close(found, layer(x))


@pytest.mark.parametrize('gelu_in_kernel', [False, True])
@needs_packing
def test_gelu_apart_is_the_same(gelu_in_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's or torch's, which depends on the processor."""
    monkeypatch.setattr('colonnade.backbones.kernels.packed.GELU_IN_KERNEL', gelu_in_kernel)
    with torch.no_grad():
        linear, x = nn.Linear(24, 40), torch.randn(2, 9, 24)
        packed = PackedLinear(linear.weight, linear.bias, torch.float32)
        torch.testing.assert_close(packed(x, gelu=True), F.gelu(linear(x)))
        conv = nn.Conv2d(16, 24, 3, 2, 1)
        halving = PackedHalving(conv.weight, conv.bias, torch.float32)
        image = torch.randn(2, 16, 9, 8).contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(halving(image, gelu=True), F.gelu(conv(image)))


def test_training_of_small_and_large_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones store everything, large ones rerun layers; the former takes more memory."""
    arch = dict(embed_dim=24, depth=2, num_heads=3, patch_size=16)
    image, gradients, sizes = torch.randn(2, 3, 64, 48), [], []
    for limit in (0, 10**9):
        monkeypatch.setattr('colonnade.backbones.kernels.layers.MIN_RERUN', limit)
        torch.manual_seed(0)
        backbone, stored = XCiT(arch=arch, out_indices=(0, 1)).train(), {}
        for scale in (param for name, param in backbone.named_parameters() if 'gamma' in name):
            nn.init.uniform_(scale)
        hooks = (lambda x: stored.update({x.data_ptr(): x}) or x, lambda x: x)  # noqa: B023
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            loss = sum(out.square().mean() for out in backbone(image))
        loss.backward()
        gradients.append({name: param.grad for name, param in backbone.named_parameters()})
        sizes.append(sum(x.numel() for x in stored.values()))
    assert sizes[0] < sizes[1]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6, msg=name)
