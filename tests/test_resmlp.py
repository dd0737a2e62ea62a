"""ResMLP: the cross-patch layer on other grids."""
from __future__ import annotations

import pytest
import torch
from helpers.backbones import ARCHS, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import ResMLP
from colonnade.backbones.kernels import resampling
from colonnade.backbones.resmlp.token_mixing import Resampling, mix_resampled, mix_windows

NATIVE = (6, 6)
GRIDS = [(6, 6), (12, 12), (9, 17), (3, 4), (1, 40)]
grids = pytest.mark.parametrize('grid', GRIDS, ids=str)


@torch.no_grad()
def layer(dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(0)
    made = nn.Linear(36, 36, dtype=dtype).requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_()
    return made


def resampled(x: Tensor, of: nn.Module, grid: tuple[int, int]) -> Tensor:
    return mix_resampled(x, of, Resampling.between(grid, NATIVE, x),
                         Resampling.between(NATIVE, grid, x))


def windows(x: Tensor, weight: Tensor, bias: Tensor, grid: tuple[int, int],
            shifted: bool) -> Tensor:
    """Token by token: find its window, read it with the border repeated, apply its row."""
    (h, w), n = grid, NATIVE[0]
    image, out = x.view(h, w, -1), torch.empty_like(x).view(h, w, -1)
    off = [n // 2 if shifted and size > n else 0 for size in grid]
    for row in range(h):
        for col in range(w):
            (top, i), (left, j) = divmod(row + off[0], n), divmod(col + off[1], n)
            read = torch.stack([
                image[min(max(top * n + r - off[0], 0), h - 1),
                      min(max(left * n + c - off[1], 0), w - 1)] for r in range(n) for c in range(n)
            ])
            out[row, col] = weight[i * n + j] @ read + bias[i * n + j]
    return out.view(h * w, -1)


@grids
@pytest.mark.parametrize('shifted', [False, True])
def test_windows_match_definition(grid: tuple[int, int], shifted: bool) -> None:
    made = layer()
    x = torch.randn(2, grid[0] * grid[1], 3, dtype=torch.float64)
    got = mix_windows(x, made, grid, NATIVE, shifted=shifted)
    expected = torch.stack([windows(image, made.weight, made.bias, grid, shifted) for image in x])
    torch.testing.assert_close(got, expected)


def dense(weight: Tensor, grid: tuple[int, int]) -> Tensor:
    """The (N, N) matrix of the definition: W without its diagonal resized as a 4-D tensor."""

    def resized(columns: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
        """(old tokens, k) -> (new tokens, k), by torch's own interpolation in two dimensions."""
        image = columns.T.reshape(1, -1, *old)
        return F.interpolate(image, size=new, mode='bicubic', antialias=True)[0].flatten(1).T

    eye = torch.eye(grid[0] * grid[1], dtype=weight.dtype)
    rest = weight - torch.diag(weight.diagonal())
    mixed = resized(rest @ resized(eye, grid, NATIVE), NATIVE, grid)
    return mixed + torch.diag(resized(weight.diagonal()[:, None], NATIVE, grid)[:, 0])


@grids
def test_resampling_matches_definition(grid: tuple[int, int]) -> None:
    made = layer()
    x = torch.randn(2, grid[0] * grid[1], 3, dtype=torch.float64)
    offset = resampled(torch.zeros_like(x), made, grid)
    got = resampled(x, made, grid) - offset
    torch.testing.assert_close(got, dense(made.weight, grid) @ x)


@settings(max_examples=50, deadline=None)
@given(old=st.tuples(*[st.integers(1, 40)] * 2), new=st.tuples(*[st.integers(1, 40)] * 2))
def test_resampling_keeps_constants(old: tuple[int, int], new: tuple[int, int]) -> None:
    ones = torch.ones(2, old[0] * old[1], 3)
    found = Resampling.between(old, new, ones)(ones)
    torch.testing.assert_close(found, torch.ones(2, new[0] * new[1], 3))
    assert Resampling.between(old, old, ones)(ones) is ones


def test_devices_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    eye = torch.eye
    monkeypatch.setattr(resampling, 'FLOAT64_DEVICES', ('cpu', ))
    monkeypatch.setattr(torch, 'eye',
                        lambda *args, **kwargs: made.append(kwargs) or eye(*args, **kwargs))
    for dtype in (torch.float32, torch.float16):
        matrix = resampling.resampling_matrix(5, 3, torch.empty(1, dtype=dtype, device='meta'))
        assert (matrix.device.type, matrix.dtype) == ('meta', torch.float32)
    assert {kwargs['device'] for kwargs in made} == {'cpu'}


@pytest.mark.parametrize('token_mixing, limit', [('resample', 1.), ('window', 2.)])
def test_memory_is_linear_in_tokens(token_mixing: str, limit: float) -> None:
    backbone = tiny(ResMLP, token_mixing=token_mixing)
    tokens = 100 * 101
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.untyped_storage().nbytes()) or t, lambda t: t):
        x = torch.randn(1, tokens, 32, requires_grad=True)
        mixed = backbone.blocks[1]._mix(x, (100, 101), None, None)
        mixed.sum().backward()
    assert max(sizes) <= limit * x.untyped_storage().nbytes()


def test_windows_alternate_between_blocks() -> None:
    blocks = tiny(ResMLP, token_mixing='window').blocks
    assert [block.shifted for block in blocks] == [False, True, False, True]


def test_layer_scale_of_arch() -> None:
    assert tiny(ResMLP).blocks[0].ls1.eq(0.1).all()
    assert tiny(ResMLP,
                ARCHS[ResMLP] | dict(layer_scale_init_value=1e-6)).blocks[0].ls2.max() < 2e-6
