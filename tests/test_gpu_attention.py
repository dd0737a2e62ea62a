"""Attention by Triton's kernels: their values by its interpreter, on the GPU if there is one."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rounding import check_all_rounding, deviation, doubled
from torch import Tensor, nn

from colonnade.backbones import CaiT, XCiT
from colonnade.backbones.cait.talking_heads import BoundedTalkingHeadAttn
from colonnade.backbones.cait.trunk import gpu_limits
from colonnade.backbones.xcit import cross_covariance
from colonnade.backbones.xcit.cross_covariance import EPS, AttentionWeights, plain_form, triton_form
from colonnade.backbones.xcit.trunk import GPU_LIMITS

triton = pytest.importorskip('triton', reason='Triton is not installed')
from triton_without_gpu import compile_only, interpreting  # noqa: E402

from colonnade.backbones.cait import fused_gpu as cait_gpu  # noqa: E402
from colonnade.backbones.cait import talking_heads_kernels  # noqa: E402
from colonnade.backbones.xcit import cross_covariance_kernels  # noqa: E402
from colonnade.backbones.xcit import fused_gpu as xcit_gpu  # noqa: E402

gpu = pytest.mark.gpu


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Kernels are run by Triton's interpreter."""
    with interpreting(cross_covariance_kernels, talking_heads_kernels):
        yield


def weights(width: int, heads: int, dtype: torch.dtype, device: str = 'cpu') -> AttentionWeights:
    """Of a layer of XCiT, with temperatures and biases that matter."""
    torch.manual_seed(0)
    qkv = nn.Linear(width, 3 * width)
    nn.init.normal_(qkv.weight)
    nn.init.normal_(qkv.bias)
    others = (
        torch.randn(shape, device=device).to(dtype).requires_grad_()
        for shape in ((heads, 1, 1), (width, width), (width, )))
    return AttentionWeights(qkv.to(device, dtype), *others)


NAMES = ('qkv', 'qkv_bias', 'temperature', 'proj', 'proj_bias')


def tensors(of: AttentionWeights) -> list[Tensor]:
    return [*of.qkv.parameters(), of.temperature, of.proj, of.proj_bias]


def results(form: Callable, x: Tensor, weighting: Tensor, of: AttentionWeights) -> list[Tensor]:
    """Output and gradients of a form of attention."""
    x = x.clone().requires_grad_()
    out = form(x, of)
    return [out, *torch.autograd.grad((out * weighting).sum(), [x, *tensors(of)])]


def doubled_weights(of: AttentionWeights) -> AttentionWeights:
    others = (t.detach().double().requires_grad_() for t in tensors(of)[2:])
    return AttentionWeights(copy.deepcopy(of.qkv).double(), *others)


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
                                                head_width: int, programs: int, interpreted: None,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xcit_gpu, 'PROGRAMS', programs)
    of = weights(heads * head_width, heads, torch.float64)
    x, weighting = torch.randn(2, batch, tokens, heads * head_width, dtype=torch.float64)
    found, expected = (results(form, x, weighting, of) for form in (triton_form, plain_form))
    for name, *values in zip(('out', 'x', *NAMES), found, expected, strict=True):
        assert deviation(*values, scale=max(values[1].abs().max().item(), 1.)) < 1e-11, name


@pytest.mark.parametrize('dtype, factor', [(torch.float32, 4.), (torch.float16, 1.5),
                                           (torch.bfloat16, 1.5)])
def test_cross_covariance_in_lower_precision(dtype: torch.dtype, factor: float,
                                             interpreted: None) -> None:
    """It is as near to float64 as the plain form is."""
    of = weights(40, 2, dtype)
    x, weighting = torch.randn(2, 2, 70, 40).to(dtype)
    exact = results(plain_form, x.double(), weighting.double(), doubled_weights(of))
    found, plain = (results(form, x, weighting, of) for form in (triton_form, plain_form))
    for name, *row in zip(('out', 'x', *NAMES), found, plain, exact, strict=True):
        assert row[0].dtype == dtype
        mine, theirs = (deviation(value, row[2]) for value in row[:2])
        assert mine < factor * theirs + 4 * torch.finfo(dtype).eps, name


def test_cross_covariance_of_zero_columns_and_no_images(interpreted: None) -> None:
    qkv = torch.randn(1, 9, 3, 2, 6, dtype=torch.float64)
    qkv[:, :, 0, 0, :3] = qkv[:, :, 1, 1, 2] = 0.  # queries and keys without norm
    temperature = torch.ones(2, 1, 1, dtype=torch.float64)
    given = qkv.clone().requires_grad_(), temperature.clone().requires_grad_()
    out = xcit_gpu.cross_covariance(*given, EPS)
    q, k, v = (torch.nn.functional.normalize(t, dim=1) if i < 2 else t
               for i, t in enumerate(qkv.unbind(2)))
    maps = torch.einsum('bnhi,bnhj->bhij', q, k).softmax(-1)
    assert deviation(out, torch.einsum('bhij,bnhj->bnhi', maps, v).flatten(2)) < 1e-12
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in given)
    assert xcit_gpu.cross_covariance(qkv[:0], temperature, EPS).shape == (0, 9, 12)


def test_cross_covariance_is_an_operator_that_compilers_know(interpreted: None) -> None:
    qkv = torch.randn(1, 5, 3, 1, 4, requires_grad=True)
    torch.library.opcheck(xcit_gpu.attend, (qkv, torch.ones(1, requires_grad=True), EPS))


def talking_heads(width: int, heads: int, dtype: torch.dtype) -> BoundedTalkingHeadAttn:
    torch.manual_seed(0)
    layer = BoundedTalkingHeadAttn(width, heads, qkv_bias=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.to(dtype)


def fused(layer: BoundedTalkingHeadAttn, x: Tensor) -> Tensor:
    """The layer as it is on a GPU."""
    qkv = layer.qkv(x).unflatten(2, (3, layer.num_heads, -1))
    return layer.proj(layer._fused(qkv).flatten(2))


def results_of_layer(run: Callable, layer: nn.Module, x: Tensor, weighting: Tensor) -> list[Tensor]:
    """Output and gradients, except of the logits' bias, which a softmax takes away again."""
    x = x.clone().requires_grad_()
    parameters = [p for name, p in layer.named_parameters() if name != 'proj_l.bias']
    out = run(layer, x)
    return [out, *torch.autograd.grad((out * weighting).sum(), [x, *parameters])]


def by_blocks(layer: BoundedTalkingHeadAttn, x: Tensor) -> Tensor:
    return layer(x)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('batch, tokens, heads, head_width', [
    (2, 19, 3, 16),
    (1, 5, 4, 20),
    (1, 16, 16, 8),
    (1, 1, 2, 8),
])
def test_fused_talking_heads_equal_those_by_blocks(dtype: torch.dtype, batch: int, tokens: int,
                                                   heads: int, head_width: int,
                                                   interpreted: None) -> None:
    """In float64; in half precision they are as near to it."""
    layer = talking_heads(heads * head_width, heads, dtype)
    x, weighting = torch.randn(2, batch, tokens, heads * head_width).to(dtype)
    exact = results_of_layer(by_blocks, doubled(layer), x.double(), weighting.double())
    found, plain = (results_of_layer(run, layer, x, weighting) for run in (fused, by_blocks))
    if dtype == torch.float64:
        for row in zip(found, exact, strict=True):
            assert deviation(*row, scale=max(row[1].abs().max().item(), 1.)) < 1e-11
    else:
        check_all_rounding(found, plain, exact)


def test_fused_talking_heads_are_an_operator_that_compilers_know(interpreted: None) -> None:
    given = [(1, 5, 3, 2, 4), (2, 2), (2, ), (2, 2), (2, )]
    given = [torch.randn(shape, requires_grad=True) for shape in given]
    torch.library.opcheck(cait_gpu.attend, (*given, 0.5))
    nothing = cait_gpu.fused_talking_heads(given[0][:0], *given[1:], 0.5)
    assert nothing.shape == (0, 5, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize('capability', [80, 90])
def test_kernels_compile_for_gpus_that_are_not_there(capability: int, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """With products on tensor cores and the shared memory that the trunks ask for."""
    monkeypatch.setattr(triton.knobs.cache, 'dir', str(tmp_path))

    def check(compiled: list, shared_kib: int, number: int) -> None:
        assert len(compiled) == number
        for name, kernel in compiled:
            assert kernel.metadata.shared <= shared_kib * 1024, name
            assert 'mma' in kernel.asm['ptx'] or name in ('attention_kernel',
                                                          'map_gradients_kernel'), name
        compiled.clear()

    compiled = compile_only(cross_covariance_kernels, capability, monkeypatch)
    for width in (48, 128):
        qkv = torch.randn(1, 70, 3, 2, width, dtype=torch.bfloat16, requires_grad=True)
        xcit_gpu.cross_covariance(qkv, torch.ones(2, 1, 1), EPS).sum().backward()
        check(compiled, GPU_LIMITS.shared_kib, 6)
    compiled = compile_only(talking_heads_kernels, capability, monkeypatch)
    for heads in (8, 16):
        qkv = torch.randn(1, 70, 3, heads, 48, dtype=torch.bfloat16, requires_grad=True)
        mixing = (torch.randn(shape) for shape in ((heads, heads), (heads, )) * 2)
        cait_gpu.fused_talking_heads(qkv, *mixing, 0.5).sum().backward()
        check(compiled, gpu_limits(heads).shared_kib, 3)


def test_other_devices_keep_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_covariance, 'triton_form', None)
    of, x = weights(16, 2, torch.bfloat16), torch.randn(1, 6, 16).bfloat16()
    found = cross_covariance.cross_covariance_attention(x, of, gpu_attention='triton')
    assert torch.equal(found, plain_form(x, of))


@pytest.mark.parametrize('cls', [XCiT, CaiT])
@pytest.mark.parametrize('arch, value, message', [
    ({}, 'flash', "gpu_attention must be plain or triton, got 'flash'"),
    (dict(num_heads=1), 'triton', "these have 512: take gpu_attention='plain'$"),
    pytest.param({},
                 'triton',
                 "gpu_attention='triton' needs a GPU, and torch sees none",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is there')),
])
def test_what_cannot_be_used_is_said(cls: type, arch: dict, value: str, message: str) -> None:
    with torch.device('meta'), pytest.raises(ValueError, match=message):
        cls(dict(embed_dim=512, depth=1, num_heads=16, patch_size=16) | arch, gpu_attention=value)


def test_too_many_heads_are_refused() -> None:
    with torch.device('meta'), pytest.raises(
            ValueError, match='at most 16 heads, and there are 32'):
        CaiT(dict(embed_dim=64, depth=1, num_heads=32), gpu_attention='triton')


@gpu
@pytest.mark.parametrize('tokens, head_width', [(1, 32), (77, 32), (1000, 48), (5000, 128)])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_cross_covariance_on_a_gpu(dtype: torch.dtype, tokens: int, head_width: int) -> None:
    """It is as near to float64 as the plain form is, and the same in every run."""
    of = weights(4 * head_width, 4, dtype, 'cuda')
    x, weighting = torch.randn(2, 2, tokens, 4 * head_width, device='cuda').to(dtype)
    exact = results(plain_form, x.double(), weighting.double(), doubled_weights(of))
    found, again, plain = (
        results(form, x, weighting, of) for form in (triton_form, triton_form, plain_form))
    for name, *row in zip(('out', 'x', *NAMES), found, plain, exact, strict=True):
        scale = max(row[2].abs().max().item(), 1e-3)
        mine, theirs = (deviation(value, row[2], scale) for value in row[:2])
        assert mine < 2 * theirs + 16 * torch.finfo(dtype).eps, name
    assert torch.equal(found[0], again[0]) and torch.equal(found[1], again[1])


@gpu
@pytest.mark.parametrize('tokens, heads, head_width', [(1, 4, 48), (77, 8, 48), (1000, 6, 32)])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_fused_talking_heads_on_a_gpu(dtype: torch.dtype, tokens: int, heads: int,
                                      head_width: int) -> None:
    layer = talking_heads(heads * head_width, heads, dtype).cuda()
    x, weighting = torch.randn(2, 2, tokens, heads * head_width, device='cuda').to(dtype)
    exact = results_of_layer(by_blocks, doubled(layer), x.double(), weighting.double())
    found, again, plain = (
        results_of_layer(run, layer, x, weighting) for run in (fused, fused, by_blocks))
    check_all_rounding(found, plain, exact)
    assert all(map(torch.equal, found, again))


@gpu
@pytest.mark.parametrize('cls', [XCiT, CaiT])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_trunks_on_a_gpu(cls: type, dtype: torch.dtype) -> None:
    """Maps and gradients under autocast are as near to float32 as without the kernels."""
    torch.manual_seed(0)
    arch = dict(embed_dim=64, depth=2, num_heads=2, patch_size=16)
    trunk = cls(arch, out_indices=(1, ), gpu_attention='triton').cuda()
    plain = cls(arch, out_indices=(1, )).cuda()
    plain.load_state_dict(trunk.state_dict())
    image, found = torch.randn(2, 3, 160, 208, device='cuda'), []
    for model, enabled in ((trunk, True), (plain, True), (plain, False)):
        model.zero_grad()
        with torch.autocast('cuda', dtype, enabled=enabled):
            out, = model(image)
        out.float().square().mean().backward()
        found.append([out, *(p.grad for p in model.blocks.parameters())])
    for ours, theirs, exact in zip(*found, strict=True):
        scale = max(exact.abs().max().item(), 1e-3)
        limit = 2 * deviation(theirs, exact, scale) + 16 * torch.finfo(dtype).eps
        assert deviation(ours, exact, scale) < limit
