"""Checkpoint files: pickled code, damaged files, other files and downloads."""
from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.layouts_by_hand import TINY, original_state
from helpers.malicious_pickle import write_malicious_checkpoint
from mmengine.config import ConfigDict
from mmengine.runner import load_checkpoint

from colonnade.backbones import XCiT
from colonnade.weights.downloads import fetch
from colonnade.weights.files import read_checkpoint
from colonnade.weights.loading import load_weights, plan_loading
from colonnade.weights.state_dicts import WeightsError


@pytest.mark.parametrize('form', ['zip', 'legacy', 'pickle'])
@pytest.mark.parametrize('read', [
    read_checkpoint, fetch, lambda path: load_weights(XCiT(TINY), path),
    lambda path: load_checkpoint(XCiT(TINY), str(path))
])
def test_pickled_code_does_not_run(read: Callable, form: str, tmp_path: Path) -> None:
    marker = write_malicious_checkpoint(tmp_path / 'evil.pth', form)
    with pytest.raises(WeightsError, match='evil.pth'):
        read(tmp_path / 'evil.pth')
    assert not marker.exists()


def test_rejected_file_can_be_trusted(tmp_path: Path) -> None:
    marker = write_malicious_checkpoint(tmp_path / 'evil.pth', 'zip')
    with pytest.raises(WeightsError, match=r'contains more than weights \(.*pathlib.*--trust'):
        read_checkpoint(tmp_path / 'evil.pth')
    assert 'state_dict' in read_checkpoint(tmp_path / 'evil.pth', trust=True)
    assert marker.exists()


def test_getattr_is_restricted(tmp_path: Path) -> None:

    class Attribute:

        def __reduce__(self) -> tuple:
            return getattr, (Path, 'touch')

    torch.save(dict(a=Attribute()), tmp_path / 'a.pth')
    with pytest.raises(WeightsError, match='contains more than weights'):
        read_checkpoint(tmp_path / 'a.pth')


def test_training_state_is_allowed(tmp_path: Path) -> None:
    dtypes = ('bool', 'int8', 'uint8', 'int16', 'uint16', 'int32', 'uint64', 'float16',
              'complex64', 'U3', 'S3', 'datetime64[s]')  # yapf: disable
    content = dict(
        model=original_state(),
        args=argparse.Namespace(lr=0.1, data='x'),
        epoch=3,
        best=np.float64(3),
        arrays={dtype: np.zeros(3, dtype)
                for dtype in dtypes},
        meta=ConfigDict(dataset_meta=dict(classes=('a', ), source=dict(name='x'))))
    torch.save(content, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth')
    assert (read['args'].lr, read['best']) == (0.1, 3)
    assert read['meta']['dataset_meta']['source']['name'] == 'x'
    for dtype, array in content['arrays'].items():
        assert (read['arrays'][dtype] == array).all(), dtype


def test_unreadable_arrays_are_not_damage(tmp_path: Path) -> None:
    torch.save(dict(state_dict=original_state(), a=np.zeros(3, 'O')), tmp_path / 'a.pth')
    content = np.zeros(3, [('x', 'f4')])
    torch.save(dict(state_dict=original_state(), a=content), tmp_path / 'b.pth')
    with pytest.raises(WeightsError, match='b.pth contains .* pass --trust'):
        read_checkpoint(tmp_path / 'b.pth')


@pytest.mark.parametrize('content, message', [
    (b'', 'is empty'),
    (b'\0' * 100, 'is empty'),
    (b'<!DOCTYPE html><html>404</html>', 'is a web page'),
    (b'\n <html>', 'is a web page'),
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:1', 'Git LFS pointer'),
    (b'some text', 'is damaged or not a weights file'),
    ((100).to_bytes(8, 'little') + b'{"a": 3', 'damaged safetensors'),
    (pickle.dumps([1, 2], protocol=5), 'contains a list'),
])
def test_identifies_other_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_bytes(content)
    with pytest.raises(WeightsError, match=rf'a\.pth .*({message})'):
        read_checkpoint(tmp_path / 'a.pth')


@pytest.mark.parametrize('form', ['zip', 'legacy', 'safetensors'])
def test_truncated_files(form: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.pth'
    if form == 'safetensors':
        safetensors.torch.save_file(original_state(), path)
    else:
        torch.save(original_state(), path, _use_new_zipfile_serialization=form == 'zip')
    whole = path.read_bytes()
    for fraction in (0.01, 0.5, 0.99):
        path.write_bytes(whole[:int(fraction * len(whole))])
        with pytest.raises(WeightsError, match=r'a\.pth'):
            read_checkpoint(path)


@pytest.mark.parametrize('source, error, message', [
    ('/no/such.pth', FileNotFoundError, 'no such weights file: /no/such.pth'),
    ('s3://bucket/a.pth', WeightsError, 'a path, http://, https:// or timm://'),
    ('http://127.0.0.1:9/a.pth', WeightsError, '127.0.0.1:9/a.pth cannot be downloaded'),
    ('timm://xcit_small_12_p16_384.fb_dist', WeightsError,
     r'has no pretrained weights named .*_384.fb_dist; did you mean '
     r'xcit_small_12_p16_384.fb_dist_in1k or'),
])
def test_missing_sources(source: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fetch(source)


def test_url_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_checkpoint_without_weights(content: dict) -> None:
    with pytest.raises(WeightsError, match='some.pth has no state dict'):
        plan_loading(XCiT(TINY), content, 'some.pth')
