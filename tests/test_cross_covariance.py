"""XCiT's attention in both implementations, compared with timm, and compiled backbones."""
from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from helpers.rounding import check_all_rounding, check_rounding, deviation, doubled
from timm.models.xcit import XCA, Xcit
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from colonnade.backbones import CaiT, ResMLP, SimplifiedViT, XCiT
from colonnade.backbones.kernels.folding import FusedError
from colonnade.backbones.xcit.cross_covariance import (AttentionWeights, attend_by_covariance,
                                                       attend_plain, is_covariance_faster,
                                                       should_attend_plain)
from colonnade.necks import ColumnarPyramid

FORMS = pytest.mark.parametrize('form', [attend_plain, attend_by_covariance])
WIDE = dict(embed_dim=128, depth=4, num_heads=4, patch_size=8)
SIMPLIFIED = dict(embed_dim=32, depth=4, num_heads=4, patch_size=8, img_size=64)


def get_weights(layer: XCA) -> AttentionWeights:
    return AttentionWeights(layer.qkv, layer.temperature, layer.proj.weight, layer.proj.bias)


def attention(width: int = 64, qkv_bias: bool = True) -> XCA:
    torch.manual_seed(0)
    layer = XCA(width, 4, qkv_bias=qkv_bias)
    nn.init.uniform_(layer.temperature, 0.5, 2.)
    if qkv_bias:
        nn.init.normal_(layer.qkv.bias)
    return layer


@FORMS
@pytest.mark.parametrize('qkv_bias', [True, False])
@pytest.mark.parametrize('num_tokens', [1, 7, 64, 400])
def test_implementations_equal_timm(form: Callable, qkv_bias: bool, num_tokens: int) -> None:
    layer = attention(qkv_bias=qkv_bias)
    tokens = torch.randn(3, num_tokens, 64) + 0.5
    exact, double = doubled(layer)(tokens.double()), doubled(layer)
    check_rounding(form(tokens, get_weights(layer)), layer(tokens), exact)
    assert deviation(form(tokens.double(), get_weights(double)), exact) < 1e-12


@FORMS
@pytest.mark.parametrize('products', ['blas', 'onednn'])
@pytest.mark.parametrize('mean', [0, 10, 1000])
@torch.no_grad()
def test_large_means_cost_no_digits(form: Callable, mean: int, products: str,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('COLONNADE_MATMUL', products)
    layer = attention(width=128)
    tokens = torch.randn(2, 2000, 128) + mean * torch.randn(128)
    exact = doubled(layer)(tokens.double())
    assert deviation(form(tokens, get_weights(layer)), exact) < 2 * deviation(layer(tokens), exact)


@FORMS
def test_gradients_equal_timm(form: Callable) -> None:
    layer = attention()
    tokens, weighting = torch.randn(2, 100, 64), torch.randn(2, 100, 64)
    double = doubled(layer)
    gradients = []
    for run, of in ((lambda x: form(x, get_weights(layer)), layer), (layer, layer), (double,
                                                                                     double)):
        x = tokens.to(of.proj.weight, copy=True).requires_grad_()
        gradients.append(torch.autograd.grad((run(x) * weighting).sum(), [x, *of.parameters()]))
    check_all_rounding(*gradients)


@FORMS
def test_second_derivatives(form: Callable) -> None:
    layer = attention(width=8).double()
    tokens = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: form(x, get_weights(layer)), tokens)


@pytest.mark.parametrize('requires_grad', [False, True])
def test_compiled_with_gradients_enabled(requires_grad: bool) -> None:
    layer, tokens = attention(), torch.randn(2, 40, 64, requires_grad=requires_grad)
    for parameter in layer.parameters():
        parameter.requires_grad_(requires_grad)
    compiled = torch.compile(lambda x: attend_by_covariance(x, get_weights(layer)),
                             backend='eager')  # yapf: disable
    torch.testing.assert_close(compiled(tokens), layer(tokens), rtol=1e-4, atol=1e-5)


@FORMS
def test_zero_columns_give_no_nan(form: Callable) -> None:
    layer = attention(qkv_bias=False)
    with torch.no_grad():
        layer.qkv.weight[:3] = 0.  # queries without norm
        layer.qkv.weight[70] = 0.
    tokens = torch.randn(1, 200, 64, requires_grad=True)
    out = form(tokens, get_weights(layer))
    check_rounding(out, layer(tokens), doubled(layer)(tokens.double()))
    out.sum().backward()
    assert tokens.grad.isfinite().all() and layer.qkv.weight.grad.isfinite().all()


@FORMS
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_is_as_exact_as_timm(form: Callable, dtype: torch.dtype) -> None:
    layer, tokens = attention(), 3 * torch.randn(2, 300, 64)
    exact = layer(tokens)
    layer.to(dtype)
    theirs = deviation(layer(tokens.to(dtype)), exact)
    found = form(tokens.to(dtype), get_weights(layer))
    assert found.dtype == dtype
    assert deviation(found, exact) <= 1.5 * theirs


@FORMS
def test_under_autocast(form: Callable) -> None:
    layer, tokens = attention(), torch.randn(2, 300, 64)
    exact = layer(tokens)
    with torch.autocast('cpu', torch.bfloat16):
        theirs, found = layer(tokens), form(tokens, get_weights(layer))
    assert deviation(found, exact) <= 1.5 * deviation(theirs, exact)
    found.float().sum().backward()
    assert layer.qkv.weight.grad.dtype == torch.float32


def test_is_covariance_faster() -> None:
    for width, below, above in ((128, 1000, 1300), (384, 600, 900), (768, 1200, 1500)):
        assert not is_covariance_faster(below, width)
        assert is_covariance_faster(above, width)


def test_should_attend_plain() -> None:
    with FakeTensorMode():
        tokens = torch.empty(1, 9000, 64)
        assert is_covariance_faster(*tokens.shape[1:])
        assert should_attend_plain(tokens.bfloat16()) and not should_attend_plain(tokens)
        for device in ('cuda', 'meta'):
            assert should_attend_plain(tokens.to(device))


@pytest.mark.parametrize('half', [torch.bfloat16, torch.float16])
def test_half_precision_stores_no_float32_tokens(half: torch.dtype) -> None:
    layer, tokens, stored = attention(), torch.randn(2, 400, 64), []
    hooks = (lambda x: stored.append(x) or x, lambda x: x)
    with torch.autocast('cpu', half), torch.autograd.graph.saved_tensors_hooks(*hooks):
        out = attend_plain(tokens, get_weights(layer))
    assert stored and out.requires_grad
    assert all(x.numel() < tokens.numel() for x in stored if x.dtype == torch.float32)


@torch.no_grad()
def test_sums_beyond_range_of_float16() -> None:
    layer, tokens = attention(), torch.randn(1, 4096, 64)
    layer.qkv.weight *= 30
    exact = layer(tokens)
    layer.half()
    found = attend_plain(tokens.half(), get_weights(layer))
    assert deviation(found, exact) <= 1.5 * deviation(layer(tokens.half()), exact)


def pair(arch: dict, **changes: float) -> tuple[XCiT, Xcit]:
    """Build our and timm's backbone with equal weights and statistics of batch norms."""
    torch.manual_seed(0)
    ours = XCiT(arch, out_indices=(0, 1, 2, 3))
    theirs = Xcit(num_classes=0, cls_attn_layers=0, tokens_norm=True, eta=1., **arch)
    for name, value in theirs.state_dict().items():
        if 'running_var' in name:
            value.uniform_(0.5, 1.5)
        elif 'running_mean' in name or name.endswith('qkv.bias'):
            value.normal_(std=0.1)
        elif any(key in name for key in changes):
            value.fill_(next(v for key, v in changes.items() if key in name))
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()})
    return ours, theirs


def maps(backbone: nn.Module, image: Tensor) -> list[Tensor]:
    image = image.to(next(backbone.parameters()).dtype)
    if isinstance(backbone, XCiT):
        return list(backbone(image))
    return backbone.forward_intermediates(
        image, indices=[0, 1, 2, 3], intermediates_only=True, norm=False)


def bright_pixel() -> Tensor:
    image = torch.zeros(1, 3, 320, 320)
    image[..., 100, 200] = 20.
    return image


@pytest.mark.parametrize(
    'image, changes', [
        (torch.randn(2, 3, 320, 288, generator=torch.Generator().manual_seed(0)), {}),
        (torch.full((1, 3, 320, 320), 0.7), {}),
        (bright_pixel(), {}),
        (torch.randn(1, 3, 320, 320,
                     generator=torch.Generator().manual_seed(1)), dict(temperature=10.)),
        pytest.param(
            torch.randn(1, 3, 320, 320, generator=torch.Generator().manual_seed(2)),
            dict(gamma=0.),
            marks=pytest.mark.slow),
        (torch.randn(1, 3, 40, 24, generator=torch.Generator().manual_seed(3)), {}),
        pytest.param(
            torch.randn(1, 3, 640, 512, generator=torch.Generator().manual_seed(4)), {},
            marks=pytest.mark.slow),
    ],
    ids=['random', 'constant', 'bright pixel', 'temperature', 'no scale', 'N < C', 'large'])
def test_backbones_equal_timm(image: Tensor, changes: dict[str, float]) -> None:
    ours, theirs = pair(WIDE, **changes)
    exact = doubled(theirs)
    backbones = (ours, theirs, exact)
    with torch.no_grad():
        check_all_rounding(*(maps(backbone.eval(), image) for backbone in backbones))
    varied = bool(image.std() > 0.5)  # batch norm in training divides by the deviation
    for backbone in backbones:
        sum((m * m.detach().cos()).mean() for m in maps(backbone.train(varied), image)).backward()
    theirs, exact = (dict(backbone.named_parameters()) for backbone in (theirs, exact))
    for name, parameter in ours.named_parameters():
        expected = exact[name].grad
        scale = max(expected.abs().max().item(), 1e-5)
        check_rounding(
            parameter.grad, theirs[name].grad, expected, scale=scale, floor=1000, name=name)


@pytest.mark.parametrize('cls, arch', [
    (XCiT, WIDE),
    (CaiT, dict(embed_dim=32, depth=4, num_heads=4)),
    (ResMLP, dict(embed_dim=32, depth=4, img_size=64)),
])
@torch.no_grad()
def test_fused_backbones_give_equal_maps(cls: type, arch: dict) -> None:
    torch.manual_seed(0)
    backbone = cls(arch)
    for value in backbone.state_dict().values():  # nothing is 0 or 1
        if value.is_floating_point():
            value.add_(torch.rand_like(value) * 0.1)
    plain, fused = backbone.eval(), copy.deepcopy(backbone).eval().fuse()
    for size in ((64, 64), (90, 101), (320, 320)):
        image = torch.randn(1, 3, *size)
        check_all_rounding(fused(image), plain(image), doubled(plain)(image.double()))
    assert [len(m) for m in fused(torch.empty(0, 3, 75, 101))] == [0] * 4
    assert fused.fuse() is fused and not any(p.requires_grad for p in fused.parameters())
    assert fused.eval() is fused
    with pytest.raises(FusedError, match='cannot be trained'):
        fused.train()
    with pytest.raises(FusedError, match='cannot load weights: load them first'):
        fused.load_state_dict(plain.state_dict())
    with pytest.raises(FusedError, match=r'call eval\(\) first'):
        cls(arch).train().fuse()


@pytest.mark.parametrize('cls, arch, training', [
    (SimplifiedViT, dict(SIMPLIFIED, block='sequential'), False),
    *(pytest.param(cls, arch, training, marks=pytest.mark.slow) for training in (False, True)
      for cls, arch in ((XCiT, WIDE), (CaiT, dict(embed_dim=32, depth=4, num_heads=4)),
                        (ResMLP, dict(embed_dim=32, depth=4, img_size=64)),
                        (SimplifiedViT, SIMPLIFIED),
                        (SimplifiedViT, SIMPLIFIED | dict(block='plain'))))
])  # yapf: disable
def test_blocks_and_levels_compile_once(cls: type, arch: dict, training: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounterWithBackend('aot_eager')
    backbone = cls(arch, out_indices=(0, 1, 2, 3)).train(training)
    pyramid = ColumnarPyramid(backbone.embed_dim, 16).train(training)
    plain = nn.Sequential(backbone, pyramid)
    model = copy.deepcopy(plain)
    for part in model:
        part.compile(backend=counter, dynamic=True, fullgraph=cls is not CaiT)
    compiled = set()
    for size in ((80, 96), (112, 48), (112, 160)):
        image, exact = torch.randn(2, 3, *size), doubled(plain)
        levels, gradients = [], []
        for run in (model, plain, exact):
            run.zero_grad()
            with torch.set_grad_enabled(training):
                levels.append(run(image.to(next(run.parameters()).dtype)))
            if training:
                sum((level.sin() * 0.1).sum() for level in levels[-1]).backward()
                gradients.append([p.grad for p in run.parameters()])
            if run is model:
                compiled.add(counter.frame_count)
        check_all_rounding(*levels)
        if training:
            check_all_rounding(*gradients)
    assert len(compiled) == 1 and 0 not in compiled


@pytest.mark.slow
@torch._inductor.config.patch(freezing=True)
def test_inductor_freezing_compiles_full_backbone() -> None:
    torch._dynamo.reset()
    backbone = XCiT(
        dict(embed_dim=32, depth=2, num_heads=4, patch_size=16), out_indices=(1, )).eval()
    backbone.init_weights()
    image = torch.randn(1, 3, 64, 48)
    with torch.no_grad():
        expected = backbone(image)
        backbone.compile(backend='aot_eager', dynamic=False)
        assert backbone._compiled_call_impl is not None
        assert all(block._compiled_call_impl is None for block in backbone.blocks)
        torch.testing.assert_close(backbone(image), expected)
