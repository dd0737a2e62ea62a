"""A package of a stranger runs nothing, and a damaged one is an error that names the file."""
from __future__ import annotations

import resource
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.malicious_pickle import write_evil
from helpers.packages import change_card, forge, write_checkpoint, write_package
from torch import nn

from colonnade.inference import load
from colonnade.inference.packages import PackageError, open_package
from colonnade.inference.packages.memory_limits import ShapesAlone
from colonnade.settings.plain_config import config_text, parse_config
from colonnade.weights.files import allow_pickle, read_checkpoint
from colonnade.weights.state_dicts import WeightsError


@pytest.fixture(scope='module')
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('original')
    write_package('mask_rcnn', write_checkpoint('mask_rcnn', folder / 'a.pth'), folder / 'shared')
    return folder / 'shared'


@pytest.fixture
def package(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / 'shared')


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize('name', ['config.py', 'model.safetensors'])
def test_a_damaged_file_is_named(name: str, package: Path) -> None:
    flip_a_byte(package / name)
    with pytest.raises(PackageError, match=f'shared/{name} has the SHA-256 .* is damaged or'):
        open_package(package)
    with (package / name).open('ab') as file:
        file.write(b'\n')
    with pytest.raises(PackageError, match=rf'shared/{name} has \d+ bytes, and model.json says'):
        open_package(package)
    (package / name).unlink()
    with pytest.raises(FileNotFoundError, match=f'shared/{name}: the package is not whole'):
        open_package(package)
    (package / 'model.json').unlink()
    with pytest.raises(FileNotFoundError, match='shared/model.json: this is no folder of'):
        load(package)


def test_weights_are_safetensors_alone(package: Path, tmp_path: Path) -> None:
    """Also for who trusts: what is called so must be so."""
    marker = write_evil(tmp_path / 'evil.pth', 'zip')
    forge(package, 'model.safetensors', (tmp_path / 'evil.pth').read_bytes())
    with pytest.raises(
            PackageError, match='model.safetensors is no safetensors file'), allow_pickle():
        open_package(package, trust=True)
    assert not marker.exists()


ENTRY = dict(sha256='0' * 64, bytes=1)


@pytest.mark.parametrize('key, value, message', [
    ('format', 'other', "must have the format 'colonnade-model'"),
    ('format_version', 2, 'format_version 2, and this colonnade reads 1'),
    ('kind', 'panoptic', 'kind must be boxes, masks, labels, got "panoptic"'),
    ('classes', [], 'classes must be a list of at least one name'),
    ('classes', ['disc', 3, 'a'], 'classes must be'),
    ('classes', ['disc'], 'palette has 3 colours, and there are 1 classes'),
    ('classes', ['disc', 'square', 'dog'], 'config.py and .*model.json name other classes'),
    ('palette', [[0, 0, 256]] * 3, 'palette must be'),
    ('parameters', '3', 'parameters must be'),
    ('metrics', dict(mIoU='high'), 'metrics must be'),
    ('name', 'a\nb', 'name must be'),
    ('files', {
        'config.py': ENTRY,
        '../../model.safetensors': ENTRY
    }, 'files must be'),
    ('files', {
        'config.py': ENTRY,
        'model.safetensors': dict(sha256='../x', bytes=1)
    }, 'files'),
])
def test_cards_are_checked(key: str, value: Any, message: str, package: Path) -> None:
    change_card(package, lambda card: card.update({key: value}))
    with pytest.raises(PackageError, match=message):
        open_package(package)


@pytest.mark.parametrize('text, message', [
    ('[' * 10**5, 'is no JSON'), ('{"a": ', 'is no JSON'), ('[]', 'must have the format'),
    (' ' * 5 * 2**20, 'has more than 4194304 bytes'),
    ('{"format": "colonnade-model", "format_version": 1}', "has no 'name'"),
])  # yapf: disable
def test_cards_that_are_none(text: str, message: str, package: Path) -> None:
    (package / 'model.json').write_text(text)
    with pytest.raises(PackageError, match=f'model.json {message}'):
        open_package(package)


@pytest.mark.parametrize('line', [
    'import os', '_base_ = "x.py"', 'a = b = 1', '[a] = [1]', 'a.b = 1', 'a: int = 1', 'a += 1',
    'a = open("x")', 'a = dict(1)', 'a = dict(**b)', 'a = {**b}', 'a = {b: 1}', 'a = [*b]',
    'a = f"{b}"', 'a = b', 'a = -b', 'a = not 1', 'a = 1 + 1', 'a = (lambda: 1)()', 'a = b"x"',
    'a = ...', 'a = {1}', 'a = [b for b in c]', 'a = 1 if 2 else 3', 'def f(): pass', 'text = 1',
    'default_scope = "mmseg"', 'a = dict.fromkeys(b)', '"""text"""'
])  # yapf: disable
def test_configs_are_values_alone(line: str) -> None:
    text = f"default_scope = 'mmdet'\n\n{line}\n"
    with pytest.raises(PackageError, match='^config.py, line 3: .* is not run, since'):
        parse_config(text, 'config.py')


@pytest.mark.parametrize('text', [
    'a = (', '\0', 'a = ' + '(' * 10**4, 'a = ' + '-' * 10**5 + '1', 'a = "{{$HOME:x}}"',
    'a = 1\n' * 2**18, 'a = ' + '9' * 10**5, 'a = {[]: 1}'
])
def test_configs_that_cannot_be_read(text: str) -> None:
    with pytest.raises(PackageError, match='^config.py'):
        parse_config(text, 'config.py')


HARM = "__import__('pathlib').Path('made').touch()"
EVIL = {  # what is exchanged in the config -> what for
    'a type': ("type='RPNHead'", "type='os.system'"),
    'a module': ("type='RPNHead'", "type='antigravity'"),
    'a library': ("type='RPNHead'", "type='timm.create_model'"),
    'what mmcv evaluates': ("nms=dict(type='nms'", f'nms=dict(type={HARM!r}'),
    'what mmdet evaluates': ("type='L1Loss'",
                             f"type='CameraMotionCompensation', warp_mode={HARM!r}"),
    'what mmdet runs': ("type='MaskRCNN'", "type='LAD', teacher_config='made.py'"),
    'a file': ("arch='nano_12_p16'", "arch='/etc/passwd'"),
    'a file beside': ("arch='nano_12_p16'", "arch='nano_12_p16', checkpoint_path='beside'"),
    'a text elsewhere': ("type='XCiT'", "metainfo=dict(type='os.system'), type='XCiT'"),
    'an operator that is a module': ("type='RPNHead'", "type='soft_nms'"),
    'a URL': ("type='XCiT'", "init_cfg=dict(checkpoint='http://127.0.0.1/x.pth'), type='XCiT'"),
    'a scope': ("type='XCiT'", "_scope_='antigravity', type='XCiT'"),
    'a hub': ("arch='nano_12_p16'", "arch='hf-hub:owner/model'"),
    'a type that opens connections': ("type='RPNHead'", "type='BertModel', name='own'"),
    'a type that no list has': ("type='RPNHead'", "type='GroundingDINOHead'"),
    'weights of timm': ("type='XCiT'", "pretrained=True, type='XCiT'"),
    'a configuration of timm': ("type='XCiT'", "pretrained_cfg=dict(url='x'), type='XCiT'"),
    'results that fill memory': ('max_per_img=100', 'max_per_img=1000000'),
    'regions that fill memory': ('output_size=14', 'output_size=10000'),
    'images that fill memory': ("type='Resize'", "scale_factor=1000.0, type='Resize'"),
    'a setting of a step': ("type='Resize'", "fields=['img'], type='Resize'"),
    'another string': ("type='XCiT'", "own=['mmengine.utils.call_command'], type='XCiT'"),
    'a key': ("type='XCiT'", f"own={{'os.system': 1, {HARM!r}: 1}}, type='XCiT'"),
    'a step': ("type='Resize'", "type='subprocess.run'"),
    'a metric': ("type='CocoMetric'", "type='os.system'"),
    'a loop': ("type='TestLoop'", "type='os.system'"),
    'an import': ("'colonnade.necks'", "'antigravity'"),
    'an import of ours that is none': ("'colonnade.necks'", "'colonnade.nowhere'"),
    'settings of imports': ('allow_failed_imports=False', 'package="x"'),
    'no library': ("default_scope = 'mmdet'", "default_scope = 'os'"),
}


@pytest.mark.parametrize('kind', EVIL)
def test_configs_name_registered_classes_alone(kind: str, package: Path, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before, after = EVIL[kind]
    text = (package / 'config.py').read_text()
    assert before in text
    for name in ('made.py', 'soft_nms.py'):
        (tmp_path / name).write_text("open('made', 'w')")
    (tmp_path / 'beside').touch()
    forge(package, 'config.py', text.replace(before, after, 1).encode())
    with pytest.raises(PackageError, match='shared/config.py'):
        load(package)
    assert not (tmp_path / 'made').exists() and 'antigravity' not in sys.modules


def test_trust_imports_what_a_config_imports(package: Path, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'own_part.py').write_text(
        'from mmdet.registry import MODELS\nfrom mmdet.models import RPNHead\n'
        '@MODELS.register_module(force=True)\nclass OwnHead(RPNHead):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    text = (package / 'config.py').read_text().replace("'colonnade.necks'", "'own_part'")
    text = text.replace("'RPNHead'", "'OwnHead'").replace("'XCiT'", "'colonnade.backbones.XCiT'")
    forge(package, 'config.py', text.encode())
    with pytest.raises(PackageError, match="custom_imports names 'own_part'.* with trust=True"):
        load(package)
    assert type(load(package, trust=True).module.rpn_head).__name__ == 'OwnHead'


def test_weights_that_do_not_fit(package: Path, tmp_path: Path) -> None:
    """Strictly, as any: nothing stays random."""
    text = (package / 'config.py').read_text().replace('fc_out_channels=256', 'fc_out_channels=64')
    forge(package, 'config.py', text.encode())
    with pytest.raises(PackageError, match='model.safetensors does not fit the model'):
        load(package)
    with pytest.raises(ValueError, match='shared is a folder that has its weights'):
        load(package, tmp_path / 'a.pth')


@pytest.mark.parametrize(
    'change', ['pretrained=True', "pretrained_cfg=dict(url='x')", "model_name='hf-hub:owner/name'"])
def test_no_connection_is_opened(change: str, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a backbone of timm is told."""
    folder, asked = tmp_path / 'shared', []
    write_package('sem_fpn', write_checkpoint('sem_fpn', tmp_path / 'a.pth'), folder)
    values = parse_config((folder / 'config.py').read_text(), 'config.py')
    values['model']['backbone'] = dict(
        type='TIMMBackbone',
        model_name='resnet18',
        features_only=True,
        **parse_config(f'value = dict({change})', 'a change')['value']) \
        if 'model_name' not in change else dict(type='TIMMBackbone', model_name='hf-hub:owner/name')
    forge(folder, 'config.py', config_text(values, []).encode())

    def connect(*arguments: Any) -> None:
        asked.append(arguments)
        raise ConnectionRefusedError('a test opens no connections')

    monkeypatch.setattr(socket.socket, 'connect', connect)
    monkeypatch.setattr(socket, 'getaddrinfo', connect)
    with pytest.raises(PackageError, match="TIMMBackbone', which is not on the list of types"):
        load(folder)
    assert not asked


@pytest.mark.parametrize('before, after, message', [
    ('fc_out_channels=256', 'fc_out_channels=100000', 'needs more than .* MiB'),
    ('num_convs=2', 'num_convs=100000', 'has more than .* layers|needs more than'),
])
def test_a_small_file_fills_no_memory(before: str, after: str, message: str, package: Path) -> None:
    """5 GB were allocated before the shapes were compared."""
    text = (package / 'config.py').read_text()
    assert before in text
    forge(package, 'config.py', text.replace(before, after, 1).encode())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PackageError, match=message):
        load(package)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2**20  # KiB


def test_a_checkpoint_fills_no_memory_by_its_config(original: Path, tmp_path: Path) -> None:
    text = (original / 'config.py').read_text()
    text = text.replace('fc_out_channels=256', 'fc_out_channels=100000')
    checkpoint = read_checkpoint(original / 'model.safetensors')
    checkpoint['meta']['cfg'] = text
    torch.save(checkpoint, tmp_path / 'a.pth')
    with pytest.raises(PackageError, match='a.pth: the model needs more than'):
        load(tmp_path / 'a.pth')


@pytest.mark.parametrize('tensor, kind', [
    (torch.empty(2**33, device='meta'), 'a strided tensor on meta'),
    (torch.eye(3).to_sparse(), 'a sparse_coo tensor on cpu'),
])
def test_a_tensor_claims_no_memory(tensor: torch.Tensor, kind: str, original: Path,
                                   tmp_path: Path) -> None:
    checkpoint = read_checkpoint(original / 'model.safetensors')
    checkpoint['meta']['cfg'] = (original / 'config.py').read_text()
    checkpoint['state_dict']['a'] = tensor
    torch.save(checkpoint, tmp_path / 'a.pth')
    with pytest.raises(PackageError, match=f'a.pth: a is {kind}, expected a strided one'):
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
def test_every_failure_is_a_package_error(change: Callable, package: Path) -> None:
    values = parse_config((package / 'config.py').read_text(), 'config.py')
    change(values)
    forge(package, 'config.py', config_text(values, []).encode())
    with pytest.raises(PackageError):
        load(package).predict(np.zeros((32, 32, 3), np.uint8))


def test_small_tensors_keep_their_values() -> None:
    """Some constructors look at rates of stochastic depth; all large tensors are shapes."""
    with ShapesAlone(2**30, 'a file'):
        small, large = torch.linspace(0, 1, 3), torch.ones(300, 300)
        assert [each.item() for each in small] == [0, .5, 1] and large.is_meta
        assert (large + 1).is_meta and nn.Linear(300, 300).weight.is_meta
    with ShapesAlone(2**20, 'a file'), pytest.raises(PackageError, match='needs more than 1 MiB'):
        torch.ones(512, 513)


@pytest.mark.parametrize('metadata, message', [('{', 'damaged'), ('[]', 'is not a JSON object'),
                                               ('[' * 10**5, 'damaged')])
def test_metadata_of_weights(metadata: str, message: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file
    save_file(dict(a=torch.zeros(1)), tmp_path / 'a.safetensors', dict(dataset_meta=metadata))
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path / 'a.safetensors')


def test_a_failed_download_of_the_card(package: Path, run_tool: Callable) -> None:
    """What the tool says."""
    (package / 'model.json').write_text('<html>')
    with pytest.raises(SystemExit, match='^package: .*model.json is no JSON'):
        run_tool('package', 'check', package)


@pytest.mark.parametrize('kind', ['a type', 'a file beside', 'what mmdet evaluates'])
def test_configs_within_checkpoints(kind: str, original: Path, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``load`` takes from a file alone is built by the same rules."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'beside').touch()
    text = (original / 'config.py').read_text()
    checkpoint = read_checkpoint(original / 'model.safetensors')
    for name, cfg in (('good.pth', text), ('evil.pth', text.replace(*EVIL[kind], 1))):
        torch.save({**checkpoint, 'meta': {**checkpoint['meta'], 'cfg': cfg}}, tmp_path / name)
    assert load('good.pth').classes == ('disc', 'square', 'triangle')
    with pytest.raises(ValueError, match='^evil.pth'):
        load('evil.pth')
