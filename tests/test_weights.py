"""Weights: published layouts load with the published numbers, and nothing loads silently."""
from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from conftest import ROOT, SHARED
from evil_pickle import write_evil
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layouts_by_hand import (TINY, detector_state, dino_state, mmpretrain_state, original_state,
                             ours_state, timm_state)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from timm.models.xcit import Xcit, checkpoint_filter_fn
from torch import Tensor, nn

from colonnade.backbones import XCiT
from colonnade.backbones.checkpoint_files import WeightsError, fetch, read_checkpoint
from colonnade.backbones.layouts import remap, remap_xcit_original
from colonnade.backbones.weights import load_weights, plan_loading
from colonnade.necks import ColumnarPyramid

REFERENCE = SHARED / 'reference'
RECIPES = {'mask_rcnn': '3x_coco', 'sem_fpn': '80k_ade20k', 'upernet': '160k_ade20k'}


def cases(pattern: str) -> pytest.MarkDecorator:
    names = sorted(path.stem for path in REFERENCE.glob(f'{pattern}.json'))
    skip = pytest.mark.skip(reason=f'no reference outputs in {REFERENCE}')
    return pytest.mark.parametrize('name', names or [pytest.param('', marks=skip)])


class Case:
    """A stored case: the original's weights, input and outputs."""

    def __init__(self, name: str) -> None:
        sys.path.insert(0, str(REFERENCE))
        import fill
        sys.path.pop(0)
        self.fill = fill
        self.json = json.loads((REFERENCE / f'{name}.json').read_text())
        self.arrays = np.load(REFERENCE / f'{name}.npz')

    def checkpoint(self, path: Path) -> Path:
        """The published file, in its original layout."""
        state = {
            key: torch.from_numpy(np.array(value))
            for key, value in self.fill.state_dict_from(self.json['keys']).items()
        }
        wrapper = self.json['checkpoint']['wrapper']
        torch.save({wrapper: state} if wrapper else state, path)
        return path

    def trunk(self) -> XCiT:
        made = self.json['constructor']
        arch = {key: made[key] for key in ('embed_dim', 'depth', 'num_heads', 'patch_size')}
        return XCiT(arch, out_indices=self.json['out_indices'])

    def image(self) -> Tensor:
        return torch.from_numpy(self.fill.image(*self.json['input']))

    def compare(self, name: str, got: Tensor, tolerance: float) -> None:
        info, double = self.json['outputs'][name], got.dtype == torch.float64
        suffix, key = ('.f64', 'stride_f64') if double else ('', 'stride')
        assert list(got.shape) == info['shape']
        difference = np.abs(self.fill.subset(got.numpy(), info[key]) - self.arrays[name + suffix])
        limit = 5e-7 if double else tolerance
        assert difference.max() <= limit * info['absmax'], (name, difference.max())


@pytest.fixture(params=[torch.float32, torch.float64], ids=['float32', 'float64'])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@cases('xcit_cls_*')
@torch.no_grad()
def test_classification_files_give_the_originals_maps(name: str, dtype: torch.dtype,
                                                      tmp_path: Path) -> None:
    case = Case(name)
    trunk = case.trunk().eval()
    load_weights(trunk, case.checkpoint(tmp_path / 'weights'))
    for index, got in zip(
            case.json['out_indices'], trunk.to(dtype)(case.image().to(dtype)), strict=True):
        case.compare(f'block_{index}', got, 1e-5)


@cases('xcit_dense_*')
@torch.no_grad()
def test_dense_files_give_the_originals_pyramid(name: str, dtype: torch.dtype,
                                                tmp_path: Path) -> None:
    case = Case(name)
    trunk = case.trunk()
    neck = ColumnarPyramid(trunk.embed_dim, trunk.patch_size)
    model = nn.ModuleDict(dict(backbone=trunk, neck=neck)).eval()
    load_weights(model, case.checkpoint(tmp_path / 'weights'))
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
                                                 tmp_path: Path) -> None:
    case, head = Case(name), name.split('_xcit_')[0]
    model = build(head, name.split('_xcit_')[1])
    entrance(model, str(case.checkpoint(tmp_path / 'weights')))
    outputs = detector_outputs if head == 'mask_rcnn' else segmenter_outputs
    compared = {
        key
        for key, got in outputs(case, model, case.image()) if case.compare(key, got, 3e-5) is None
    }
    assert compared == set(case.json['outputs'])


# Layouts -----------------------------------------------------------------------------------------

LAYOUTS = [timm_state, original_state, dino_state, mmpretrain_state, ours_state, detector_state]
layouts = pytest.mark.parametrize('make', LAYOUTS, ids=lambda make: make.__name__)


@layouts
@pytest.mark.parametrize('wrapper', [None, 'model', 'state_dict', 'module.'])
def test_every_layout_loads_the_same(make: Callable, wrapper: str | None, tmp_path: Path) -> None:
    state, trunk = make(), XCiT(TINY)
    if wrapper == 'module.':
        content = {'model': {wrapper + key: value for key, value in state.items()}}
    else:
        content = {wrapper: state, 'args': argparse.Namespace(lr=1.)} if wrapper else state
    torch.save(content, tmp_path / 'a.pth')

    plan = load_weights(trunk, tmp_path / 'a.pth')

    expected = ours_state()
    assert set(trunk.state_dict()) == set(expected) == set(plan.state)
    assert all(torch.equal(value, expected[key]) for key, value in trunk.state_dict().items())


@layouts
def test_safetensors_whatever_the_name(make: Callable, tmp_path: Path) -> None:
    safetensors.torch.save_file(make(), tmp_path / 'weights.pth')
    load_weights(trunk := XCiT(TINY), tmp_path / 'weights.pth')
    assert torch.equal(trunk.blocks[2].gamma3, timm_state()['blocks.2.gamma3'])


def test_remapping_agrees_with_timms() -> None:
    with torch.device('meta'):
        model = Xcit(num_classes=5, **TINY)
    expected, got = checkpoint_filter_fn(original_state(),
                                         model), remap_xcit_original(original_state())
    assert got.keys() == expected.keys() == timm_state().keys()
    assert all(torch.equal(got[key], expected[key]) for key in expected)


def test_round_trip_by_timms_names() -> None:
    ours = XCiT(TINY)
    theirs = Xcit(num_classes=5, **TINY)
    left = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not left.unexpected_keys
    again = XCiT(TINY)
    plan = plan_loading(again, theirs.state_dict(), 'timm')
    assert plan.renamed == ()
    assert all(torch.equal(plan.state[key], value) for key, value in ours.state_dict().items())


@layouts
def test_remapping_is_pure(make: Callable) -> None:
    state = make()
    before = dict(state)
    remap(state, 'test')
    assert state.keys() == before.keys()
    assert all(state[key] is before[key] for key in before)


def test_taps_that_end_early_leave_later_blocks() -> None:
    plan = plan_loading(XCiT(TINY, out_indices=(0, 1)), original_state(), 'test')
    assert {key.split('.')[1] for key in plan.state if key.startswith('blocks.')} == {'0', '1'}
    assert 'blocks.2.gamma1' in plan.dropped


def test_published_medium_detector_has_patch_16() -> None:
    """The original config says 8, which does not fit its own weights."""
    assert XCiT.arch_settings['medium_24_p16']['patch_size'] == 16


# Nothing loads silently --------------------------------------------------------------------------

subset = st.sets(st.integers(0, 10**6), min_size=1, max_size=8)


@layouts
@settings(max_examples=25, deadline=None)
@given(kind=st.sampled_from(['drop', 'rename', 'reshape', 'add']), chosen=subset)
def test_a_changed_file_is_refused(make: Callable, kind: str, chosen: set[int]) -> None:
    state = make()
    keys = [key for key in state if make is not detector_state or key.startswith('backbone.')]
    for key in {keys[index % len(keys)] for index in chosen}:
        if kind == 'add':
            state[f'{key}.more'] = torch.zeros(1)
        else:
            value = state.pop(key)
            if kind == 'rename':
                state[f'{key}s'] = value
            elif kind == 'reshape':
                state[key] = value.unsqueeze(0)
    groups = ('head.', ) if make is not dino_state else ()
    assume(not (kind == 'drop' and set(make()) -
                set(state) == {key
                               for key in make() if key.startswith(groups)}))
    with pytest.raises(WeightsError, match='does not fit|none of the known layouts'):
        plan_loading(XCiT(TINY), state, 'test')


def test_the_error_lists_and_explains() -> None:
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


def test_the_error_names_the_nearest_cause() -> None:
    with torch.device('meta'):
        state = timm.create_model('xcit_small_12_p8_224').state_dict()
        model = XCiT('small_12_p16')
    with pytest.raises(
            WeightsError, match='The file holds XCiT small_12_p8, the model XCiT small_12_p16'):
        plan_loading(model, state, 'some.pth')


def test_a_trunk_alone_is_no_detector(tmp_path: Path) -> None:
    torch.save(original_state(), tmp_path / 'a.pth')
    model = nn.ModuleDict(dict(backbone=XCiT(TINY), neck=ColumnarPyramid(16, 16)))
    with pytest.raises(WeightsError, match='holds a trunk alone.*init_cfg'):
        load_weights(model, tmp_path / 'a.pth')


@pytest.mark.parametrize('strict', [True, False])
def test_openmmlabs_loose_loading_is_strict_for_trunk_and_pyramid(strict: bool,
                                                                  tmp_path: Path) -> None:
    model = nn.ModuleDict(dict(backbone=XCiT(TINY), neck=ColumnarPyramid(16, 16)))
    for key in ('backbone.blocks.0.gamma1', 'neck.stride4.1.weight'):
        state = model.state_dict()
        del state[key]
        torch.save(dict(state_dict=state), tmp_path / 'a.pth')
        with pytest.raises(WeightsError, match=f'1 missing: {key}'):
            load_checkpoint(model, str(tmp_path / 'a.pth'), strict=strict)


# Files that are no weights -----------------------------------------------------------------------


@pytest.mark.parametrize('form', ['zip', 'legacy', 'pickle'])
@pytest.mark.parametrize('read', [
    read_checkpoint, fetch, lambda path: load_weights(XCiT(TINY), path),
    lambda path: load_checkpoint(XCiT(TINY), str(path))
])
def test_code_in_a_pickle_does_not_run(read: Callable, form: str, tmp_path: Path) -> None:
    marker = write_evil(tmp_path / 'evil.pth', form)
    with pytest.raises(WeightsError, match='evil.pth'):
        read(tmp_path / 'evil.pth')
    assert not marker.exists()


def test_what_is_refused_is_named_and_can_be_trusted(tmp_path: Path) -> None:
    marker = write_evil(tmp_path / 'evil.pth', 'zip')
    with pytest.raises(WeightsError, match=r'contains more than weights \(.*pathlib.*--trust'):
        read_checkpoint(tmp_path / 'evil.pth')
    assert 'state_dict' in read_checkpoint(tmp_path / 'evil.pth', trust=True)
    assert marker.exists()


def test_getattr_is_not_a_way_out(tmp_path: Path) -> None:
    """mmengine's checkpoints pickle getattr(HistoryBuffer, 'mean'); nothing else passes by that."""

    class Attribute:

        def __reduce__(self) -> tuple:
            return getattr, (Path, 'touch')

    torch.save(dict(a=Attribute()), tmp_path / 'a.pth')
    with pytest.raises(WeightsError, match='contains more than weights'):
        read_checkpoint(tmp_path / 'a.pth')


def test_settings_beside_the_weights_are_harmless(tmp_path: Path) -> None:
    content = dict(
        model=original_state(),
        args=argparse.Namespace(lr=0.1, data='x'),
        epoch=3,
        best=np.float64(3),
        history=np.arange(3))
    torch.save(content, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth')
    assert (read['args'].lr, read['best'], read['history'].tolist()) == (0.1, 3, [0, 1, 2])


@pytest.mark.parametrize('content, message', [
    (b'', 'is empty'),
    (b'\0' * 100, 'is empty'),
    (b'<!DOCTYPE html><html>404</html>', 'is a web page'),
    (b'\n <html>', 'is a web page'),
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:1', 'pointer of Git LFS'),
    (b'some text', 'is damaged or no weights file'),
    ((100).to_bytes(8, 'little') + b'{"a": 3', 'damaged safetensors'),
    (pickle.dumps([1, 2], protocol=5), 'no weights file'),
])
def test_other_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_bytes(content)
    with pytest.raises(WeightsError, match=rf'a\.pth .*({message})'):
        read_checkpoint(tmp_path / 'a.pth')


@pytest.mark.parametrize('share', [0.01, 0.5, 0.99])
@pytest.mark.parametrize('form', ['zip', 'legacy', 'safetensors'])
def test_a_truncated_file_is_named(form: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / 'a.pth'
    if form == 'safetensors':
        safetensors.torch.save_file(original_state(), path)
    else:
        torch.save(original_state(), path, _use_new_zipfile_serialization=form == 'zip')
    whole = path.read_bytes()
    path.write_bytes(whole[:int(share * len(whole))])
    with pytest.raises(WeightsError, match=r'a\.pth'):
        read_checkpoint(path)


@pytest.mark.parametrize('source, error, message', [
    ('/no/such.pth', FileNotFoundError, 'no weights file /no/such.pth'),
    ('s3://bucket/a.pth', WeightsError, 'a path, http://, https:// or timm://'),
    ('http://127.0.0.1:9/a.pth', WeightsError, '127.0.0.1:9/a.pth cannot be downloaded'),
    ('timm://xcit_small_12_p16_384.fb_dist', WeightsError,
     r'publishes no weights xcit_small_12_p16_384.fb_dist: .*xcit_small_12_p16_384.fb_dist_in1k'),
])
def test_what_cannot_be_had_is_named(source: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fetch(source)


def test_an_address_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'served').mkdir()
    torch.save(original_state(), tmp_path / 'served/a.pth')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'hub'))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / 'served'))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f'http://127.0.0.1:{server.server_port}'
        load_weights(XCiT(TINY), f'{address}/a.pth')
        with pytest.raises(WeightsError, match='b.pth cannot be downloaded: HTTP Error 404'):
            fetch(f'{address}/b.pth')
        server.shutdown()
    load_weights(XCiT(TINY), f'{address}/a.pth')  # from the hub folder
    assert len(list((tmp_path / 'hub').rglob('*.pth'))) == 1


@pytest.mark.parametrize('content', [dict(a=1), dict(state_dict={}), dict(model=dict(a='b'))])
def test_a_checkpoint_without_weights_is_named(content: dict) -> None:
    with pytest.raises(WeightsError, match='some.pth holds no state dict'):
        plan_loading(XCiT(TINY), content, 'some.pth')


def test_an_unknown_layout_is_named() -> None:
    with pytest.raises(WeightsError, match='some.pth has none of the known layouts .*like conv1'):
        plan_loading(XCiT(TINY), {'conv1.weight': torch.zeros(1)}, 'some.pth')


# In configs --------------------------------------------------------------------------------------


def test_init_cfg_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(dict(model=original_state()), tmp_path / 'a.pth')
    model = XCiT(TINY, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth')))
    model.init_weights()
    assert torch.equal(model.blocks[0].gamma1, original_state()['blocks.0.gamma1'])


def test_init_cfg_of_a_missing_file() -> None:
    model = XCiT(TINY, init_cfg=dict(type='Pretrained', checkpoint='/no/such.pth'))
    with pytest.raises(FileNotFoundError, match='no weights file /no/such.pth'):
        model.init_weights()
