"""Errors in somebody's own dataset, transform, hook, head, metric and config keep their traceback.
"""
from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import NO_WORKERS, SHORT, config
from helpers.random_models import random_checkpoint

MODULE = """
import torch
from mmcv.transforms import BaseTransform
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS, TRANSFORMS
from mmseg.datasets import BaseSegDataset
from mmseg.evaluation import IoUMetric
from mmseg.models import FPNHead


@DATASETS.register_module(force=True)
class OwnDataset(BaseSegDataset):
    def load_data_list(self):
        raise KIND('theirs')  # dataset


@TRANSFORMS.register_module(force=True)
class OwnTransform(BaseTransform):
    def __init__(self, fails=False):
        if fails:
            raise KIND('theirs')  # constructor

    def transform(self, results):
        raise KIND('theirs')  # transform


@HOOKS.register_module(force=True)
class OwnHook(Hook):
    saves = False

    def before_train(self, runner):
        if not self.saves:
            raise KIND('theirs')  # hook


@HOOKS.register_module(force=True)
class OwnSavingHook(OwnHook):
    saves = True

    def before_save_checkpoint(self, runner, checkpoint):
        raise KIND('theirs')  # saving


@MODELS.register_module(force=True)
class OwnHead(FPNHead):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.mask = torch.nn.Identity()

    def loss_by_feat(self, logits, samples):
        self.mask(torch.tensor(float('-inf')))  # Inf on purpose, as for masked attention
        raise KIND('theirs')  # head

    def predict(self, inputs, batch_img_metas, test_cfg):
        raise KIND('theirs')  # prediction


@METRICS.register_module(force=True)
class OwnMetric(IoUMetric):
    def compute_metrics(self, results):
        raise KIND('theirs')  # metric
"""
SETTINGS = dict(
    dataset="train_dataloader = dict(dataset=dict(type='OwnDataset'))",
    transform="train_dataloader = dict(dataset=dict(pipeline="
    "[*_base_.train_dataloader.dataset.pipeline, dict(type='OwnTransform')]))",
    constructor="train_dataloader = dict(dataset=dict(pipeline="
    "[dict(type='OwnTransform', fails=True), *_base_.train_dataloader.dataset.pipeline]))",
    hook="custom_hooks = [dict(type='OwnHook')]",
    saving="custom_hooks = [dict(type='OwnSavingHook')]",
    head="model = dict(decode_head=dict(type='OwnHead'))",
    prediction="model = dict(decode_head=dict(type='OwnHead'))",
    metric="val_evaluator = dict(type='OwnMetric')")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], tuple[Path, str]]:
    """Write a config with a class of a module next to it; returns it and the line that fails."""

    def write(place: str, kind: str) -> tuple[Path, str]:
        name = f'own_{place}_{kind}'.lower()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        text = MODULE.replace('KIND', kind)
        (tmp_path / f'{name}.py').write_text(text)
        line = next(number for number, line in enumerate(text.splitlines(), 1)
                    if line.endswith(f'# {place}'))  # yapf: disable
        (tmp_path / 'own.py').write_text(f'_base_ = {str(config("sem_fpn"))!r}\n'
                                         f'custom_imports = dict(imports=[{name!r}])\n'
                                         f'{SETTINGS[place]}\n')
        return tmp_path / 'own.py', f'File "{tmp_path}/{name}.py", line {line}, in '

    return write


@pytest.fixture
def run(run_tool: Callable, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a tool that must fail; returns what it prints on its standard error."""

    def of(tool: str, *arguments: Any) -> str:
        try:
            run_tool(tool, *arguments)
        except SystemExit as stopped:
            assert isinstance(stopped.code, str)  # printed, with exit status 1
            return f'{capfd.readouterr().err}{stopped.code}'
        except Exception:
            return f'{capfd.readouterr().err}{traceback.format_exc()}'
        raise AssertionError(f'{tool} did not fail')

    return of


@pytest.mark.parametrize('place, kind, says', [
    ('dataset', 'ValueError', ''),
    ('transform', 'ValueError', r'^train: sample .*, BaseSegDataset\) cannot be loaded: Value'),
    ('constructor', 'ValueError', r'\(OwnTransform\) cannot be built: ValueError: theirs'),
    ('saving', 'FileNotFoundError', ''),
    ('head', 'ValueError', ''),
    *(pytest.param(place, kind, '', marks=pytest.mark.slow) for place, kind in (
        ('dataset', 'OSError'), ('transform', 'OSError'), ('constructor', 'OSError'),
        ('hook', 'OSError'), ('hook', 'ValueError'), ('head', 'OSError'),
        ('metric', 'OSError'), ('metric', 'ValueError'))),
])  # yapf: disable
def test_training_error_has_traceback(place: str, kind: str, says: str, own: Callable,
                                      run: Callable, shapes: Path, tmp_path: Path) -> None:
    path, line = own(place, kind)
    said = run('train', path, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run', *SHORT,
               *NO_WORKERS)
    assert line in said and f'{kind}: theirs' in said
    assert re.search(says, said.splitlines()[-1] if place == 'transform' else said)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ValueError', 'OSError'])
def test_worker_error_has_traceback(kind: str, own: Callable, run: Callable, shapes: Path,
                                    tmp_path: Path) -> None:
    path, line = own('transform', kind)
    said = run('train', path, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run', *SHORT,
               'train_dataloader.num_workers=2')
    assert line in said and said.splitlines()[-1].startswith('train: sample ')


def test_prediction_error_has_traceback(own: Callable, run_tool: Callable, shapes: Path,
                                        tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, line = own('prediction', 'ValueError')
    weights = random_checkpoint('sem_fpn/xcit_nano_12_p16_slim_shapes', tmp_path / 'random.pth')
    image = min((shapes / 'ade/images/validation').iterdir())
    with pytest.raises(SystemExit) as stopped:
        run_tool('predict', path, weights, image, '--out', tmp_path / 'out', '--device', 'cpu')
    assert stopped.value.code == 3 and line in capfd.readouterr().err


@pytest.mark.parametrize('tool', ['train', 'check_config', 'create_config'])
def test_config_error_has_traceback(tool: str, run: Callable, tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text("number = 1\nother = open('theirs')\n")
    arguments = ['--masks', tmp_path, tmp_path, '--images', tmp_path, tmp_path]
    said = run(tool, tmp_path / 'own.py', *(arguments if tool == 'create_config' else []))
    assert 'line 2, in <module>' in said
    assert said.splitlines()[-1].startswith(
        f'{tool.replace("_", "-")}: {tmp_path}/own.py cannot be read: FileNotFoundError: ')


def test_import_error_has_traceback(run: Callable, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'own_import.py').write_text('import no_such_package\n')
    (tmp_path / 'own.py').write_text("custom_imports = dict(imports=['own_import'])\n")
    said = run('train', tmp_path / 'own.py')
    assert f'File "{tmp_path}/own_import.py", line 1, in <module>' in said
    assert f'train: {tmp_path}/own.py cannot be read: ImportError: Failed to import' in said
