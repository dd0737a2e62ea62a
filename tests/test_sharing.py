"""Packages: what is written, and that they answer as the model did."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from conftest import NO_WORKERS, ROOT, config
from helpers.packages import CLASSES, HEADS, PALETTE, some_image, write_checkpoint, write_package
from mmengine.config import Config
from PIL import Image
from safetensors import safe_open
from torch import nn

from colonnade.common.hashing import compute_sha256
from colonnade.inference import load
from colonnade.inference.packages import PackageError, open_package
from colonnade.inference.packages.creation import Words, make_package, read_metrics, save_weights
from colonnade.inference.packages.package import as_config
from colonnade.inference.packages.portable import portable
from colonnade.settings.backbone_config import settle_backbone
from colonnade.settings.config_values import plain
from colonnade.settings.plain_config import config_text, parse_config
from colonnade.settings.reading import read_config

FILES = {'README.md', 'config.py', 'model.json', 'model.safetensors'}
LEAVES = sorted((ROOT / 'configs').glob('*/xcit_nano_12_p16_slim_shapes.py'))


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('checkpoints')
    return {head: write_checkpoint(head, folder / f'{head}.pth') for head in HEADS}


@pytest.mark.parametrize('head', HEADS)
def test_a_package_answers_as_the_checkpoint(head: str, checkpoints: dict[str, Path],
                                             tmp_path: Path, run_tool: Callable,
                                             capsys: pytest.CaptureFixture) -> None:
    out, checkpoint = tmp_path / 'shared', checkpoints[head]
    run_tool('package', 'make', config(head), checkpoint, '--out', out, '--license', 'mit')
    assert {path.name for path in out.iterdir()} == FILES
    run_tool('package', 'check', out)
    printed = capsys.readouterr().out
    assert "config: test_dataloader.dataset.data_root is 'data'" in printed
    assert 'whole, and loads' in printed
    shared, original = load(out), load(config(head), checkpoint)
    assert (shared.kind, shared.classes, shared.palette) \
        == (original.kind, original.classes, original.palette)
    assert shared.palette == PALETTE[:len(CLASSES[head])]
    found, expected = (model.predict(some_image()) for model in (shared, original))
    if head == 'sem_fpn':
        assert (found.labels == expected.labels).all()
    else:
        assert len(found) > 0 and (found.boxes == expected.boxes).all()
        assert (found.scores == expected.scores).all() and found.masks == expected.masks


@pytest.mark.parametrize('leaf', LEAVES, ids=lambda leaf: leaf.parent.name)
def test_configs_stay_what_they_are(leaf: Path, no_layout: None) -> None:
    """Tuples, numbers and all; ``repr`` tells them apart."""
    cfg = read_config(leaf)
    values, _ = portable(cfg, ('disc', ), ((1, 2, 3), ))
    assert repr(parse_config(config_text(values, []), 'config.py')) == repr(values)
    settle_backbone(cfg.model)
    as_config(values, 'config.py', trust=False)
    assert repr(values['model']) == repr(plain(cfg.model))
    pipeline = plain(cfg.test_dataloader.dataset.pipeline)
    assert repr(values['test_dataloader']['dataset']['pipeline']) == repr(pipeline)


def test_nothing_of_the_makers_machine_is_shared(checkpoints: dict[str, Path],
                                                 tmp_path: Path) -> None:
    secret = tmp_path / 'anna'
    options = {
        'model.backbone.init_cfg': dict(type='Pretrained', checkpoint=f'{secret}/backbone.pth'),
        'test_dataloader.dataset.data_root': f'{secret}/data',
        'test_dataloader.dataset.ann_file': f'{secret}/data/val.json',
        'test_dataloader.dataset.data_prefix': dict(img=f'{secret}/elsewhere/val'),
        'test_dataloader.dataset.backend_args': dict(backend='petrel', map={f'{secret}': 's3://'}),
        'test_evaluator.ann_file': f'{secret}/data/val.json',
        'test_evaluator.outfile_prefix': f'{secret}/results',
        'visualizer.vis_backends': [dict(type='WandbVisBackend', init_kwargs=dict(entity=secret))],
        'work_dir': f'{secret}/run',
        'load_from': f'{secret}/other.pth',
        'custom_hooks': [dict(type='EMAHook'),
                         dict(type='OwnHook', folder=str(secret))],
    }
    cfg = read_config(config('mask_rcnn'))
    cfg.merge_from_dict(options)
    model = load(config('mask_rcnn'), checkpoints['mask_rcnn'])
    model.cfg = cfg
    changes = make_package(model, tmp_path / 'shared', Words('shapes'))
    for name in FILES:
        assert b'anna' not in (tmp_path / 'shared' / name).read_bytes(), name
    shared = open_package(tmp_path / 'shared')
    dataset = shared.config.test_dataloader.dataset
    assert (dataset.data_root, dataset.ann_file, dataset.data_prefix) \
        == ('data', 'data/val.json', dict(img='data/val'))
    assert shared.config.test_evaluator.ann_file == 'data/val.json'
    assert shared.card.training['backbone_from'] == 'backbone.pth'
    assert shared.card.training['averaged_weights'] is True
    told = '\n'.join(changes)
    assert 'model.backbone.init_cfg is left out' in told and 'backend_args is left out' in told


def test_the_card_and_the_readme(checkpoints: dict[str, Path], tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(config('sem_fpn'), checkpoints['sem_fpn'])
    words = Words('drawn_shapes', license='cc-by-4.0', data='drawn shapes', notes='Three *shapes*.')
    make_package(model, tmp_path / 'out', words, metrics=dict(mIoU=75.2, aAcc=None))
    card = json.loads((tmp_path / 'out/model.json').read_text())
    assert card['classes'] == list(CLASSES['sem_fpn']) and card['kind'] == 'labels'
    assert card['preprocessing']['mean'] == [123.675, 116.28, 103.53]
    assert card['preprocessing']['channels'] == 'RGB'
    assert card['parameters'] == sum(each.numel() for each in model.module.parameters())
    assert card['versions']['torch'] == torch.__version__
    for name, entry in card['files'].items():
        assert entry['sha256'] == compute_sha256(tmp_path / 'out' / name)
    _, front, body = (tmp_path / 'out/README.md').read_text().split('---\n', 2)
    front = yaml.safe_load(front)
    assert (front['library_name'], front['license']) == ('colonnade', 'cc-by-4.0')
    assert front['pipeline_tag'] == 'image-segmentation'
    assert front['model-index'][0]['results'][0]['metrics'] == [dict(type='mIoU', value=75.2)]
    assert '| mIoU | 75.2 |' in body and '| aAcc | – |' in body and 'Three *shapes*.' in body
    assert 'It is an `EncoderDecoder` on XCiT (nano_12_p16)' in body
    code = body.split('```python\n')[1].split('```')[0]
    Image.fromarray(some_image()).save(tmp_path / 'out/image.jpg')
    monkeypatch.chdir(tmp_path / 'out')
    exec(code, {})
    assert Image.open('drawn.png').height >= 96
    with safe_open(tmp_path / 'out/model.safetensors', framework='pt') as file:
        assert json.loads(file.metadata()['dataset_meta'])['classes'] == card['classes']


def test_shared_tensors_are_written_by_each_name(tmp_path: Path) -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    layers[1].weight = layers[0].weight
    (tmp_path / 'config.py').touch()
    model = SimpleNamespace(module=layers, classes=(), palette=())
    save_weights(model, tmp_path / 'model.safetensors')
    with safe_open(tmp_path / 'model.safetensors', framework='pt') as file:
        assert torch.equal(file.get_tensor('0.weight'), file.get_tensor('1.weight'))
        assert len(file.metadata()) == 1, 'several are written in any order'


def test_metrics_are_of_this_checkpoint(tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_bytes(b'a')
    metrics = tmp_path / 'metrics.json'

    def write(**content: object) -> None:
        metrics.write_text(json.dumps(dict(metrics=dict(mIoU=1., mAP_l=-1.), **content)))

    write(checkpoint='/gone/a.pth', checkpoint_sha256=compute_sha256(tmp_path / 'a.pth'))
    assert read_metrics(metrics, str(tmp_path / 'a.pth')) == dict(mIoU=1., mAP_l=None)
    write(checkpoint=str(tmp_path / 'a.pth'))
    assert read_metrics(metrics, str(tmp_path / 'a.pth')) == dict(mIoU=1., mAP_l=None)
    write(checkpoint=str(tmp_path / 'a.pth'), checkpoint_sha256='0' * 64)
    with pytest.raises(PackageError, match='metrics.json is of another file than .*a.pth'):
        read_metrics(metrics, str(tmp_path / 'a.pth'))
    write(checkpoint=str(tmp_path / 'b.pth'))
    with pytest.raises(PackageError, match='metrics.json is of .*b.pth, not of .*a.pth'):
        read_metrics(metrics, str(tmp_path / 'a.pth'))
    metrics.write_text('[]')
    with pytest.raises(PackageError, match='is no metrics.json of colonnade test'):
        read_metrics(metrics, str(tmp_path / 'a.pth'))


def test_our_evaluation_takes_a_package(checkpoints: dict[str, Path], shapes: Path, tmp_path: Path,
                                        run_tool: Callable) -> None:
    """And its metrics are for its checkpoint alone."""
    write_package('sem_fpn', checkpoints['sem_fpn'], tmp_path / 'shared')
    common = ('--data-root', shapes / 'ade', '--cfg-options', *NO_WORKERS[4:])
    found = []
    for leaf, weights, out in (
        (config('sem_fpn'), checkpoints['sem_fpn'], tmp_path / 'a.json'),
        (tmp_path / 'shared/config.py', tmp_path / 'shared/model.safetensors', tmp_path / 'b.json'),
    ):
        run_tool('test', leaf, weights, '--work-dir', tmp_path / 'run', '--out', out, *common)
        found.append(json.loads(out.read_text()))
    assert found[0]['metrics'] == found[1]['metrics'] and 'mIoU' in found[0]['metrics']
    assert read_metrics(tmp_path / 'a.json', str(checkpoints['sem_fpn'])) == found[0]['metrics']
    with pytest.raises(PackageError, match='of another file'):
        read_metrics(tmp_path / 'b.json', str(checkpoints['sem_fpn']))


@pytest.mark.parametrize('options, message', [
    (dict(test_dataloader=None), 'test_dataloader.dataset must be one data set with a pipeline'),
    ({
        'model.decode_head.act_cfg': dict(type=nn.ReLU)
    }, 'no class that|only numbers'),
    ({
        'model.decode_head.dropout_ratio': float('nan')
    }, 'dropout_ratio is nan'),
])
def test_what_cannot_be_shared(options: dict, message: str, checkpoints: dict[str, Path],
                               tmp_path: Path) -> None:
    model = load(config('sem_fpn'), checkpoints['sem_fpn'])
    cfg = Config(plain(model.cfg._cfg_dict))
    cfg.merge_from_dict(options)
    model.cfg = cfg
    with pytest.raises(PackageError, match=message):
        make_package(model, tmp_path / 'shared', Words('shapes'))
    assert not list(tmp_path.iterdir()), 'nothing is left behind'


def test_errors_of_the_command_line(checkpoints: dict[str, Path], tmp_path: Path,
                                    run_tool: Callable) -> None:
    (tmp_path / 'there').mkdir()
    shutil.copy(checkpoints['sem_fpn'], tmp_path / 'a.pth')
    make = ('make', config('sem_fpn'), tmp_path / 'a.pth', '--out')
    for arguments, message in (
        ((*make, tmp_path / 'there'), 'package: .*there already exists: choose another folder'),
        ((*make, tmp_path / 'new', '--metrics', tmp_path / 'no.json'),
         'package: --metrics .*no.json: there is no such file'),
        ((*make, tmp_path / 'new', '--notes', tmp_path / 'no.md'),
         'package: --notes .*no.md cannot be read: No such file'),
        ((*make, tmp_path / 'new', '--notes', tmp_path / 'a.pth'),
         'package: --notes .*a.pth is no text in UTF-8'),
        (('push', tmp_path / 'there', 'x/y', '--token-file', tmp_path / 'no.txt'),
         'package: --token-file .*no.txt cannot be read: No such file'),
        (('make', config('sem_fpn'), '--out', tmp_path / 'new'), 'package: no weights behind '),
        (('make', tmp_path / 'there', '--out', tmp_path / 'new'),
         'package: .*there is a folder: name a config and a checkpoint'),
        (('check', tmp_path / 'there'), 'package: no .*model.json: this is no folder of'),
        (('check', tmp_path / 'a.pth'), 'package: .*a.pth is no folder'),
    ):
        with pytest.raises(SystemExit, match=message):
            run_tool('package', *arguments)
    assert {path.name for path in tmp_path.iterdir()} == {'there', 'a.pth'}


def test_a_checkpoint_of_a_run_alone(tmp_path: Path, run_tool: Callable) -> None:
    cfg = read_config(config('sem_fpn'))
    path = write_checkpoint('sem_fpn', tmp_path / 'iter_330.pth', cfg=cfg.pretty_text, iter=330)
    metrics = tmp_path / 'metrics.json'
    metrics.write_text(json.dumps(dict(checkpoint=str(path), metrics=dict(mIoU=75.2))))
    run_tool('package', path, '--out', tmp_path / 'shared', '--metrics', metrics)
    run_tool('package', tmp_path / 'shared')  # checks it
    package = open_package(tmp_path / 'shared')
    assert package.card.classes == CLASSES['sem_fpn'] and package.card.metrics == dict(mIoU=75.2)
    assert package.card.training['max_iters'] == cfg.train_cfg.max_iters
    readme = (tmp_path / 'shared/README.md').read_text()
    assert '| iterations | 330 |' in readme
    assert f'| planned iterations | {cfg.train_cfg.max_iters} |' in readme


def test_evaluators_are_those_that_all_have() -> None:
    """A run's config has faster ones where faster-coco-eval is installed."""
    cfg = read_config(config('mask_rcnn'))
    cfg.test_evaluator.type = 'FasterCocoMetric'
    values, _ = portable(cfg, ('disc', ), ((1, 2, 3), ))
    assert values['test_evaluator']['type'] == 'CocoMetric'


@pytest.mark.parametrize('tool, arguments, step', [
    ('package', ('make', config('sem_fpn'), 'https://a.b/c.pth', '--out', 'new'),
     'inference.packages.packaging.load'),
    ('visualize',
     (config('sem_fpn'), 'https://a.b/c.pth', ROOT / 'docs/images/visualize_features.png', '--out',
      'new'), 'visualization.figures.figure_files.load'),
])
def test_tools_stop_quietly(tool: str, arguments: tuple, step: str, run_tool: Callable,
                            tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture) -> None:

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f'colonnade.{step}', stop)
    with pytest.raises(SystemExit) as stopped:
        run_tool(tool, *arguments)
    assert stopped.value.code == 130 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err.endswith(f'{tool}: stopped\n')
