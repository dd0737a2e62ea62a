"""The runtime of exported models: images as in OpenCV and mmcv, label maps as in mmseg."""
from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conftest import ROOT, config
from helpers.exported_by_hand import ABOUT, WEIGHTS, write_folder
from mmengine.registry import MODELS
from PIL import Image
from torch import nn
from torch.nn import functional as F

from colonnade.inference import Model
from colonnade.runtime import ImageError, LabelMap, ModelError, load, segmentation
from colonnade.runtime.metadata import Section
from colonnade.runtime.preprocessing import read_preprocess
from colonnade.runtime.resizing import resize_image, resize_maps
from colonnade.settings.reading import read_config

LOAD = dict(type='LoadImageFromFile')
PACK = dict(type='PackSegInputs')
# runs the command while imports of packages that an exported model must not need fail
GUARD = """
import runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        banned = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'cv2', 'timm', 'colonnade', 'onnx')
        if name.partition('.')[0] in banned:
            raise ImportError(f'{name} must not be imported')
sys.meta_path.insert(0, Finder())
for *sys.argv, in ARGUMENTS:
    try:
        runpy.run_module('colonnade_runtime', run_name='__main__', alter_sys=False)
    except SystemExit as stopped:
        print('stopped:', stopped.code)
"""


def noise(height: int, width: int) -> np.ndarray:
    """Return RGB noise of high and low frequency."""
    generator = np.random.default_rng(height * width)
    slow = generator.integers(0, 200, (4, 4, 3), dtype=np.uint8)
    large = cv2.resize(slow, (width, height), interpolation=cv2.INTER_CUBIC)
    return large // 2 + generator.integers(0, 100, (height, width, 3), dtype=np.uint8)


def test_too_small_images() -> None:
    settings = dict(steps=[], channels='RGB', mean=[0, 0, 0], std=[1, 1, 1], least=49)
    preprocess = read_preprocess(build_section(settings))
    assert preprocess(noise(49, 60)).array.shape == (3, 49, 60)
    message = 'the image of 48 x 60 pixels is resized to 48 x 60, but the graphs need at least'
    with pytest.raises(ImageError, match=message):
        preprocess(noise(48, 60))


def test_unknown_graphs(tmp_path: Path) -> None:
    model = load(write_folder(tmp_path / 'exported'))
    with pytest.raises(ModelError, match="unknown graph 'other': choose from model"):
        model.run('other')
    with pytest.raises(ModelError, match='graph model expects .*, got 0 arrays'):
        model.run('model')


@pytest.mark.parametrize('before, after', [
    ((1, 1), (7, 5)),
    ((7, 5), (1, 1)),
    ((100, 60), (50, 30)),
    ((60, 60), (30, 20)),
    ((90, 60), (30, 20)),
    ((31, 47), (31, 90)),
    ((48, 64), (111, 171)),
    ((123, 77), (122, 78)),
])
def test_images_are_resized_as_in_opencv(before: tuple[int, int], after: tuple[int, int]) -> None:
    image = noise(*before)
    expected = cv2.resize(image, after[::-1], interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(resize_image(image, after), expected)


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('before, after', [((7, 5), (30, 21)), ((30, 21), (7, 5)),
                                           ((1, 3), (4, 1))])
def test_maps_are_resized_as_in_torch(before: tuple[int, int], after: tuple[int, int],
                                      align_corners: bool) -> None:
    maps = torch.randn(1, 3, *before)
    expected = F.interpolate(maps, after, mode='bilinear', align_corners=align_corners)
    output = resize_maps(maps[0].permute(1, 2, 0).numpy(), after, align_corners)
    torch.testing.assert_close(torch.from_numpy(output), expected[0].permute(1, 2, 0))


def build_segmenter(pipeline: list[dict] | None = None, **options: Any) -> Model:
    """Build a Semantic FPN of two blocks, whose classes differ from pixel to pixel."""
    torch.manual_seed(0)
    cfg = read_config(config('sem_fpn'))
    cfg.merge_from_dict({'model.backbone.out_indices': [0, 0, 1, 1], **options})
    if pipeline is not None:
        cfg.test_dataloader.dataset.pipeline = [LOAD, *pipeline, PACK]
    module = MODELS.build(cfg.model).eval()
    module.init_weights()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    layer = module.decode_head.conv_seg
    nn.init.normal_(layer.weight, std=10.)
    with torch.no_grad():  # no class is the most likely everywhere
        layer.bias -= module(torch.randn(1, 3, 64, 96)).mean((0, 2, 3))
    num = module.decode_head.num_classes
    return Model(module, cfg, tuple(map(str, range(num))), ((0, 0, 0), ) * num, 'random weights')


def build_section(content: dict[str, Any]) -> Section:
    return Section(json.loads(json.dumps(content)), Path('model.json'))


PIPELINES: dict[str, tuple[list[dict], dict]] = {
    'of the config': ([dict(type='Resize', scale=(512, 128), keep_ratio=True)], {}),
    'other ratio': ([dict(type='Resize', scale=(40, 64))], {}),
    'by a factor': ([dict(type='Resize', scale_factor=0.7)], {}),
    'padded': ([dict(type='Resize', scale=(64, 64), keep_ratio=True),
                dict(type='Pad', size=(80, 72), pad_val=dict(img=(1, 2, 3)))], {}),
    'to a multiple': ([dict(type='Pad', size_divisor=32), dict(type='LoadAnnotations')],
                      {'model.data_preprocessor.test_cfg': dict(size_divisor=48)}),
    'to a size': ([dict(type='Pad', pad_to_square=True)],
                  {'model.data_preprocessor.test_cfg': dict(size=(200, 100)),
                   'model.data_preprocessor.pad_val': 7}),
    'blue first': ([], {'model.data_preprocessor.bgr_to_rgb': False}),
}  # yapf: disable


@pytest.mark.parametrize('name', PIPELINES)
def test_preprocessing_equals_that_of_the_config(name: str) -> None:
    from colonnade.export.graphs import ImageSizeLimits
    from colonnade.export.preprocessing import build_preprocess
    pipeline, options = PIPELINES[name]
    model, image = build_segmenter(pipeline, **options), noise(51, 90)
    data = model.prepare(image)
    batch = model.module.data_preprocessor(
        dict(inputs=[data['inputs']], data_samples=[data['data_samples']]), False)
    prepared = read_preprocess(build_section(build_preprocess(model, ImageSizeLimits(1, 32))))(
        image)
    assert np.array_equal(prepared.array, batch['inputs'][0].numpy())
    meta = batch['data_samples'][0].metainfo
    assert (prepared.size, prepared.resized) == (meta['ori_shape'], meta['img_shape'])
    assert prepared.scale == meta.get('scale_factor', (1., 1.))


@pytest.mark.parametrize('step, message', [
    (dict(type='Resize', scale=(4, 4), interpolation='nearest'), "interpolation='nearest'"),
    (dict(type='Resize', scale=(4, 4), backend='pillow'), "backend='pillow'"),
    (dict(type='Pad', size=(9, 9), padding_mode='edge'), "padding_mode='edge'"),
    (dict(type='RandomFlip', prob=1.), 'RandomFlip of the test pipeline cannot be exported'),
])
def test_unsupported_pipelines(step: dict, message: str) -> None:
    from colonnade.export.graphs import ExportError
    from colonnade.export.preprocessing import convert_step
    with pytest.raises(ExportError, match=message):
        convert_step(step)


ONE_CHANNEL = {
    'model.decode_head.num_classes': 2,
    'model.decode_head.out_channels': 1,
    'model.decode_head.threshold': 0.4,
    'model.decode_head.loss_decode.use_sigmoid': True
}
SLIDE = {'model.test_cfg': dict(mode='slide', crop_size=(64, 48), stride=(40, 48))}
PADDED = {'model.data_preprocessor.test_cfg': dict(size_divisor=48)}
SEGMENTERS: dict[str, tuple[str, dict]] = {
    'whole': ('sem_fpn', {}),
    'corners': ('sem_fpn', {
        'model.decode_head.align_corners': True
    }),
    'padded': ('sem_fpn', PADDED),
    'windows': ('sem_fpn', SLIDE),
    'windows of a padded image': ('sem_fpn', SLIDE | PADDED),
    'one channel': ('sem_fpn', ONE_CHANNEL),
    'PMT': ('pmt_semantic', {}),
    'EoMT': ('eomt_semantic', {}),
    'EoMT, padded': ('eomt_semantic', PADDED),
    'EoMT, windows': ('eomt_semantic', SLIDE),
}


@pytest.mark.parametrize('name', SEGMENTERS)
@pytest.mark.parametrize('size', [(51, 90)])
def test_label_maps_equal_those_of_mmseg(name: str, size: tuple[int, int],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.query_models import build_query_model, run_in_torch
    monkeypatch.setattr(segmentation, 'BLOCK', 5000)  # several blocks of rows
    head, options = SEGMENTERS[name]
    model = build_segmenter(**options) if head == 'sem_fpn' else build_query_model(head, **options)
    image = noise(*size)
    expected = model.predict(image).labels
    assert len(np.unique(expected)) > 1
    found = run_in_torch(model).predict(image).labels
    assert (found != expected).mean() < 1e-3, 'more than ties of logits'


@pytest.mark.parametrize('options', [
    {},
    {'model.data_preprocessor.pad_size_divisor': 1, 'model.test_cfg.filter_low_score': False},
    {'model.data_preprocessor.pad_size_divisor': 40},
    {'model.test_cfg.object_mask_thr': 1.},
])  # yapf: disable
@pytest.mark.parametrize('head', ['mask2former', 'pmt', 'eomt'])
def test_segments_equal_those_of_mmdet(head: str, options: dict[str, Any]) -> None:
    from helpers.query_models import build_query_model, check_same_segments, run_in_torch
    model = build_query_model(head, panoptic=True, **options)
    num_segments = check_same_segments(model, run_in_torch(model), noise(51, 90))
    assert num_segments == 0 if 'model.test_cfg.object_mask_thr' in options else num_segments > 0


@pytest.fixture(scope='module')
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp('exported') / 'folder')


def test_exported_folder(exported: Path, tmp_path: Path) -> None:
    model, image = load(exported, threads=1), noise(32, 48)
    result = model.predict(image)
    small = resize_image(image, (16, 24)).astype(np.float32)
    normalized = (small - np.float32([100, 110, 120])) / np.float32([50, 55, 60])
    logits = torch.from_numpy(normalized @ WEIGHTS.T).permute(2, 0, 1)[None]
    expected = F.interpolate(logits, (32, 48), mode='bilinear')[0].argmax(0)
    assert isinstance(result, LabelMap) and result.classes == ('red', 'green', 'blue')
    assert (result.labels != expected.numpy()).mean() < 0.01
    image_path, json_path = result.save(tmp_path / 'a.b')
    assert np.array_equal(np.asarray(Image.open(image_path)), result.labels)
    assert json.loads(json_path.read_text())['size'] == [32, 48]


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    'format': (dict(format=2), 'format must be 1, got 2'),
    'task': (dict(task='poses'), "task must be one of .*, got 'poses'"),
    'classes': (dict(classes=['a', 2]), "classes must be a list of names, got .'a', 2."),
    'palette': (dict(palette=[[0, 0, 0]]), 'palette must be 3 colors'),
    'mean': (dict(preprocess=ABOUT['preprocess'] | dict(mean=[1.])),
             r'preprocess.mean must be 3 numbers, got \[1.0\]'),
    'std': (dict(preprocess=ABOUT['preprocess'] | dict(std=[1, 0, 1])),
            'preprocess.std must be 3 numbers above 0'),
    'step': (dict(preprocess=ABOUT['preprocess'] | dict(steps=[dict(type='flip')])),
             r"preprocess.steps\[0\].type must be one of resize, pad, got 'flip'"),
    'multiple': (dict(preprocess=ABOUT['preprocess'] | dict(multiple=0)),
                 'preprocess.multiple must be an integer of at least 1, got 0'),
    'kind': (dict(postprocess=ABOUT['postprocess'] | dict(kind='x')),
             "postprocess.kind must be one of logits, queries, got 'x'"),
    'windows': (dict(postprocess=ABOUT['postprocess'] | dict(windows=dict(size=[4, 4]))),
                'postprocess.windows.stride must be 2 integers, got nothing'),
    'graphs': (dict(graphs={}), 'graphs.model must be an object, got nothing'),
    'elsewhere': (dict(graphs=dict(model=dict(file='../model.onnx'))),
                  'graphs.model.file must be the name of a file in the same folder'),
    'hash': (dict(graphs=dict(model=dict(file='model.onnx', sha256='0', inputs=[], outputs=[]))),
             'model.onnx has SHA-256 .* damaged'),
}  # yapf: disable


@pytest.mark.parametrize('name', INVALID)
def test_invalid_metadata(name: str, tmp_path: Path) -> None:
    changes, message = INVALID[name]
    folder = write_folder(tmp_path / 'folder', **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_missing_and_damaged_files(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='nowhere is not a folder'):
        load(tmp_path / 'nowhere')
    with pytest.raises(
            FileNotFoundError, match='model.json does not exist: .* was not written by '
            'colonnade'):
        load(tmp_path)
    folder = shutil.copytree(exported, tmp_path / 'copy')
    with pytest.raises(ValueError, match='provider Abacus is not available: choose from .*CPU'):
        load(folder, providers=['Abacus'])
    with pytest.raises(ValueError, match='threads must be at least 1, got 0'):
        load(folder, threads=0)
    (folder / 'model.onnx').unlink()
    with pytest.raises(FileNotFoundError, match='model.onnx does not exist, but model.json'):
        load(folder)
    (folder / 'model.json').write_text('{')
    with pytest.raises(ModelError, match='model.json is not a JSON file'):
        load(folder)


def test_command_without_torch(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / 'folder')
    shutil.copytree(ROOT / 'runtime', folder / 'colonnade_runtime')
    images = tmp_path / 'images'
    images.mkdir()
    pixels = noise(30, 40)
    turned = Image.Exif()
    turned[0x0112] = 6  # rotated by 90 degrees
    Image.fromarray(pixels).save(images / 'turned.png', exif=turned)
    Image.fromarray(pixels).save(images / 'plain.png')
    (tmp_path / 'bad.jpg').write_text('no image')
    calls = [
        ['-', '.', images, '--out', tmp_path / 'out', '--threads', 1],
        ['-', '.', images, '--out', tmp_path / 'out'],
        ['-', '.', tmp_path / 'bad.jpg', '--out', tmp_path / 'other'],
        ['-', '.', images / 'none.png', '--out', tmp_path / 'other'],
        ['-', tmp_path, images, '--out', tmp_path / 'other'],
    ]
    code = GUARD.replace('ARGUMENTS', repr([list(map(str, call)) for call in calls]))
    done = subprocess.run([sys.executable, '-c', code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if 'label map of height' in line]) == 2
    stopped = [line for line in lines if line.startswith('stopped: ')]
    messages = ('plain.png already exists', 'bad.jpg is not a readable image',
                'no such file or folder: .*none.png', 'model.json does not exist')
    for line, message in zip(stopped, messages, strict=True):
        assert line.startswith('stopped: colonnade_runtime: '), line
        assert re.search(message, line), line
    model = load(exported)
    for name, expected in (('plain', pixels), ('turned', np.rot90(pixels, -1))):
        labels = np.asarray(Image.open(tmp_path / 'out' / f'{name}.png'))
        assert np.array_equal(labels, model.predict(np.ascontiguousarray(expected)).labels)
