"""Published layouts load with the numbers of the original implementations."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, SHARED
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from torch import Tensor, nn
from trunks import OURS

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.attention_maps import class_attention, load_class_attention
from colonnade.necks import ColumnarPyramid
from colonnade.weights.loading import load_weights

REFERENCE = SHARED / 'reference'
KINDS = {cls.__name__.lower(): cls for cls in OURS}
RECIPES = {'mask_rcnn': '3x_coco', 'sem_fpn': '80k_ade20k', 'upernet': '160k_ade20k'}


def cases(*patterns: str) -> pytest.MarkDecorator:
    names = sorted(path.stem for p in patterns for path in REFERENCE.glob(f'{p}.json'))
    skip = pytest.mark.skip(reason=f'no reference outputs in {REFERENCE}')
    return pytest.mark.parametrize('name', names or [pytest.param('', marks=skip)])


class Case:
    """A stored case: the original's weights, input and outputs."""

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

    def trunk(self) -> ColumnarBackbone:
        """The trunk of the original's settings, whose LayerScale init the weights replace."""
        cls = next(cls for name, cls in KINDS.items() if self.name.startswith(name))
        made = self.json['constructor']
        columns = set(next(iter(cls.variants.rows.values())))
        arch = {key: value for key, value in made.items() if key in columns}
        return cls(arch, out_indices=self.json['out_indices'])

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
def test_either_token_mixing_is_the_originals_at_its_size(name: str, token_mixing: str,
                                                          weights: Path) -> None:
    case = Case(name)
    trunk = case.trunk().eval()
    load_weights(trunk, case.checkpoint(weights))
    for block in trunk.blocks:
        block.token_mixing = token_mixing
    case.compare('block_11', trunk(case.image())[case.json['out_indices'].index(11)], 1e-5)


@cases('cait_*')
@torch.no_grad()
def test_class_attention_is_the_originals(name: str, dtype: torch.dtype, weights: Path) -> None:
    case = Case(name)
    trunk = case.trunk().eval()
    load_weights(trunk, case.checkpoint(weights))
    stage = load_class_attention(trunk, case.checkpoint(weights))
    found = class_attention(trunk.to(dtype), stage.to(dtype), case.image().to(dtype))
    for layer, (maps, to_itself) in enumerate(found):
        weights = torch.cat([to_itself[..., None], maps.flatten(2)], dim=-1)
        case.compare(f'class_attention_{layer}', weights, 1e-5)


@cases('xcit_cls_*', 'cait_*', 'resmlp_*')
@torch.no_grad()
def test_classification_files_give_the_originals_maps(name: str, dtype: torch.dtype,
                                                      weights: Path) -> None:
    case = Case(name)
    trunk = case.trunk().eval()
    load_weights(trunk, case.checkpoint(weights))
    for index, got in zip(
            case.json['out_indices'], trunk.to(dtype)(case.image().to(dtype)), strict=True):
        case.compare(f'block_{index}', got, 1e-5)


@cases('xcit_dense_*')
@torch.no_grad()
def test_dense_files_give_the_originals_pyramid(name: str, dtype: torch.dtype,
                                                weights: Path) -> None:
    case = Case(name)
    trunk = case.trunk()
    neck = ColumnarPyramid(trunk.embed_dim, trunk.patch_size)
    model = nn.ModuleDict(dict(backbone=trunk, neck=neck)).eval()
    load_weights(model, case.checkpoint(weights))
    model.to(dtype)
    for index, got in enumerate(neck(trunk(case.image().to(dtype))), 1):
        case.compare(f'fpn{index}', got, 1e-5)


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


@pytest.mark.parametrize('entrance', [load_weights, load_checkpoint], ids=['ours', 'mmengine'])
@cases('[msu]*_xcit_*_p*')
@torch.no_grad()
def test_whole_models_give_the_originals_outputs(name: str, entrance: Callable,
                                                 weights: Path) -> None:
    case, head = Case(name), name.split('_xcit_')[0]
    model = build(head, name.split('_xcit_')[1])
    entrance(model, str(case.checkpoint(weights)))
    outputs = detector_outputs if head == 'mask_rcnn' else segmenter_outputs
    compared = {
        key
        for key, got in outputs(case, model, case.image()) if case.compare(key, got, 3e-5) is None
    }
    assert compared == set(case.json['outputs'])
