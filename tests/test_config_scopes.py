"""Inheritance from configs of installed packages, with any distribution name."""
from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, run_python
from mmengine import hub
from mmengine.config import Config

from colonnade.settings.reading import LaunchOptions, load_config

BASES = {
    'mmseg::_base_/datasets/ade20k.py': 'ADE20KDataset',
    'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py': 'ADE20KDataset',
    'mmdet::_base_/datasets/coco_instance.py': 'CocoDataset',
    'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py': 'CocoDataset',
}
WEIGHTS = {
    'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py': 'fpn_r50_512x512_160k_ade20k',
    'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py': 'mask_rcnn_r50_fpn_1x_coco',
}


@pytest.fixture(autouse=True)
def no_installer(monkeypatch: pytest.MonkeyPatch) -> None:

    def check_call(command: list[str]) -> None:
        pytest.fail(f'{command} was called')

    monkeypatch.setattr(subprocess, 'check_call', check_call)


def write_config(folder: Path, base: str) -> Path:
    path = folder / 'own.py'
    scope = base.partition('::')[0]
    path.write_text(f'_base_ = {base!r}\nmodel = dict()\ndefault_scope = {scope!r}\n')
    return path


@pytest.mark.parametrize('base', BASES)
def test_inherit_from_package(tmp_path: Path, base: str) -> None:
    cfg = load_config(LaunchOptions(write_config(tmp_path, base)))
    assert cfg.train_dataloader.dataset.type == BASES[base]


@pytest.mark.parametrize('name', WEIGHTS)
def test_hub_finds_installed_packages(name: str) -> None:
    assert WEIGHTS[name] in hub.get_config(name, pretrained=True).model_path


@pytest.mark.slow
def test_importing_colonnade_registers_everything(tmp_path: Path) -> None:
    path = write_config(tmp_path, 'mmseg::_base_/datasets/ade20k.py')
    printed = run_python(
        '-c', f"""
import colonnade.engine.components
from mmengine.config import Config
from mmengine.registry import MODELS, RUNNERS
from mmengine.runner.checkpoint import CheckpointLoader
print(Config.fromfile({str(path)!r}).train_dataloader.dataset.type)
print('registered:', 'XCiT' in MODELS, 'ColumnarPyramid' in MODELS, 'StrictRunner' in RUNNERS)
print('read by', CheckpointLoader._get_checkpoint_loader('a.pth').__module__)
""")
    assert 'ADE20KDataset' in printed
    assert 'registered: True True True\nread by colonnade.weights.mmengine_loaders' in printed


def test_missing_package_is_not_installed(tmp_path: Path, run_tool: Callable,
                                          capsys: pytest.CaptureFixture) -> None:
    path = write_config(tmp_path, 'mmrotate::_base_/datasets/dotav1.py')
    with pytest.raises(SystemExit) as stopped:
        run_tool('train', path)
    assert f'train: {path} cannot be read: ModuleNotFoundError: mmrotate is not' in str(
        stopped.value)
    with pytest.raises(ModuleNotFoundError, match='mmrotate is not installed'):
        hub.get_config('mmrotate::_base_/datasets/dotav1.py')


@pytest.mark.parametrize('package', ['mmdet', 'mmseg'])
def test_base_config_of_the_docs(tmp_path: Path, package: str) -> None:
    """It works without colonnade."""
    line = next(
        line for line in (ROOT / 'docs/guides/custom_models.md').read_text().splitlines()
        if line.startswith("_base_ = __import__('mmseg')"))
    path = tmp_path / 'own.py'
    path.write_text(line.replace('mmseg', package).replace('datasets/ade20k', 'default_runtime'))
    assert Config.fromfile(path).default_scope == package
