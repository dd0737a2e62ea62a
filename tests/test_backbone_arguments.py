"""Arguments of backbones, registry, layer depths and parameters."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers.backbones import ARCHS, every_class, timm_model, tiny
from mmengine.registry import MODELS, Registry

from colonnade.backbones import CaiT, ResMLP, SimplifiedViT, XCiT
from colonnade.backbones.kernels.devices import on_meta_device

RESOLVED = {  # out_indices of four blocks -> resolved ones
    None: (0, 1, 1, 3),
    (0, 3): (0, 3),
    (-1, ): (3, ),
    (-3, -1): (1, 3),
    (2, 2, 2, 2): (2, 2, 2, 2),
}


@every_class
def test_out_indices(cls: type) -> None:
    every, image = tiny(cls, out_indices=(0, 1, 2, 3)).eval(), torch.randn(1, 3, 32, 32)
    weights, all_maps = every.state_dict(), every(image)
    for out_indices, resolved in RESOLVED.items():
        backbone = tiny(cls, out_indices=out_indices).eval()
        backbone.load_state_dict({name: weights[name] for name in backbone.state_dict()})
        maps = backbone(image)
        assert backbone.out_indices == resolved
        assert len(backbone.blocks) == resolved[-1] + 1
        assert all(torch.equal(m, all_maps[i]) for i, m in zip(resolved, maps, strict=True))


@pytest.mark.parametrize('cls, arch, out_indices', [
    (XCiT, 'nano_12_p16', (3, 5, 7, 11)),
    (XCiT, 'tiny_24_p8', (7, 11, 15, 23)),
    (ResMLP, 's36', (11, 17, 23, 35)),
    (CaiT, 'm48', (15, 23, 31, 47)),
])
def test_default_out_indices(cls: type, arch: str, out_indices: tuple) -> None:
    with on_meta_device():
        assert cls(arch).out_indices == out_indices


WRONG = [  # arguments, message
    (dict(arch='small_12_p14'), r"has no arch 'small_12_p14': choose one of"),
    (dict(depth=0), 'depth must be at least 1, got 0'),
    (dict(arch=dict(embed_dim=32, width=1)), r"missing \['depth'.* unknown \['width'\]"),
    (dict(out_indices=(0, 4)), r'out_indices must be block indices from -4 to 3, got \(0, 4\)'),
    (dict(out_indices=(-5, )), r'out_indices must be block indices'),
    (dict(out_indices=()), r'out_indices must be block indices'),
    (dict(out_indices=(3, 1)), 'out_indices must go from shallow to deep'),
    (dict(frozen_stages=5), 'frozen_stages must be between -1 and 4, got 5'),
    (dict(drop_path_rate=1.0), r'drop_path_rate must be in \[0, 1\), got 1.0'),
]


@every_class
def test_rejects_wrong_arguments(cls: type) -> None:
    for kwargs, message in WRONG:
        columns = {key: value for key, value in kwargs.items() if key == 'depth'}
        others = {key: value for key, value in kwargs.items() if key != 'depth'}
        with pytest.raises(ValueError, match=message):
            cls(**{'arch': ARCHS[cls] | columns, **others})


@pytest.mark.parametrize('cls, kwargs, message', [
    (XCiT, dict(arch=dict(patch_size=14)), 'patch_size must be 8 or 16, got 14'),
    (XCiT, dict(arch=dict(num_heads=5)), 'multiple of num_heads, .* num_heads 5'),
    (XCiT, dict(arch=dict(embed_dim=36)), 'embed_dim must be a multiple of 8 .*, got 36'),
    (XCiT, dict(with_cp='attention'), 'with_cp must be False, True for all blocks'),
    (CaiT, dict(img_size=100), 'img_size must be a multiple of patch_size 16, got 100'),
    (CaiT, dict(attn_block_size=0), 'attn_block_size must be positive, got 0'),
    (CaiT, dict(attn_budget=-1.), 'attn_budget must be positive'),
    (CaiT, dict(attn_block_size=4, attn_budget=1.), 'attn_budget has no effect with attn_block'),
    (ResMLP, dict(token_mixing='tile'), "token_mixing must be resample or window, got 'tile'"),
    (ResMLP, dict(img_size=60), 'img_size must be a multiple of patch_size 8, got 60'),
    (SimplifiedViT, dict(block='serial'), "must be one of parallel, sequential, plain, got 'seri"),
    (SimplifiedViT, dict(init='static'), r"'inverse_dynamic' or a pair \(alpha, .* 'static'"),
    (SimplifiedViT, dict(init=(1, 0, 0)), r'or a pair \(alpha, beta\) .* got \(1, 0, 0\)'),
    (SimplifiedViT, dict(init=0.5), r'or a pair \(alpha, beta\) .* got 0.5'),
    (SimplifiedViT, dict(block='plain', init=(1, 0)), "init has no effect with block='plain'"),
    (SimplifiedViT, dict(block='plain', centring=True), 'centring has no effect with block='),
    (SimplifiedViT, dict(img_size=100), 'img_size must be a multiple of patch_size 8, got 100'),
])
def test_rejects_wrong_own_arguments(cls: type, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**kwargs | dict(arch=ARCHS[cls] | kwargs.get('arch', {})))


@every_class
def test_rejects_unknown_argument(cls: type) -> None:
    with pytest.raises(TypeError, match='dorp_path_rate'):
        tiny(cls, dorp_path_rate=0.1)


@pytest.mark.parametrize('make, name, depth', [
    (XCiT, 'backbone.patch_embed.proj.0.0.weight', 0),
    (XCiT, 'backbone.pos_embed.token_projection.bias', 0),
    (XCiT, 'backbone.blocks.0.norm1.weight', 1),
    (XCiT, 'backbone.blocks.3.gamma2', 4),
    (XCiT, 'neck.stride4.0.weight', 5),
    (CaiT, 'backbone.pos_embed', 0),
    (CaiT, 'backbone.blocks.2.attn.proj_l.bias', 3),
    (ResMLP, 'backbone.stem.proj.weight', 0),
    (ResMLP, 'backbone.blocks.1.ls1', 2),
])
def test_layer_depth(make: type, name: str, depth: int) -> None:
    assert tiny(make).get_layer_depth(name, prefix='backbone.') == (depth, 6)


@every_class
def test_every_parameter_has_layer_depth(cls: type) -> None:
    backbone = tiny(cls)
    depths = {backbone.get_layer_depth(name)[0] for name, _ in backbone.named_parameters()}
    assert depths == {0, 1, 2, 3, 4}


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', None])
@every_class
def test_registry_in_every_scope(cls: type, scope: str | None) -> None:
    cfg = dict(type=cls.__name__, arch=ARCHS[cls], **({'_scope_': scope} if scope else {}))
    assert type(MODELS.build(cfg)) is cls


@pytest.fixture
def mmpretrain() -> Iterator[Registry]:
    """A registry like mmpretrain's, which has an XCiT of its own."""
    registry = Registry('model', parent=MODELS, scope='mmpretrain')

    @registry.register_module(name='XCiT')
    class Theirs:
        """Not ours."""

    yield registry
    del MODELS.children['mmpretrain']


@pytest.mark.parametrize('name, scope, ours', [
    ('XCiT', 'mmpretrain', False),
    ('mmpretrain.XCiT', 'mmdet', False),
    ('XCiT', 'mmdet', True),
    ('mmengine.XCiT', 'mmpretrain', True),
    ('mmengine.XCiT', 'mmseg', True),
    ('mmengine.XCiT', None, True),
    ('CaiT', 'mmpretrain', True),
])
def test_registry_next_to_mmpretrain(name: str, scope: str | None, ours: bool,
                                     mmpretrain: Registry) -> None:
    arch = dict(arch=ARCHS[CaiT if name == 'CaiT' else XCiT]) if ours else {}
    built = MODELS.build(dict(type=name, **arch, **({'_scope_': scope} if scope else {})))
    assert isinstance(built, (XCiT, CaiT)) == ours


@pytest.mark.parametrize('cls, settings', [(CaiT, dict(norm_cfg=dict(type='BN'))),
                                           (ResMLP, dict(norm_eval=True))])
def test_warns_of_settings_without_effect(cls: type, settings: dict,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr('colonnade.backbones.columnar.print_log',
                        lambda text, **_: said.append(text))
    tiny(cls, **settings)
    assert f'{next(iter(settings))} has no effect on {cls.__name__}' in said[0]


@every_class
def test_drop_path_is_constant(cls: type) -> None:
    rates = [
        m.drop_prob for m in tiny(cls, drop_path_rate=0.15).modules()
        if type(m).__name__ == 'DropPath'
    ]
    assert set(rates) == {0.15}
    assert len(rates) % 4 == 0 < len(rates)


@every_class
def test_parameters_equal_timm(cls: type) -> None:
    for arch in cls.variants.rows:
        check_parameters(cls, arch)


def check_parameters(cls: type, arch: str) -> None:
    with on_meta_device():
        ours, theirs = cls(arch), timm_model(cls, arch)
    expected = {
        name: tensor.shape
        for name, tensor in theirs.state_dict().items()
        if name.split('.')[0] not in ours.classifier_names
    }
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == expected
    settings = cls.variants.rows[arch]
    assert (ours.embed_dim, ours.depth,
            ours.patch_size) == (settings['embed_dim'], settings['depth'], settings['patch_size'])
    assert 'num_heads' not in settings or (theirs.blocks[0].attn.num_heads
                                           == ours.blocks[0].attn.num_heads)
