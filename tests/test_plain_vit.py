"""PlainViT: timm's vision transformers of every family, at any size."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.rounding import check_all_rounding
from mmengine.config import Config, ConfigDict
from mmengine.runner import load_checkpoint
from timm.models import group_parameters
from torch import Tensor, nn

from colonnade.backbones import PlainViT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.plain_vit.blocks import PlainBlock
from colonnade.engine.optim.layer_decay import LayerDecayConstructor
from colonnade.evaluation.benchmark.candidates import Intermediates
from colonnade.settings.backbone_config import fill_backbone_settings
from colonnade.settings.checks.pretrained_weights import find_normalization_problems
from colonnade.weights import WeightsError, load_weights

TINY = dict(embed_dim=48, depth=3, num_heads=2)
DINOV3, DEIT3 = 'vit_small_patch16_dinov3', 'deit3_small_patch16_224'
MODELS = {  # models of each type of block, prefix and positions -> number of prefix tokens
    DEIT3: 1,
    'vit_small_patch16_224': 1,
    'deit_small_distilled_patch16_224': 2,
    'vit_small_patch14_dinov2': 1,
    'vit_giant_patch14_dinov2': 1,
    'vit_base_patch14_reg4_dinov2': 5,
    'vit_base_patch14_reg1_tipsv2': 2,
    'vit_base_patch16_radio_v3': 8,
    'vit_base_patch16_clip_quickgelu_224': 1,
    'vit_base_patch16_siglip_512': 0,
    'beit3_base_patch16_224': 1,
    'aimv2_large_patch14_224': 0,
    DINOV3: 5,
    'vit_small_plus_patch16_dinov3': 5,
    'vit_base_patch16_sapiens2': 9,
    'eva_giant_patch14_224': 1,
    'eva02_small_patch14_336': 1,
    'eva02_base_patch14_448': 1,
    'vit_pe_core_base_patch16_224': 1,
    'vit_pe_spatial_base_patch16_512': 1,
    'vit_betwixt_patch16_rope_reg4_gap_256': 4,
    'vit_base_patch16_rope_mixed_ape_224': 1,
}
OTHER_BLOCKS = ('vit_base_patch16_rpn_224', 'vit_pwee_patch16_reg1_gap_256',
                'vit_base_patch16_18x2_224', 'vit_dlittle_patch16_reg1_gap_256',
                'eva02_enormous_patch14_clip_224')
# models whose properties other models have too
SIMILAR = ('vit_base_patch14_reg4_dinov2', 'vit_base_patch14_reg1_tipsv2',
           'vit_base_patch16_clip_quickgelu_224', 'vit_small_plus_patch16_dinov3',
           'vit_pe_spatial_base_patch16_512', 'vit_pwee_patch16_reg1_gap_256',
           'vit_base_patch16_18x2_224')  # yapf: disable


def tiny(model: str = DINOV3, **kwargs: object) -> PlainViT:
    """Build a small backbone with three feature maps, in float64; no weight is 0 or 1."""
    torch.manual_seed(0)
    arch = dict(model=model, **TINY, img_size=56 if 'patch14' in model else 64)
    if 'patch_size' in kwargs:
        del arch['img_size']
    if model == 'vit_base_patch16_sapiens2':
        arch |= dict(num_kv_heads=(1, 2, 1))
    backbone = PlainViT(arch, **dict(out_indices=(0, 1, 2)) | kwargs).double()
    for parameter in backbone.parameters():
        parameter.data += torch.rand_like(parameter) * 0.1
    return backbone


def pair(model: str, **kwargs: object) -> tuple[PlainViT, Intermediates]:
    """Return modules of Colonnade and timm with equal weights."""
    ours = tiny(model, **kwargs)
    theirs = ours.build_timm_module(ours.settings['img_size']).double()
    state = theirs.state_dict()
    for key, value in ours.state_dict().items():  # frequencies of fewer blocks
        state[key] = torch.cat(
            (value, state[key][:, value.shape[1]:]), 1) if '.freqs' in key else value
    theirs.load_state_dict(state)
    return ours.eval(), Intermediates(theirs.eval(), ours.out_indices, norm=ours.norm_features)


def gradients(model: nn.Module, maps: list[Tensor]) -> dict[str, Tensor]:
    sum((m * m.detach().cos()).mean() for m in maps).backward()
    named = getattr(model, 'backbone', model).named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}


@pytest.mark.parametrize('model', [
    pytest.param(model, marks=pytest.mark.slow if model in SIMILAR else [])
    for model in (*MODELS, *OTHER_BLOCKS)
])
def test_feature_maps_and_gradients_equal_timm(model: str) -> None:
    ours, theirs = pair(model)
    assert ours.num_prefix_tokens == MODELS.get(model, ours.num_prefix_tokens)
    assert isinstance(ours.blocks[0], PlainBlock) == (model in MODELS)
    native = (ours.settings['img_size'], ) * 2
    for size in ((75, 101), (ours.patch_size, ) * 2, native):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(ours(image), theirs(image), rtol=1e-9, atol=1e-11)
        if size != native:
            found = gradients(ours, ours(image))
            expected = gradients(theirs, theirs(image))
            assert set(found) == {name for name, _ in ours.named_parameters()}
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-7, atol=1e-10)
        ours.zero_grad()
        theirs.zero_grad()


@pytest.mark.parametrize('model', [DINOV3, DEIT3, 'eva02_base_patch14_448'])
def test_rounding_error_is_that_of_timm(model: str) -> None:
    ours, theirs = pair(model)
    image = torch.randn(1, 3, 75, 101)
    with torch.no_grad():
        exact = theirs(image.double())
        check_all_rounding(ours.float()(image), theirs.float()(image), exact)


@pytest.mark.parametrize('model, normalized', [
    (DINOV3, True),
    ('vit_small_patch14_dinov2', True),
    ('vit_base_patch16_224.dino', True),
    ('vit_base_patch16_224.mae', False),
    (DEIT3, False),
    ('vit_base_patch16_siglip_512', False),
])
def test_default_norm_features(model: str, normalized: bool) -> None:
    with on_meta_device():
        assert PlainViT(model).norm_features == normalized
        other = PlainViT(model, norm_features=not normalized)
    assert hasattr(other, 'norm') != normalized


def test_default_norm_features_of_init_cfg() -> None:
    with on_meta_device():
        init_cfg = dict(type='Pretrained', checkpoint='timm://vit_base_patch16_224.dino')
        assert PlainViT('vit_base_patch16_224', init_cfg=init_cfg).norm_features


def test_return_prefix_tokens() -> None:
    ours, theirs = pair(DINOV3, return_prefix_tokens=True)
    image = torch.randn(2, 3, 40, 56).double()
    expected = theirs.backbone.forward_intermediates(
        image, indices=[0, 1, 2], intermediates_only=True, norm=True, return_prefix_tokens=True)
    for pairs in zip(ours(image), expected, strict=True):
        torch.testing.assert_close(*pairs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('model', [DINOV3, DEIT3, 'vit_base_patch16_rope_mixed_ape_224'])
def test_early_out_indices_drop_later_blocks(model: str) -> None:
    ours, theirs = pair(model, out_indices=(0, 1))
    assert len(ours.blocks) == 2
    image = torch.randn(1, 3, 48, 48).double()
    torch.testing.assert_close(ours(image), theirs(image), rtol=1e-9, atol=1e-11)


def test_frozen_backbone_stores_nothing() -> None:
    backbone = tiny(frozen_stages=3).train()
    assert not any(p.requires_grad for p in backbone.parameters())
    assert not any(module.training for module in (*backbone.blocks.children(), backbone.norm))
    assert not any(m.requires_grad for m in backbone(torch.randn(1, 3, 32, 32).double()))


@pytest.mark.parametrize('model', [DINOV3, 'deit_small_distilled_patch16_224',
                                   'vit_base_patch16_rope_mixed_ape_224'])  # yapf: disable
def test_layer_depths_are_timm_groups(model: str) -> None:
    ours, theirs = pair(model)
    layers = group_parameters(theirs.backbone, theirs.backbone.group_matcher(), reverse=True)
    for name, _ in ours.named_parameters():
        depth, number = ours.get_layer_depth(f'backbone.{name}', prefix='backbone.')
        assert depth == min(layers[name], 4) and number == 5
    assert ours.get_layer_depth('neck.stride4.weight', prefix='backbone.') == (4, 5)


def test_no_weight_decay_of_tokens_and_frequencies() -> None:
    model = nn.ModuleDict(dict(backbone=tiny('vit_base_patch16_rope_mixed_ape_224')))
    model['backbone'].reg_token = nn.Parameter(torch.zeros(1, 4, 48))
    optimizer = dict(optimizer=dict(type='AdamW', lr=1., weight_decay=0.1))
    constructor = LayerDecayConstructor(optimizer, dict(flat_decay_mult=0.))
    groups = constructor(model).optimizer.param_groups
    free = {id(p) for group in groups if not group['weight_decay'] for p in group['params']}
    parameters = dict(model['backbone'].named_parameters())
    assert {id(parameters[name]) for name in ('reg_token', 'cls_token', 'pos_embed', 'rope.freqs')
            } <= free  # yapf: disable
    assert id(parameters['blocks.0.mlp.fc1.weight']) not in free


@pytest.mark.parametrize('model', [DINOV3, DEIT3, 'eva_giant_patch14_224'])
def test_fused_feature_maps_are_equal(model: str) -> None:
    backbone, image = tiny(model).eval(), torch.randn(1, 3, 60, 84).double()
    with torch.no_grad():
        expected = backbone(image)
        torch.testing.assert_close(backbone.fuse()(image), expected, rtol=1e-8, atol=1e-9)


def test_assigning_weights_to_meta_backbone() -> None:
    backbone, image = tiny().eval(), torch.randn(1, 3, 40, 56).double()
    with on_meta_device():
        empty = tiny().eval()
    empty.load_state_dict(backbone.state_dict(), assign=True)
    for a, b in zip(empty(image), backbone(image), strict=True):
        assert torch.equal(a, b)


def test_norm_features_of_full_model(tmp_path: Path) -> None:
    weights = dict(type='Pretrained', checkpoint='timm://vit_small_patch16_224.dino')
    arch = dict(model='vit_small_patch16_224', **TINY)
    model = ConfigDict(backbone=dict(type='PlainViT', arch=arch, init_cfg=weights))
    fill_backbone_settings(model)
    assert model.backbone.norm_features is True
    whole = nn.ModuleDict(dict(backbone=PlainViT(arch, init_cfg=weights)))
    torch.save(dict(state_dict=whole.state_dict()), tmp_path / 'a.pth')
    other = nn.ModuleDict(dict(backbone=PlainViT(arch)))
    for load in (load_weights, load_checkpoint):
        with pytest.raises(WeightsError, match='norm'):
            load(other, str(tmp_path / 'a.pth'))
    load_weights(other['backbone'], tmp_path / 'a.pth')  # a backbone takes what it needs


def test_attention_dropout() -> None:
    backbone = PlainViT(dict(TINY, attn_drop_rate=0.5), window_size=2, global_blocks=(2, ))
    image = torch.randn(1, 3, 64, 64)
    torch.manual_seed(1)
    once, again = backbone.train()(image), backbone(image)
    assert not torch.equal(once[0], again[0])
    assert torch.equal(backbone.eval()(image)[-1], backbone(image)[-1])


@pytest.mark.parametrize('make, message', [
    (lambda: PlainViT('vit_smal_patch16_dinov3'), f'did you mean {DINOV3}'),
    (lambda: PlainViT(f'{DINOV3}.lvd'), f'choose a tag of {DINOV3}: lvd1689m'),
    (lambda: PlainViT('swin_tiny_patch4_window7_224'), 'PlainViT has no arch'),
    (lambda: PlainViT(dict(embed_dim=48, depth=3)), r"missing \['num_heads'\]"),
    (lambda: PlainViT(dict(TINY, patch_drop_rate=0.1)), r"unknown \['patch_drop_rate'\]"),
    (lambda: PlainViT(dict(model=DINOV3, init_value=1)), r"unknown \['init_value'\]"),
    (lambda: PlainViT(dict(TINY, num_heads=5)), 'embed_dim must be a multiple of num_heads'),
    (lambda: PlainViT(dict(model='vit_base_patch16_sapiens2', depth=3)), 'timm cannot build'),
    (lambda: PlainViT(DINOV3, img_size=100), 'img_size must be a multiple of patch_size 16'),
    (lambda: tiny('eva02_base_patch14_448', norm_features=True), 'has no final norm'),
    (lambda: tiny(window_size=0), 'window_size must be a positive integer, got 0'),
    (lambda: tiny(window_size='14'), "positive integer, got '14'"),
    (lambda: tiny(window_size=2), 'window_size has no effect at depth 3'),
    (lambda: tiny(window_size=2, global_blocks=1), 'global_blocks must be a list'),
    (lambda: tiny(patch_size=0), 'patch_size must be a positive integer, got 0'),
    (lambda: tiny(img_size=(64, 96)), r'img_size must be a positive integer, got \(64, 96\)'),
    (lambda: PlainViT(5), "must be the name of a timm model or a dict, got 5"),
    (lambda: PlainViT(dict(TINY, act_layer='gelux')), "timm cannot build .*'gelux'"),
    (lambda: PlainViT(dict(TINY, embed_dim='64')), "embed_dim must be a positive .*'64'"),
    (lambda: PlainViT(dict(TINY, model='eva02_tiny_patch14_336', use_post_norm=True)),
     'rotary embeddings are not supported for'),
    (lambda: PlainViT(DINOV3, init_cfg='timm://x'), r'init_cfg must be dict\(type='),
    (lambda: tiny(global_blocks=(0, )), 'global_blocks has no effect without window_size'),
    (lambda: tiny(window_size=2, global_blocks=(3, )), 'global_blocks must be block indices'),
    (lambda: tiny(OTHER_BLOCKS[1], window_size=2, global_blocks=()),
     'window_size is not supported for'),
])
def test_rejects_wrong_arguments(make: Callable, message: str) -> None:
    with on_meta_device(), pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize('mean, checkpoint, warned', [
    (127.5, None, False),
    (120., None, True),
    (120., 'timm://vit_base_patch16_siglip_512.v2_webli', True),
    (120., 'timm://vit_base_patch16_224.mae', True),
    (120., 'file.pth', True),
    (120., 'timm://vit_base_patch16_224.nonsense', False),
    ((120., ), None, False),
])
def test_warns_of_normalization_for_other_weights(mean: float, checkpoint: str | None,
                                                  warned: bool) -> None:
    backbone = dict(type='PlainViT', arch='vit_base_patch16_siglip_512')
    if checkpoint:
        backbone['init_cfg'] = dict(type='Pretrained', checkpoint=checkpoint)
    preprocessor = dict(mean=[mean] * 3 if isinstance(mean, float) else mean, std=[127.5] * 3)
    model = dict(backbone=backbone, data_preprocessor=preprocessor)
    said = list(find_normalization_problems(Config(dict(model=model)), ()))
    assert bool(said) == warned
    if warned:
        assert 'set these in model.data_preprocessor' in str(said[0])
        assert said[0].severity == 'warning'


def test_dumped_configs_may_use_the_former_name_of_norm_features() -> None:
    arch = dict(model='vit_small_patch16_dinov3', embed_dim=64, depth=2, num_heads=2)
    assert not PlainViT(arch, tap_norm=False).norm_features
    assert PlainViT(arch, tap_norm=True).norm_features
