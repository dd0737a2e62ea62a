"""Files of PlainViT: which of timm's models they are of, what converts them, where they are."""
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
from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.backbones.plain_vit.architectures import known_models
from colonnade.models.checkpoint_conversion import build_backbone, plan_conversion
from colonnade.weights import downloads
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import plan_loading
from colonnade.weights.state_dicts import State, WeightsError

OF_CLASSIFIERS = ('norm.', 'fc_norm.', 'attn_pool.', 'head')


def of_backbone(state: State) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in state.items() if not key.startswith(OF_CLASSIFIERS)}


def state_of(model: str, **kwargs: object) -> State:
    with without_memory():
        return timm.create_model(model, **kwargs).state_dict()


SOME = ('vit_small_patch16_rope_ape_224', 'vit_base_patch16_sapiens2')


@pytest.mark.parametrize('model', [
    pytest.param(model, marks=() if model in SOME else pytest.mark.slow)
    for model in sorted(known_models())
])
def test_the_backbone_of_each_of_timms_models_is_found(model: str) -> None:
    state = state_of(model)
    found = build_backbone(state, 'test').state_dict()
    assert of_backbone(found) == of_backbone(state)
    assert ('norm.weight' in found) == ('norm.weight' in state)


@pytest.mark.parametrize('model, img_size, patch_size',
                         [('vit_small_patch14_reg4_dinov2', 112, 14),
                          ('vit_small_patch14_dinov2', 140, 10),
                          ('deit_small_distilled_patch16_224', 96, 8)])
def test_the_grid_and_patches_of_a_file_are_kept(model: str, img_size: int,
                                                 patch_size: int) -> None:
    state = state_of(model, img_size=img_size, patch_size=patch_size)
    assert of_backbone(build_backbone(state, 'test').state_dict()) == of_backbone(state)


def test_a_file_of_custom_sizes_says_what_to_do() -> None:
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
def test_a_converted_file_loads(model: str, make: Callable, loads_into: list[str], tmp_path: Path,
                                run_tool: Callable) -> None:
    published = make(whole(model))
    torch.save(dict(model=published), tmp_path / 'in.pth')
    run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'out.safetensors')
    for arch in loads_into:
        with without_memory():
            backbone = PlainViT(arch)
        plan = plan_loading(backbone, read_checkpoint(tmp_path / 'out.safetensors'), 'test')
        assert plan.layout == 'PlainViT, timm or ours'
        expected = plan_loading(backbone, published, 'test').state
        assert all(torch.equal(plan.state[key], value) for key, value in expected.items())


def test_files_that_are_not_at_timms_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I-JEPA's are fetched from its authors' site, as timm does."""
    torch.save(FILES['I-JEPA'].content(), tmp_path / 'jepa.pth.tar')
    asked = []
    monkeypatch.setattr(downloads, 'download', lambda url: asked.append(url) or tmp_path /
                        'jepa.pth.tar')  # yapf: disable
    checkpoint = downloads.fetch('timm://vit_huge_patch14_gap_224.in1k_ijepa')
    assert asked == ['https://dl.fbaipublicfiles.com/ijepa/IN1K-vit.h.14-300e.pth.tar']
    assert plan_loading(FILES['I-JEPA'].one_backbone, checkpoint, 'test').state


def test_files_of_another_name_at_timms_hub(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_names_that_timm_does_not_publish(name: str) -> None:
    with pytest.raises(WeightsError, match=f'{name}; did you mean .*vit_small_patch16_dinov3.lvd'):
        downloads.fetch(f'timm://{name}')
