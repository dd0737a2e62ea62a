"""Untrusted packages run no code, and errors of damaged ones name the file."""
from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.malicious_pickle import write_malicious_checkpoint
from helpers.packages import change_metadata, replace_file, write_package
from safetensors.torch import save_file
from torch import nn

from colonnade.backbones.plain_vit.architectures import look_up
from colonnade.common.errors import UserError
from colonnade.evaluation.benchmark.measurement import MIB, measure_peak
from colonnade.inference import load
from colonnade.inference.packages.package import open_package
from colonnade.inference.packages.package_errors import PackageError
from colonnade.inference.packages.portable_config import config_text
from colonnade.inference.packages.safety_checks import MetaTensorMode, check_model_size
from colonnade.weights.config_text import parse_config
from colonnade.weights.files import allow_pickle, read_checkpoint
from colonnade.weights.state_dicts import WeightsError


@pytest.fixture(scope='module')
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package('mask_rcnn', tmp_path_factory.mktemp('original') / 'shared')


@pytest.fixture
def package(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / 'shared')


def change_config(package: Path, before: str, after: str) -> None:
    text = (package / 'config.py').read_text()
    assert before in text
    replace_file(package, 'config.py', text.replace(before, after, 1))


@pytest.mark.parametrize('name', ['config.py', 'model.safetensors'])
def test_damaged_files(name: str, package: Path) -> None:
    content = (package / name).read_bytes()
    (package / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PackageError, match=f'shared/{name} has the SHA-256 .* is damaged or'):
        open_package(package)
    (package / name).write_bytes(content + b'\n')
    with pytest.raises(PackageError, match=rf'shared/{name} has \d+ bytes, but model.json says'):
        open_package(package)
    (package / name).unlink()
    with pytest.raises(FileNotFoundError, match=f'shared/{name}: the package is incomplete'):
        open_package(package)
    (package / 'model.json').unlink()
    with pytest.raises(
            FileNotFoundError,
            match='shared/model.json: the folder is not a package|shared is neither a package'):
        load(package)


def test_weights_must_be_safetensors(package: Path, tmp_path: Path) -> None:
    """Trust does not change that."""
    marker = write_malicious_checkpoint(tmp_path / 'evil.pth', 'zip')
    replace_file(package, 'model.safetensors', (tmp_path / 'evil.pth').read_bytes())
    with pytest.raises(PackageError, match='not a safetensors file'), allow_pickle():
        open_package(package, trust=True)
    assert not marker.exists()


ENTRY = dict(sha256='0' * 64, bytes=1)


@pytest.mark.parametrize('key, value, message', [
    ('format', 'other', "must have the format 'colonnade-model'"),
    ('format_version', 2, 'format_version 2, but this version of Colonnade reads only 1'),
    ('kind', 'points', r'kind: .*boxes\|masks\|labels\|panoptic.*, got "points"'),
    ('classes', [], 'classes: .* at least 1 item'),
    ('classes', ['disc', 3, 'a'], 'classes.1: .* valid string, got 3'),
    ('classes', ['disc'], 'palette has 3 colors for 1 classes'),
    ('classes', ['disc', 'square', 'dog'], 'config.py and .*model.json have different classes'),
    ('palette', [[0, 0, 256]] * 3, 'palette.0.2: .* less than or equal to 255'),
    ('parameters', '3', 'parameters: .* valid integer'),
    ('metrics', dict(mIoU='high'), 'metrics.mIoU: .* valid number'),
    ('name', 'a\nb', 'name: .* must be printable'),
    ('files', {
        'config.py': ENTRY,
        '../../model.safetensors': ENTRY
    }, 'files: .* must have the keys config.py and model.safetensors'),
    ('files', {
        'config.py': ENTRY,
        'model.safetensors': dict(sha256='../x', bytes=1)
    }, 'files.model.safetensors.sha256: '),
])
def test_invalid_values_of_metadata(key: str, value: Any, message: str, package: Path) -> None:
    change_metadata(package, lambda metadata: metadata.update({key: value}))
    with pytest.raises(PackageError, match=message):
        open_package(package)


@pytest.mark.parametrize('text, message', [
    ('[' * 10**5, 'is not a JSON file'), ('{"a": ', 'is not a JSON file'),
    ('<html>', 'is not a JSON file'), ('[]', 'must have the format'),
    (' ' * 5 * 2**20, 'has more than 4194304 bytes'),
    ('{"format": "colonnade-model", "format_version": 1}', '.*name: Field required'),
])  # yapf: disable
def test_invalid_metadata_files(text: str, message: str, package: Path, run_tool: Callable) -> None:
    (package / 'model.json').write_text(text)
    with pytest.raises(SystemExit, match=f'^package: .*model.json:? ?{message}'):
        run_tool('package', 'check', package)


@pytest.mark.parametrize('line', [
    'import os', '_base_ = "x.py"', 'a = b = 1', '[a] = [1]', 'a.b = 1', 'a: int = 1', 'a += 1',
    'a = open("x")', 'a = dict(1)', 'a = dict(**b)', 'a = {**b}', 'a = {b: 1}', 'a = [*b]',
    'a = f"{b}"', 'a = b', 'a = -b', 'a = not 1', 'a = 1 + 1', 'a = (lambda: 1)()', 'a = b"x"',
    'a = ...', 'a = {1}', 'a = [b for b in c]', 'a = 1 if 2 else 3', 'def f(): pass', 'text = 1',
    'default_scope = "mmseg"', 'a = dict.fromkeys(b)', '"""text"""'
])  # yapf: disable
def test_configs_contain_only_values(line: str) -> None:
    text = f"default_scope = 'mmdet'\n\n{line}\n"
    with pytest.raises(UserError, match='^config.py, line 3: '):
        parse_config(text, 'config.py')


@pytest.mark.parametrize('text', [
    'a = (', '\0', 'a = ' + '(' * 10**4, 'a = ' + '-' * 10**5 + '1', 'a = "{{$HOME:x}}"',
    'a = 1\n' * 2**18, 'a = ' + '9' * 10**5, 'a = {[]: 1}'
])
def test_unreadable_configs(text: str) -> None:
    with pytest.raises(UserError, match='^config.py'):
        parse_config(text, 'config.py')


HARM = "__import__('pathlib').Path('made').touch()"
ATTACKS = {  # text of the config, its replacement
    'type': ("type='RPNHead'", "type='os.system'"),
    'module': ("type='RPNHead'", "type='antigravity'"),
    'library': ("type='RPNHead'", "type='timm.create_model'"),
    'string that mmcv evaluates': ("nms=dict(type='nms'", f'nms=dict(type={HARM!r}'),
    'string that mmdet evaluates': ("type='L1Loss'",
                                    f"type='CameraMotionCompensation', warp_mode={HARM!r}"),
    'config that mmdet runs': ("type='MaskRCNN'", "type='LAD', teacher_config='made.py'"),
    'file': ("arch='nano_12_p16'", "arch='/etc/passwd'"),
    'local file': ("arch='nano_12_p16'", "arch='nano_12_p16', checkpoint_path='beside'"),
    'string elsewhere': ("type='XCiT'", "metainfo=dict(type='os.system'), type='XCiT'"),
    'operator that is a module': ("type='RPNHead'", "type='soft_nms'"),
    'URL': ("type='XCiT'", "init_cfg=dict(checkpoint='http://127.0.0.1/x.pth'), type='XCiT'"),
    'scope': ("type='XCiT'", "_scope_='antigravity', type='XCiT'"),
    'hub': ("arch='nano_12_p16'", "arch='hf-hub:owner/model'"),
    'type that opens connections': ("type='RPNHead'", "type='BertModel', name='own'"),
    'unlisted type': ("type='RPNHead'", "type='GroundingDINOHead'"),
    'weights of timm': ("type='XCiT'", "pretrained=True, type='XCiT'"),
    'config of timm': ("type='XCiT'", "pretrained_cfg=dict(url='x'), type='XCiT'"),
    'results that fill memory': ('max_per_img=100', 'max_per_img=1000000'),
    'regions that fill memory': ('output_size=14', 'output_size=10000'),
    'images that fill memory': ("type='Resize'", "scale_factor=1000.0, type='Resize'"),
    'setting of a step': ("type='Resize'", "fields=['img'], type='Resize'"),
    'another string': ("type='XCiT'", "own=['mmengine.utils.call_command'], type='XCiT'"),
    'key': ("type='XCiT'", f"own={{'os.system': 1, {HARM!r}: 1}}, type='XCiT'"),
    'step': ("type='Resize'", "type='subprocess.run'"),
    'metric': ("type='CocoMetric'", "type='os.system'"),
    'loop': ("type='TestLoop'", "type='os.system'"),
    'import': ("'colonnade.necks'", "'antigravity'"),
    'module that does not exist': ("'colonnade.necks'", "'colonnade.nowhere'"),
    'settings of imports': ('allow_failed_imports=False', 'package="x"'),
    'unknown library': ("default_scope = 'mmdet'", "default_scope = 'os'"),
}


@pytest.mark.parametrize('attack', ATTACKS)
def test_configs_use_only_known_types(attack: str, package: Path, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ('made.py', 'soft_nms.py'):
        (tmp_path / name).write_text("open('made', 'w')")
    (tmp_path / 'beside').touch()
    change_config(package, *ATTACKS[attack])
    with pytest.raises(PackageError, match='shared/config.py'):
        load(package)
    assert not (tmp_path / 'made').exists() and 'antigravity' not in sys.modules


@pytest.mark.parametrize('attack', ['type', 'local file', 'string that mmdet evaluates'])
def test_configs_in_checkpoints(attack: str, original: Path, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'beside').touch()
    text = (original / 'config.py').read_text()
    checkpoint = read_checkpoint(original / 'model.safetensors')
    for name, cfg in (('good.pth', text), ('evil.pth', text.replace(*ATTACKS[attack], 1))):
        torch.save({**checkpoint, 'meta': {**checkpoint['meta'], 'cfg': cfg}}, tmp_path / name)
    assert load('good.pth').classes == ('disc', 'square', 'triangle')
    with pytest.raises(ValueError, match='^evil.pth'):
        load('evil.pth')


def test_trust_runs_imports(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'own_part.py').write_text(
        'from mmdet.registry import MODELS\nfrom mmdet.models import RPNHead\n'
        '@MODELS.register_module(force=True)\nclass OwnHead(RPNHead):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    for before, after in (("'colonnade.necks'", "'own_part'"), ("'RPNHead'", "'OwnHead'"),
                          ("'XCiT'", "'colonnade.backbones.XCiT'")):
        change_config(package, before, after)
    with pytest.raises(PackageError, match="custom_imports contains 'own_part'.* with trust=True"):
        load(package)
    assert type(load(package, trust=True).module.rpn_head).__name__ == 'OwnHead'


def test_weights_that_do_not_fit(package: Path, tmp_path: Path) -> None:
    change_config(package, 'fc_out_channels=256', 'fc_out_channels=64')
    with pytest.raises(PackageError, match='model.safetensors does not match the model'):
        load(package)
    with pytest.raises(ValueError, match='shared is a package, which already contains weights'):
        load(package, tmp_path / 'a.pth')


@pytest.mark.parametrize('settings', [
    dict(model_name='resnet18', features_only=True, pretrained=True),
    dict(model_name='resnet18', features_only=True, pretrained_cfg=dict(url='x')),
    dict(model_name='hf-hub:owner/name'),
])
def test_timm_backbones_open_no_connection(settings: dict[str, Any], tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    folder, attempts = write_package('sem_fpn', tmp_path / 'shared'), []
    values = parse_config((folder / 'config.py').read_text(), 'config.py')
    values['model']['backbone'] = dict(type='TIMMBackbone', **settings)
    replace_file(folder, 'config.py', config_text(values, []))

    def connect(*arguments: Any) -> None:
        attempts.append(arguments)
        raise ConnectionRefusedError('a test opens no connections')

    monkeypatch.setattr(socket.socket, 'connect', connect)
    monkeypatch.setattr(socket, 'getaddrinfo', connect)
    with pytest.raises(PackageError, match="TIMMBackbone', which is not on the list of types"):
        load(folder)
    assert not attempts


@pytest.mark.parametrize('before, after, message', [
    ('fc_out_channels=256', 'fc_out_channels=100000', 'needs more than .* MiB'),
    ('num_convs=2', 'num_convs=100000', 'has more than .* layers|needs more than'),
])
def test_small_files_do_not_fill_the_memory(before: str, after: str, message: str,
                                            package: Path) -> None:
    change_config(package, before, after)

    def read() -> None:
        with pytest.raises(PackageError, match=message):
            load(package)

    assert measure_peak(read) < 1024 * MIB


@pytest.mark.parametrize('width, tensors, message', [
    (100000, {}, 'the model needs more than'),
    (256, dict(a=torch.empty(2**33, device='meta')),
     'a is a strided tensor on meta: expected a strided tensor'),
    (256, dict(a=torch.eye(3).to_sparse()), 'a is a sparse_coo tensor on cpu: expected a strided'),
])
def test_checkpoints_do_not_fill_the_memory(width: int, tensors: dict[str, torch.Tensor],
                                            message: str, original: Path, tmp_path: Path) -> None:
    text = (original / 'config.py').read_text()
    checkpoint = read_checkpoint(original / 'model.safetensors')
    checkpoint['meta']['cfg'] = text.replace('fc_out_channels=256', f'fc_out_channels={width}')
    checkpoint['state_dict'].update(tensors)
    torch.save(checkpoint, tmp_path / 'a.pth')
    with pytest.raises(PackageError, match=f'a.pth: {message}'):
        load(tmp_path / 'a.pth')


@pytest.mark.parametrize('change', [
    lambda values: values['test_dataloader'].update(dataset=[3]),
    lambda values: values['test_dataloader']['dataset'].update(metainfo=dict(classes=3)),
    lambda values: values['model'].update(roi_head=3),
    lambda values: values['model']['backbone'].update(depth='nearest'),
    lambda values: values['model'].update(test_cfg=None),
    lambda values: values['test_dataloader']['dataset'].update(pipeline=[[]]),
    lambda values: values['test_dataloader']['dataset']['pipeline'].clear(),
    lambda values: values['model']['data_preprocessor'].update(mean='color'),
])
def test_all_errors_are_package_errors(change: Callable, package: Path) -> None:
    values = parse_config((package / 'config.py').read_text(), 'config.py')
    change(values)
    replace_file(package, 'config.py', config_text(values, []))
    with pytest.raises(PackageError):
        load(package).predict(np.zeros((32, 32, 3), np.uint8))


def test_small_tensors_keep_their_values() -> None:
    """Some constructors read rates of stochastic depth."""
    with MetaTensorMode(2**30, 'a file'):
        small, large = torch.linspace(0, 1, 3), torch.ones(300, 300)
        assert [each.item() for each in small] == [0, .5, 1] and large.is_meta
        assert (large + 1).is_meta and nn.Linear(300, 300).weight.is_meta
    with MetaTensorMode(2**20, 'a file'), pytest.raises(PackageError, match='more than 1 MiB'):
        torch.ones(512, 513)


@pytest.mark.parametrize('metadata, message', [('{', 'damaged'), ('[]', 'is not a JSON object'),
                                               ('[' * 10**5, 'damaged')])
def test_invalid_metadata_of_weights(metadata: str, message: str, tmp_path: Path) -> None:
    save_file(dict(a=torch.zeros(1)), tmp_path / 'a.safetensors', dict(dataset_meta=metadata))
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path / 'a.safetensors')


def test_models_that_are_looked_up_take_no_memory() -> None:
    """PlainViT looks up the sizes of timm's ViT-B, also for a custom architecture."""
    look_up.cache_clear()
    arch = dict(embed_dim=64, depth=2, num_heads=1)
    shapes = check_model_size(dict(type='PlainViT', arch=arch), 30, 2**20, 'a file')
    assert shapes['blocks.0.attn.proj.weight'] == (64, 64)
