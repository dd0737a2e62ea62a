"""Attention by Triton's kernels: their values by its interpreter, on the GPU if there is one."""
from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from rounding import check_all_rounding, deviation
from torch import Tensor

from colonnade.backbones import XCiT
from colonnade.backbones.xcit import cross_covariance
from colonnade.backbones.xcit.cross_covariance import EPS, AttentionWeights, plain_form, triton_form

triton = pytest.importorskip('triton', reason='Triton is not installed')
gpu = pytest.mark.gpu


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], None]:
    """Has the kernels of a module run by Triton's interpreter, on CPU tensors.

    Its variable would have to be set before anything imports Triton.
    """
    import triton.experimental.gluon  # noqa: F401  (it copies Triton's functions)
    from triton import language
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    def interpret(module: ModuleType) -> None:
        for holder in (language, language.standard, module):
            for name, value in list(vars(holder).items()):
                if isinstance(value, JITFunction):
                    monkeypatch.setattr(holder, name, InterpretedFunction(value.fn))

    return interpret


def weights(width: int, heads: int, dtype: torch.dtype, device: str = 'cpu') -> AttentionWeights:
    """Of a layer of XCiT, with temperatures and biases that matter."""
    torch.manual_seed(0)
    shapes = dict(
        qkv=(3 * width, width),
        qkv_bias=(3 * width, ),
        temperature=(heads, 1, 1),
        proj=(width, width),
        proj_bias=(width, ))
    return AttentionWeights(
        **{
            name: torch.randn(shape, device=device).to(dtype).requires_grad_()
            for name, shape in shapes.items()
        })


def results(form: Callable, x: Tensor, weighting: Tensor, of: AttentionWeights) -> list[Tensor]:
    """Output and gradients of a form of attention."""
    x = x.clone().requires_grad_()
    out = form(x, of)
    return [out, *torch.autograd.grad((out * weighting).sum(), [x, *vars(of).values()])]


def doubled(of: AttentionWeights) -> AttentionWeights:
    return AttentionWeights(**{
        name: value.detach().double().requires_grad_()
        for name, value in vars(of).items()
    })


@pytest.mark.parametrize(
    'batch, tokens, heads, head_width, programs',
    [
        (2, 37, 3, 16, 256),  # less than a block
        (2, 131, 2, 20, 256),  # a program for each block, the last one of 3 tokens
        (1, 200, 1, 5, 2),  # two programs of two blocks each
        (1, 1, 2, 8, 256),
        (1, 40, 1, 96, 1),
    ])
def test_cross_covariance_equals_the_plain_form(batch: int, tokens: int, heads: int,
                                                head_width: int, programs: int,
                                                interpreted: Callable,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from colonnade.backbones.xcit import cross_covariance_kernels, fused_gpu
    interpreted(cross_covariance_kernels)
    monkeypatch.setattr(fused_gpu, 'PROGRAMS', programs)
    of = weights(heads * head_width, heads, torch.float64)
    x, weighting = torch.randn(2, batch, tokens, heads * head_width, dtype=torch.float64)
    found, expected = (results(form, x, weighting, of) for form in (triton_form, plain_form))
    for name, *values in zip(('out', 'x', *vars(of)), found, expected, strict=True):
        assert deviation(*values, scale=max(values[1].abs().max().item(), 1.)) < 1e-11, name


@pytest.mark.parametrize('dtype, factor', [(torch.float32, 4.), (torch.float16, 1.5)])
def test_cross_covariance_in_lower_precision(dtype: torch.dtype, factor: float,
                                             interpreted: Callable) -> None:
    """It is as near to float64 as the plain form is."""
    from colonnade.backbones.xcit import cross_covariance_kernels
    interpreted(cross_covariance_kernels)
    of = weights(40, 2, dtype)
    x, weighting = torch.randn(2, 2, 70, 40).to(dtype)
    exact = results(plain_form, x.double(), weighting.double(), doubled(of))
    found, plain = (results(form, x, weighting, of) for form in (triton_form, plain_form))
    for name, *row in zip(('out', 'x', *vars(of)), found, plain, exact, strict=True):
        assert row[0].dtype == dtype
        mine, theirs = (deviation(value, row[2]) for value in row[:2])
        assert mine < factor * theirs + 4 * torch.finfo(dtype).eps, name


def test_cross_covariance_of_zero_columns_and_no_images(interpreted: Callable) -> None:
    from colonnade.backbones.xcit import cross_covariance_kernels, fused_gpu
    interpreted(cross_covariance_kernels)
    qkv = torch.randn(1, 9, 3, 2, 6, dtype=torch.float64)
    qkv[:, :, 0, 0, :3] = qkv[:, :, 1, 1, 2] = 0.  # queries and keys without norm
    temperature = torch.ones(2, 1, 1, dtype=torch.float64)
    given = qkv.clone().requires_grad_(), temperature.clone().requires_grad_()
    out = fused_gpu.cross_covariance(*given, EPS)
    q, k, v = (torch.nn.functional.normalize(t, dim=1) if i < 2 else t
               for i, t in enumerate(qkv.unbind(2)))
    maps = torch.einsum('bnhi,bnhj->bhij', q, k).softmax(-1)
    assert deviation(out, torch.einsum('bhij,bnhj->bnhi', maps, v).flatten(2)) < 1e-12
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in given)
    assert fused_gpu.cross_covariance(qkv[:0], temperature, EPS).shape == (0, 9, 12)


def test_cross_covariance_is_an_operator_that_compilers_know(interpreted: Callable) -> None:
    from colonnade.backbones.xcit import cross_covariance_kernels, fused_gpu
    interpreted(cross_covariance_kernels)
    qkv = torch.randn(1, 5, 3, 1, 4, requires_grad=True)
    torch.library.opcheck(fused_gpu.attend, (qkv, torch.ones(1, requires_grad=True), EPS))


def test_other_devices_keep_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_covariance, 'triton_form', None)
    of, x = weights(16, 2, torch.bfloat16), torch.randn(1, 6, 16).bfloat16()
    found = cross_covariance.cross_covariance_attention(x, of, gpu_attention='triton')
    assert torch.equal(found, plain_form(x, of))


@pytest.mark.parametrize('value, message', [
    ('flash', "gpu_attention must be plain or triton, got 'flash'"),
    pytest.param(
        'triton',
        "gpu_attention='triton' needs a GPU, and torch sees none: leave gpu_attention out",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is there')),
])
def test_what_cannot_be_used_is_said(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        XCiT(dict(embed_dim=16, depth=1, num_heads=2, patch_size=16), gpu_attention=value)


def test_heads_too_wide_are_refused() -> None:
    with pytest.raises(ValueError, match='heads of at most 128 channels, and these have 256'):
        XCiT(dict(embed_dim=256, depth=1, num_heads=1, patch_size=16), gpu_attention='triton')


@gpu
@pytest.mark.parametrize('tokens, head_width', [(1, 32), (77, 32), (1000, 48), (5000, 128)])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_cross_covariance_on_a_gpu(dtype: torch.dtype, tokens: int, head_width: int) -> None:
    """It is as near to float64 as the plain form is, and the same in every run."""
    of = weights(4 * head_width, 4, dtype, 'cuda')
    x, weighting = torch.randn(2, 2, tokens, 4 * head_width, device='cuda').to(dtype)
    exact = results(plain_form, x.double(), weighting.double(), doubled(of))
    found, again, plain = (
        results(form, x, weighting, of) for form in (triton_form, triton_form, plain_form))
    for name, *row in zip(('out', 'x', *vars(of)), found, plain, exact, strict=True):
        scale = max(row[2].abs().max().item(), 1e-3)
        mine, theirs = (deviation(value, row[2], scale) for value in row[:2])
        assert mine < 2 * theirs + 16 * torch.finfo(dtype).eps, name
    assert torch.equal(found[0], again[0]) and torch.equal(found[1], again[1])


@gpu
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_trunks_on_a_gpu(dtype: torch.dtype) -> None:
    """Maps and gradients under autocast are as near to float32 as without the kernels."""
    torch.manual_seed(0)
    arch = dict(embed_dim=64, depth=2, num_heads=2, patch_size=16)
    trunk = XCiT(arch, out_indices=(1, ), gpu_attention='triton').cuda()
    plain = copy.deepcopy(trunk)
    for block in plain.blocks:
        block.gpu_attention = 'plain'
    image, found = torch.randn(2, 3, 160, 208, device='cuda'), []
    for model, enabled in ((trunk, True), (plain, True), (plain, False)):
        model.zero_grad()
        with torch.autocast('cuda', dtype, enabled=enabled):
            out, = model(image)
        out.float().square().mean().backward()
        found.append([out, *(p.grad for p in model.blocks.parameters())])
    check_all_rounding(*([x.to(dtype) for x in run] for run in found))
