"""The backbone contract, over sizes, and the trunk against timm's."""
from __future__ import annotations

import pytest
import timm
import torch
from mmengine.registry import MODELS
from torch import nn

from colonnade.backbones import XCiT

TINY = dict(embed_dim=32, depth=4, num_heads=4, patch_size=8)
TINY16 = dict(TINY, patch_size=16)
SIZES = [(64, 64), (64, 96), (75, 101), (16, 16), (17, 40)]


def tiny(arch: dict = TINY, **kwargs) -> XCiT:
    torch.manual_seed(0)
    return XCiT(arch, **kwargs)


def timm_model(arch: str, **kwargs) -> nn.Module:
    return timm.create_model(f'xcit_{arch}_224', num_classes=0, **kwargs)


@pytest.mark.parametrize('height, width', SIZES)
@pytest.mark.parametrize('arch', [TINY, TINY16], ids=['p8', 'p16'])
def test_maps_have_the_ceil_grid(arch: dict, height: int, width: int) -> None:
    backbone = tiny(arch).eval()
    patch = arch['patch_size']
    grid = (-(-height // patch), -(-width // patch))

    maps = backbone(torch.randn(2, 3, height, width))

    assert isinstance(maps, tuple)
    assert [tuple(m.shape) for m in maps] == [(2, 32, *grid)] * 4


def test_images_of_a_batch_do_not_see_each_other() -> None:
    backbone, images = tiny().eval(), torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        together, alone = backbone(images), backbone(images[1:])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[1:], b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('arch', XCiT.arch_settings)
def test_parameters_are_timms(arch: str) -> None:
    with torch.device('meta'):
        ours, theirs = XCiT(arch), timm_model(arch)
    classification = ('cls_token', 'cls_attn_blocks.', 'norm.', 'head.')
    expected = {
        name: tensor.shape
        for name, tensor in theirs.state_dict().items() if not name.startswith(classification)
    }
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == expected
    settings = XCiT.arch_settings[arch]
    assert (ours.embed_dim, ours.depth,
            ours.patch_size) == (settings['embed_dim'], settings['depth'], settings['patch_size'])
    assert theirs.blocks[0].attn.num_heads == ours.blocks[0].attn.num_heads


@pytest.mark.parametrize('size', [(64, 96), (75, 101)])
@pytest.mark.parametrize('arch', ['nano_12_p16', 'tiny_24_p16', 'nano_12_p8'])
def test_maps_equal_timms_intermediates(arch: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    theirs = timm_model(arch).eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    ours = XCiT(arch).eval()
    weights = theirs.state_dict()
    ours.load_state_dict({name: weights[name] for name in ours.state_dict()})
    image = torch.randn(1, 3, *size)

    with torch.no_grad():
        expected = theirs.forward_intermediates(
            image, indices=list(ours.out_indices), intermediates_only=True)
        got = ours(image)

    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize('out_indices, resolved', [
    (None, (0, 1, 1, 3)),
    ((0, 3), (0, 3)),
    ((-1, ), (3, )),
    ((-3, -1), (1, 3)),
    ((2, 2, 2, 2), (2, 2, 2, 2)),
])
def test_out_indices(out_indices: tuple | None, resolved: tuple) -> None:
    backbone = tiny(out_indices=out_indices).eval()
    every = tiny(out_indices=(0, 1, 2, 3)).eval()
    weights = every.state_dict()
    backbone.load_state_dict({name: weights[name] for name in backbone.state_dict()})
    image = torch.randn(1, 3, 32, 32)

    maps, all_maps = backbone(image), every(image)

    assert backbone.out_indices == resolved
    assert len(backbone.blocks) == resolved[-1] + 1
    assert all(torch.equal(m, all_maps[i]) for i, m in zip(resolved, maps, strict=True))


@pytest.mark.parametrize('arch, taps', [('nano_12_p16', (3, 5, 7, 11)),
                                        ('tiny_24_p8', (7, 11, 15, 23))])
def test_default_taps_are_the_originals(arch: str, taps: tuple) -> None:
    with torch.device('meta'):
        assert XCiT(arch).out_indices == taps


@pytest.mark.parametrize('kwargs, message', [
    (dict(arch='small_12_p14'), r"XCiT has no arch 'small_12_p14'; it has nano_12_p16"),
    (dict(arch=dict(TINY, patch_size=14)), 'patch_size must be 8 or 16, got 14'),
    (dict(arch=dict(TINY, num_heads=5)), 'multiple of num_heads .* num_heads 5'),
    (dict(arch=dict(TINY, depth=0)), 'depth'),
    (dict(arch=dict(embed_dim=32, width=1)), r"missing \['depth', .* unknown \['width'\]"),
    (dict(out_indices=(0, 4)), r'out_indices must be block numbers in -4 ... 3, got \(0, 4\)'),
    (dict(out_indices=(-5, )), r'out_indices must be block numbers'),
    (dict(out_indices=()), r'out_indices must be block numbers'),
    (dict(out_indices=(3, 1)), 'out_indices must go from shallow to deep'),
    (dict(frozen_stages=5), 'frozen_stages must be in -1 ... 4, got 5'),
    (dict(drop_path_rate=1.0), r'drop_path_rate must be in \[0, 1\), got 1.0'),
])
def test_wrong_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        XCiT(**{'arch': TINY, **kwargs})


def test_unknown_argument() -> None:
    with pytest.raises(TypeError, match='dorp_path_rate'):
        tiny(dorp_path_rate=0.1)


def test_image_smaller_than_a_patch() -> None:
    with pytest.raises(ValueError, match='at least 16 x 16 .* got 64 x 15'):
        tiny(TINY16)(torch.randn(1, 3, 64, 15))


@pytest.mark.parametrize('with_cp', [False, True])
def test_every_parameter_gets_a_gradient(with_cp: bool) -> None:
    backbone = tiny(with_cp=with_cp, drop_path_rate=0.1).train()
    sum(m.square().mean() for m in backbone(torch.randn(2, 3, 40, 56))).backward()
    without = [
        name for name, p in backbone.named_parameters() if p.grad is None or not p.grad.any()
    ]
    # a bias in front of a softmax over, or a normalisation along, what it shifts has none
    assert [name for name in without if 'conv1.bias' not in name] == []


def test_checkpointing_changes_nothing() -> None:
    plain, saving = tiny(drop_path_rate=0.2), tiny(drop_path_rate=0.2, with_cp=True)
    saving.load_state_dict(plain.state_dict())
    image = torch.randn(2, 3, 40, 56)
    results = []
    for backbone in (plain, saving):
        torch.manual_seed(1)
        maps = backbone.train()(image)
        sum(m.square().mean() for m in maps).backward()
        results.append((maps, [p.grad for p in backbone.parameters()], backbone.state_dict()))

    (maps, grads, state), (cp_maps, cp_grads, cp_state) = results
    assert all(torch.equal(a, b) for a, b in zip(maps, cp_maps, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(grads, cp_grads, strict=True))
    # batch statistics are counted once, although the blocks ran twice
    assert all(torch.equal(state[name], cp_state[name]) for name in state)


@pytest.mark.parametrize('frozen_stages', [0, 2, 4])
def test_freezing_survives_train(frozen_stages: int) -> None:
    backbone = tiny(frozen_stages=frozen_stages, drop_path_rate=0.1)
    frozen = ('patch_embed.', 'pos_embed.', *(f'blocks.{i}.' for i in range(frozen_stages)))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    optimizer = torch.optim.SGD((p for p in backbone.parameters() if p.requires_grad), lr=1.) \
        if frozen_stages < 4 else None

    backbone.eval().train()
    maps = backbone(torch.randn(2, 3, 40, 56))
    if optimizer:
        maps[-1].square().mean().backward()
        optimizer.step()

    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad != name.startswith(frozen), name
    for name, module in backbone.named_modules():
        if name and f'{name}.'.startswith(frozen):
            assert not module.training, name
    after = backbone.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any(name.startswith(frozen) for name in changed)
    assert bool(changed) == (frozen_stages < 4)


def test_norm_eval_keeps_running_statistics() -> None:
    backbone = tiny(norm_eval=True).train()
    before = backbone.patch_embed.proj[0][1].running_mean.clone()
    backbone(torch.randn(2, 3, 40, 56))
    assert torch.equal(before, backbone.patch_embed.proj[0][1].running_mean)
    assert backbone.blocks[0].training
    assert not backbone.blocks[0].local_mp.bn.training


@pytest.mark.parametrize('norm_cfg, kind', [
    (None, nn.BatchNorm2d),
    (dict(type='BN'), nn.BatchNorm2d),
    (dict(type='SyncBN'), nn.SyncBatchNorm),
    (dict(type='GN', num_groups=2), nn.GroupNorm),
])
def test_norm_cfg(norm_cfg: dict | None, kind: type) -> None:
    backbone = tiny(norm_cfg=norm_cfg)
    norms = [backbone.patch_embed.proj[i][1] for i in (0, 2, 4)]
    norms += [block.local_mp.bn for block in backbone.blocks]
    assert all(isinstance(norm, kind) and norm.eps == 1e-5 for norm in norms)
    assert {block.norm1.eps for block in backbone.blocks} == {1e-6}


def test_norm_cfg_can_freeze_affine() -> None:
    backbone = tiny(norm_cfg=dict(type='BN', requires_grad=False))
    assert not backbone.blocks[0].local_mp.bn.weight.requires_grad


def test_drop_path_is_constant_over_depth() -> None:
    blocks = tiny(drop_path_rate=0.15).blocks
    rates = {getattr(b, f'drop_path{i}').drop_prob for b in blocks for i in (1, 2, 3)}
    assert rates == {0.15}


def test_layer_scale_is_the_archs() -> None:
    assert tiny().blocks[0].gamma1.eq(1.).all()
    assert tiny(dict(TINY, layer_scale_init_value=1e-5)).blocks[0].gamma3.eq(1e-5).all()


@pytest.mark.parametrize('name, depth', [
    ('backbone.patch_embed.proj.0.0.weight', 0),
    ('backbone.pos_embed.token_projection.bias', 0),
    ('backbone.blocks.0.norm1.weight', 1),
    ('backbone.blocks.3.gamma2', 4),
    ('neck.stride4.0.weight', 5),
])
def test_layer_depth(name: str, depth: int) -> None:
    assert tiny().get_layer_depth(name, prefix='backbone.') == (depth, 6)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', None])
def test_registry_finds_it_in_every_scope(scope: str | None) -> None:
    cfg = dict(type='XCiT', arch=TINY, **({'_scope_': scope} if scope else {}))
    assert type(MODELS.build(cfg)) is XCiT
