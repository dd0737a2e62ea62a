"""Kernels on accelerators: stock torch operators, and no more launches than timm's modules."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.backbones import tiny
from helpers.rounding import check_all_rounding, check_rounding, doubled
from timm.layers import RotaryEmbeddingCat
from timm.models.vision_transformer_sam import Block as WindowedBlock
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from colonnade.backbones import CaiT, ColumnarBackbone, PlainViT, ResMLP, XCiT
from colonnade.backbones.kernels.devices import force_accelerator_forms, should_use_cpu_forms

SIDE = 544  # pixels: more tokens than a CPU takes at a time, and more pixels than its stem
SMALL = dict(embed_dim=32, depth=2, num_heads=4, patch_size=16, img_size=SIDE)
SCALED = dict(layer_scale_init_value=0.1)
OUT_INDICES = (0, 1)
MODELS: dict[str, Callable[..., ColumnarBackbone]] = {
    'XCiT': partial(XCiT,
                    dict(embed_dim=32, depth=2, num_heads=4, patch_size=16) | SCALED),
    'CaiT': partial(CaiT, SMALL | SCALED),
    'ResMLP': partial(ResMLP,
                      dict(embed_dim=32, depth=2, patch_size=16, img_size=SIDE) | SCALED),
    'PlainViT': partial(PlainViT, SMALL),
    'PlainViT with LayerScale': partial(PlainViT, SMALL | dict(model='vit_small_patch14_dinov2')),
    'PlainViT with rotary positions': partial(PlainViT,
                                              SMALL | dict(model='vit_small_patch16_dinov3')),
    'PlainViT with gates': partial(PlainViT, SMALL | dict(model='eva02_small_patch14_224')),
}
SIMILAR = ('PlainViT', 'PlainViT with LayerScale')  # to those with rotary positions
every_model = pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else []) for name in MODELS])
IN_ORDER = {
    'ResMLP': 1 + len(OUT_INDICES)
}  # timm's has channels first there: copies of tokens and maps
NOT_LAUNCHED = ('empty', 'new_empty', '_unsafe_view', 'detach', 'promote_types', 'prim::device')


class Launches(TorchDispatchMode):
    """Operators that a device would launch kernels for: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names = Counter[str]()

    def __torch_dispatch__(self,
                           func: Any,
                           types: Sequence[type],
                           args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        name = func._schema.name.removeprefix('aten::')
        if not func.is_view and not name.startswith(NOT_LAUNCHED):
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


def launches(call: Callable[[], Sequence[Tensor]],
             *,
             grad: bool = False,
             backward: bool = False) -> Counter[str]:
    with Launches() as seen, torch.set_grad_enabled(grad or backward):
        maps = call()
        if backward:
            sum(each.float().sum() for each in maps).backward()
    return seen.names


def check_launches(ours: Counter[str], theirs: Counter[str], more: int = 0) -> None:
    assert theirs.total()
    assert ours.total() <= theirs.total() + more, (f'more: {dict(ours - theirs)}, '
                                                   f'fewer: {dict(theirs - ours)}')


def pair(name: str) -> tuple[ColumnarBackbone, Callable[[Tensor], Sequence[Tensor]], nn.Module]:
    """A backbone, what gives the same maps of timm's module, and this module."""
    backbone = MODELS[name](out_indices=OUT_INDICES, drop_path_rate=0.)
    theirs = backbone.build_timm_module(SIDE)
    if isinstance(backbone, (CaiT, ResMLP)):  # takes images of other sizes too
        embedding = getattr(theirs, 'stem', None) or theirs.patch_embed
        embedding.strict_img_size, embedding.dynamic_img_pad = False, True
    maps = partial(
        theirs.forward_intermediates,
        indices=OUT_INDICES,
        norm=backbone.norm_features,
        output_fmt='NCHW',
        intermediates_only=True)
    return backbone, maps, theirs


@contextmanager
def autocast(enabled: bool) -> Iterator[None]:
    """Autocast on GPUs, which torch.autocast leaves off where there is none."""
    torch.set_autocast_dtype('cuda', torch.bfloat16)
    torch.set_autocast_enabled('cuda', enabled)
    try:
        yield
    finally:
        torch.set_autocast_enabled('cuda', False)
        torch.clear_autocast_cache()


@every_model
def test_training_kernel_launches(name: str) -> None:
    with torch.device('meta'):
        backbone, maps, _ = pair(name)
        image = torch.empty(2, 3, SIDE, SIDE)
        found, expected = (launches(partial(f, image), backward=True) for f in (backbone, maps))
    check_launches(found, expected, IN_ORDER.get(name, 0))


FORMS = [(False, False, False), (True, True, False), (False, True, True)]  # not slow


@pytest.mark.parametrize('name, fused, half, grad', [
    pytest.param(
        name, *form, marks=[] if form in FORMS and name not in SIMILAR else pytest.mark.slow)
    for name in MODELS for form in (*FORMS, (False, True, False),
                                    (True, False, False)) if not form[0] or 'gates' not in name
])
def test_kernel_launches(name: str, fused: bool, half: bool, grad: bool) -> None:
    with torch.device('meta'):
        backbone, maps, theirs = pair(name)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device('cuda'), autocast(half):
        for module in (backbone, theirs):
            module.to_empty(device='cuda').train(grad)
        if fused:
            backbone.fuse(torch.bfloat16 if half else None)
        image = torch.empty(2, 3, SIDE, SIDE)
        assert not should_use_cpu_forms(image) and next(backbone.parameters()).is_cuda
        found, expected = (launches(partial(f, image), grad=grad) for f in (backbone, maps))
    check_launches(found, expected, IN_ORDER.get(name, 0))


@pytest.mark.parametrize('gradients', [False, True], ids=['inference', 'training'])
@pytest.mark.parametrize('rotary', [False, True])
def test_window_attention_kernel_launches(rotary: bool, gradients: bool) -> None:
    side, window = SIDE // 16, 17
    arch = SMALL | dict(class_token=False, global_pool='avg')
    rope = None
    with torch.device('meta'):
        if rotary:
            arch = SMALL | dict(
                model='vit_small_patch16_dinov3', class_token=False, num_reg_tokens=0)
            rope = RotaryEmbeddingCat(8, in_pixels=False, feat_shape=(window, window))
        block = PlainViT(arch, window_size=window, global_blocks=()).blocks[0]
        theirs = WindowedBlock(
            32, 4, window_size=window, rope=rope, init_values=0.1 if rotary else None)
        tokens = torch.empty(2, side**2, 32, requires_grad=gradients)
        image = torch.empty(2, side, side, 32, requires_grad=gradients)
        positions = torch.empty(side**2, 16) if rotary else None
        found = launches(lambda: [block(tokens, (side, side), positions)], backward=gradients)
        expected = launches(lambda: [theirs(image)], backward=gradients)
    check_launches(found, expected)


@every_model
def test_accelerator_kernels_match_cpu(name: str) -> None:
    backbone = tiny(partial(MODELS[name], out_indices=OUT_INDICES)).eval()
    image, exact = torch.randn(2, 3, 96, 130), doubled(backbone)
    results = []
    for module, given, forms in ((backbone, image, force_accelerator_forms),
                                 (backbone, image, nullcontext), (exact, image.double(),
                                                                  nullcontext)):
        with forms():
            maps = module(given)
            gradients = torch.autograd.grad(
                sum(each.square().mean() for each in maps), list(module.blocks.parameters()))
            with torch.no_grad():
                results.append([*maps, *gradients, *module(given)])
    check_all_rounding(*results)


def test_device_checks_are_in_one_module() -> None:
    root = Path(__file__).parents[1]
    files = [path for folder in ('backbones', 'necks', 'models/fusion')
             for path in (root / folder).rglob('*.py')]  # yapf: disable
    deciding = [
        path.name for path in files
        if re.search(r"device\.type [!=]= 'c|\.is_cuda\b|\.is_cpu\b", path.read_text())
    ]
    assert len(files) >= 40 and deciding == ['devices.py']


@pytest.mark.parametrize('name', [
    pytest.param(
        name, marks=[] if name in ('XCiT', 'PlainViT with rotary positions') else pytest.mark.slow)
    for name in MODELS
])
def test_blocks_compile_without_graph_break(name: str) -> None:
    torch._dynamo.reset()
    backbone, counter = tiny(partial(MODELS[name],
                                     out_indices=OUT_INDICES)).eval(), CompileCounter()
    images = [torch.randn(1, 3, *size) for size in ((96, 130), (112, 64), (80, 160))]
    with force_accelerator_forms(), torch.no_grad():
        expected = [backbone(image)[-1] for image in images]
        for block in backbone.blocks:
            block.compile(backend=counter, dynamic=True, fullgraph=True)
        torch.testing.assert_close([backbone(image)[-1] for image in images], expected)
    assert counter.frame_count == 1


def test_stem_chunks() -> None:
    backbone = tiny(MODELS['XCiT']).eval()
    image = torch.randn(24, 3, 160, 160)
    counts = []
    with torch.no_grad():
        exact, _ = doubled(backbone)._embed(image.double())
        with force_accelerator_forms():
            plain, _ = backbone._embed(image)
        for number in (1, len(image)):
            with Launches() as seen:
                found, _ = backbone._embed(image[:number])
            counts.append(seen.names['convolution'])
    check_rounding(found, plain, exact)
    assert counts == [4, 4 * 5]  # 5 images have as many pixels as go through together
