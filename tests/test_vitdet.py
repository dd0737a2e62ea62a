"""ViTDet: relative positions, padded windows, and the authors' files."""
from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from test_export import build_graph
from test_reference import Case, cases
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import PlainViT
from colonnade.backbones.attention_maps import token_attention
from colonnade.backbones.kernels.resampling import Resampling
from colonnade.backbones.plain_vit.relative_positions import add_relative_positions
from colonnade.backbones.plain_vit.window_attention import Heads
from colonnade.export.graphs import to_onnx, to_pt2
from colonnade.export.verification import verify
from colonnade.necks import SimplePyramid
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import load_weights
from colonnade.weights.state_dicts import WeightsError

State = dict[str, Tensor]
TINY = dict(embed_dim=16, depth=3, num_heads=2, class_token=False)
ARGUMENTS: dict[str, Any] = dict(
    img_size=48, window_size=2, global_blocks=[1], rel_pos_size=4, window_padding='tokens',
    pos_embed_resize='bicubic')  # yapf: disable
WINDOWS_ALONE = dict(rel_pos_size=None, window_padding=None, pos_embed_resize='dinov2')


def tiny(**changes: Any) -> PlainViT:
    """Build a tiny backbone with random relative positions."""
    torch.manual_seed(0)
    backbone = PlainViT(TINY, **ARGUMENTS | changes)
    for name, parameter in backbone.named_parameters():
        if 'rel_pos' in name:
            nn.init.normal_(parameter)
    return backbone


def build_published(case: Case) -> nn.ModuleDict:
    """Build the backbone and the pyramid of a reference case."""
    made = case.json['constructor']
    windowed, depth, patch = made['window_block_indexes'], made['depth'], made['patch_size']
    arch = dict(
        embed_dim=made['embed_dim'], depth=depth, num_heads=made['num_heads'], class_token=False)
    options: dict[str, Any] = dict(rel_pos_size=made['img_size'] // patch)
    if not made['use_rel_pos']:
        arch |= dict(model='eva02_base_patch14_448', mlp_ratio=made['mlp_ratio'])
        options = dict(patch_size=patch)
    backbone = PlainViT(
        arch,
        img_size=made['pretrain_img_size'],
        out_indices=list(range(depth)),
        window_size=made['window_size'],
        global_blocks=[i for i in range(depth) if i not in windowed],
        pos_embed_resize='bicubic',
        window_padding='tokens',
        **options)
    neck = SimplePyramid(made['embed_dim'], patch, made['simple_feature_pyramid']['out_channels'])
    return nn.ModuleDict(dict(backbone=backbone, neck=neck)).eval()


@cases('vitdet_*', 'eva02_det_*')
def test_reference_outputs(name: str, tmp_path: Path) -> None:
    case = Case(name)
    model = build_published(case)
    path = tmp_path / 'model.pkl'
    state = case.fill.state_dict_from(case.json['keys'])
    path.write_bytes(pickle.dumps(dict(model=state, __author__='the authors')))
    load_weights(model, path)
    for convert in (nn.Module.float, nn.Module.double, lambda model: fuse(model.float())):
        if convert not in (nn.Module.float, nn.Module.double) and name.startswith('eva02'):
            continue  # separate layers of queries, keys and values cannot be fused
        convert(model)
        with torch.no_grad():
            maps = model.backbone(case.image().to(next(model.parameters()).dtype))
            levels = model.neck(maps)
        for index, output in enumerate(maps):
            case.compare(f'block_{index}', output, 1e-5)
        for index, output in enumerate(levels):
            case.compare(f'p{index + 2}', output, 1e-5)


def fuse(model: nn.Module) -> None:
    model.backbone.fuse()
    model.neck.fuse()


@pytest.mark.parametrize('window_size', [None, 3])
@pytest.mark.parametrize('grid', [(4, 4), (7, 5), (1, 2)])
def test_channels_equal_definition(grid: tuple[int, int], window_size: int | None) -> None:
    """Compare with a mask of all terms; tables are those of a grid of four or three."""
    torch.manual_seed(0)
    count, width, side = grid[0] * grid[1], 6, window_size or 4
    heads = Heads(*(torch.randn(2, 3, count, width, dtype=torch.float64) for _ in range(3)))
    tables = tuple(torch.randn(2 * side - 1, width, dtype=torch.float64) for _ in range(2))
    found = F.scaled_dot_product_attention(
        *add_relative_positions(heads, grid, tables, window_size))[..., :width]
    mask = torch.zeros(2, 3, count, count, dtype=torch.float64)
    for axis, table in enumerate(tables):
        place = torch.arange(count) // grid[1] if axis == 0 else torch.arange(count) % grid[1]
        length = 2 * grid[axis] - 1 if window_size is None else len(table)
        resized = F.interpolate(table.T[None], size=length, mode='linear')[0].T
        place = place if window_size is None else place % window_size
        offset = place[:, None] - place + length // 2
        mask += torch.einsum('bhqd,qkd->bhqk', heads.query, resized[offset])
    if window_size is None:  # otherwise, keys of other windows are masked afterwards
        expected = F.scaled_dot_product_attention(*heads, attn_mask=mask)
        torch.testing.assert_close(found, expected)
        return
    extended = add_relative_positions(heads, grid, tables, window_size)
    scores = extended.query @ extended.key.mT / extended.query.shape[-1]**0.5
    torch.testing.assert_close(scores, heads.query @ heads.key.mT / width**0.5 + mask)


@pytest.mark.parametrize('mode', ['bicubic', 'bilinear', 'dinov2'])
@pytest.mark.parametrize('grid', [(3, 3), (2, 7), (1, 5)])
def test_resizing_equals_torch(mode: str, grid: tuple[int, int]) -> None:
    tokens = torch.randn(1, 9, 4, dtype=torch.float64)
    image = tokens.mT.unflatten(2, (3, 3))
    sizes = dict(size=grid)
    if mode == 'dinov2':
        sizes = dict(scale_factor=tuple((side + 0.1) / 3 for side in grid))
    kernel = 'bilinear' if mode == 'bilinear' else 'bicubic'
    expected = F.interpolate(image, **sizes, mode=kernel).flatten(2).mT
    found = Resampling.between((3, 3), grid, tokens, mode)(tokens)
    torch.testing.assert_close(found, tokens if grid == (3, 3) else expected)


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['.pt2', '.onnx'])
@pytest.mark.parametrize('arguments', [{}, dict(window_padding=None), WINDOWS_ALONE])
def test_export_of_any_size(suffix: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    graph, path = build_graph(tiny(**arguments).eval(), None), tmp_path / f'features{suffix}'
    inputs = graph.make_inputs(graph.sizes[0])
    if suffix == '.pt2':
        to_pt2(graph.module, inputs, graph.dynamic_shapes, path)
    else:
        to_onnx(graph.module, inputs, graph.dynamic_shapes, path, graph.input_names,
                graph.output_names)
    verify(graph, path, 10)


@pytest.mark.parametrize('block', [0, 1])
def test_attention_maps(block: int) -> None:
    """Weights are those of the attention, also of padded windows."""
    backbone = tiny().double().eval()
    images, layer = torch.randn(1, 3, 80, 48).double(), backbone.blocks[block].attn
    calls = []
    handle = layer.register_forward_pre_hook(lambda _, args: calls.append(args))
    backbone(images)
    handle.remove()
    (x, grid, *_), = calls
    maps = token_attention(backbone, images, (4, 1), block=block).maps
    assert maps.shape == (1, 2, 5, 3)
    assert bool(((maps > 0).flatten(2).sum(-1) == (2 if block == 0 else 15)).all())
    if block == 1:
        torch.testing.assert_close(maps.sum((2, 3)), torch.ones(1, 2).double())
    else:  # the rest is that of the padding
        assert bool((maps.sum((2, 3)) < 1).all())


def test_training_reaches_all_positions() -> None:
    backbone = PlainViT(TINY, **ARGUMENTS, with_cp=True)
    backbone(torch.randn(2, 3, 75, 101))[-1].square().mean().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_pretrained_weights_have_no_relative_positions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = PlainViT(dict(embed_dim=16, depth=3, num_heads=2), img_size=48)
    torch.save(plain.state_dict(), tmp_path / 'mae.pth')
    backbone = tiny()
    plan = load_weights(backbone, tmp_path / 'mae.pth')
    assert 'cls_token' not in plan.state
    torch.testing.assert_close(backbone.pos_embed, plain.pos_embed[:, 1:])
    assert not any(value.any() for name, value in plan.state.items() if 'rel_pos' in name)


def test_tables_of_another_grid_are_resized(tmp_path: Path) -> None:
    torch.save(tiny().state_dict(), tmp_path / 'model.pth')
    plan = load_weights(tiny(rel_pos_size=7), tmp_path / 'model.pth')
    assert set(plan.resized) == {f'blocks.1.attn.rel_pos_{axis}' for axis in 'hw'}


@pytest.mark.parametrize('arguments, message', [
    (dict(pos_embed_resize='nearest'), "one of timm, bicubic, bilinear, dinov2, got 'nearest'"),
    (dict(rel_pos_size=0), 'rel_pos_size must be a positive integer, got 0'),
    (dict(window_size=None, global_blocks=None),
     'window_padding has no effect without window_size'),
    (dict(arch=dict(TINY, class_token=True)), 'without prefix tokens'),
    (dict(arch=dict(TINY, class_token=True), window_padding=None), 'set class_token=False'),
])  # yapf: disable
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    arguments = ARGUMENTS | arguments
    with pytest.raises(ValueError, match=message):
        PlainViT(arguments.pop('arch', TINY), **arguments)


def to_detectron2(state: State) -> dict[str, np.ndarray]:
    """Rename tensors of our detectors as in detectron2; a cascade keeps its first mask head."""
    cascade = any(key.startswith('roi_head.bbox_head.0.') for key in state)
    rules = (
        (r'^backbone\.', 'backbone.net.'),
        (r'^neck\.stride(\d+)\.', lambda m: f'backbone.simfp_{int(m[1]).bit_length() - 1}.'),
        (r'^(backbone\.simfp_.*)\.conv\.', r'\1.'),
        (r'^rpn_head\.rpn_conv\.(\d)\.conv\.', r'proposal_generator.rpn_head.conv.conv\1.'),
        (r'^rpn_head\.rpn_cls\.', 'proposal_generator.rpn_head.objectness_logits.'),
        (r'^rpn_head\.rpn_reg\.', 'proposal_generator.rpn_head.anchor_deltas.'),
        (r'^roi_head\.mask_head\.0\.', 'roi_head.mask_head.'),
        (r'^roi_head\.bbox_head\.(\d\.)?fc_cls\.', r'roi_heads.box_predictor.\1cls_score.'),
        (r'^roi_head\.bbox_head\.(\d\.)?fc_reg\.', r'roi_heads.box_predictor.\1bbox_pred.'),
        (r'^roi_head\.bbox_head\.', 'roi_heads.box_head.'),
        (r'\.shared_convs\.(\d)\.conv\.', lambda m: f'.conv{int(m[1]) + 1}.'),
        (r'\.shared_convs\.(\d)\.ln\.', lambda m: f'.conv{int(m[1]) + 1}.norm.'),
        (r'\.shared_fcs\.(\d)\.', lambda m: f'.fc{int(m[1]) + 1}.'),
        (r'^roi_head\.mask_head\.', 'roi_heads.mask_head.'),
        (r'\.convs\.(\d)\.conv\.', lambda m: f'.mask_fcn{int(m[1]) + 1}.'),
        (r'\.convs\.(\d)\.ln\.', lambda m: f'.mask_fcn{int(m[1]) + 1}.norm.'),
        (r'\.upsample\.', '.deconv.'),
        (r'\.conv_logits\.', '.predictor.'),
    )  # yapf: disable
    named = {}
    for key, value in state.items():
        if cascade and re.match(r'roi_head\.mask_head\.[12]', key):
            continue
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        named[key] = value.numpy()
    positions = named['backbone.net.pos_embed']
    named['backbone.net.pos_embed'] = np.concatenate((positions[:, :1], positions), axis=1)
    return named


def small(head: str) -> Config:
    """Return the config of a published detector with a tiny backbone."""
    cfg = Config.fromfile(ROOT / f'configs/{head}/vit_base_patch16_224_mae_100ep_coco_lsj.py')
    cfg.model.backbone.arch = TINY
    cfg.model.backbone.update(ARGUMENTS)
    cfg.model.neck.update(in_channels=16, out_channels=16)
    cfg.model.rpn_head.update(in_channels=16, feat_channels=16)
    heads = cfg.model.roi_head.bbox_head
    for part in heads if isinstance(heads, list) else [heads]:
        part.update(in_channels=16, conv_out_channels=16, fc_out_channels=16)
    cfg.model.roi_head.mask_head.update(in_channels=16, conv_out_channels=16)
    for kind in ('bbox', 'mask'):
        cfg.model.roi_head[f'{kind}_roi_extractor'].out_channels = 16
    init_default_scope(cfg.default_scope)
    return cfg


@pytest.mark.parametrize('head', ['vitdet', 'cascade_vitdet'])
def test_published_detectors(head: str, tmp_path: Path, run_tool: Callable) -> None:
    cfg = small(head)
    torch.manual_seed(0)
    expected = MODELS.build(cfg.model).state_dict()
    for key, value in expected.items():  # stages share the mask head
        if match := re.match(r'(roi_head\.mask_head\.)[12](\..*)', key):
            value.copy_(expected[f'{match[1]}0{match[2]}'])
    content = dict(model=to_detectron2(expected), __author__='the authors')
    content['model']['pixel_mean'] = np.zeros((3, 1, 1), np.float32)
    path = tmp_path / 'model.pkl'
    path.write_bytes(pickle.dumps(content))
    model = MODELS.build(cfg.model)
    load_weights(model, path)
    found = model.state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)

    run_tool('convert_checkpoint', path, tmp_path / 'out.pth')
    model = MODELS.build(cfg.model)
    load_weights(model, tmp_path / 'out.pth')
    assert all(torch.equal(model.state_dict()[key], expected[key]) for key in expected)
    backbone = tiny()
    load_weights(backbone, path)
    assert torch.equal(backbone.pos_embed, expected['backbone.pos_embed'])

    del content['model']['roi_heads.mask_head.deconv.bias']
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(WeightsError, match=r'missing: roi_head\.mask_head\.(0\.)?upsample\.bias'):
        load_weights(model, path)


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
def test_pickled_arrays(protocol: int, tmp_path: Path) -> None:
    arrays = dict(
        half=np.arange(6, dtype=np.float16).reshape(2, 3),
        swapped=np.arange(3, dtype='>f4'),
        columns=np.asfortranarray(np.arange(6.).reshape(2, 3)),
        number=np.float64(2.5),
        empty=np.zeros((0, 4), np.int64))
    content = dict(model=arrays, iteration=3)
    (tmp_path / 'a.pkl').write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_checkpoint(tmp_path / 'a.pkl')
    assert found['iteration'] == 3
    for name, array in arrays.items():
        np.testing.assert_array_equal(found['model'][name].numpy(), array)
    text = (tmp_path / 'a.pkl').read_bytes().replace(b'numpy._core', b'numpy.core')
    if protocol == 2:  # of numpy 1; frames and short strings have lengths
        (tmp_path / 'b.pkl').write_bytes(text)
        assert read_checkpoint(tmp_path / 'b.pkl')['model'].keys() == arrays.keys()


class Command:
    """Object whose pickle would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path, )


@pytest.mark.parametrize('protocol', [2, 4, 5])
def test_other_pickles_are_rejected(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / 'victim'
    for name, content, message in (
        ('code', dict(model=Command(victim)), 'more than numpy arrays'),
        ('objects', dict(model=dict(a=np.array([{}]))), 'array a of object, expected numbers'),
        ('list', [1], 'contains a list, expected a dict'),
    ):  # yapf: disable
        path = tmp_path / f'{name}.pkl'
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(WeightsError, match=rf'{name}\.pkl .*{message}'):
            read_checkpoint(path)
    assert not victim.exists()
    path.write_bytes(pickle.dumps(dict(a=np.arange(1000)), protocol=protocol)[:-200])
    with pytest.raises(WeightsError, match='is damaged'):
        read_checkpoint(path)
