"""Configs for custom datasets: they train, or all errors of the data are listed."""
from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import ROOT, run_python
from helpers.synthetic_data import draw_instances, draw_label_maps, leaf, train_and_test
from mmengine.config import Config

from colonnade.recipes.backbone_swap.swap import find_base_config
from colonnade.recipes.custom_data.scaled_schedule import scale_schedule
from colonnade.settings.reading import read_config

CATEGORIES = {'person': 1, 'car': 3, 'dog': 18, 'bottle': 44, 'chair': 62}
STUFF = {'wall': 1, 'building': 2, 'sky': 3}  # IDs of ADE20K


@pytest.fixture
def five_classes(real_data: dict[str, Path], tmp_path: Path) -> list[str | Path]:
    """Arguments for COCO images with annotations of five classes."""
    folder, files = real_data['coco'], []
    for split in ('train2017', 'val2017'):
        content = json.loads((folder / f'annotations/instances_{split}.json').read_text())
        ids = CATEGORIES.values()
        content['categories'] = [c for c in content['categories'] if c['id'] in ids]
        content['annotations'] = [a for a in content['annotations'] if a['category_id'] in ids]
        files.append(tmp_path / f'{split}.json')
        files[-1].write_text(json.dumps(content))
    return ['--coco', *files, '--images', folder / 'train2017', folder / 'val2017']


@pytest.fixture
def three_classes(real_data: dict[str, Path], tmp_path: Path) -> Path:
    """ADE20K images with labels of three classes, in the directory structure of ADE20K."""
    new_labels = np.zeros(256, np.uint8)
    new_labels[list(STUFF.values())] = range(1, 1 + len(STUFF))
    for split in ('training', 'validation'):
        (tmp_path / 'annotations' / split).mkdir(parents=True)
        shutil.copytree(real_data['ade'] / 'images' / split, tmp_path / 'images' / split)
        for path in (real_data['ade'] / 'annotations' / split).iterdir():
            label_map = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            cv2.imwrite(str(tmp_path / 'annotations' / split / path.name), new_labels[label_map])
    return tmp_path


def test_instances(five_classes: list, tmp_path: Path, run_tool: Callable,
                   capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), *five_classes, '--out', out, '--batch-size', 4)
    assert 'not used for training: images without objects (33)' in capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert cfg.model.roi_head.bbox_head.num_classes == 5
    assert cfg.model.roi_head.mask_head.num_classes == 5
    for split in ('train', 'val', 'test'):
        metainfo = cfg[f'{split}_dataloader'].dataset.metainfo
        assert metainfo.classes == ('person', 'car', 'dog', 'bottle', 'chair')
        assert len(set(metainfo.palette)) == 5
    assert cfg.train_dataloader.batch_size == cfg.auto_scale_lr.base_batch_size == 4
    assert cfg.optim_wrapper.optimizer.lr == 1e-3
    assert cfg.train_cfg.max_iters == 1000

    metrics = train_and_test(run_tool, out)
    assert 0 <= metrics['coco/segm_mAP'] <= 1


@pytest.mark.parametrize('head', ['sem_fpn', pytest.param('upernet', marks=pytest.mark.slow)])
def test_label_maps(head: str, three_classes: Path, tmp_path: Path, run_tool: Callable,
                    capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf(head), '--masks', three_classes, '--classes', *STUFF, '--out',
             out, '--label-zero', 'ignore')
    printed = capsys.readouterr().out
    assert 'label 0' in printed
    cfg = Config.fromfile(out)
    heads = [cfg.model.decode_head, cfg.model.get('auxiliary_head')]
    assert {head.num_classes for head in heads if head} == {3}
    dataset = cfg.train_dataloader.dataset
    assert dataset.reduce_zero_label and tuple(dataset.metainfo.classes) == tuple(STUFF)

    metrics = train_and_test(run_tool, out)
    assert 0 <= metrics['mIoU'] <= 100


def test_subset_of_classes(five_classes: list, tmp_path: Path, run_tool: Callable,
                           capsys: pytest.CaptureFixture[str]) -> None:
    """Classes are in the order of the file, which mmdet requires."""
    out = tmp_path / 'two.py'
    run_tool('create_config', leaf('mask_rcnn', 'small_12_p16_3x_{}'), *five_classes, '--out', out,
             '--classes', 'chair', 'person', '--gpus', 4)
    cfg = Config.fromfile(out)
    assert cfg.train_dataloader.dataset.metainfo.classes == ('person', 'chair')
    assert cfg.model.roi_head.bbox_head.num_classes == 2
    assert cfg.optim_wrapper.optimizer.lr == 5e-5
    printed = capsys.readouterr().out
    assert re.search(r'training: objects of other classes are background: \d+ \w+, ', printed)


def test_misspelt_class(five_classes: list, tmp_path: Path, run_tool: Callable,
                        capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_tool('create_config', leaf('mask_rcnn'), *five_classes, '--out', tmp_path / 'own.py',
                 '--classes', 'chiar')
    assert "there is no category 'chiar'; did you mean chair?" in capsys.readouterr().err


def test_box_beyond_the_image(five_classes: list, tmp_path: Path, run_tool: Callable,
                              capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(five_classes[1].read_text())
    for annotation in content['annotations']:
        annotation['bbox'][0] -= 2000
        annotation['bbox'][2] += 2000
    five_classes[1].write_text(json.dumps(content))
    run_tool('create_config', leaf('mask_rcnn'), *five_classes, '--out', tmp_path / 'own.py')
    printed = capsys.readouterr().out
    assert 'pixels beyond its image' in printed
    assert 'for 50 images' in printed


@pytest.mark.parametrize('head, recipe, num_images, options, length, warm_up_end', [
    ('mask_rcnn', 'small_12_p16_3x_{}', 117266, dict(num_gpus=8), 36, 500),
    ('mask_rcnn', 'small_12_p16_3x_{}', 1000, {}, 36, 500),
    ('mask_rcnn', 'small_12_p16_3x_{}', 50, {}, 320, 500),
    ('mask_rcnn', 'small_12_p16_3x_{}', 50, dict(epochs=4), 4, 10),
    ('sem_fpn', 'small_12_p16_80k_{}', 20210, dict(num_gpus=8), 80000, 1500),
    ('sem_fpn', 'small_12_p16_80k_{}', 2021, dict(images_per_gpu=4), 32000, 1500),
    ('sem_fpn', 'small_12_p16_80k_{}', 1, dict(num_gpus=8), 1000, 100),
    ('sem_fpn', 'small_12_p16_80k_{}', 100, dict(epochs=10), 500, 50),
])
def test_schedule(head: str, recipe: str, num_images: int, options: dict, length: int,
                  warm_up_end: int) -> None:
    cfg = Config.fromfile(leaf(head, recipe))
    changes, _ = scale_schedule(cfg, num_images, **options)
    loop = changes['train_cfg']
    warm_up, rest = changes['param_scheduler']
    assert loop.get('max_epochs', loop.get('max_iters')) == length == rest['end']
    assert warm_up['end'] == warm_up_end
    assert 1 <= loop['val_interval'] <= length
    if 'milestones' in rest:
        assert rest['milestones'] == [length * 3 // 4, round(length * 33 / 36)]


@pytest.mark.parametrize('options, epochs, rate', [
    ({}, 300, 0.004),
    (dict(num_gpus=4), 300, 0.004),
    (dict(images_per_gpu=8, epochs=50), 50, 0.001),
])
def test_schedule_with_inherited_base_batch_size(options: dict, epochs: int, rate: float) -> None:
    """mmdet's RTMDet was trained with 8 x 32 images, but inherits a base_batch_size of 16."""
    cfg = read_config(find_base_config('mmdet::rtmdet/rtmdet_s_8xb32-300e_coco.py'))
    changes, reasons = scale_schedule(cfg, 17, **options)
    assert changes['train_cfg']['max_epochs'] == epochs
    assert changes['optim_wrapper']['optimizer']['lr'] == pytest.approx(rate)
    assert 'auto_scale_lr' not in changes
    assert 'base_batch_size is 16, less than the 32 images per process' in reasons[1]


@pytest.mark.parametrize('num_val, interval', [(0, 500), (31, 100), (2000, 250), (9000, 500)])
def test_interval_of_short_evaluations(num_val: int, interval: int) -> None:
    cfg = Config.fromfile(leaf('mask_rcnn'))
    changes, _ = scale_schedule(cfg, 100, num_val=num_val)
    assert changes['train_cfg'] == dict(max_iters=500, val_interval=interval)


def test_schedule_of_one_epoch() -> None:
    """The ratio of first and last learning rate is as published, and the warm-up ends."""
    cfg = Config.fromfile(ROOT / 'configs/rtmdet_ins/xcit_small_12_p16_300ep_coco.py')
    changes, _ = scale_schedule(cfg, 12, images_per_gpu=2, epochs=1)
    warm_up, cosine = changes['param_scheduler']
    assert warm_up['end'] == 2
    assert (cosine['begin'], cosine['end']) == (0, 1)
    factor = changes['optim_wrapper']['optimizer']['lr'] / cfg.optim_wrapper.optimizer.lr
    assert factor == 2 / 256
    assert cosine['eta_min'] == pytest.approx(factor * cfg.param_scheduler[1].eta_min, rel=1e-2)


@pytest.mark.parametrize('arguments, message', [
    (['no.py', '--masks', '.', '.', '--images', '.', '.'], 'no such config file: no.py'),
    (['{det}', '--masks', '.', '.', '--images', '.', '.'
      ], '--coco is for detectors and --masks for segmenters'),
    (['{det}', '--coco', '{seg}', '{seg}'], 'pass --images with the folders of the images of each'),
    (['{det}', '--coco', '{seg}', 'b.json', '--images', '.', 'no'
      ], 'no such file or folder: --coco b.json, --images no'),
    (['{det}', '--coco', 'a', 'b', '--ignore-255'
      ], '--label-zero, --suffixes, --ignore-255 and --color-map'),
    (['{seg}', '--masks', '.'
      ], '. does not have the directory structure of ADE20K (annotations/tr'),
    (['{seg}', '--masks', '.', '--boxes-only'], '--boxes-only requires --coco'),
    (['{seg}', '--masks', '{seg}'], 'is a file, but --masks takes folders of label maps'),
    (['{seg}', '--masks', '.', '.', '--images', '.'], '--images takes two folders'),
    (['{seg}', '--masks', '.', '--out', '{seg}'], 'already exists: choose another --out'),
    (['{seg}', '--masks', '.', '--out', 'own'], '--out must end in .py, got own'),
    (['{seg}', '--masks', '.', '--classes', 'a', 'a'], '--classes must be distinct names'),
    (['{seg}', '--masks', '.', '.', '--images', '.', '.', '--classes', 'a,b'
      ], '--classes takes names separated by spaces, or a file'),
    (['{seg}', '--masks', '.', '.', '--images', '.', '.', '--classes', 'no.txt'
      ], 'no such file: --classes no.txt'),
    (['{seg}', '--masks', '.', '--gpus', '0'], '--gpus must be at least 1'),
    (['{uper}', '--masks', '.', '.', '--images', '.', '.', '--batch-size', '1'
      ], 'UPerHead would normalize over a single value'),
])
def test_wrong_arguments_are_named(arguments: list[str], message: str, run_tool: Callable,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    names = dict(det=leaf('mask_rcnn'), seg=leaf('sem_fpn'), uper=leaf('upernet'))
    with pytest.raises(SystemExit) as stopped:
        run_tool('create_config', *(argument.format(**names) for argument in arguments))
    assert message in str(stopped.value)


@pytest.mark.parametrize('content, message', [
    ('model = dict(', 'cannot be read: SyntaxError'),
    ('_base_ = "no.py"', 'cannot be read: FileNotFoundError'),
    ('x = 1 / 0', 'cannot be read: ZeroDivisionError'),
    ('x = 1', 'is not a config for training and evaluation: it has no default_scope, model'),
    ('_base_ = "{leaf}"\nval_evaluator = [dict(type="CocoMetric")]',
     'val_evaluator must be a single'),
    ('_base_ = "{leaf}"\nmodel = dict(_delete_=True, type="RPN")', 'nothing in model sets num_cla'),
    ('_base_ = "{leaf}"\nparam_scheduler = None', 'it has no param_scheduler'),
    ('_base_ = "{leaf}"\nauto_scale_lr = dict(_delete_=True)', 'no auto_scale_lr.base_batch_size'),
    ('_base_ = "{leaf}"\ntrain_cfg = dict(_delete_=True, type="Loop")', 'neither max_epochs nor'),
    ('_base_ = "{leaf}"\ntrain_dataloader = dict(dataset=dict(_delete_=True, type="Concat"))',
     'must be a single dataset, got Concat'),
])
def test_unsuitable_base_configs(content: str, message: str, tmp_path: Path, run_tool: Callable,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_instances(tmp_path)
    recipe = tmp_path / 'recipe.py'
    recipe.write_text(content.replace('{leaf}', str(leaf('mask_rcnn'))))
    with pytest.raises(SystemExit) as stopped:
        run_tool('create_config', recipe, *arguments, '--out', tmp_path / 'own.py')
    assert message in f'{stopped.value} {capsys.readouterr().err}'
    assert not (tmp_path / 'own.py').exists()


def test_custom_schedule(tmp_path: Path, run_tool: Callable) -> None:
    """A scheduler outside a list, and default intervals."""
    arguments = draw_instances(tmp_path)
    recipe = tmp_path / 'recipe.py'
    recipe.write_text(
        f'_base_ = {str(leaf("mask_rcnn"))!r}\n'
        'param_scheduler = dict(_delete_=True, type="LinearLR", start_factor=0.1)\n'
        'default_hooks = dict(checkpoint=dict(_delete_=True, type="CheckpointHook"))\n'
        'train_cfg = dict(_delete_=True, type="IterBasedTrainLoop", max_iters=50)')
    run_tool('create_config', recipe, *arguments, '--out', tmp_path / 'own.py')
    cfg = Config.fromfile(tmp_path / 'own.py')
    assert cfg.train_cfg.max_iters == 50
    assert [scheduler.type for scheduler in cfg.param_scheduler] == ['LinearLR']


def test_unwritable_output(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path)
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit, match='create-config: .*file'):
        run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', tmp_path / 'file/own.py')


@pytest.mark.parametrize('content, names', [
    (b'road\n\n sky \n', ('road', 'sky')),
    ('\ufeffroad\r\nciel d’été'.encode(), ('road', 'ciel d’été')),
    ('ciel d’été'.encode('utf-16'), None),
])
def test_class_names_in_a_file(content: bytes, names: tuple[str, ...] | None, tmp_path: Path,
                               run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path)
    (tmp_path / 'names.txt').write_bytes(content)
    arguments += ['--classes', tmp_path / 'names.txt', '--out', tmp_path / 'own.py']
    if names is None:
        with pytest.raises(SystemExit) as stopped:
            run_tool('create_config', leaf('sem_fpn'), *arguments)
        assert 'names.txt is not a UTF-8 file' in str(stopped.value)
    else:
        run_tool('create_config', leaf('sem_fpn'), *arguments)
        assert Config.fromfile(tmp_path / 'own.py').metainfo.classes == names


@pytest.mark.parametrize('out', ['own.py', 'configs/own.py', "my configs/it's mine.py"])
def test_project_can_be_moved(out: str, tmp_path: Path, run_tool: Callable,
                              monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / 'project'
    draw_instances(project / 'data')
    monkeypatch.chdir(project)
    run_tool('create_config', leaf('mask_rcnn'), '--coco', 'data/train.json', 'data/val.json',
             '--images', 'data/train', 'data/val', '--out', out)
    output = capsys.readouterr().out
    assert 'data_root is relative to the folder of this file' in output
    assert '_base_ is an absolute path: change it on another machine' in output
    moved = project.rename(tmp_path / 'elsewhere')
    monkeypatch.chdir('/')
    cfg = Config.fromfile(moved / out)
    assert Path(cfg.data_root).samefile(moved / 'data')
    assert Path(cfg.val_evaluator.ann_file).samefile(moved / 'data/val.json')


def test_data_outside_the_project(tmp_path: Path, run_tool: Callable,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to data keep their names."""
    arguments = draw_label_maps(tmp_path / 'disk')
    project = tmp_path / 'project'
    project.mkdir()
    monkeypatch.chdir(project)
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', 'far.py')
    assert Config.fromfile('far.py').data_root == str(tmp_path / 'disk')
    (project / 'data').symlink_to(tmp_path / 'disk')
    run_tool('create_config', leaf('sem_fpn'), '--masks', 'data/masks/train', 'data/masks/val',
             '--images', 'data/images/train', 'data/images/val', '--out', 'near.py')
    assert Config.fromfile('near.py').data_root == str(project / 'data')


@pytest.mark.parametrize('options, command', [
    ([], 'colonnade train {}'),
    (['--gpus', '4'], 'torchrun --nproc-per-node 4 -m colonnade train {} --launcher pytorch'),
])
def test_train_command(options: list[str], command: str, tmp_path: Path, run_tool: Callable,
                       capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path)
    out = tmp_path / 'my own.py'
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', out, *options)
    assert f'train with: {command.format(shlex.quote(str(out)))}\n' in capsys.readouterr().out


def test_missing_files_are_reported_without_torch() -> None:
    """Importing torch and mmdet takes seconds."""
    words = [
        'create_config',
        str(leaf('mask_rcnn')), '--coco', 'no.json', 'no.json', '--images', '.'
    ]
    printed = run_python(
        '-c', f"""
import sys
from colonnade.tools import create_config
sys.argv = {words}
try:
    create_config.main()
except SystemExit as stopped:
    print(stopped)
print('torch' in sys.modules, 'mmdet' in sys.modules)
""")
    assert printed.endswith('no such file or folder: --coco no.json, --coco no.json\nFalse False\n')


@pytest.mark.slow
def test_config_is_written_without_timm_and_mmdet(tmp_path: Path) -> None:
    words = [str(word) for word in ('create_config', leaf('mask_rcnn'), *draw_instances(tmp_path),
                                    '--out', tmp_path / 'own.py')]  # yapf: disable
    printed = run_python(
        '-c', f"""
import sys
sys.modules['transformers'] = None  # else mmengine imports it, and thereby torchvision
from colonnade.tools import create_config
sys.argv = {words}
create_config.main()
print([name for name in ('timm', 'torchvision', 'mmdet', 'mmseg') if name in sys.modules])
""")
    assert printed.endswith('\n[]\n')
