"""Files of PlainViT: identification of the timm model, conversion and download."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from helpers.layouts_by_hand import randomised
from helpers.plain_vit_files import FILES, dinov3, layer_scale_as_parameters

from colonnade.backbones import PlainViT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.plain_vit.architectures import list_known_models
from colonnade.models.checkpoint_conversion import build_backbone, plan_conversion
from colonnade.weights import downloads
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import plan_loading
from colonnade.weights.state_dicts import State, WeightsError

OF_CLASSIFIERS = ('norm.', 'fc_norm.', 'attn_pool.', 'head')


def of_backbone(state: State) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in state.items() if not key.startswith(OF_CLASSIFIERS)}


def build_state(model: str, **kwargs: object) -> State:
    with on_meta_device():
        return timm.create_model(model, **kwargs).state_dict()


QUICK = 'vit_small_patch16_rope_ape_224'  # the others are slow


@pytest.mark.parametrize('model', [
    pytest.param(model, marks=() if model == QUICK else pytest.mark.slow)
    for model in sorted(list_known_models())
])
def test_identifies_every_timm_model(model: str) -> None:
    state = build_state(model)
    found = build_backbone(state, 'test').state_dict()
    assert of_backbone(found) == of_backbone(state)
    assert ('norm.weight' in found) == ('norm.weight' in state)


@pytest.mark.parametrize('model, img_size, patch_size',
                         [('vit_small_patch14_reg4_dinov2', 112, 14),
                          ('vit_small_patch14_dinov2', 140, 10),
                          ('deit_small_distilled_patch16_224', 96, 8)])
def test_infers_grid_and_patch_size(model: str, img_size: int, patch_size: int) -> None:
    state = build_state(model, img_size=img_size, patch_size=patch_size)
    assert of_backbone(build_backbone(state, 'test').state_dict()) == of_backbone(state)


def test_custom_sizes_need_arguments() -> None:
    for content in (FILES['DINOv2'].content(), FILES['EVA-02'].content()):
        with pytest.raises(WeightsError, match=r'load the file into PlainViT\(dict\(model='):
            plan_conversion(content, 'a.pth')


def whole(model: str) -> State:
    torch.manual_seed(0)
    return randomised(timm.create_model(model, num_classes=0))


@pytest.mark.parametrize('model, make, loads_into', [
    ('vit_small_patch16_dinov3', dinov3,
     ['vit_small_patch16_dinov3', 'vit_small_patch16_dinov3_qkvb']),
    ('deit3_small_patch16_224', layer_scale_as_parameters,
     ['deit3_small_patch16_224', 'vit_small_patch16_rope_ape_224']),
])  # yapf: disable
def test_converted_file_loads(model: str, make: Callable, loads_into: list[str], tmp_path: Path,
                              run_tool: Callable) -> None:
    published = make(whole(model))
    torch.save(dict(model=published), tmp_path / 'in.pth')
    run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'out.safetensors')
    for arch in loads_into:
        with on_meta_device():
            backbone = PlainViT(arch)
        plan = plan_loading(backbone, read_checkpoint(tmp_path / 'out.safetensors'), 'test')
        assert plan.layout == 'PlainViT, timm or Colonnade'
        expected = plan_loading(backbone, published, 'test').state
        assert all(torch.equal(plan.state[key], value) for key, value in expected.items())


def test_files_outside_timm_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(FILES['I-JEPA'].content(), tmp_path / 'jepa.pth.tar')
    asked = []
    monkeypatch.setattr(downloads, 'download', lambda url: asked.append(url) or tmp_path /
                        'jepa.pth.tar')  # yapf: disable
    checkpoint = downloads.fetch('timm://vit_huge_patch14_gap_224.in1k_ijepa')
    assert asked == ['https://dl.fbaipublicfiles.com/ijepa/IN1K-vit.h.14-300e.pth.tar']
    assert plan_loading(FILES['I-JEPA'].one_backbone, checkpoint, 'test').state


def test_other_file_names_in_timm_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    name = 'vit_small_patch16_dinov3.lvd1689m'
    published = replace(downloads.get_pretrained_cfg(name), hf_hub_filename='other.safetensors')
    monkeypatch.setattr(downloads, 'get_pretrained_cfg', lambda _: published)
    monkeypatch.setattr(downloads.socket, 'getaddrinfo', lambda *_: None)
    monkeypatch.setattr(downloads, 'load_state_dict_from_hf', lambda *names, **_: asked.append(
        names) or {})  # yapf: disable
    assert downloads.fetch(f'timm://{name}') == {}
    assert asked == [(f'timm/{name}', 'other.safetensors')]


@pytest.mark.parametrize('name', ['vit_small_patch16_dinov3.none', 'vit_small_patch16_dinov4'])
def test_suggests_published_names(name: str) -> None:
    with pytest.raises(WeightsError, match=f'{name}; did you mean .*vit_small_patch16_dinov3.lvd'):
        downloads.fetch(f'timm://{name}')
