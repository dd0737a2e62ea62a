"""Layer-wise decay of the learning rate, for every backbone under mmdet and mmseg."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import ROOT
from helpers.backbones import every_class, tiny
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from colonnade.backbones import CaiT, ResMLP, XCiT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.engine.optim.layer_decay import LayerDecayConstructor

OPTIMIZER = dict(type='AdamW', lr=1.0, weight_decay=0.05)


def settings(model: nn.Module, **paramwise_cfg: object) -> dict[str, tuple[float, float]]:
    """Rate and decay of each parameter."""
    constructor = LayerDecayConstructor(dict(optimizer=OPTIMIZER), paramwise_cfg)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = constructor(model).optimizer.param_groups
    assert len({(g['lr'], g['weight_decay']) for g in groups}) == len(groups)  # merged
    return {names[id(p)]: (g['lr'], g['weight_decay']) for g in groups for p in g['params']}


def build_model(cls: type) -> nn.Module:
    return nn.ModuleDict(
        dict(backbone=tiny(cls), neck=nn.ConvTranspose2d(32, 32, 2), head=nn.Conv2d(32, 3, 1)))


@every_class
def test_learning_rates_decay_to_stem(cls: type) -> None:
    model = build_model(cls)
    found = settings(model, layer_decay_rate=0.5)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    for name, (rate, decay) in found.items():
        expected = 1.
        if name.startswith('backbone.blocks.'):
            expected = 0.5**(4 - int(name.split('.')[2]))
        elif name.startswith('backbone.'):
            expected = 0.5**5
        assert rate == expected, name
        assert decay == 0.05


FLAT = {
    XCiT: ('attn.temperature', 'gamma1', 'norm1.weight', 'local_mp.bn.bias'),
    CaiT: ('gamma_1', 'norm2.bias', 'attn.proj_l.bias'),
    ResMLP: ('ls1', 'norm1.alpha', 'norm2.beta', 'linear_tokens.bias'),
}
MATRICES = {
    XCiT: ('attn.qkv.weight', 'local_mp.conv1.weight'),
    CaiT: ('attn.proj_l.weight', 'mlp.fc1.weight'),
    ResMLP: ('linear_tokens.weight', 'mlp_channels.fc2.weight'),
}


@pytest.mark.parametrize('cls', FLAT)
def test_flat_decay_mult(cls: type) -> None:
    found = settings(build_model(cls), layer_decay_rate=0.9, flat_decay_mult=0.)
    for block in range(4):
        for name in FLAT[cls]:
            assert found[f'backbone.blocks.{block}.{name}'][1] == 0., name
        for name in MATRICES[cls]:
            assert found[f'backbone.blocks.{block}.{name}'][1] == 0.05, name
    assert found['neck.bias'][1] == 0. and found['neck.weight'][1] == 0.05
    if cls is CaiT:
        assert found['backbone.pos_embed'][1] == 0.


def test_custom_keys_override_flat_decay_mult() -> None:
    found = settings(
        build_model(CaiT),
        layer_decay_rate=0.5,
        flat_decay_mult=0.,
        custom_keys={'pos_embed': dict(decay_mult=2., lr_mult=10.)})
    assert found['backbone.pos_embed'] == (10 * 0.5**5, 0.1)


def test_custom_keys_of_learning_rates_keep_decay() -> None:
    found = settings(
        build_model(CaiT), flat_decay_mult=0., custom_keys={'backbone': dict(lr_mult=0.1)})
    for name in FLAT[CaiT]:
        assert found[f'backbone.blocks.0.{name}'] == (0.1, 0.), name
    for name in MATRICES[CaiT]:
        assert found[f'backbone.blocks.0.{name}'] == (0.1, 0.05), name
    assert found['neck.bias'] == (1., 0.)


def test_frozen_parameters_have_no_group() -> None:
    model = nn.ModuleDict(dict(backbone=tiny(XCiT, frozen_stages=2)))
    found = settings(model, layer_decay_rate=0.5)
    assert {name.split('.')[2] for name in found} == {'2', '3'}


@pytest.mark.parametrize('rate', [0., 1.5, -1.])
def test_layer_decay_rate_out_of_range(rate: float) -> None:
    with pytest.raises(ValueError, match=r'layer_decay_rate must be in \(0, 1\], got'):
        settings(build_model(XCiT), layer_decay_rate=rate)


def test_layer_decay_needs_layer_depths() -> None:
    model = nn.ModuleDict(dict(backbone=nn.Linear(2, 2)))
    with pytest.raises(ValueError, match='Linear lacks it'):
        settings(model, layer_decay_rate=0.5)


@pytest.mark.parametrize('name', [
    'mask_rcnn/xcit_small_12_p16_3x_coco_lld', 'sem_fpn/xcit_small_12_p16_80k_ade20k_lld',
    'upernet/xcit_small_12_p16_160k_ade20k_lld'
])
def test_layer_decay_configs(name: str) -> None:
    cfg = Config.fromfile(ROOT / f'configs/{name}.py')
    init_default_scope(cfg.default_scope)
    with on_meta_device():
        model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    rates = {group['lr'] for group in groups}
    base = cfg.optim_wrapper.optimizer.lr
    assert sorted(rates, reverse=True) == pytest.approx([base * 0.75**k for k in range(14)])
    assert sum(len(group['params']) for group in groups) == len(list(model.parameters()))


def test_list_param_groups(run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / 'configs/sem_fpn/xcit_small_12_p16_80k_ade20k_lld.py'
    run_tool('list_param_groups', config, '--cfg-options', 'model.backbone.frozen_stages=0')
    lines = capsys.readouterr().out.splitlines()
    groups = [line for line in lines if line.startswith('learning rate ')]
    assert 'learning rate 4.5e-05, weight decay 0: ' in ' '.join(groups)  # the last block
    names = [line.strip() for line in lines if line.startswith('  ')]
    assert len(names) == len(set(names))
    assert 'backbone.blocks.3.attn.qkv.weight' in names
    start = next(i for i, line in enumerate(lines) if line.startswith('not trained: '))
    assert '  backbone.patch_embed.proj.0.0.weight' in lines[start:]


def test_list_param_groups_of_frozen_backbone(run_tool: Callable,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('list_param_groups', ROOT / 'configs/linear/xcit_small_12_p16_40k_ade20k.py')
    printed = capsys.readouterr().out
    assert 'rate 0.001, weight decay 0.0001: 4 parameters\n  decode_head.conv_seg' in printed
    trained, _, frozen = printed.partition('not trained: ')
    assert 'backbone.' not in trained and 'decode_head.' not in frozen
