"""Weights of PlainViT: every published format, compared with timm, and other sizes."""
from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from helpers.layouts_by_hand import TINY, TINY_CAIT, State, cait_state, timm_state
from helpers.plain_vit_files import DEPTH, FILES, SIDE, WIDTH, File, transformers
from torch import nn

from colonnade.backbones import CaiT, PlainViT, XCiT
from colonnade.backbones.plain_vit import checkpoint_formats
from colonnade.necks import ColumnarPyramid
from colonnade.weights.formats import FORMATS, convert_keys
from colonnade.weights.loading import load_weights, plan_loading
from colonnade.weights.state_dicts import WeightsError, add_prefix

every_file = pytest.mark.parametrize('file', FILES.values(), ids=FILES)
STEM = ('cls_token', 'pos_embed', 'class_embedding', 'patch_embed.proj.bias', 'storage_tokens',
        'reg_token', 'conv1.weight')  # yapf: disable


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Return levels and texts that a backbone logs."""
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(checkpoint_formats, 'print_log', lambda text, *, level, **_: lines.append(
        (level, text)))
    return lines


def equal(got: State, expected: State) -> bool:
    """Return True if all tensors of ``got`` are in ``expected``, bit for bit."""
    return all(torch.equal(value, expected[key]) for key, value in got.items())


@every_file
def test_loads_files_like_timm(file: File) -> None:
    backbone, state = file.one_backbone, file.state()
    assert {layout.name.split(',')[0]
            for layout in FORMATS if layout.matches(state)} == {'PlainViT'}

    plan = plan_loading(backbone, file.content(), 'test')

    assert plan.layout == f'PlainViT, {file.layout}'
    assert plan.state.keys() == backbone.state_dict().keys()
    assert plan.resized == ()
    assert equal(plan.state, file.by_timm() if file.timm_reads else state)
    assert state.keys() == file.state().keys() and equal(state, file.state())


@pytest.mark.parametrize('name, prefix', [
    ('DINOv2', ''), ('DINOv2 with registers', 'dinov2_with_registers.'), ('DINOv2 giant', ''),
    ('DeiT', 'vit.'), ('DeiT distilled', 'deit.')])  # yapf: disable
def test_loads_files_of_transformers(name: str, prefix: str) -> None:
    file = FILES[name]
    backbone, state = file.one_backbone, transformers(file.state(), prefix)
    plan = plan_loading(backbone, state, 'test')
    assert plan.layout == 'PlainViT, transformers'
    assert plan.state.keys() == backbone.state_dict().keys()
    assert equal(plan.state, file.by_timm())
    key = next(key for key in state if key.endswith('layer.1.attention.attention.key.weight'))
    with pytest.raises(WeightsError, match='keys or values of backbone.blocks.1 are missing'):
        plan_loading(backbone, without(state, key), 'test')
    key = next(
        key for key in state
        if key.endswith('layer.1.norm2.bias') or key.endswith('layer.1.layernorm_after.bias'))
    with pytest.raises(WeightsError, match=r'missing: blocks\.1\.norm2\.bias'):
        plan_loading(backbone, without(state, key), 'test')


def without(state: State, *keys: str) -> State:
    return {key: value for key, value in state.items() if key not in keys}


@every_file
def test_rejects_changed_blocks_and_stems(file: File) -> None:
    backbone, state = file.one_backbone, file.state()
    keys = [
        key for key in state
        if f's.{DEPTH - 1}.' in key and not any(part in key for part in ('.B.', 'qkv.bias'))
    ]
    reshaped, renamed, dropped, joined = keys[0], *keys[-3:]
    spoilt = without(state, renamed, dropped)
    spoilt |= {
        reshaped: state[reshaped][None],
        f'{renamed}s': state[renamed],
        f'{joined}.more': torch.zeros(1)
    }
    with pytest.raises(WeightsError) as caught:
        plan_loading(backbone, spoilt, 'test')
    before, after = (backbone.rename_state(convert_keys(each, '')[1]) for each in (state, spoilt))
    differing = before.keys() ^ after.keys()
    assert len(differing) == 4
    assert all(key in str(caught.value) for key in differing)
    assert f'1 of another shape: blocks.{DEPTH - 1}.' in str(caught.value)
    keys = [key for key in state if key.endswith(STEM) and not key.startswith('decoder_')]
    for spoilt in (without(state, keys[0]), state | {keys[-1]: state[keys[-1]][None]}):
        with pytest.raises(WeightsError, match='does not fit|none of the|cannot be converted'):
            plan_loading(backbone, spoilt, 'test')


def test_reports_tensors_that_conversion_needs() -> None:
    file = FILES['DINOv2 with registers']
    with pytest.raises(
            WeightsError, match=r'^a.pth \(PlainViT, DINOv2\) .*: pos_embed is missing$'):
        plan_loading(file.one_backbone, without(file.state(), 'pos_embed'), 'a.pth')
    state = file.state() | {'patch_embed.proj.weight': torch.rand(WIDTH, 3 * 14**2)}
    with pytest.raises(WeightsError, match='a.pth .* a tensor has an unexpected shape'):
        plan_loading(file.one_backbone, state, 'a.pth')


def test_rejects_key_biases_of_dinov3() -> None:
    content = FILES['DINOv3, biases'].content()
    with pytest.raises(WeightsError, match='6 unexpected: blocks.0.attn.q_bias'):
        plan_loading(FILES['DINOv3'].backbone(), content, 'test')
    del content['blocks.1.attn.qkv.bias_mask']
    with pytest.raises(WeightsError, match='blocks.1.attn.qkv.bias has key biases'):
        plan_loading(FILES['DINOv3, biases'].backbone(), content, 'test')


def test_drops_zero_biases() -> None:
    plan = plan_loading(FILES['DINOv3'].backbone(), FILES['DINOv3'].content(), 'test')
    assert 'blocks.1.attn.q_bias' in plan.dropped


def test_classifiers_may_have_other_parts() -> None:
    pooled = FILES['timm vit_base_patch16_siglip_512']
    alone = FILES['timm vit_base_patch16_siglip_gap_512']
    plan = plan_loading(alone.one_backbone, pooled.content(), 'test')
    assert 'attn_pool.latent' in plan.dropped
    assert plan_loading(pooled.one_backbone, alone.content(), 'test').state
    for file, key in ((pooled, 'attn_pool.latent'), (FILES['EVA'], 'fc_norm.bias')):
        with pytest.raises(WeightsError, match=f'1 missing: {key}'):
            plan_loading(file.one_backbone, without(file.state(), key), 'test')


def test_norm_features_needs_final_norm() -> None:
    state, backbone = FILES['DINO'].state(), FILES['DINO'].backbone(norm_features=True)
    assert torch.equal(
        plan_loading(backbone, state, 'test').state['norm.weight'], state['norm.weight'])
    with pytest.raises(WeightsError, match='1 missing: norm.bias'):
        plan_loading(backbone, without(state, 'norm.bias'), 'test')


@pytest.mark.parametrize('prefix, wrapper', [('', None), ('module.', 'model'), ('', 'module'),
                                             ('module.', 'state_dict')])
def test_wrappers(prefix: str, wrapper: str | None, tmp_path: Path) -> None:
    file, backbone = FILES['PE core'], FILES['PE core'].backbone()
    state = add_prefix(file.state(), prefix)
    torch.save({wrapper: state, 'epoch': 1} if wrapper else state, tmp_path / 'a.pth')
    load_weights(backbone, tmp_path / 'a.pth')
    assert equal(backbone.state_dict(), file.by_timm())


@pytest.mark.parametrize('name', ['DINOv2 with registers', 'DeiT-III', 'EVA-02', 'Sapiens2'])
def test_loads_own_backbone_and_full_model(name: str) -> None:
    ours = FILES[name].backbone()
    alone = plan_loading(FILES[name].one_backbone, ours.state_dict(), 'test')
    assert (alone.layout, alone.renamed) == ('PlainViT, timm or Colonnade', ())
    assert equal(alone.state, ours.state_dict())
    model = nn.ModuleDict(dict(backbone=ours, neck=ColumnarPyramid(WIDTH, 16)))
    model['decode_head'] = nn.Linear(2, 2)
    plan = plan_loading(FILES[name].one_backbone, model.state_dict(), 'test')
    assert plan.layout == 'full model, Colonnade'
    assert equal(plan.state, ours.state_dict())
    assert 'decode_head.weight' in plan.dropped


def test_drops_blocks_after_last_out_index() -> None:
    for file in FILES.values():
        plan = plan_loading(file.backbone(out_indices=(0, 1)), file.content(), 'test')
        assert {key.split('.')[1] for key in plan.state if key.startswith('blocks.')} == {'0', '1'}
        assert any(key.startswith(f'blocks.{DEPTH - 1}.') for key in plan.dropped)
        if 'rope.freqs' in plan.state:
            assert plan.resized == ('rope.freqs', )
            assert torch.equal(plan.state['rope.freqs'], file.state()['rope.freqs'][:, :2])
    cut = FILES['DINOv3'].backbone(out_indices=(1, )).state_dict()
    assert plan_loading(FILES['DINOv3'].backbone(out_indices=(0, )), cut, 'test').dropped


RESIZED = {
    name: FILES[name]
    for name in ('DINOv2', 'DINOv2 with registers', 'DeiT distilled', 'EVA', 'EVA-02', 'RADIO')
} | {
    'FlexiViT': File('flexivit_small', '', dict)
}


@pytest.mark.parametrize('name, dtype', [
    *((name, torch.float32) for name in RESIZED),
    ('DINOv2', torch.float16),
    ('EVA-02', torch.bfloat16),
])
def test_resizes_positions_like_timm(name: str, dtype: torch.dtype, said: list) -> None:
    file = RESIZED[name]
    state = {key: value.to(dtype) for key, value in file.state().items()}
    own = file.arch['img_size']
    plan = plan_loading(file.backbone(img_size=own // SIDE * 5), dict(state), 'test')
    assert plan.resized == ('pos_embed', )
    (level, text), = said
    assert level == logging.WARNING and 'is resized from 3 x 3 tokens to 5 x 5' in text
    assert text.endswith(f'To keep it unchanged, set img_size={own}')
    assert plan.state['pos_embed'].dtype == dtype
    expected = file.by_timm(state, img_size=own // SIDE * 5)
    assert torch.equal(plan.state['pos_embed'].float(), expected['pos_embed'])


@pytest.mark.parametrize('name', RESIZED)
def test_resamples_patches_like_timm(name: str, said: list) -> None:
    file = RESIZED[name]
    size = 16 if file.arch['img_size'] == 14 * SIDE else 8
    backbone = file.backbone(patch_size=size, img_size=size * SIDE)
    plan = plan_loading(backbone, file.content(), 'test')
    assert plan.resized == ('patch_embed.proj.weight', ) and not said
    assert equal(plan.state, file.by_timm(patch_size=size, img_size=size * SIDE))


def test_resizes_positions_of_full_model(said: list) -> None:
    model = nn.ModuleDict(dict(backbone=FILES['DINOv2'].backbone(img_size=70)))
    model.load_state_dict(add_prefix(FILES['DINOv2'].backbone().state_dict(), 'backbone.'))
    (_, text), = said
    assert text.endswith('and then again for each image. To keep it unchanged, set img_size=42')
    assert model.backbone.pos_embed.shape == (1, 26, WIDTH)


def test_rejects_positions_of_non_square_grid() -> None:
    content = FILES['DINOv2'].content()
    content['pos_embed'] = torch.rand(1, 1 + 7, WIDTH)
    with pytest.raises(WeightsError, match=r'pos_embed is \(1, 8, 16\) in the file'):
        plan_loading(FILES['DINOv2'].one_backbone, content, 'test')


@pytest.mark.parametrize('make, state, file, model', [
    (lambda: PlainViT('vit_small_patch14_dinov2'), FILES['DINO'].state,
     'a PlainViT of embed_dim 16, depth 3, patch_size 16',
     'a PlainViT of embed_dim 384, depth 12, patch_size 14, prefix_tokens 1'),
    (FILES['DINOv3'].backbone, FILES['DINO'].state, 'a PlainViT of embed_dim 16, depth 3, '
     'patch_size 16, prefix_tokens 1, pos_embed True',
     'a PlainViT of embed_dim 16, depth 3, patch_size 16, prefix_tokens 5, pos_embed False'),
    (FILES['DINO'].backbone, timm_state, 'a custom XCiT of', 'a PlainViT of'),
    (FILES['DeiT-III'].backbone, cait_state, 'a custom CaiT of', 'a PlainViT of'),
    (lambda: XCiT(TINY), FILES['DINO'].state, 'a PlainViT of', 'a custom XCiT of'),
    (lambda: CaiT(TINY_CAIT), FILES['DeiT-III'].state, 'a PlainViT of', 'a custom CaiT of'),
])  # yapf: disable
def test_error_describes_both_backbones(make: type, state: type, file: str, model: str) -> None:
    with pytest.raises(WeightsError) as caught:
        plan_loading(make(), state(), 'a.pth')
    assert f'the file has {file}' in str(caught.value)
    assert f'the model {model}' in str(caught.value)
