"""ViT-Adapter: the reference outputs, every backbone, and blocks that a neck runs."""
from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.backbones import ARCHS, OURS
from test_reference import Case, cases
from torch import nn

from colonnade.backbones import ColumnarBackbone, PlainViT, XCiT
from colonnade.necks import ViTAdapter
from colonnade.weights.loading import load_weights


@cases('vit_adapter_*')
@torch.no_grad()
def test_reference_outputs(name: str, tmp_path: Path) -> None:
    case = Case(name)
    made = case.json['constructor']
    windowed = made['window_attn']
    backbone = PlainViT(
        dict(
            embed_dim=made['embed_dim'],
            depth=made['depth'],
            num_heads=made['num_heads'],
            class_token=False,
            init_values=1.),
        img_size=made['pretrain_size'],
        pos_embed_resize='bicubic',
        window_size=max(filter(None, made['window_size'])),
        global_blocks=[i for i, each in enumerate(windowed) if not each],
        window_padding='heads',
        defer_blocks=True)
    neck = ViTAdapter(
        made['embed_dim'],
        made['deform_num_heads'],
        num_points=made['n_points'],
        stem_channels=made['conv_inplane'],
        num_groups=len(made['interaction_indexes']),
        ffn_ratio=made['cffn_ratio'],
        value_ratio=made['deform_ratio'])
    model = nn.ModuleDict(dict(backbone=backbone, neck=neck)).eval()
    load_weights(model, case.checkpoint(tmp_path))
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        blocks, = backbone(case.image().to(dtype))
        tokens: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        handles = [
            layer.register_forward_hook(partial(keep_output, tokens, index))
            for index, layer in enumerate(neck.interactions)
        ]
        levels = neck((blocks, ))
        for handle in handles:
            handle.remove()
        for index, (patches, spatial) in tokens.items():
            case.compare(f'tokens_{index}', blocks.copy_map(patches), 1e-5)
            case.compare(f'spatial_{index}', spatial, 1e-5)
        for index, level in enumerate(levels, 1):
            case.compare(f'f{index}', level, 1e-5)


def keep_output(outputs: dict[int, Any], index: int, module: nn.Module, inputs: tuple,
                output: Any) -> None:
    outputs[index] = output


@pytest.mark.parametrize('add_each_map', [False, True])
@pytest.mark.parametrize('cls', OURS)
def test_every_backbone(cls: type[ColumnarBackbone], add_each_map: bool) -> None:
    """Levels have the strides of a pyramid, and every parameter is trained."""
    torch.manual_seed(0)
    backbone = cls(ARCHS[cls], defer_blocks=True, with_cp=True).train()
    neck = ViTAdapter(
        backbone.embed_dim, 2, num_groups=2, stem_channels=8, add_each_map=add_each_map)
    neck.init_weights()
    for module in neck.interactions:  # injectors start at 0
        nn.init.ones_(module.injector.gamma)
    levels = neck(backbone(torch.randn(2, 3, 75, 101)))
    assert [tuple(level.shape) for level in levels] == [
        (2, backbone.embed_dim, -(-75 // stride), -(-101 // stride)) for stride in (4, 8, 16, 32)
    ]
    sum(level.square().mean() * weight for weight, level in enumerate(levels, 1)).backward()
    without = [
        name for model in (backbone, neck) for name, parameter in model.named_parameters()
        if parameter.grad is None
    ]
    assert without == []


@torch.no_grad()
def test_blocks_equal_those_of_backbone() -> None:
    """An adapter that adds nothing leaves the tokens of the backbone as they are."""
    torch.manual_seed(0)
    backbone = XCiT(ARCHS[XCiT]).eval()
    deferred = XCiT(ARCHS[XCiT], defer_blocks=True).eval()
    deferred.load_state_dict(backbone.state_dict())
    neck = ViTAdapter(backbone.embed_dim, 2, num_groups=1, stem_channels=8).eval()
    neck.init_weights()
    images, found = torch.randn(2, 3, 64, 96), []
    blocks, = deferred(images)
    neck.interactions[0].register_forward_hook(lambda *call: found.append(call[-1][0]))
    neck((blocks, ))
    torch.testing.assert_close(blocks.copy_map(found[0]), backbone(images)[-1])


@pytest.mark.parametrize('arguments, message', [
    (dict(defer_blocks=True, out_indices=[0]), 'defer_blocks requires all 3 blocks'),
    (dict(), 'set model.backbone.defer_blocks=True'),
])  # yapf: disable
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:

    def build_and_run() -> None:
        backbone = XCiT(dict(ARCHS[XCiT], depth=3), **arguments)
        ViTAdapter(backbone.embed_dim, 2, stem_channels=8)(backbone(torch.randn(1, 3, 32, 32)))

    with pytest.raises(ValueError, match=message):
        build_and_run()
    with pytest.raises(ValueError, match='multiple of num_heads, got 64 and 6'):
        ViTAdapter(64, 6)
