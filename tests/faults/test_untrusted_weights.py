"""Untrusted weights files, whose code no entry point runs."""
from __future__ import annotations

import ast
import io
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import NO_WORKERS, SHORT, config
from helpers.malicious_pickle import MaliciousObject, write_malicious_checkpoint
from mmdet.apis import DetInferencer, init_detector
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.runner.checkpoint import CheckpointLoader
from mmseg.apis import MMSegInferencer, init_model
from test_architecture import MODULES
from test_no_code_execution import SCHEMES

from colonnade import evaluate, load, train
from colonnade.evaluation.probing.feature_cache import FeatureCache
from colonnade.weights import WeightsError
from colonnade.weights.checkpoint_files import SUMS
from colonnade.weights.downloads import fetch
from colonnade.weights.files import read_checkpoint

REFUSED = 'contains more than weights'
HEAD, DETECTOR = config('sem_fpn'), config('mask_rcnn')
#: tool -> command lines, with @ for the file of weights
TOOLS: dict[str, list[list[Any]]] = {
    'convert_checkpoint': [['@', 'out.pth'], ['@', 'out.pth', '--dry-run']],
    'export': [[HEAD, '@', '--out', 'out'], ['@', '--out', 'out']],
    'package': [['make', HEAD, '@', '--out', 'out'], ['make', '@', '--out', 'out']],
    'predict': [[HEAD, '@', 'images', '--out', 'out'], ['@', 'images', '--out', 'out']],
    'rank_backbones': [['--masks', 'ade', '--backbones', 'xcit_nano_12_p16=@', '--out', 'out']],
    'serve': [[HEAD, '@', '--port', '0'], ['@', '--port', '0']],
    'test': [[HEAD, '@', '--data-root', 'ade', '--work-dir', 'out']],
    'train': [[HEAD, '--data-root', 'ade', '--work-dir', 'out', *where]
              for where in (['--load-from', '@'], ['--load-from', '@', '--new-classes'],
                            ['--resume', '@'],
                            ['--cfg-options', 'model.backbone.init_cfg.type=Pretrained',
                             'model.backbone.init_cfg.checkpoint=@'])],
    'tune': [[HEAD, '--data-root', 'ade', '--work-dir', 'out', '--pretrained', '@']],
    'visualize': [[HEAD, '@', 'images', '--out', 'out'], ['@', 'images', '--out', 'out']],
}  # yapf: disable


@pytest.fixture
def evil(tmp_path: Path) -> Iterator[Path]:
    """Checkpoint that would create a file if its pickle ran."""
    marker = write_malicious_checkpoint(tmp_path / 'evil.pth', 'zip')
    yield tmp_path / 'evil.pth'
    assert not marker.exists()


def refused(run_tool: Callable, tool: str, *arguments: Any,
            capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool(tool, *arguments)
    assert REFUSED in f'{stopped.value}{capsys.readouterr().err}'


@pytest.mark.parametrize('tool', [
    pytest.param(
        tool, marks=[] if tool in ('convert_checkpoint', 'predict', 'test') else pytest.mark.slow)
    for tool in TOOLS
])
def test_tools_reject_pickled_code(tool: str, evil: Path, shapes: Path, run_tool: Callable,
                                   monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(evil.parent)
    Path('ade').symlink_to(shapes / 'ade')
    Path('images').symlink_to(shapes / 'ade/images/validation')
    for arguments in TOOLS[tool]:
        filled = [str(each).replace('@', str(evil)) for each in arguments]
        refused(run_tool, tool, *filled, capsys=capsys)


def test_table_has_every_tool() -> None:
    found = {
        name.removeprefix('tools.')
        for name in MODULES if name.startswith('tools.')
        for each in vars(import_module(f'colonnade.{name}')).values()
        if 'trust' in getattr(each, '__dataclass_fields__', {})
    }
    assert found == TOOLS.keys()


@pytest.mark.slow
@pytest.mark.parametrize('read', [
    load,
    lambda path: load(HEAD, path),
    lambda path: evaluate(HEAD, path, data_root='ade', work_dir='out'),
    lambda path: train(HEAD, data_root='ade', work_dir='out', load_from=str(path)),
])
def test_api_rejects_pickled_code(read: Callable, evil: Path, shapes: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(evil.parent)
    Path('ade').symlink_to(shapes / 'ade')
    with pytest.raises(WeightsError, match=REFUSED):
        read(evil)


@pytest.mark.slow
@pytest.mark.parametrize('make', [
    lambda path: init_detector(str(DETECTOR), path, device='cpu'),
    lambda path: DetInferencer(str(DETECTOR), path, device='cpu'),
    lambda path: init_model(str(HEAD), path, device='cpu'),
    lambda path: MMSegInferencer(str(HEAD), path, device='cpu'),
])
def test_openmmlab_inferencers_reject_pickled_code(make: Callable, evil: Path) -> None:
    with pytest.raises(WeightsError, match=REFUSED):
        make(str(evil))


@pytest.mark.slow
@pytest.mark.parametrize('resume', [True, False])
def test_mmengine_runner_rejects_pickled_code(resume: bool, evil: Path, shapes: Path) -> None:
    cfg = Config.fromfile(HEAD)
    cfg.merge_from_dict(dict(work_dir=str(evil.parent / 'run'), load_from=str(evil), resume=resume))
    for key in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[key].dataset.data_root = str(shapes / 'ade')
    runner = Runner.from_cfg(cfg)
    with pytest.raises(WeightsError, match=REFUSED):
        runner.load_or_resume()


def test_all_schemes_are_tested() -> None:
    known = {f'{each}//' for each in SCHEMES if each.endswith(':')} | set(SCHEMES)
    assert {each for each in CheckpointLoader._schemes
            if not any(each == one or one and one in each for one in known)} \
        <= {'https://', 'timm://'}  # yapf: disable


@pytest.mark.slow
@pytest.mark.parametrize('key', ['optimizer', 'message_hub', 'param_schedulers'])
def test_resume_rejects_pickled_code(key: str, trained: Path, shapes: Path, tmp_path: Path,
                                     run_tool: Callable,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    content = torch.load(trained / 'iter_2.pth', weights_only=False)
    content[key] = [content[key], MaliciousObject(tmp_path / 'made')]
    torch.save(content, trained / 'iter_2.pth')
    (trained / SUMS).unlink()  # a file with another SHA-256 is taken for damaged
    refused(run_tool, 'train', HEAD, '--data-root', shapes / 'ade', '--work-dir', trained,
            '--resume', *SHORT, *NO_WORKERS, capsys=capsys)  # yapf: disable
    assert not (tmp_path / 'made').exists()


def sharded(folder: Path) -> Path:
    folder.mkdir()
    safetensors.torch.save_file({'state_dict/a': torch.ones(2)}, folder / 'shard.safetensors')
    torch.save(dict(state_dict=dict(a=None), shards={'state_dict/a': [2]}), folder / 'rest.pth')
    return folder


def test_shard_folders(evil: Path, tmp_path: Path) -> None:
    folder = sharded(tmp_path / 'iter_2.pth')
    evil.rename(folder / '.metadata')
    (folder / '__0_0.distcp').write_bytes((folder / '.metadata').read_bytes())
    assert fetch(folder)['state_dict']['a'].tolist() == [1, 1]
    (folder / '.metadata').rename(folder / 'rest.pth')
    with pytest.raises(WeightsError, match=f'rest.pth {REFUSED}'):
        fetch(folder)


def test_suffix_is_not_trusted(evil: Path) -> None:
    for suffix in ('.safetensors', '.pt2', '.pt', '.onnx', '.npz', ''):
        evil = evil.rename(evil.with_suffix(suffix))
        with pytest.raises(WeightsError, match=REFUSED):
            fetch(evil)


def test_timm_hub_files_are_not_trusted(evil: Path, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / 'hub/models--timm--xcit_nano_12_p16_224.fb_in1k'
    (repository / 'snapshots/1').mkdir(parents=True)
    (repository / 'refs').mkdir()
    (repository / 'refs/main').write_text('1')
    (repository / 'snapshots/1/model.safetensors').write_bytes(evil.read_bytes())
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path / 'hub'))
    with pytest.raises(WeightsError, match=REFUSED):
        fetch('timm://xcit_nano_12_p16_224.fb_in1k')


def test_feature_cache_is_not_trusted(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, dict(backbone='a'))
    cache.write('b', np.zeros(3))
    buffer = io.BytesIO()
    np.save(buffer, np.array([MaliciousObject(tmp_path / 'made')], dtype=object), allow_pickle=True)
    payload = buffer.getvalue()
    cache.get_path('b').write_bytes(payload + cache._compute_digest('b', payload))
    with pytest.raises(ValueError, match='allow_pickle=False'):
        cache.read('b')
    assert not (tmp_path / 'made').exists()


@pytest.mark.parametrize('key', ['ann_file', 'proposal_file'])
def test_pickled_annotations_are_rejected(key: str, shapes: Path, tmp_path: Path,
                                          run_tool: Callable) -> None:
    name = '../pickled.pkl'
    root = shutil.copytree(shapes / 'coco', tmp_path / 'data/coco')
    write_malicious_checkpoint(tmp_path / 'data/pickled.pkl', 'pickle')
    with pytest.raises(SystemExit, match=rf'{key}: .*pickled.pkl is pickled, .* pass --trust'):
        run_tool('train', DETECTOR, '--data-root', root, '--work-dir', tmp_path / 'run',
                 '--cfg-options', f'train_dataloader.dataset.{key}={name}')
    assert not list(tmp_path.glob('data/*.made'))


#: what runs texts or files, and where it may
RUNS = {
    'eval': (), 'exec': (), '__import__': (), 'compile': (), 'pickle.load': (),
    # bytes of the job's own processes, as torch.distributed reads them too
    'pickle.loads': ('visualization.run_report.recorder', ),
    'torch.load': ('weights.files', ), 'torch.hub.load': (), 'yaml.load': (), 'yaml.full_load': (),
    'yaml.unsafe_load': (), 'os.system': (), 'os.popen': (), 'marshal.loads': (), 'joblib.load': (),
    'tarfile.TarFile.extractall': (), 'shutil.unpack_archive': (), 'torch.jit.load': (),
    'torch.export.load': ('export.verification', )
}  # yapf: disable


WORDS = re.compile(
    r'\b(eval|exec|__import__|compile|pickle|marshal|joblib|yaml|popen|system|shell|extract\w*|'
    r'unpack_archive|torch\.(load|hub|jit|export)|np\.load)\b')


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    text = MODULES[name].read_text()
    for node in ast.walk(ast.parse(text)) if WORDS.search(text) else ():
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            yield ast.unparse(node.func), node


def test_product_calls_no_eval_or_pickle() -> None:
    found = set()
    for name in MODULES:
        for function, node in calls(name):
            settings = {
                each.arg: ast.unparse(each.value)
                for each in node.keywords if each.arg in ('shell', 'allow_pickle')
            }
            if name not in RUNS.get(function, (name, )) \
                    or function.endswith(('.extractall', '.extract')) \
                    or settings.get('shell') not in (None, 'False') \
                    or function == 'np.load' and settings.get('allow_pickle') != 'False':
                found.add(f'{name}: {function}')
    assert not found
    assert any(function == 'torch.load' for function, _ in calls('weights.files'))


def test_compressed_files_are_not_unpacked(tmp_path: Path) -> None:
    torch.save(dict(a=torch.zeros(2**20)), tmp_path / 'stored.pth')
    with zipfile.ZipFile(tmp_path / 'stored.pth') as stored, \
            zipfile.ZipFile(tmp_path / 'a.pth', 'w', zipfile.ZIP_DEFLATED) as compressed:
        for record in stored.infolist():
            compressed.writestr(record.filename, stored.read(record))
    with pytest.raises(WeightsError, match=r'a.pth has \d+ bytes and unpacks to'):
        read_checkpoint(tmp_path / 'a.pth')
    assert read_checkpoint(tmp_path / 'a.pth', trust=True)['a'].numel() == 2**20
    assert read_checkpoint(tmp_path / 'stored.pth')['a'].numel() == 2**20
