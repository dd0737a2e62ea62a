"""Fuzzing of weights files."""
from __future__ import annotations

import io
import json
import struct
import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.fuzzing import (attempt, changed_bytes, changed_json, changed_values, differences,
                             fuzz, limited)
from helpers.layouts_by_hand import TINY, original_state
from hypothesis import event, given
from hypothesis import strategies as st
from mmengine.logging import HistoryBuffer
from torch import Tensor

from colonnade.backbones import XCiT
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import load_weights
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.sharded_files import read_folder
from colonnade.weights.state_dicts import WeightsError

pytestmark = pytest.mark.filterwarnings('ignore')  # torch's of protocols
STATE = original_state()
META = dict(
    epoch=3,
    iter=30,
    cfg='model = dict(type="FCN")',
    seed=7,
    experiment_name='a',
    time='20260101_000000',
    dataset_meta=dict(classes=('disc', 'square'), palette=[(1, 2, 3), (4, 5, 6)]))
CHECKPOINT = dict(
    meta=META,
    state_dict=STATE,
    message_hub=dict(
        log_scalars=dict(loss=HistoryBuffer([1., 2.], [1, 1])), runtime_info=dict(iter=30)),
    optimizer=dict(
        state={0: dict(step=torch.tensor(3.), exp_avg=torch.ones(4))},
        param_groups=[dict(lr=0.1, params=[0])]),
    param_schedulers=[dict(last_step=3)],
    numbers=np.arange(3))


def saved(content: Any, form: str) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=form == 'zip')
    return buffer.getvalue()


FORMS = {
    'zip': saved(CHECKPOINT, 'zip'),
    'legacy': saved(CHECKPOINT, 'legacy'),
    'safetensors': safetensors.torch.save(
        STATE, dict(dataset_meta='{"classes": ["disc", "square"], "palette": null}')),
}  # yapf: disable


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('weights')


@pytest.fixture(scope='module')
def backbone() -> XCiT:
    return XCiT(TINY)


def differs(found: Any, expected: Any) -> bool:
    """Return True if a part of a checkpoint differs."""
    if isinstance(expected, Tensor):
        return not (isinstance(found, Tensor) and found.shape == expected.shape
                    and found.dtype == expected.dtype and torch.equal(found, expected))
    if isinstance(expected, dict):
        return not (isinstance(found, dict) and found.keys() == expected.keys()) or any(
            differs(found[key], value) for key, value in expected.items())
    if isinstance(expected, (list, tuple)):
        return type(found) is not type(expected) or len(found) != len(expected) or any(
            map(differs, found, expected))
    if isinstance(expected, np.ndarray):
        return not np.array_equal(found, expected)
    if isinstance(expected, HistoryBuffer):
        return not np.array_equal(found.data, expected.data)
    return found != expected


@pytest.mark.parametrize('form', FORMS)
@fuzz(few=20, many=5000)
@given(draw=st.data())
def test_fuzzed_bytes(form: str, folder: Path, backbone: XCiT, draw: st.DataObject) -> None:
    path = folder / f'{form}.pth'
    path.write_bytes(draw.draw(changed_bytes(FORMS[form])))
    content = attempt(lambda: read_checkpoint(path), WeightsError, names=str(path))
    if content is None:
        return
    if form == 'zip':
        assert not differs(content, CHECKPOINT)
    plan = attempt(lambda: load_weights(backbone, path), WeightsError, names=str(path))
    if plan is not None:
        assert all(
            tensor.equal(plan.state[key]) or tensor.isnan().any()
            for key, tensor in backbone.state_dict().items())


ODD = (None, True, 0, -1, 2**70, 0.5, float('nan'), '', 'x\ny', '\x1b[31mred', [], {}, (), b'a',
       torch.zeros(0), torch.zeros(3), torch.tensor(1), torch.zeros(2, 2, dtype=torch.complex64),
       torch.zeros(3).to_sparse(), torch.zeros(4, dtype=torch.bool), torch.zeros(3, device='meta'),
       np.zeros(3), dict(type='os.system', command='x'), {1: 2}, [None] * 3,
       torch.quantize_per_tensor(torch.zeros(3), 1., 0, torch.qint8))  # yapf: disable


@dataclass(repr=False)
class Shown:
    """A changed checkpoint that is shown by what differs."""
    values: Any

    def __repr__(self) -> str:
        return f'{differences(CHECKPOINT, self.values)}'


@fuzz(few=8, many=4000)
@given(content=changed_values(CHECKPOINT, odd=ODD).map(Shown))
def test_fuzzed_contents(content: Shown, folder: Path, backbone: XCiT) -> None:
    path = folder / 'content.pth'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.save(content.values, path)
    found = attempt(lambda: read_checkpoint(path), WeightsError, names=str(path))
    if found is None:
        return
    with limited():
        clean = strip_code(found)
    assert clean.keys() == found.keys()
    before = deepcopy(backbone.state_dict())
    plan = attempt(lambda: load_weights(backbone, path), WeightsError, names=str(path))
    after = backbone.state_dict()
    if plan is None:
        assert all(torch.equal(after[key], value) for key, value in before.items())
    else:
        assert plan.state.keys() == after.keys()
        assert all(tensor.shape == after[key].shape for key, tensor in plan.state.items())


HEAD, = struct.unpack('<Q', FORMS['safetensors'][:8])
HEADER = FORMS['safetensors'][8:8 + HEAD]
TENSORS = FORMS['safetensors'][8 + HEAD:]


@fuzz(few=30, many=10000)
@given(draw=st.data())
def test_fuzzed_safetensors_headers(folder: Path, draw: st.DataObject) -> None:
    header = draw.draw(changed_json(json.loads(HEADER)))
    path = folder / 'header.safetensors'
    path.write_bytes(struct.pack('<Q', len(header)) + header + TENSORS)
    content = attempt(lambda: read_checkpoint(path), WeightsError, names=str(path))
    if content is not None:
        said = json.loads(header)
        said.pop('__metadata__', None)
        tensors = content if 'meta' not in content else content['state_dict']
        assert set(tensors) == set(said)
        assert all(list(tensors[key].shape) == about['shape'] for key, about in said.items())


@pytest.fixture(scope='module')
def shards(folder: Path) -> Path:
    """A checkpoint in shards, as one process writes it."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    out = folder / 'shards'
    tensors = {f'state_dict/{key}': value for key, value in STATE.items()}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        dcp.save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(out), save_distributed=True),
            no_dist=True)
    shapes = {key: list(value.shape) for key, value in tensors.items()}
    rest = dict(meta=META, state_dict=dict.fromkeys(STATE), shards=shapes)
    torch.save(rest, out / 'rest.pth')
    return out


@fuzz(few=25, many=4000)
@given(draw=st.data())
def test_shard_folders(shards: Path, draw: st.DataObject) -> None:
    path = draw.draw(st.sampled_from(sorted(shards.iterdir())))
    source = path.read_bytes()
    path.write_bytes(draw.draw(changed_bytes(source)))
    try:
        content = attempt(lambda: read_folder(shards), WeightsError, names=str(shards))
    finally:
        path.write_bytes(source)
    if content is not None:
        event(f'taken: {path.suffix}')
        assert content['state_dict'].keys() == STATE.keys()
        assert all(value.shape == STATE[key].shape
                   for key, value in content['state_dict'].items())  # yapf: disable
