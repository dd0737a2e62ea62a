"""Weights: formats, strict loading and error messages."""
from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from helpers.layouts_by_hand import (LAYOUTS, TINY, backbone_for, original_state, ours_state,
                                     resmlp_original_state, resmlp_timm_state, timm_state)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mmengine.runner import load_checkpoint
from timm.models import mlp_mixer
from timm.models.xcit import Xcit, checkpoint_filter_fn
from torch import nn

from colonnade.backbones import XCiT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.resmlp.backbone import convert_resmlp_original
from colonnade.backbones.xcit.backbone import convert_xcit_original
from colonnade.models.building import drop_pretrained
from colonnade.necks import ColumnarPyramid
from colonnade.weights.formats import convert_keys
from colonnade.weights.loading import load_weights, plan_loading
from colonnade.weights.state_dicts import WeightsError, strip_prefix

layouts = pytest.mark.parametrize('make', LAYOUTS, ids=lambda make: make.__name__)


@layouts
@pytest.mark.parametrize('wrapper', [None, 'model', 'state_dict', 'module.'])
def test_all_formats_load_equally(make: Callable, wrapper: str | None, tmp_path: Path) -> None:
    state, backbone = make(), backbone_for(make)
    if wrapper == 'module.':
        content = {'model': {wrapper + key: value for key, value in state.items()}}
    else:
        content = {wrapper: state, 'args': argparse.Namespace(lr=1.)} if wrapper else state
    torch.save(content, tmp_path / 'a.pth')

    plan = load_weights(backbone, tmp_path / 'a.pth')

    expected = ours_state(make)
    assert set(backbone.state_dict()) == set(expected) == set(plan.state)
    assert all(torch.equal(value, expected[key]) for key, value in backbone.state_dict().items())


@layouts
def test_safetensors_with_any_suffix(make: Callable, tmp_path: Path) -> None:
    safetensors.torch.save_file(make(), tmp_path / 'weights.pth')
    load_weights(backbone := backbone_for(make), tmp_path / 'weights.pth')
    expected = ours_state(make)
    assert all(torch.equal(value, expected[key]) for key, value in backbone.state_dict().items())


def test_resmlp_conversion_equals_timm() -> None:
    with on_meta_device():
        model = backbone_for(resmlp_timm_state)
    expected = mlp_mixer.checkpoint_filter_fn(resmlp_original_state(), model)
    got = convert_resmlp_original(resmlp_original_state())
    assert got.keys() == expected.keys() == resmlp_timm_state().keys()
    assert all(torch.equal(got[key], expected[key]) for key in expected)


def test_xcit_conversion_equals_timm() -> None:
    with on_meta_device():
        model = Xcit(num_classes=5, **TINY)
    expected, got = checkpoint_filter_fn(original_state(),
                                         model), convert_xcit_original(original_state())
    assert got.keys() == expected.keys() == timm_state().keys()
    assert all(torch.equal(got[key], expected[key]) for key in expected)


@layouts
def test_conversion_is_pure(make: Callable) -> None:
    state = make()
    before = dict(state)
    convert_keys(state, 'test')
    assert state.keys() == before.keys()
    assert all(state[key] is before[key] for key in before)


def test_published_medium_detector_has_patch_16() -> None:
    assert XCiT.variants.rows['medium_24_p16']['patch_size'] == 16


made = functools.cache(lambda make: make())
subset = st.sets(st.integers(0, 10**6), min_size=1, max_size=8)


@layouts
@settings(max_examples=5, deadline=None)
@given(kind=st.sampled_from(['drop', 'rename', 'reshape', 'add']), chosen=subset)
def test_rejects_changed_files(make: Callable, kind: str, chosen: set[int]) -> None:
    state = dict(made(make))
    whole = any(key.startswith('backbone.') for key in state)
    keys = [key for key in state if key.startswith('backbone.') or not whole]
    for key in {keys[index % len(keys)] for index in chosen}:
        if kind == 'add':
            state[f'{key}.more'] = torch.zeros(1)
        else:
            value = state.pop(key)
            if kind == 'rename':
                state[f'{key}s'] = value
            elif kind == 'reshape':
                state[key] = value.unsqueeze(0)
    head = {key for key in made(make) if key.startswith('head.')}
    assume(not (kind == 'drop' and set(made(make)) - set(state) == head))
    with pytest.raises(WeightsError, match='does not fit|none of the known formats'):
        plan_loading(backbone_for(make), state, 'test')


def test_error_lists_tensors() -> None:
    state = original_state()
    del state['blocks.1.gamma2']
    state['blocks.1.gamma4'] = torch.zeros(16)
    state['norm.weight'] = torch.zeros(3)
    with pytest.raises(WeightsError) as caught:
        plan_loading(XCiT(TINY), state, 'some.pth')
    for part in ('some.pth (XCiT, original) does not fit', '1 missing: blocks.1.gamma2',
                 '1 unexpected: blocks.1.gamma4',
                 '1 of another shape: norm.weight is (3,) in the file, (16,) in the model'):
        assert part in str(caught.value)


@pytest.mark.parametrize('name, backbone', [('xcit_small_12_p8_224', 'XCiT small_12_p8'),
                                            ('resmlp_24_224', 'ResMLP s24'),
                                            ('cait_xs24_384', 'CaiT xs24')])
def test_error_describes_other_architecture(name: str, backbone: str) -> None:
    with on_meta_device():
        state = timm.create_model(name).state_dict()
        model = XCiT('small_12_p16')
    with pytest.raises(WeightsError, match=f'the file has {backbone}, the model XCiT small_12_p16'):
        plan_loading(model, state, 'some.pth')


def test_error_names_differing_parts() -> None:
    model = nn.ModuleDict(dict(backbone=XCiT(TINY), neck=ColumnarPyramid(16, 16)))
    model['decode_head'] = nn.Linear(3, 4)
    state = model.state_dict()
    state['decode_head.weight'] = torch.zeros(5, 3)
    del state['decode_head.bias']
    with pytest.raises(WeightsError) as caught:
        plan_loading(model, state, 'some.pth')
    assert 'it differs from the model in decode_head.\n' in str(caught.value)
    assert 'XCiT' not in str(caught.value)


@pytest.mark.parametrize('old, new', [(4, 43), (1, 80), (20, 3)])
def test_error_reports_numbers_of_classes(old: int, new: int) -> None:

    def detector(num_classes: int) -> nn.ModuleDict:
        head = nn.ModuleDict(
            dict(
                fc_cls=nn.Linear(8, num_classes + 1),
                fc_reg=nn.Linear(8, num_classes * 4),
                conv_logits=nn.Conv2d(8, num_classes, 1)))
        return nn.ModuleDict(dict(backbone=XCiT(TINY), roi_head=head))

    names = tuple(f'class {number}' for number in range(old))
    checkpoint = dict(
        state_dict=detector(old).state_dict(), meta=dict(dataset_meta=dict(classes=names)))
    model = detector(new)
    model['backbone'].load_state_dict(strip_prefix(checkpoint['state_dict'], 'backbone.'))
    with pytest.raises(WeightsError, match=f'{old} classes in the file, {new} in the config'):
        plan_loading(model, checkpoint, 'some.pth')


def test_errors_are_short() -> None:
    with on_meta_device():
        state, model = XCiT('small_24_p8').state_dict(), XCiT('tiny_12_p16')
    with pytest.raises(WeightsError) as caught:
        plan_loading(model, state, 'some.pth')
    first, *lines = str(caught.value).splitlines()
    assert first.endswith('the file has XCiT small_24_p8, the model XCiT tiny_12_p16.')
    assert len(lines) == 3 and all(len(line) < 600 and ' more' in line for line in lines)


def test_rejects_backbone_file_for_full_model(tmp_path: Path) -> None:
    torch.save(original_state(), tmp_path / 'a.pth')
    model = nn.ModuleDict(dict(backbone=XCiT(TINY), neck=ColumnarPyramid(16, 16)))
    with pytest.raises(WeightsError, match='has only a backbone.*init_cfg'):
        load_weights(model, tmp_path / 'a.pth')


@pytest.mark.parametrize('strict', [True, False])
def test_openmmlab_loading_is_strict(strict: bool, tmp_path: Path) -> None:
    model = nn.ModuleDict(dict(backbone=XCiT(TINY), neck=ColumnarPyramid(16, 16)))
    for key in ('backbone.blocks.0.gamma1', 'neck.stride4.1.weight'):
        state = model.state_dict()
        del state[key]
        torch.save(dict(state_dict=state), tmp_path / 'a.pth')
        with pytest.raises(WeightsError, match=f'1 missing: {key}'):
            load_checkpoint(model, str(tmp_path / 'a.pth'), strict=strict)


def test_init_cfg(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(dict(model=original_state()), tmp_path / 'a.pth')
    model = XCiT(TINY, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth')))
    model.init_weights()
    assert torch.equal(model.blocks[0].gamma1, original_state()['blocks.0.gamma1'])


def test_init_cfg_of_missing_file() -> None:
    model = XCiT(TINY, init_cfg=dict(type='Pretrained', checkpoint='/no/such.pth'))
    with pytest.raises(FileNotFoundError, match='no such weights file: /no/such.pth'):
        model.init_weights()


@pytest.mark.parametrize('backbone, kept', [
    (dict(pretrained='timm://a'), dict()),
    (dict(pretrained=True), dict()),
    (dict(pretrained=False), dict(pretrained=False)),
    (dict(init_cfg=dict(type='Pretrained', checkpoint='a.pth'), depth=3), dict(depth=3)),
    (dict(init_cfg=[dict(type='Pretrained', checkpoint='a.pth'), dict(type='Kaiming')]),
     dict(init_cfg=[dict(type='Kaiming')])),
    (dict(init_cfg=dict(checkpoint='a.pth')), dict()),
])  # yapf: disable
def test_drop_pretrained(backbone: dict[str, Any], kept: dict[str, Any]) -> None:
    changes: list[str] = []
    assert drop_pretrained(dict(backbone=backbone), 'model', changes) == dict(backbone=kept)
    assert len(changes) == (backbone != kept)
    assert all(change.startswith('model.backbone.') for change in changes)
