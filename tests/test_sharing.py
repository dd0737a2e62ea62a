"""Packages: their content, and that their predictions equal those of the original."""
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
from helpers.packages import CLASSES, HEADS, PALETTE, draw_patches, write_checkpoint
from mmengine.config import Config
from PIL import Image
from safetensors import safe_open
from torch import nn

from colonnade.common.hashing import compute_sha256
from colonnade.inference import load
from colonnade.inference.packages.creation import CardText, make_package, read_metrics, save_weights
from colonnade.inference.packages.package import build_config, open_package
from colonnade.inference.packages.package_errors import PackageError
from colonnade.inference.packages.portable_config import build_portable_config, config_text
from colonnade.settings.backbone_config import fill_backbone_settings
from colonnade.settings.config_values import plain
from colonnade.settings.reading import read_config
from colonnade.weights.config_text import parse_config

FILES = {'README.md', 'config.py', 'model.json', 'model.safetensors'}
LEAVES = sorted((ROOT / 'configs').glob('*/xcit_nano_12_p16_slim_shapes.py'))


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('checkpoints')
    return {head: write_checkpoint(head, folder / f'{head}.pth') for head in HEADS}


@pytest.mark.parametrize('head', HEADS)
def test_predictions_equal_those_of_the_checkpoint(head: str, checkpoints: dict[str, Path],
                                                   tmp_path: Path, run_tool: Callable,
                                                   capsys: pytest.CaptureFixture) -> None:
    out, checkpoint = tmp_path / 'shared', checkpoints[head]
    run_tool('package', 'make', config(head), checkpoint, '--out', out, '--license', 'mit')
    assert {path.name for path in out.iterdir()} == FILES
    run_tool('package', 'check', out)
    printed = capsys.readouterr().out
    assert "config: test_dataloader.dataset.data_root is 'data'" in printed
    assert 'complete, and the model can be loaded' in printed
    shared, original = load(out), load(config(head), checkpoint)
    assert (shared.kind, shared.classes, shared.palette) \
        == (original.kind, original.classes, original.palette)
    assert shared.palette == PALETTE[:len(CLASSES[head])]
    result, expected = (model.predict(draw_patches()) for model in (shared, original))
    if head == 'sem_fpn':
        assert (result.labels == expected.labels).all()
    else:
        assert len(result) > 0 and (result.boxes == expected.boxes).all()
        assert (result.scores == expected.scores).all() and result.masks == expected.masks


@pytest.mark.parametrize('leaf', LEAVES, ids=lambda leaf: leaf.parent.name)
def test_config_is_unchanged(leaf: Path, no_layout: None) -> None:
    """Also types of numbers and sequences, which ``repr`` distinguishes."""
    cfg = read_config(leaf)
    values, _ = build_portable_config(cfg, ('disc', ), ((1, 2, 3), ))
    assert repr(parse_config(config_text(values, []), 'config.py')) == repr(values)
    fill_backbone_settings(cfg.model)
    build_config(values, 'config.py', trust=False)
    assert repr(values['model']) == repr(plain(cfg.model))
    pipeline = plain(cfg.test_dataloader.dataset.pipeline)
    assert repr(values['test_dataloader']['dataset']['pipeline']) == repr(pipeline)


def test_paths_of_the_author_are_removed(checkpoints: dict[str, Path], tmp_path: Path) -> None:
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
    model = load(config('mask_rcnn'), checkpoints['mask_rcnn'])
    model.cfg = read_config(config('mask_rcnn'))
    model.cfg.merge_from_dict(options)
    changes = '\n'.join(make_package(model, tmp_path / 'shared', CardText('shapes')))
    for name in FILES:
        assert b'anna' not in (tmp_path / 'shared' / name).read_bytes(), name
    package = open_package(tmp_path / 'shared')
    dataset = package.config.test_dataloader.dataset
    assert (dataset.data_root, dataset.ann_file, dataset.data_prefix) \
        == ('data', 'data/val.json', dict(img='data/val'))
    assert package.config.test_evaluator.ann_file == 'data/val.json'
    assert package.metadata.training['backbone_from'] == 'backbone.pth'
    assert package.metadata.training['averaged_weights'] is True
    assert 'model.backbone.init_cfg is' in changes and 'backend_args is removed' in changes


def test_faster_coco_metric_is_replaced() -> None:
    """Others may not have faster-coco-eval."""
    cfg = read_config(config('mask_rcnn'))
    cfg.test_evaluator.type = 'FasterCocoMetric'
    values, _ = build_portable_config(cfg, ('disc', ), ((1, 2, 3), ))
    assert values['test_evaluator']['type'] == 'CocoMetric'


def test_metadata_and_readme(checkpoints: dict[str, Path], tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(config('sem_fpn'), checkpoints['sem_fpn'])
    text = CardText('drawn_shapes', license='cc-by-4.0', data='shapes', notes='Three *shapes*.')
    make_package(model, tmp_path / 'out', text, metrics=dict(mIoU=75.2, aAcc=None))
    metadata = json.loads((tmp_path / 'out/model.json').read_text())
    assert metadata['classes'] == list(CLASSES['sem_fpn']) and metadata['kind'] == 'labels'
    assert metadata['preprocessing']['mean'] == [123.675, 116.28, 103.53]
    assert metadata['preprocessing']['channels'] == 'RGB'
    assert metadata['parameters'] == sum(each.numel() for each in model.module.parameters())
    assert metadata['versions']['torch'] == torch.__version__
    for name, entry in metadata['files'].items():
        assert entry['sha256'] == compute_sha256(tmp_path / 'out' / name)
    _, front_matter, body = (tmp_path / 'out/README.md').read_text().split('---\n', 2)
    front = yaml.safe_load(front_matter)
    assert (front['library_name'], front['license']) == ('colonnade', 'cc-by-4.0')
    assert front['pipeline_tag'] == 'image-segmentation'
    assert front['model-index'][0]['results'][0]['metrics'] == [dict(type='mIoU', value=75.2)]
    for part in ('| mIoU | 75.2 |', '| aAcc | – |', 'Three *shapes*.',
                 'It is an `EncoderDecoder` on XCiT (nano_12_p16)', '| mean | 123.675, 116.28'):
        assert part in body
    code = body.split('```python\n')[1].split('```')[0]
    Image.fromarray(draw_patches()).save(tmp_path / 'out/image.jpg')
    monkeypatch.chdir(tmp_path / 'out')
    exec(code, {})
    assert Image.open('drawn.png').height >= 96
    with safe_open(tmp_path / 'out/model.safetensors', framework='pt') as file:
        assert json.loads(file.metadata()['dataset_meta'])['classes'] == metadata['classes']


def test_shared_tensors_are_stored_twice(tmp_path: Path) -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    layers[1].weight = layers[0].weight
    (tmp_path / 'config.py').touch()
    model = SimpleNamespace(module=layers, classes=(), palette=())
    save_weights(model, tmp_path / 'model.safetensors')
    with safe_open(tmp_path / 'model.safetensors', framework='pt') as file:
        assert torch.equal(file.get_tensor('0.weight'), file.get_tensor('1.weight'))
        assert len(file.metadata()) == 1, 'the order of several entries would be random'


def test_metrics_belong_to_the_checkpoint(tmp_path: Path) -> None:
    checkpoint, path = tmp_path / 'a.pth', tmp_path / 'metrics.json'
    checkpoint.write_bytes(b'a')
    metrics = dict(mIoU=1., mAP_l=-1.)
    for content, message in (
        (dict(checkpoint='/gone/a.pth', checkpoint_sha256=compute_sha256(checkpoint)), ''),
        (dict(checkpoint=str(checkpoint)), ''),
        (dict(checkpoint=str(checkpoint),
              checkpoint_sha256='0' * 64), 'has the metrics of .* SHA-256 differs .*a.pth'),
        (dict(checkpoint=str(tmp_path / 'b.pth')),
         'metrics.json has the metrics of .*b.pth, not of .*a.pt'),
        ([], 'is not a metrics.json written by colonnade test'),
    ):
        path.write_text(json.dumps(content and dict(content, metrics=metrics)))
        if message:
            with pytest.raises(PackageError, match=message):
                read_metrics(path, str(checkpoint))
        else:
            assert read_metrics(path, str(checkpoint)) == dict(mIoU=1., mAP_l=None)


@pytest.mark.slow
def test_evaluation_of_a_package(checkpoints: dict[str, Path], shapes: Path, tmp_path: Path,
                                 run_tool: Callable) -> None:
    model = load(config('sem_fpn'), checkpoints['sem_fpn'])
    make_package(model, tmp_path / 'shared', CardText('shapes'))
    common = ('--data-root', shapes / 'ade', '--cfg-options', *NO_WORKERS[2:])
    outputs = []
    for leaf, weights, out in (
        (config('sem_fpn'), checkpoints['sem_fpn'], tmp_path / 'a.json'),
        (tmp_path / 'shared/config.py', tmp_path / 'shared/model.safetensors', tmp_path / 'b.json'),
    ):
        run_tool('test', leaf, weights, '--work-dir', tmp_path / 'run', '--out', out, *common)
        outputs.append(json.loads(out.read_text()))
    assert outputs[0]['metrics'] == outputs[1]['metrics'] and 'mIoU' in outputs[0]['metrics']
    checkpoint = str(checkpoints['sem_fpn'])
    assert read_metrics(tmp_path / 'a.json', checkpoint) == outputs[0]['metrics']
    with pytest.raises(PackageError, match='SHA-256 differs'):
        read_metrics(tmp_path / 'b.json', checkpoint)


@pytest.mark.parametrize('options, message', [
    (dict(test_dataloader=None), 'test_dataloader.dataset must be a single dataset with a pipe'),
    ({
        'model.decode_head.act_cfg': dict(type=nn.ReLU)
    }, 'act_cfg'),
    ({
        'model.decode_head.dropout_ratio': float('nan')
    }, 'dropout_ratio is nan'),
])
def test_config_that_cannot_be_shared(options: dict, message: str, checkpoints: dict[str, Path],
                                      tmp_path: Path) -> None:
    model = load(config('sem_fpn'), checkpoints['sem_fpn'])
    model.cfg = Config(plain(model.cfg._cfg_dict))
    model.cfg.merge_from_dict(options)
    with pytest.raises(PackageError, match=message):
        make_package(model, tmp_path / 'shared', CardText('shapes'))
    assert not list(tmp_path.iterdir())


def test_errors_of_the_command(checkpoints: dict[str, Path], tmp_path: Path,
                               run_tool: Callable) -> None:
    (tmp_path / 'there').mkdir()
    shutil.copy(checkpoints['sem_fpn'], tmp_path / 'a.pth')
    make = ('make', config('sem_fpn'), tmp_path / 'a.pth', '--out')
    for arguments, message in (
        ((*make, tmp_path / 'there'), '.*there already exists: choose another folder'),
        ((*make, tmp_path / 'new', '--metrics', tmp_path / 'no.json'),
         '--metrics: no such file: .*no.json'),
        ((*make, tmp_path / 'new', '--notes', tmp_path / 'no.md'),
         '--notes .*no.md cannot be read: No such file'),
        ((*make, tmp_path / 'new', '--notes', tmp_path / 'a.pth'),
         '--notes .*a.pth is not a UTF-8 text file'),
        (('push', tmp_path / 'there', 'x/y', '--token-file', tmp_path / 'no.txt'),
         '--token-file .*no.txt cannot be read: No such file'),
        (('make', config('sem_fpn'), '--out', tmp_path / 'new'), 'no weights after '),
        (('make', tmp_path / 'there', '--out', tmp_path / 'new'),
         '.*there is neither a package nor the work dir of a run: it has no config'),
        (('check', tmp_path / 'there'), '.*there is not a package folder'),
        (('check', tmp_path / 'a.pth'), '.*a.pth is not a package folder'),
    ):
        with pytest.raises(SystemExit, match=f'package: {message}'):
            run_tool('package', *arguments)
    assert {path.name for path in tmp_path.iterdir()} == {'there', 'a.pth'}


@pytest.mark.parametrize('source', ['iter_330.pth', pytest.param('.', marks=pytest.mark.slow)])
def test_checkpoint_or_work_dir_with_config(source: str, tmp_path: Path,
                                            run_tool: Callable) -> None:
    cfg = read_config(config('sem_fpn'))
    path = write_checkpoint('sem_fpn', tmp_path / 'iter_330.pth', cfg=cfg.pretty_text, iter=330)
    metrics = tmp_path / 'metrics.json'
    metrics.write_text(json.dumps(dict(checkpoint=str(path), metrics=dict(mIoU=75.2))))
    (tmp_path / 'last_checkpoint').write_text(str(path))
    (tmp_path / 'run.py').write_text(cfg.pretty_text)
    run_tool('package', tmp_path / source, '--out', tmp_path / 'shared', '--metrics', metrics)
    run_tool('package', tmp_path / 'shared')  # implies "check"
    metadata = open_package(tmp_path / 'shared').metadata
    assert metadata.classes == CLASSES['sem_fpn'] and metadata.metrics == dict(mIoU=75.2)
    assert metadata.training['max_iters'] == cfg.train_cfg.max_iters
    readme = (tmp_path / 'shared/README.md').read_text()
    assert '| iterations | 330 |' in readme
    assert f'| planned iterations | {cfg.train_cfg.max_iters} |' in readme


@pytest.mark.parametrize('tool, arguments, step', [
    ('package', ('make', config('sem_fpn'), 'https://a.b/c.pth', '--out', 'new'),
     'inference.packages.packaging.load'),
    ('visualize',
     (config('sem_fpn'), 'https://a.b/c.pth', ROOT / 'docs/images/visualize_features.png', '--out',
      'new'), 'visualization.figures.methods.load'),
])
def test_ctrl_c(tool: str, arguments: tuple, step: str, run_tool: Callable, tmp_path: Path,
                monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f'colonnade.{step}', stop)
    with pytest.raises(SystemExit) as stopped:
        run_tool(tool, *arguments)
    assert stopped.value.code == 130 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err.endswith(f'{tool}: stopped\n')
