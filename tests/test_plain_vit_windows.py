"""Attention of plain vision transformers within windows."""
from __future__ import annotations

import pytest
import torch
from test_plain_vit import DEIT3, DINOV3, TINY, pair, tiny
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from colonnade.backbones import PlainViT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.plain_vit.window_attention import Heads, attend_in_windows


def build_mask(grid: tuple[int, int], window_size: int, prefix: int) -> Tensor:
    """Build a mask of tokens that attend to each other."""
    row = torch.arange(grid[0]).repeat_interleave(grid[1]) // window_size
    column = torch.arange(grid[1]).repeat(grid[0]) // window_size
    window = torch.cat((torch.full((prefix, ), -1), row * 1000 + column))
    same = window[:, None] == window
    return same | (window == -1) | (window[:, None] == -1)


@pytest.mark.parametrize('window_size', [1, 4, 7])
@pytest.mark.parametrize('grid', [(7, 9), (8, 8), (3, 20), (1, 1), (14, 14)])
@pytest.mark.parametrize('prefix', [0, 1, 5])
def test_windows_equal_masked_attention(prefix: int, grid: tuple[int, int],
                                        window_size: int) -> None:
    torch.manual_seed(0)
    shape = (2, 3, prefix + grid[0] * grid[1], 4)
    heads = Heads(*(torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)))
    mask = build_mask(grid, window_size, prefix)
    expected = F.scaled_dot_product_attention(*heads, attn_mask=mask)
    found = attend_in_windows(heads, grid, window_size)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(attend_in_windows(heads, grid, window_size), expected)
    weight = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad(out, heads, weight)
                                 for out in (found, expected)))


@pytest.mark.parametrize('model', [DINOV3, DEIT3, 'vit_base_patch16_siglip_512'])
def test_windowed_block_equals_masked_timm_block(model: str) -> None:
    ours, theirs = pair(model, window_size=2, global_blocks=(1, 2), out_indices=(0, 1, 2))
    image, grid = torch.randn(1, 3, 75, 101).double(), (5, 7)
    mask = build_mask(grid, 2, ours.num_prefix_tokens)
    layer = theirs.backbone.blocks[0].attn
    layer.forward = lambda x, of=layer.forward, **given: of(x, **given | dict(attn_mask=mask))
    torch.testing.assert_close(ours(image), theirs(image), rtol=1e-9, atol=1e-11)


def test_all_global_blocks_disable_windows() -> None:
    windows, plain = (tiny(**kwargs) for kwargs in (
        dict(window_size=2, global_blocks=(0, 1, -1)), {}))  # yapf: disable
    image = torch.randn(1, 3, 64, 64).double()
    for a, b in zip(windows(image), plain(image), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize('depth, last_of_quarters', [(12, {2, 5, 8, 11}), (24, {5, 11, 17, 23})])
def test_default_global_blocks_are_those_of_vitdet(depth: int, last_of_quarters: set[int]) -> None:
    with on_meta_device():
        backbone = PlainViT(dict(TINY, depth=depth), window_size=14)
    of_all = {i for i, block in enumerate(backbone.blocks) if block.attn.window_size is None}
    assert of_all == last_of_quarters
    assert {block.attn.window_size for block in backbone.blocks} == {None, 14}


def test_memory_of_windows_is_linear() -> None:
    stored = {}
    for side in (256, 512):
        backbone, sizes = tiny(DEIT3, window_size=4, global_blocks=(), out_indices=(0, )), []
        with torch.autograd.graph.saved_tensors_hooks(
                lambda t, to=sizes: to.append(t) or t, lambda t: t):
            backbone(torch.randn(1, 3, side, side).double())[0].sum().backward()
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in sizes}
        stored[side] = sum(storages.values())
    assert stored[512] < 4.2 * stored[256]


@pytest.mark.slow
def test_windows_compile_once() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    backbone = tiny(window_size=2, global_blocks=(), out_indices=(0, 1)).eval()
    backbone.compile(backend=counter, dynamic=True)
    counts = []
    for size in ((64, 64), (75, 101), (33, 200)):
        with torch.no_grad():
            backbone(torch.randn(1, 3, *size).double())
        counts.append(counter.frame_count)
    assert counts[1] == counts[-1]


@torch.no_grad()
def test_export_with_dynamic_batch() -> None:
    backbone = tiny(window_size=2, global_blocks=(1, ), out_indices=(0, 1)).eval()
    images = torch.randn(3, 3, 40, 56).double()
    sizes = ({0: torch.export.Dim('batch', min=1, max=8)}, )
    exported = torch.export.export(backbone, (images[:2], ), dynamic_shapes=sizes).module()
    torch.testing.assert_close(exported(images), backbone(images))
