"""Checkpoints run no code, however they are loaded, unless they are trusted."""
from __future__ import annotations

import io
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import mmdet
import mmseg
import pytest
import torch
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, ROOT, SHORT, config, latest_log
from helpers.layouts_by_hand import TINY, original_state
from helpers.malicious_pickle import write_malicious_checkpoint
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner import load_checkpoint

from colonnade.backbones import XCiT
from colonnade.settings.reading import read_config
from colonnade.tools import convert_checkpoint
from colonnade.weights.config_text import is_plain_config
from colonnade.weights.downloads import download
from colonnade.weights.files import allow_pickle, read_checkpoint
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.state_dicts import WeightsError

HEAD = 'sem_fpn'


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of the folder ``served``; downloads are cached in a temporary folder."""
    (tmp_path / 'served').mkdir()
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'hub'))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / 'served'))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as http_server:
        Thread(target=http_server.serve_forever, args=[0.01], daemon=True).start()
        yield f'http://127.0.0.1:{http_server.server_port}'
        http_server.shutdown()


@pytest.fixture
def address(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """URL of the served file by each scheme of mmengine."""
    url, path = f'{server}/a.pth', tmp_path / 'served/a.pth'
    home = tmp_path / 'home'
    home.mkdir()
    monkeypatch.setenv('MMENGINE_HOME', str(home))
    (home / 'a.pth').symlink_to(path)
    for name in ('get_external_models', 'get_mmcls_models', 'get_torchvision_models'):
        monkeypatch.setattr(mmengine_checkpoint, name, lambda: dict(a=url, local='a.pth'))
    store = SimpleNamespace(get=lambda _: path.read_bytes())
    monkeypatch.setattr(mmengine_checkpoint, 'get_file_backend', lambda *_, **__: store)
    model = SimpleNamespace(
        name='a.pth', download=lambda to: Path(to).write_bytes(path.read_bytes()))
    pavi = ModuleType('pavi')
    pavi.modelcloud = SimpleNamespace(get=lambda _: model)
    monkeypatch.setitem(sys.modules, 'pavi', pavi)
    names = ('open-mmlab://a', 'openmmlab://local', 'mmcls://a', 'torchvision://a', 'modelzoo://a',
             's3://bucket/a.pth', 'petrel://bucket/a.pth', 'pavi://a')
    return {'http://': url, '': str(path), **{name.partition('/')[0]: name for name in names}}


SCHEMES = ('', 'http://', 'open-mmlab:', 'openmmlab:', 'mmcls:', 'torchvision:', 'modelzoo:', 's3:',
           'petrel:', 'pavi:')


@pytest.mark.parametrize('scheme', SCHEMES)
def test_malicious_checkpoints_by_scheme(scheme: str, address: dict[str, str],
                                         tmp_path: Path) -> None:
    marker = write_malicious_checkpoint(tmp_path / 'served/a.pth', 'zip')
    with pytest.raises(WeightsError, match='contains more than weights'):
        load_checkpoint(XCiT(TINY), address[scheme])
    assert not marker.exists()


@pytest.mark.parametrize('scheme', SCHEMES)
def test_weights_by_scheme(scheme: str, address: dict[str, str], tmp_path: Path) -> None:
    expected = XCiT(TINY).state_dict()
    prefix = 'backbone.' if scheme == 'mmcls:' else ''
    torch.save(
        dict(state_dict={
            prefix + key: value
            for key, value in expected.items()
        }), tmp_path / 'served/a.pth')
    model = XCiT(TINY)
    load_checkpoint(model, address[scheme])
    assert all(torch.equal(model.state_dict()[key], expected[key]) for key in expected)


def test_weights_by_bytes() -> None:
    buffer = io.BytesIO()
    torch.save(dict(model=original_state()), buffer)
    buffer.seek(0)
    assert 'model' in mmengine_checkpoint._safe_torch_load(buffer)


def build_malicious_config(marker: Path) -> str:
    return f'import pathlib\npathlib.Path({str(marker)!r}).touch()\n'


def test_resuming_does_not_run_a_config(trained: Path, shapes: Path, tmp_path: Path,
                                        run_tool: Callable) -> None:
    """mmengine runs meta['config'] of a checkpoint that it resumes from."""
    checkpoint = torch.load(trained / 'iter_2.pth', weights_only=False)
    marker = tmp_path / 'made'
    checkpoint['meta']['config'] = build_malicious_config(marker)
    torch.save(checkpoint, tmp_path / 'evil.pth')
    run_tool('train', config(HEAD), '--data-root', shapes / LAYOUTS[HEAD], '--work-dir',
             tmp_path / 'run', '--resume', tmp_path / 'evil.pth', *SHORT[:1],
             'train_cfg.max_iters=3', *SHORT[2:], *NO_WORKERS)
    assert (tmp_path / 'run/iter_3.pth').is_file()
    assert not marker.exists()


@pytest.mark.parametrize('place', ['meta', 'message_hub'])
@pytest.mark.parametrize('evil', [True, False])
def test_inferencers_run_only_plain_configs(evil: bool, place: str, tmp_path: Path) -> None:
    cfg, marker = read_config(config('mask_rcnn')), tmp_path / 'made'
    text = build_malicious_config(marker) * evil + cfg.pretty_text
    meta = dict(dataset_meta=dict(classes=('disc', 'square', 'triangle')))
    checkpoint = dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=meta)
    if place == 'meta':
        meta['cfg'] = text
    else:
        checkpoint['message_hub'] = dict(runtime_info=dict(cfg=text))
    torch.save(checkpoint, tmp_path / 'a.pth')
    if evil:
        with pytest.raises(ValueError, match='Cannot find the config in the checkpoint'):
            DetInferencer(weights=str(tmp_path / 'a.pth'), device='cpu')
    else:
        assert DetInferencer(weights=str(tmp_path / 'a.pth'), device='cpu').model.backbone
    assert not marker.exists()


def test_plain_configs_are_kept() -> None:
    for path in (config('mask_rcnn'), ROOT / 'configs/mask_rcnn/xcit_small_12_p16_3x_coco_lld.py'):
        text = Config.fromfile(path).pretty_text
        checkpoint = dict(
            meta=dict(cfg=text, epoch=3), message_hub=dict(runtime_info=dict(cfg=text)))
        assert strip_code(checkpoint) == checkpoint
    assert strip_code(dict(a=1)) == dict(a=1)


@pytest.mark.parametrize('folder', sorted(ROOT.glob('configs/[a-z]*')), ids=lambda path: path.name)
def test_shipped_configs_are_plain(folder: Path) -> None:
    assert is_plain_config(Config.fromfile(min(folder.glob('*.py'))).pretty_text)


@pytest.mark.parametrize('package', [mmdet, mmseg])
def test_attributes_of_packages_have_no_capitals(package: ModuleType) -> None:
    assert not [name for name in vars(package) if name[0].isupper()]


@pytest.mark.parametrize('text', [
    'import os', "a = __import__('os').system('x')", "_base_ = 'x.py'", "b = _base_ = 'x.py'",
    "custom_imports = dict(imports=['antigravity'])", 'a = dict(1)', 'a = (lambda: 1)()',
    "a = f'{open(1)}'", "a = '{{$X:' + 'y}}'", "[_base_] = ['x.py']", 'a.b = 1', 'a: int = f()',
    'def f(): pass', "model = dict(type='os.system', command='x')",
    "a = {'type': 'subprocess.run'}", "a = dict(type='mmdet.registry.a')",
    "a = dict(type='mmseg.digit_version')", "a = dict(b=['mmengine.utils.call_command'])",
    "a = dict(type='antigravity')", "model = dict(tracker=dict(warp_mode='f(1)'))",
    "a = dict(nms=dict(type='f(1)'))", 'a = [x for x in ()]', 'a = b.c', 'a = (', '\0', None, 7
])
def test_other_configs_are_removed(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr('colonnade.weights.mmengine_loaders.print_log',
                        lambda text, **_: logged.append(text))
    assert not is_plain_config(text)
    checkpoint = dict(meta=dict(cfg=text, config=text, epoch=3))
    assert strip_code(checkpoint) == dict(meta=dict(epoch=3)) and not logged
    assert strip_code(checkpoint, 'a.pth') == dict(meta=dict(epoch=3))
    assert len(logged) == 2 and all(text.startswith('a.pth: ') for text in logged)
    assert checkpoint['meta']['cfg'] == text


def test_trust_is_temporary(tmp_path: Path) -> None:
    marker = write_malicious_checkpoint(tmp_path / 'a.pth', 'zip')
    with allow_pickle(False), pytest.raises(WeightsError, match='--trust'):
        read_checkpoint(tmp_path / 'a.pth')
    with allow_pickle():
        read_checkpoint(tmp_path / 'a.pth')
    assert marker.exists()
    with pytest.raises(WeightsError, match='--trust'):
        read_checkpoint(tmp_path / 'a.pth')


def train_with_trust(run_tool: Callable, leaf: Path, data: Path, tmp_path: Path, *options:
                     Any) -> None:
    run_tool('train', leaf, '--data-root', data, '--work-dir', tmp_path / 'run', '--trust',
             *options, '--cfg-options', 'train_cfg.max_iters=1', 'train_dataloader.batch_size=2',
             *NO_VAL, *NO_WORKERS[:1])


@pytest.mark.slow
def test_trust_includes_third_party_backbones(shapes: Path, tmp_path: Path,
                                              run_tool: Callable) -> None:
    backbone = dict(type='ResNet', depth=18, out_indices=(0, 1, 2, 3))
    text = f'_base_ = {str(config(HEAD))!r}\nmodel = dict(backbone=dict(_delete_=True, ' \
        '**{backbone}), neck=dict(_delete_=True, type="FPN", in_channels=[64, 128, 256, 512], ' \
        'out_channels=64, num_outs=4))\n'
    (tmp_path / 'plain.py').write_text(text.format(backbone=backbone))
    state = MODELS.build(read_config(tmp_path / 'plain.py').model.backbone).state_dict()
    torch.save(dict(state_dict=state, made_by=Path('here')), tmp_path / 'a.pth')
    backbone['init_cfg'] = dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth'))
    (tmp_path / 'own.py').write_text(text.format(backbone=backbone))
    train_with_trust(run_tool, tmp_path / 'own.py', shapes / 'ade', tmp_path)
    assert 'load model from: ' + str(tmp_path / 'a.pth') in latest_log(tmp_path / 'run')


def test_trusted_objects_of_a_missing_module(shapes: Path, tmp_path: Path, run_tool: Callable,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType('their_project')
    exec('class Settings: pass', vars(module))
    module.Settings.__module__ = 'their_project'
    monkeypatch.setitem(sys.modules, 'their_project', module)
    torch.save(dict(state_dict={}, settings=module.Settings()), tmp_path / 'a.pth')
    monkeypatch.delitem(sys.modules, 'their_project')
    with pytest.raises(
            SystemExit,
            match="train: .*a.pth contains objects from a module that is not "
            "installed .*their_project"):
        train_with_trust(run_tool, config(HEAD), shapes / 'ade', tmp_path, '--load-from',
                         tmp_path / 'a.pth')


def test_failed_download_raises_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes would wait for the one that downloads."""
    failure = 'http://127.0.0.1:9/a.pth cannot be downloaded: refused'
    monkeypatch.setenv('OMPI_COMM_WORLD_LOCAL_RANK', '1')
    monkeypatch.setattr('colonnade.weights.downloads.all_gather_object',
                        lambda mine: [failure, mine])
    with pytest.raises(WeightsError, match='cannot be downloaded: refused'):
        download('http://127.0.0.1:9/a.pth')


def convert_with_a_full_disk(arguments: list[str | Path]) -> None:
    """Run convert_checkpoint while files are limited to 20 kB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    sys.argv = ['convert_checkpoint', *map(str, arguments)]
    convert_checkpoint.main()


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_full_disk(suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save(original_state(), tmp_path / 'in.pth')
    arguments = [tmp_path / 'in.pth', tmp_path / f'out.{suffix}']
    process = get_context('fork').Process(target=convert_with_a_full_disk, args=[arguments])
    process.start()
    process.join()
    printed = capfd.readouterr().err
    assert process.exitcode == 1, printed
    assert f'convert-checkpoint: cannot write {tmp_path}/out.{suffix}' in printed
    assert 'Traceback' not in printed
    assert [path.name for path in tmp_path.iterdir()] == ['in.pth']


def test_unwritable_folder(tmp_path: Path, run_tool: Callable) -> None:
    torch.save(original_state(), tmp_path / 'in.pth')
    with pytest.raises(SystemExit, match='convert-checkpoint: '):
        run_tool('convert_checkpoint', tmp_path / 'in.pth', tmp_path / 'in.pth/out.pth')
