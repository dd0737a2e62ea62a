"""What SimplifiedViT alone has: the study's counts, files of three kinds of blocks, hooks."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from helpers.backbones import ARCHS, randomised, tiny
from helpers.modified_layers import LoRA, bent
from helpers.rounding import check_all_rounding, doubled
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from colonnade.backbones import SimplifiedViT
from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.backbones.simplified_vit.blocks import BLOCKS
from colonnade.weights.files import read_checkpoint
from colonnade.weights.layouts import detect_format
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
def test_counts_of_the_study(arch: str, plain: int, simplified: int) -> None:
    """Ours where both have a part; by the formula what the study alone has.

    The study has another MLP than ratio 4, and gains of whole blocks instead of heads. Its
    classifier is a class token, a norm, a linear layer and a head of ten classes.
    """
    with without_memory():
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


class Largest(TorchDispatchMode):
    """Watches how large the results of operators are."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Callable, types: object, args: tuple = (),
                           kwargs: dict | None = None) -> Any:  # yapf: disable
        out = function(*args, **kwargs or {})
        for tensor in out if isinstance(out, tuple) else (out, ):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@every_block
def test_no_tensor_has_all_pairs_of_tokens(block: str) -> None:
    """32 x 32 tokens, forward and backward; the image is the largest."""
    backbone = tiny(SimplifiedViT, block=block, out_indices=(0, ))
    with Largest() as largest:
        backbone(torch.randn(1, 3, 256, 256))[0].sum().backward()
    assert largest.numel == 3 * 256 * 256 < 1024**2


@pytest.mark.parametrize('kwargs, message', [
    (dict(block='serial'), "block must be parallel, sequential, plain, got 'serial'"),
    (dict(init='static'), r"'dynamic', 'inverse_dynamic' or a pair \(alpha, beta\) .* 'static'"),
    (dict(init=(1, 0, 0)), r'or a pair \(alpha, beta\) .* got \(1, 0, 0\)'),
    (dict(init=0.5), r'or a pair \(alpha, beta\) .* got 0.5'),
    (dict(block='plain', init=(1, 0)), "init has no effect beside block='plain'"),
    (dict(block='plain', centring=True), "centring has no effect beside block='plain'"),
    (dict(img_size=100), 'img_size must be a multiple of patch_size 8, got 100'),
])
def test_wrong_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(SimplifiedViT, **kwargs)


@every_block
@pytest.mark.parametrize('other', [*BLOCKS, 'centred'])
def test_files_say_what_blocks_they_have(block: str, other: str) -> None:
    """A file of other blocks, or with another centring, is refused by name."""
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
    with pytest.raises(ValueError, match=f'the file holds .*block {kinds["block"]}, centring'):
        plan_loading(backbone, state, 'a.pth')


@every_block
def test_files_are_converted(block: str, tmp_path: Path, run_tool: Callable,
                             capsys: pytest.CaptureFixture[str]) -> None:
    state = build_vit(block).state_dict()
    torch.save(dict(model=state), tmp_path / 'a.pth')
    run_tool('convert_checkpoint', tmp_path / 'a.pth', tmp_path / 'b.pth')
    assert ': SimplifiedViT; ' in capsys.readouterr().out
    written = read_checkpoint(tmp_path / 'b.pth')['state_dict']
    assert all(torch.equal(written.pop(key), value) for key, value in state.items())
    assert not written


def test_files_of_vision_transformers_are_of_another_kind() -> None:
    with without_memory():
        state = timm.create_model('vit_tiny_patch16_224').state_dict()
    layout = detect_format(state)
    assert layout is None or not layout.name.startswith('SimplifiedViT')
    with pytest.raises(KeyError):
        SimplifiedViT.infer_arch(state)


def test_positions_of_another_grid_are_resized() -> None:
    backbone, finer = build_vit('parallel'), build_vit('parallel', img_size=96)
    backbone.load_state_dict(finer.state_dict())
    assert backbone.pos_embed.shape == (1, 64, 32)
    assert backbone.pos_embed.mean().item() == pytest.approx(finer.pos_embed.mean().item(), abs=.01)


@every_block
def test_hooks_are_called(block: str) -> None:
    """In training as in evaluation; and what they saw is not written into."""
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
def test_hooks_on_all_modules_keep_what_they_saw(block: str) -> None:
    backbone, kept, image = build_vit(block), [], torch.randn(1, 3, 40, 56)
    handle = register_module_forward_hook(lambda _, __, out: kept.append((out, out.clone()))
                                          if isinstance(out, Tensor) else None)
    with torch.no_grad():
        backbone(image)
    handle.remove()
    assert len(kept) > 10
    assert all(torch.equal(seen, then) for seen, then in kept)


@every_block
def test_replaced_layers_are_called(block: str) -> None:
    """LoRA whose second matrix is zero changes nothing; then it does."""
    backbone, image = build_vit(block).double(), torch.randn(1, 3, 40, 56, dtype=torch.float64)
    before = backbone(image)[1]
    attn = backbone.blocks[1].attn
    attn.qk = LoRA(attn.qk)
    up = attn.qk.up.data.clone()
    attn.qk.up.data.zero_()
    torch.testing.assert_close(backbone(image)[1], before)
    attn.qk.up.data.copy_(up)
    assert not torch.allclose(backbone(image)[1], before)


@every_block
def test_under_autocast(block: str) -> None:
    """Near to float32; maps in float32, since the gains are."""
    backbone, image = build_vit(block), torch.randn(1, 3, 40, 56)
    exact = backbone(image)[1]
    with torch.autocast('cpu', torch.bfloat16):
        found = backbone(image)[1]
    found.sum().backward()
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()
    assert all(p.grad.isfinite().all() for p in backbone.parameters())


@pytest.mark.parametrize('training', [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize('block', [
    pytest.param(block, marks=[] if block == 'sequential' else pytest.mark.slow) for block in BLOCKS
])
def test_compiled_once_for_all_blocks_and_sizes(block: str, training: bool) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend('aot_eager')
    plain, model = (build_vit(block).train(training) for _ in range(2))
    model.compile(backend=counter, dynamic=True, fullgraph=True)
    counts = set()
    for size in ((80, 96), (112, 48)):
        image = torch.randn(2, 3, *size)
        with torch.set_grad_enabled(training):
            check_all_rounding(model(image), plain(image), doubled(plain)(image.double()))
        counts.add(counter.frame_count)
    assert len(counts) == 1 and 0 not in counts
