"""Checks before training: different classes, unusable training sets, shared images."""
from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LAYOUTS, NO_WORKERS, SHORT, config, latest_log
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config
from mmengine.dataset import Compose
from PIL import Image
from torch.utils.data import ChainDataset, Dataset

from colonnade.datasets.path_checks import iter_image_paths
from colonnade.datasets.training_checks import find_shared_images, loads_only_polygons
from colonnade.datasets.validation.label_map_files import find_label_problems
from colonnade.datasets.validation.preflight import run_preflight_checks
from colonnade.settings.checks.all_checks import check_config, find_problems
from colonnade.settings.dataset_paths import redirect_data_root
from colonnade.settings.findings import get_errors
from colonnade.settings.reading import prepare_library, read_config

WITHOUT_OUR_BACKBONE = dict(type='ResNet', depth=18)


@pytest.fixture
def data(shapes: Path, tmp_path: Path) -> Path:
    """A copy of the drawn shapes, to change."""
    return shutil.copytree(shapes, tmp_path / 'shapes')


@pytest.fixture
def train(run_tool: Callable, data: Path, tmp_path: Path) -> Callable[..., None]:
    """Train a shipped config on the copy for two iterations, without evaluating all images."""

    def run(head: str, *options: str) -> None:
        run_tool('train', config(head), '--data-root', data / LAYOUTS[head], '--work-dir',
                 tmp_path / 'run', '--no-report', *SHORT, 'val_dataloader.dataset.indices=1',
                 *options, *NO_WORKERS)

    return run


def change(file: Path, **changes: Any) -> dict[str, Any]:
    """Change all annotations of a COCO file; returns its content."""
    content = json.loads(file.read_text())
    for annotation in content['annotations']:
        annotation.update(changes)
    file.write_text(json.dumps(content))
    return content


def wrapped(dataset: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a dataset within one that repeats, joins or mixes it."""
    if kind == 'ConcatDataset':
        return dict(type=kind, datasets=[dataset, dataset])
    more = dict(RepeatDataset=dict(times=2), MultiImageMixDataset=dict(pipeline=[]))
    return dict(type=kind, dataset=dataset, **more.get(kind, {}))


@pytest.mark.parametrize('kind', ['', 'RepeatDataset', 'ConcatDataset', 'MultiImageMixDataset'])
@pytest.mark.parametrize('key', ['train_dataloader', 'val_dataloader'])
def test_classes_missing_in_file(kind: str, key: str, data: Path) -> None:
    file = data / 'coco/annotations/instances_train2017.json'
    if key == 'val_dataloader':
        file = file.with_name('instances_val2017.json')
    content = json.loads(file.read_text())
    content['categories'] = [dict(id=1, name='cat'), dict(id=2, name='dog')]
    file.write_text(json.dumps(content))
    cfg = read_config(config('mask_rcnn'))
    cfg.model.backbone, cfg.model.neck = WITHOUT_OUR_BACKBONE, dict(type='FPN')
    redirect_data_root(cfg, data / 'coco')
    if kind:
        cfg[key].dataset = wrapped(cfg[key].dataset, kind)
    with pytest.raises(ValueError, match=rf'{key}.*classes has disc, square, triangle, but the '
                       'categories of .*json are cat, dog'):  # yapf: disable
        check_config(cfg, (key, ))


@pytest.mark.parametrize('reduce, says', [
    (True, 'has label 8, but the config has 4 classes .background, disc, square, triangle., which '
     'are labels 0 to 3, after reduce_zero_label has subtracted 1'),
    (False, 'has label 4, but the config has 4 classes .*, which are labels 0 to 3'),
])
def test_labels_out_of_range(reduce: bool, says: str, data: Path) -> None:
    for path in sorted((data / 'ade/annotations/training').iterdir())[3:]:
        labels = np.array(Image.open(path))
        labels[:4] = 9
        Image.fromarray(labels).save(path)
    cfg = read_config(config('sem_fpn'))
    redirect_data_root(cfg, data / 'ade')
    cfg.train_dataloader.dataset.reduce_zero_label = reduce
    found = find_problems(cfg, ('train_dataloader', ), [find_label_problems])
    assert re.search(rf'train_dataloader.dataset: {path.parent}/\S+ {says}', str(found[0]))
    with pytest.raises(ValueError, match=says):
        run_preflight_checks(cfg, skip=False)
    check_config(cfg, ('val_dataloader', ))
    if reduce:
        cfg.model.decode_head.ignore_index = 8
        assert not get_errors(find_problems(cfg, ('train_dataloader', ), [find_label_problems]))


def test_unreadable_label_maps(data: Path) -> None:
    path = min((data / 'ade/annotations/training').iterdir())
    path.write_bytes(path.read_bytes()[:30])
    cfg = read_config(config('sem_fpn'))
    redirect_data_root(cfg, data / 'ade')
    with pytest.raises(ValueError, match=f'{path} is truncated or damaged'):
        run_preflight_checks(cfg, skip=False)


@pytest.mark.parametrize('changes, options, says', [
    (dict(category_id=99), [], r'of other classes\); the classes are disc, square, triangle$'),
    (dict(iscrowd=1), [], r'\(\d+ crowds\)'),
    (dict(ignore=1), ['train_dataloader.dataset.filter_cfg=None'], r'\(\d+ to be ignored\)'),
    (dict(area=0), [], r'\(\d+ without area in the image\)'),
    ({}, ['train_dataloader.dataset.pipeline.1.poly2mask=False'
          ], r'\(43 RLEs, though the pipeline has poly2mask=False\)'),
    ({}, ['train_dataloader.dataset.filter_cfg.min_size=65'
          ], '12 images are smaller than filter_cfg.min_size 65'),
])
def test_training_set_without_usable_images(changes: dict[str, Any], options: list[str], says: str,
                                            data: Path, train: Callable, tmp_path: Path) -> None:
    file = data / 'coco/annotations/instances_train2017.json'
    content = change(file, **changes)
    number = len(content['annotations'])
    with pytest.raises(
            SystemExit,
            match='train: there is nothing to train on:\n  train_dataloader.'
            f'dataset: {file} has 12 images and {number} annotations.*{says}'):
        train('mask_rcnn', *options)
    assert not (tmp_path / 'run/metrics.csv').exists()


class OwnLoader(LoadAnnotations):
    """A transform that converts RLEs to polygons."""


@pytest.mark.parametrize('steps, expected', [
    ([dict(type='mmdet.LoadAnnotations', with_mask=True, poly2mask=False)], True),
    ([dict(type=LoadAnnotations, with_mask=True, poly2mask=False)], True),
    ([dict(type='mmdet.LoadAnnotations', with_mask=True)], False),
    ([dict(type='mmdet.LoadAnnotations', with_bbox=True, poly2mask=False)], False),
    ([dict(type=OwnLoader, with_mask=True, poly2mask=False)], False),
    ([dict(type=OwnLoader),
      dict(type=LoadAnnotations, with_mask=True, poly2mask=False)], False),
])
def test_polygon_pipelines(steps: list[dict[str, Any]], expected: bool) -> None:
    assert loads_only_polygons(steps) == expected
    assert loads_only_polygons(Compose(steps).transforms) == expected


OWN_FILES = """
from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS

@DATASETS.register_module(force=True)
class SeveralFiles(CocoDataset):

    def _join_prefix(self):
        self.files, self.ann_file = self.ann_file, ''
        super()._join_prefix()
        self.ann_file = [f'{self.data_root}/{file}' for file in self.files]

    def load_data_list(self):
        entries, files = [], self.ann_file
        for self.ann_file in files:
            entries += super().load_data_list()
        self.ann_file = files
        return entries
"""


@pytest.mark.slow
def test_custom_datasets_with_several_files(data: Path, tmp_path: Path, run_tool: Callable,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'several_files.py').write_text(OWN_FILES)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'own.py').write_text(f"""
_base_ = {str(config('mask_rcnn'))!r}
custom_imports = dict(imports=['several_files'])
train_dataloader = dict(dataset=dict(
    type='SeveralFiles', ann_file=['annotations/instances_train2017.json'] * 2))
""")
    run_tool('train', tmp_path / 'own.py', '--data-root', data / 'coco', '--work-dir',
             tmp_path / 'run', '--no-report', *SHORT, 'val_dataloader.dataset.indices=1',
             *NO_WORKERS)
    assert 'Iter(train) [2/2]' in latest_log(tmp_path / 'run')


def test_folder_without_images(data: Path, train: Callable) -> None:
    with pytest.raises(SystemExit, match=f'no images that end in .tif in {data}/ade/images/train'):
        train('sem_fpn', 'train_dataloader.dataset.img_suffix=.tif')


@pytest.mark.slow
def test_shared_images_warn(data: Path, train: Callable, tmp_path: Path) -> None:
    first, *_, last = sorted((data / 'ade/images/training').iterdir())
    here = data / 'ade/images/validation'
    shutil.copy(first, here / first.name)
    (data / 'ade/annotations/validation/000011.png').symlink_to(
        data / 'ade/annotations/training/000011.png')
    (here / last.name).symlink_to(last)
    train('sem_fpn', 'val_dataloader.dataset.indices=5')
    lines = [
        line for line in latest_log(tmp_path / 'run').splitlines()
        if 'also used for training' in line
    ]
    assert len(lines) == 1 and 'WARNING' in lines[0]
    assert lines[0].endswith(f'optimistic: {here / first.name}, {here / last.name}')
    assert '2 of 5 validation images are also used for training' in lines[0]


def test_validation_on_training_images_warns(tmp_path: Path) -> None:
    paths = [f'{tmp_path}/{number}.jpg' for number in range(9)]  # not even opened
    assert find_shared_images(paths, paths) == paths


def test_equal_names_are_not_shared_images(tmp_path: Path) -> None:
    for name, content in (('a', b'1234'), ('b', b'1235'), ('c', b'12')):
        (tmp_path / name).mkdir()
        (tmp_path / name / '1.jpg').write_bytes(content)
    assert find_shared_images([f'{tmp_path}/a/1.jpg', 's3://x/1.jpg'],
                              [f'{tmp_path}/b/1.jpg', f'{tmp_path}/c/1.jpg']) == []


def test_shared_images_of_many_clips_are_fast(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / str(number)).mkdir()
        (tmp_path / f'{number}/1.jpg').write_bytes(b'x' * (number % 1999))  # two are the same
    paths = [f'{tmp_path}/{number}/1.jpg' for number in range(2000)]
    started = time.process_time()
    assert find_shared_images(paths[:1000], paths[1000:]) == [paths[1999]]
    assert time.process_time() - started < 1  # each with each: a million comparisons


def test_torch_datasets_have_no_image_paths() -> None:
    assert list(iter_image_paths([Dataset(), ChainDataset([])])) == []


def test_datasets_without_classes_are_not_checked() -> None:
    head = dict(type='YOLOXHead', num_classes=1)
    cfg = Config(
        dict(
            default_scope='mmdet',
            model=dict(detector=dict(bbox_head=head)),
            val_dataloader=dict(dataset=dict(type='MOTChallengeDataset', data_root='x')),
            val_cfg=dict(),
            val_evaluator=dict(type='MOTChallengeMetric')))
    prepare_library(cfg, 'a.py')
    check_config(cfg, ('val_dataloader', ))
