"""EoMT: the reference outputs, masked attention, training and evaluation."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import SHARED
from helpers.plain_vit_files import dinov3
from mmdet.models.dense_heads import mask2former_head
from mmengine.structures import InstanceData
from test_reference import Case as StoredCase
from torch import Tensor, nn

from colonnade.backbones import PlainViT
from colonnade.backbones.plain_vit.eomt_formats import add_delta, convert_original
from colonnade.backbones.plain_vit.query_tokens import attend_to_open_patches
from colonnade.backbones.plain_vit.window_attention import Heads
from colonnade.heads.eomt_head import EoMTHead, SemanticEoMTHead
from colonnade.weights.files import read_checkpoint
from colonnade.weights.formats import rename_keys
from colonnade.weights.loading import plan_loading
from colonnade.weights.state_dicts import WeightsError, add_prefix

REFERENCE = SHARED / 'reference'
NAMES = sorted(path.stem for path in REFERENCE.glob('eomt_*.json'))
DINOV3 = 'vit_small_patch16_dinov3_qkvb'
needs_reference = pytest.mark.skipif(not NAMES, reason=f'no reference outputs in {REFERENCE}')


class Case(StoredCase):
    """Reference outputs of the authors' code, and the file of weights that they belong to."""

    def state(self, keys: str = 'keys') -> dict[str, Tensor]:
        return {
            key: torch.from_numpy(np.array(value))
            for key, value in self.fill.state_dict_from(self.json[keys]).items()
        }

    def build_backbone(self, **settings: Any) -> PlainViT:
        made = self.json['constructor']
        trunk = made['trunk']
        height, width = made['img_size']
        arch = trunk.get('overrides')
        if arch is None:
            arch = dict(embed_dim=trunk['config']['hidden_size'], depth=5, num_heads=4)
        backbone = PlainViT(
            dict(model=trunk['name'] if trunk['kind'] == 'timm' else DINOV3, **arch),
            patch_size=made['patch_size'],
            norm_features=True,
            **settings)
        if backbone.pos_embed is not None:  # positions of a rectangle are kept
            backbone.patch_embed.grid_size = (height // 16, width // 16)
            backbone.pos_embed = nn.Parameter(
                torch.zeros(1, height * width // 256, 1).expand(-1, -1, backbone.embed_dim).clone())
        return backbone

    def build(self, file: dict[str, Tensor]) -> nn.ModuleDict:
        """Build the network with the weights of a published file."""
        made = self.json['constructor']
        backbone = self.build_backbone(num_query_blocks=made['num_blocks'])
        head = SemanticEoMTHead(
            backbone.embed_dim,
            num_queries=made['num_q'],
            num_classes=made['num_classes'],
            train_cfg=dict(num_points=self.json.get('num_points', 1)))
        model = nn.ModuleDict(dict(backbone=backbone, decode_head=head))
        model.load_state_dict(plan_loading(model, file, 'file').state)
        return model.eval()

    def image(self) -> Tensor:
        scale, shift = (np.float32(value) for value in self.json['input_scale'])
        pixels = torch.from_numpy(scale * self.fill.image(*self.json['input']) + shift)
        mean, std = (
            torch.tensor(value)[:, None, None]
            for value in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        return (pixels - mean) / std

    def file(self) -> dict[str, Tensor]:
        """The published file; for DINOv3, after adding the weights that it belongs to."""
        if 'base_keys' not in self.json:
            return self.state()
        base = self.state('base_keys')
        return add_delta(base, self.delta())

    def delta(self) -> dict[str, Tensor]:
        """The file with differences to DINOv3."""
        return {
            key:
            value * np.float32(self.json['delta_scale'])
            if key.startswith('network.encoder.backbone.') else torch.full_like(
                value, self.json['overrides'][key]) if key in self.json['overrides'] else value
            for key, value in self.state().items()
        }


@needs_reference
@torch.no_grad()
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', NAMES)
def test_outputs_equal_the_original(name: str, dtype: torch.dtype) -> None:
    case = Case(name)
    model = case.build(case.file()).to(dtype)
    head, tokens = model['decode_head'], model['backbone'](case.image().to(dtype))
    (classes, ), (masks, ) = head(tokens)
    case.compare('class_logits', classes, 1e-5)
    case.compare('mask_logits', masks, 1e-5)
    if not case.json.get('masked'):
        return
    predictions = head.train()(tokens)
    for index, (classes, masks) in enumerate(zip(*predictions, strict=True)):
        case.compare(f'masked.class_logits_{index}', classes, 1e-5)
        case.compare(f'masked.mask_logits_{index}', masks, 1e-5)


@needs_reference
def test_losses_equal_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case('eomt_dinov2_small_96x128_b2')
    model = case.build(case.file())
    head = model['decode_head']
    classes, masks = head.train()(model['backbone'](case.image()))
    height, width = masks[0].shape[-2:]
    rows, columns = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing='ij')
    points = torch.stack((columns, rows), dim=-1).view(1, -1, 2)
    monkeypatch.setattr(mask2former_head, 'get_uncertain_point_coords_with_randomness',
                        lambda logits, *_: points.repeat(len(logits), 1, 1))
    monkeypatch.setattr(mask2former_head.torch, 'rand', lambda *_, **__: points)
    objects = []
    for targets in case.json['targets']:
        drawn = torch.zeros(len(targets), *case.json['input'][1:])
        for mask, target in zip(drawn, targets, strict=True):
            left, top, right, bottom = target['box']
            mask[top:bottom, left:right] = 1
        labels = torch.tensor([target['label'] for target in targets])
        objects.append(InstanceData(labels=labels, masks=drawn))
    losses = head.loss_by_feat(classes, masks, objects, [{}, {}])
    total = torch.stack([loss.sum() for loss in losses.values()]).sum()
    expected = case.arrays['loss_total']
    assert total.item() == pytest.approx(float(expected[0]), rel=1e-5)
    weights = dict(loss_mask=5, loss_dice=5, loss_cls=2)
    for index, row in enumerate(case.arrays['losses']):
        prefix = '' if index == len(masks) - 1 else f'd{index}.'
        for (name, weight), value in zip(weights.items(), row, strict=True):
            assert losses[prefix + name].item() == pytest.approx(weight * value, rel=1e-5)


@pytest.mark.parametrize('max_iters, phase', [(39122, 6520), (88692, 14782)])
def test_annealing_has_the_published_steps(max_iters: int, phase: int) -> None:
    head = EoMTHead(8, num_things_classes=2, num_stuff_classes=0)
    for block in range(4):
        start, end = phase * (block + 1), phase * (block + 2)
        found = []
        for step in (0, start, (start + end) // 2, end - 1, end, max_iters - 1):
            head.progress = step, max_iters
            found.append(head.compute_probabilities(4)[block])
        assert found[:2] == [1., 1.] and found[4:] == [0., 0.]
        assert found[2] == pytest.approx(0.5**0.9)
        assert 0 < found[3] < 0.01


def build_tiny(**settings: Any) -> tuple[PlainViT, EoMTHead]:
    torch.manual_seed(0)
    arch = dict(embed_dim=32, depth=4, num_heads=2, init_values=0.1)
    backbone = PlainViT(
        arch, img_size=64, **dict(norm_features=True, num_query_blocks=2) | settings)
    head = EoMTHead(
        32, num_queries=5, num_things_classes=2, num_stuff_classes=1, train_cfg=dict(num_points=64))
    return backbone, head


@pytest.mark.parametrize('with_cp', [False, True])
def test_every_parameter_gets_a_gradient(with_cp: bool) -> None:
    """Images are rectangles that are not multiples of the patch size."""
    backbone, head = build_tiny(with_cp=with_cp)
    classes, masks = head.train()(backbone.train()(torch.randn(2, 3, 40, 75)))
    assert [tuple(part.shape) for part in classes] == [(2, 5, 4)] * 3
    assert [tuple(part.shape) for part in masks] == [(2, 5, 12, 20)] * 3
    objects = [
        InstanceData(labels=torch.tensor([0, 2]), masks=torch.rand(2, 40, 75) > 0.5),
        InstanceData(labels=torch.zeros(0, dtype=torch.long), masks=torch.zeros(0, 40, 75))
    ]
    losses = head.loss_by_feat(classes, masks, objects, [{}, {}])
    sum(losses.values()).sum().backward()
    for module in (backbone, head):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    with torch.no_grad():
        (masks, ) = head.eval()(backbone.eval()(torch.randn(1, 3, 40, 75)))[1]
    assert head.resize_masks(masks, (40, 75)).shape == (1, 5, 40, 75)


def test_only_queries_are_masked() -> None:
    torch.manual_seed(0)
    heads = Heads(*torch.randn(3, 1, 2, 3 + 1 + 4, 8))
    heads = heads._replace(key=heads.key.requires_grad_())
    open_patches = torch.tensor([[[True, False, False, True], [False] * 4, [True] * 4]])
    out = attend_to_open_patches(heads, open_patches)
    seen = [torch.autograd.grad(out[0, :, row].sum(), heads.key, retain_graph=True)[0]
            for row in range(8)]  # yapf: disable
    expected = torch.ones(8, 8, dtype=torch.bool)
    expected[:3, 4:] = open_patches[0]
    assert torch.stack([grad[0].abs().sum((0, 2)) > 0 for grad in seen]).equal(expected)


def test_wrong_arguments() -> None:
    for settings, message in ((dict(num_query_blocks=5), 'must be between 0 and 4, got 5'),
                              (dict(norm_features=False), 'set norm_features=True'),
                              (dict(out_indices=[0]), 'requires all 4 blocks')):
        with pytest.raises(ValueError, match=message):
            build_tiny(**settings)
    backbone, head = build_tiny(num_query_blocks=0)
    with pytest.raises(ValueError, match='set model.backbone.num_query_blocks'):
        head(backbone(torch.randn(1, 3, 64, 64)))


def test_differences_to_dinov3_need_both_files() -> None:
    case = Case('eomt_dinov3_small_96x128')
    model = case.build(case.file())
    with pytest.raises(WeightsError, match='convert-checkpoint IN OUT --base DINOV3, and use OUT'):
        plan_loading(model, case.delta(), 'eomt.bin')
    other = case.state('base_keys') | {'norm.weight': torch.ones(3)}
    with pytest.raises(
            WeightsError, match='apply to: 1 tensors do not match, such as backbone.norm.w'):
        add_delta(other, case.delta())


def to_delta(state: dict[str, Tensor], base: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the authors' file of a model with DINOv3: differences to ``base``, and the head."""
    file = {key: value - base.get(key.removeprefix('backbone.'), 0) for key, value in state.items()}
    names = ((r'^embeddings\.', 'patch_embed.'), (r'^layers\.', 'blocks.'),
             (r'^', 'network.encoder.backbone.'))
    trunk = {
        key: value
        for key, value in to_transformers(file).items()
        if key.startswith(('embeddings.', 'layers.', 'norm.'))
    }
    head = {key: value for key, value in file.items() if key.startswith('decode_head.')}
    return rename_keys(trunk, names) | rename_keys(head, ((r'^decode_head\.', 'network.'), ))


def to_dinov3_model(base: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of timm's DINOv3 as transformers' ``DINOv3ViTModel``."""
    full = add_prefix(base, 'backbone.') | {'decode_head.q.weight': torch.ones(1)}
    named = rename_keys(to_transformers(full), ((r'^layers\.', 'layer.'), ))
    return {key: named[key] for key in named if key not in ('query.weight', 'attn_mask_probs')}


@pytest.mark.parametrize('publish',
                         [pytest.param(dict, marks=pytest.mark.slow), dinov3, to_dinov3_model])
def test_converting_differences(publish: Callable, tmp_path: Path, run_tool: Callable) -> None:
    """Meta's, transformers' and timm's files of DINOv3 are the base of the published differences.
    """
    torch.manual_seed(0)
    base = timm.create_model(DINOV3, num_classes=0).state_dict()
    for key in base:
        if key.endswith('_bias'):
            base[key].zero_()  # in the published models, too
    full = {f'backbone.{key}': torch.randn_like(value) for key, value in base.items()}
    full |= add_prefix(
        SemanticEoMTHead(384, num_classes=3, num_queries=9).state_dict(), 'decode_head.')
    files = delta, dinov3_file, out = [tmp_path / name for name in ('a.bin', 'b.pth', 'c.pth')]
    torch.save(to_delta(full, base), delta)
    torch.save(publish(base), dinov3_file)
    run_tool('convert_checkpoint', delta, out, '--base', dinov3_file)
    state = read_checkpoint(out)['state_dict']
    assert state.keys() == full.keys()
    for key, value in state.items():
        torch.testing.assert_close(value, full[key])
    for words, message in (
        ((delta, ), 'a.bin .*DINOv3, original. cannot be converted: .* --base DINOV3'),
        ((delta, '--base', delta), '--base .*a.bin: .* cannot be converted'),
        ((out, '--base', dinov3_file), '--base has no effect: .*c.pth does not store its weights'),
    ):  # yapf: disable
        with pytest.raises(SystemExit, match=message):
            run_tool('convert_checkpoint', words[0], tmp_path / 'd.pth', *words[1:])
    assert set(tmp_path.iterdir()) == set(files)


@needs_reference
@pytest.mark.parametrize('name', ['eomt_dinov2_small_96x128_b2', 'eomt_dinov3_small_96x128'])
def test_files_of_transformers(name: str) -> None:
    """Files of transformers give the same model as those of the authors."""
    case = Case(name)
    expected = case.build(case.file()).state_dict()
    loaded = case.build(to_transformers(case.file())).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(loaded[key].equal(expected[key]) for key in expected)


def to_transformers(file: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a model as transformers' ``eomt`` and ``eomt_dinov3``."""
    own = file if 'decode_head.q.weight' in file else convert_original(file)
    is_dinov3 = 'backbone.blocks.0.gamma_1' in own
    out = 'o' if is_dinov3 else 'out'
    rules = (
        (r'^backbone\.pos_embed$', 'embeddings.position_embeddings.weight'),
        (r'^backbone\.cls_token$', 'embeddings.cls_token'),
        (r'^backbone\.reg_token$', 'embeddings.register_tokens'),
        (r'^backbone\.patch_embed\.proj\.',
         'embeddings.patch_embeddings.' + ('' if is_dinov3 else 'projection.')),
        (r'^backbone\.blocks\.', 'layers.'),
        (r'^backbone\.norm\.', 'norm.' if is_dinov3 else 'layernorm.'),
        (r'\.attn\.proj\.', f'.attention.{out}_proj.'),
        (r'\.gamma_(\d)$', r'.layer_scale\1.lambda1'),
        (r'\.ls(\d)\.gamma$', r'.layer_scale\1.lambda1'),
        (r'^decode_head\.q\.', 'query.'),
        (r'^decode_head\.class_head\.', 'class_predictor.'),
        (r'^decode_head\.mask_head\.(\d)\.',
         lambda match: f'mask_head.fc{int(match[1]) // 2 + 1}.'),
        (r'^decode_head\.upscale\.(\d)\.norm\.', r'upscale_block.block.\1.layernorm2d.'),
        (r'^decode_head\.upscale\.', 'upscale_block.block.'),
    )
    renamed = {}
    for key, value in rename_keys(own, rules).items():
        block = key.rpartition('.attn.')[0]
        if key.endswith(('.attn.qkv.weight', '.attn.qkv.bias')):
            kind = key.rpartition('.')[2]
            parts = zip('qkv', value.chunk(3), strict=True)
            renamed |= {f'{block}.attention.{name}_proj.{kind}': part for name, part in parts}
        elif key.endswith(('.attn.q_bias', '.attn.v_bias')):
            renamed[f'{block}.attention.{key[-6]}_proj.bias'] = value
        else:
            renamed[key] = value[0] if 'position_embeddings' in key else value
    return renamed | {'attn_mask_probs': torch.zeros(3)}
