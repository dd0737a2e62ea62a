"""Small LayerScale in half precision."""
from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from helpers.backbones import ARCHS, every_class_with_kernels, tiny
from helpers.rounding import deviation, doubled
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from colonnade.backbones import ColumnarBackbone, PlainViT
from colonnade.backbones.kernels.folding import FusedError

GAMMAS = (1., 0.1, 1e-5, 1e-6)  # initial values of XCiT, ResMLP, CaiT, DeiT-III and DINOv2
TOKEN_SCALE = 2.**-10  # next to such tokens, float32 still shows the smallest branch


def build_block(cls: type, gamma: float) -> ColumnarBackbone:
    """Return a backbone of one block, with parameters at no special point."""
    arch = ARCHS[cls] | dict(depth=1, layer_scale_init_value=gamma)
    if cls is PlainViT:
        arch = ARCHS[cls] | dict(depth=1, model='vit_small_patch14_dinov2', init_values=gamma)
    backbone = tiny(cls, arch)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.ndim == 1:
                parameter += 0.02 * parameter.abs().max() * torch.randn_like(parameter)
    return backbone


def compute_branch(backbone: ColumnarBackbone, half: torch.dtype | None,
                   loss_scale: float) -> list[Tensor]:
    """Return what a block adds to its tokens and, in training mode, gradients of its parameters."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 64, 64, generator=generator).to(next(backbone.parameters()).dtype)
    with torch.autocast('cpu', half) if half else nullcontext():
        embedded, place = backbone._embed(image)
        x = TOKEN_SCALE * torch.randn(embedded.shape, generator=generator).to(image.dtype)
        with torch.set_grad_enabled(backbone.training):
            out = backbone._run_block(backbone.blocks[0], x.clone(), place).to(image.dtype)
    branch = out.detach() - x
    if not backbone.training:
        return [branch]
    cotangent = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [branch, *torch.autograd.grad(out, backbone.blocks.parameters(), loss_scale * cotangent)]


@every_class_with_kernels
def test_fused_backbone_rejects_autocast_to_float16(cls: type) -> None:
    image = torch.rand(1, 3, 64, 64)
    backbone = build_block(cls, 1e-6).eval()
    with torch.no_grad(), torch.autocast('cpu', torch.float16):
        copy.deepcopy(backbone).fuse(torch.float16)(image)
        with pytest.raises(FusedError, match='runs under autocast to torch.float16: call fuse'):
            backbone.fuse()(image)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        backbone(image)


@every_class_with_kernels
@pytest.mark.parametrize('half', [torch.float16, torch.bfloat16], ids=['float16', 'bfloat16'])
@pytest.mark.parametrize('mode', ['train', pytest.param('eval', marks=pytest.mark.slow), 'fused'])
def test_small_layer_scales_keep_digits(cls: type, half: torch.dtype, mode: str) -> None:
    for gamma in GAMMAS:
        backbone = build_block(cls, gamma).train(mode == 'train')
        loss_scale = min(16 / gamma, 2.**16)  # as found by dynamic loss scaling
        exact = compute_branch(doubled(backbone), None, loss_scale)
        with register_module_forward_hook(lambda *_: None):
            theirs = compute_branch(backbone, half, loss_scale)
        tested = copy.deepcopy(backbone).fuse(half) if mode == 'fused' else backbone
        ours = compute_branch(tested, half, loss_scale)
        # Some gradients are 0 up to rounding.
        smallest = 1e-3 * max(gradient.abs().max().item() for gradient in exact[1:] or exact)
        for index, (found, called, expected) in enumerate(zip(ours, theirs, exact, strict=True)):
            scale = max(expected.abs().max().item(), smallest if index else 0)
            allowed = 2 * deviation(called, expected, scale) + 8 * torch.finfo(half).eps
            assert deviation(found, expected, scale) <= allowed, (gamma, index)
