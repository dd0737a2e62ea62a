"""Published weights, which give the numbers of the original implementations."""
from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, SHARED
from helpers.backbones import OURS
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.attention_maps import class_attention, load_class_attention
from colonnade.necks import ColumnarPyramid
from colonnade.weights.formats import convert_keys
from colonnade.weights.loading import load_weights

REFERENCE = SHARED / 'reference'
KINDS = {cls.__name__.lower(): cls for cls in OURS}
RECIPES = {'mask_rcnn': '3x_coco', 'sem_fpn': '80k_ade20k', 'upernet': '160k_ade20k'}


def cases(*patterns: str) -> pytest.MarkDecorator:
    names = sorted(path.stem for p in patterns for path in REFERENCE.glob(f'{p}.json'))
    skip = pytest.mark.skip(reason=f'no reference outputs in {REFERENCE}')
    return pytest.mark.parametrize('name', names or [pytest.param('', marks=skip)])


class Case:
    """Stored case: weights, input and outputs of the original."""

    def __init__(self, name: str) -> None:
        sys.path.insert(0, str(REFERENCE))
        import fill
        sys.path.pop(0)
        self.fill, self.name = fill, name
        self.json = json.loads((REFERENCE / f'{name}.json').read_text())
        self.arrays = np.load(REFERENCE / f'{name}.npz')

    def checkpoint(self, folder: Path) -> Path:
        """The published file, in its original layout; ``folder`` keeps it for other tests."""
        path = folder / self.name
        if path.exists():
            return path
        state = {
            key: torch.from_numpy(np.array(value))
            for key, value in self.fill.state_dict_from(self.json['keys']).items()
        }
        wrapper = self.json['checkpoint']['wrapper']
        torch.save({wrapper: state} if wrapper else state, path)
        return path

    def backbone(self) -> ColumnarBackbone:
        """The backbone of the original's settings, whose LayerScale init the weights replace."""
        cls = next(cls for name, cls in KINDS.items() if name in self.name.split('_'))
        made = self.json['constructor']
        columns = set(next(iter(cls.variants.rows.values())))
        arch = {key: value for key, value in made.items() if key in columns}
        return cls(arch, out_indices=self.json.get('out_indices') or made['out_indices'])

    def dense_model(self, weights: Path) -> nn.ModuleDict:
        """The backbone with its pyramid, in training mode."""
        backbone = self.backbone()
        neck = ColumnarPyramid(backbone.embed_dim, backbone.patch_size)
        model = nn.ModuleDict(dict(backbone=backbone, neck=neck))
        load_weights(model, self.checkpoint(weights))
        return model

    def image(self) -> Tensor:
        return torch.from_numpy(self.fill.image(*self.json['input']))

    def compare(self, name: str, got: Tensor, tolerance: float) -> None:
        info, double = self.json['outputs'][name], got.dtype == torch.float64
        suffix, key = ('.f64', 'stride_f64') if double else ('', 'stride')
        assert list(got.shape) == info['shape']
        difference = np.abs(self.fill.subset(got.numpy(), info[key]) - self.arrays[name + suffix])
        limit = 5e-7 if double else tolerance
        assert difference.max() <= limit * info['absmax'], (name, difference.max())


@pytest.fixture(scope='module')
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('weights')


@pytest.fixture(
    params=[pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64],
    ids=['float32', 'float64'])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize('token_mixing', ['resample', 'window'])
@cases('resmlp_*')
@torch.no_grad()
def test_token_mixing_matches_original(name: str, token_mixing: str, weights: Path) -> None:
    case = Case(name)
    backbone = case.backbone().eval()
    load_weights(backbone, case.checkpoint(weights))
    for block in backbone.blocks:
        block.token_mixing = token_mixing
    case.compare('block_11', backbone(case.image())[case.json['out_indices'].index(11)], 1e-5)


@cases('cait_*')
@torch.no_grad()
def test_class_attention_matches_original(name: str, dtype: torch.dtype, weights: Path) -> None:
    case = Case(name)
    backbone = case.backbone().eval()
    load_weights(backbone, case.checkpoint(weights))
    stage = load_class_attention(backbone, case.checkpoint(weights))
    found = class_attention(backbone.to(dtype), stage.to(dtype), case.image().to(dtype))
    for layer, (maps, to_itself) in enumerate(found):
        weights = torch.cat([to_itself[..., None], maps.flatten(2)], dim=-1)
        case.compare(f'class_attention_{layer}', weights, 1e-5)


@cases('xcit_cls_*', 'cait_*', 'resmlp_*')
@torch.no_grad()
def test_classifier_files_match_original(name: str, dtype: torch.dtype, weights: Path) -> None:
    case = Case(name)
    backbone = case.backbone().eval()
    load_weights(backbone, case.checkpoint(weights))
    for index, got in zip(
            case.json['out_indices'], backbone.to(dtype)(case.image().to(dtype)), strict=True):
        case.compare(f'block_{index}', got, 1e-5)


@cases('xcit_dense_*')
@torch.no_grad()
def test_dense_files_match_original(name: str, dtype: torch.dtype, weights: Path) -> None:
    case = Case(name)
    model = case.dense_model(weights).eval().to(dtype)
    for name, got in compute_levels(model, case.image().to(dtype)).items():
        case.compare(name, got, 1e-5)


class Training:
    """Stored training case: the first batch and the losses of three steps."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case, self.dtype = case, dtype
        self.tolerance = 5e-7 if dtype == torch.float64 else 3e-5
        # Some gradients are 0 up to rounding: those of biases before batch norms.
        largest = max(info['absmax'] for info in case.json['gradients'].values())
        self.smallest_scale = 1e-3 * largest

    def loss(self, levels: dict[str, Tensor]) -> Tensor:
        return sum((level * self.cotangent(name, level)).mean() for name, level in levels.items())

    def cotangent(self, name: str, like: Tensor) -> Tensor:
        random = np.random.RandomState(zlib.crc32(f'cotangent/{name}'.encode()))
        values = random.standard_normal(tuple(like.shape)).astype(np.float32)
        return torch.from_numpy(values).to(like.dtype)

    def compare(self, name: str, got: Tensor) -> None:
        info = self.case.json['outputs'][name]
        self.check(name, self.case.fill.subset(got, info['stride']), info['absmax'])

    def compare_gradient(self, name: str, got: Tensor) -> None:
        """Compare some values, and the norm and a projection of them all."""
        info, got = self.case.json['gradients'][name], got.double()
        scale = max(info['absmax'], self.smallest_scale)
        self.check(f'grad/{name}', self.case.fill.subset(got, info['stride']), scale)
        scale *= got.numel()**0.5
        projection = (got * self.cotangent(f'grad/{name}', got)).sum().item()
        assert abs(got.norm().item() - info['norm']) <= self.tolerance * scale, name
        assert abs(projection - info['dot']) <= self.tolerance * scale, name

    def check(self, name: str, got: np.ndarray | Tensor, scale: float) -> None:
        difference = np.abs(np.asarray(got) - self.case.arrays[name]).max()
        assert difference <= self.tolerance * scale, (name, difference, scale)


@pytest.mark.parametrize('with_cp', [False, pytest.param(True, marks=pytest.mark.slow)])
@cases('train_*')
def test_training_matches_original(name: str, dtype: torch.dtype, with_cp: bool,
                                   weights: Path) -> None:
    case = Case(name)
    training = Training(case, dtype)
    model = case.dense_model(weights).train().to(dtype)
    model['backbone'].with_cp = with_cp
    image = case.image().to(dtype).requires_grad_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    _, names = convert_keys({key: key for key in case.json['keys']}, name)  # ours to the original's
    for step, expected in enumerate(case.json['losses']):
        optimizer.zero_grad()
        levels = compute_levels(model, image)
        loss = training.loss(levels)
        assert abs(loss.item() - expected) <= training.tolerance * max(abs(expected), 1)
        loss.backward()
        if step == 0:
            for key, level in levels.items():
                training.compare(key, level.detach())
            training.compare('image.grad', image.grad)
            for key, original in names.items():
                if key in parameters:
                    training.compare_gradient(original, parameters[key].grad)
                elif original in case.json['buffers']:
                    training.check(f'buffer/{original}', buffers[key], 1.)
            compared = {names[key] for key in parameters}
            assert compared == set(case.json['gradients'])
        optimizer.step()


def compute_levels(model: nn.ModuleDict, image: Tensor) -> dict[str, Tensor]:
    levels = model['neck'](model['backbone'](image))
    return {f'fpn{index}': level for index, level in enumerate(levels, 1)}


def detector_outputs(case: Case, model: nn.Module, image: Tensor) -> Iterator[tuple[str, Tensor]]:
    maps = model.extract_feat(image)
    rois = torch.tensor(case.json['rois'], dtype=torch.float32)
    yield from ((f'neck_{i}', m) for i, m in enumerate(maps))
    for kind, levels in zip(('rpn_cls', 'rpn_reg'), model.rpn_head(maps), strict=True):
        yield from ((f'{kind}_{i}', level) for i, level in enumerate(levels))
    head = model.roi_head
    yield from zip(('bbox_cls', 'bbox_reg'),
                   head.bbox_head(head.bbox_roi_extractor(maps[:4], rois)),
                   strict=True)
    yield 'mask', head.mask_head(head.mask_roi_extractor(maps[:4], rois))


def segmenter_outputs(case: Case, model: nn.Module, image: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield 'logits', model(image, mode='tensor')
    meta = dict(img_shape=tuple(image.shape[-2:]), ori_shape=tuple(image.shape[-2:]))
    yield 'encode_decode', model.encode_decode(image, [meta])
    if 'aux_logits' in case.json['outputs']:
        yield 'aux_logits', model.auxiliary_head(model.extract_feat(image))


def build(head: str, arch: str = 'small_12_p16') -> nn.Module:
    cfg = Config.fromfile(ROOT / f'configs/{head}/xcit_{arch}_{RECIPES[head]}.py')
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model).eval()


@pytest.mark.parametrize('entrance', [
    pytest.param(load_weights, id='ours'),
    pytest.param(load_checkpoint, id='mmengine', marks=pytest.mark.slow),
])
@cases('[msu]*_xcit_*_p*')
@torch.no_grad()
def test_full_models_match_original(name: str, entrance: Callable, weights: Path) -> None:
    case, head = Case(name), name.split('_xcit_')[0]
    model = build(head, name.split('_xcit_')[1])
    entrance(model, str(case.checkpoint(weights)))
    outputs = detector_outputs if head == 'mask_rcnn' else segmenter_outputs
    compared = {
        key
        for key, got in outputs(case, model, case.image()) if case.compare(key, got, 3e-5) is None
    }
    assert compared == set(case.json['outputs'])
