"""Fuzzing of annotation files in COCO and other formats."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fuzzing import attempt, changed_bytes, changed_json, changed_text, fuzz
from helpers.synthetic_data import CLASSES, HEIGHT, WIDTH, coco_content, draw_image
from helpers.third_party_formats import WRITERS, Parts, draw_dataset, options, read
from hypothesis import event, given
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset
from mmengine.registry import METRICS, DefaultScope
from pycocotools import mask as coco_masks

from colonnade.common.console_logging import import_without_warnings
from colonnade.datasets.custom.instance_datasets import describe_instances
from colonnade.datasets.data_index import DataIndex
from colonnade.datasets.validation.coco_files import (Usage, check_instances, load_coco,
                                                      make_header_check)
from colonnade.datasets.validation.validation_report import Report

FILTER = dict(filter_empty_gt=True, min_size=32)
PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs'),
]


def make_content() -> dict[str, list]:
    """Return a COCO file with polygons, compressed and uncompressed RLEs, and a crowd."""
    content = coco_content(3)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order='F')
    mask[4:16, 4:20] = 1
    packed = coco_masks.encode(mask)
    counts = [int(np.argmax(mask.T.ravel()))]
    content['annotations'][1]['segmentation'] = dict(
        size=[HEIGHT, WIDTH], counts=packed['counts'].decode())
    counts = [4 * HEIGHT + 4, *[12, HEIGHT - 12] * 15, 12]
    counts.append(HEIGHT * WIDTH - sum(counts))
    content['annotations'][2]['segmentation'] = dict(size=[HEIGHT, WIDTH], counts=counts)
    content['annotations'][2]['iscrowd'] = 1
    content['annotations'][3]['segmentation'] *= 2
    for category in content['categories']:
        category['supercategory'] = 'shape'
    return content


CONTENT = make_content()


@pytest.fixture(scope='module')
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the intact file ``intact.json`` and its images."""
    folder = tmp_path_factory.mktemp('images')
    for image in CONTENT['images']:
        draw_image(folder / image['file_name'])
    (folder / 'intact.json').write_text(json.dumps(CONTENT))
    return folder


def describe(train: Path, val: Path, images: Path) -> tuple[Any, Report]:
    """Return the result of ``describe_instances`` for two files, and the report."""
    report = Report()
    contents = [load_coco(file, report) for file in (train, val)]
    if report.num_errors:
        return None, report
    indices = [
        DataIndex(images, content, file=file)
        for file, content in zip((train, val), contents, strict=True)
    ]
    data = describe_instances(indices, None, masks=True, filter_cfg=FILTER, report=report)
    return data, report


def build_dataset(file: Path, images: Path, *, test: bool = False) -> CocoDataset:
    with redirect_stdout(StringIO()), DefaultScope.overwrite_default_scope('mmdet'):
        return CocoDataset(
            ann_file=str(file),
            data_prefix=dict(img=str(images)),
            metainfo=dict(classes=CLASSES),
            filter_cfg=FILTER,
            test_mode=test,
            pipeline=PIPELINE)


@fuzz(few=40)
@given(content=changed_json(CONTENT))
def test_training_annotations(content: bytes, images: Path) -> None:
    """A file is rejected by name, or mmdet trains on what the report counts."""
    file = images / 'changed.json'
    file.write_bytes(content)
    found = attempt(lambda: describe(file, images / 'intact.json', images))
    assert found is not None
    data, report = found
    assert all('changed.json' in error or 'training' in error or '.jpg' in error
               for error in report.errors), report.errors  # yapf: disable
    if report.num_errors or not data.masks:
        event('errors')
        return
    assert data.classes == CLASSES
    loaded, quiet = load_coco(file, Report()), Report()
    assert loaded is not None
    counted = check_instances(file, loaded, quiet, check_images=make_header_check(images))
    dataset = build_dataset(file, images)
    assert len(dataset) == data.num_images[0]
    used = dict.fromkeys(CLASSES, 0)
    for index in range(len(dataset)):
        instances = dataset[index]['data_samples'].gt_instances
        assert len(instances.masks) == len(instances.bboxes)
        for label in instances.labels:
            used[CLASSES[label]] += 1
    small = {i for i, image in counted.images.items() if min(image['width'], image['height']) < 32}
    if not small:
        assert used == counted.classes


@pytest.fixture(scope='module')
def metric(images: Path) -> Callable[[Path], dict[str, float]]:
    """Function that evaluates predictions equal to the annotations of a file."""
    import_without_warnings('mmdet.evaluation')
    kind = METRICS.get('mmdet.FasterCocoMetric') or METRICS.get('mmdet.CocoMetric')

    def measure(file: Path) -> dict[str, float]:
        dataset = build_dataset(file, images, test=True)
        with redirect_stdout(StringIO()):
            evaluator = kind(ann_file=str(file), metric=['bbox', 'segm'])
        evaluator.dataset_meta = dataset.metainfo
        for index in range(len(dataset)):
            sample = dataset[index]['data_samples']
            truth = sample.gt_instances
            prediction = dict(
                img_id=sample.img_id,
                ori_shape=sample.ori_shape,
                gt_instances=truth,
                pred_instances=dict(
                    bboxes=truth.bboxes.tensor,
                    labels=truth.labels,
                    scores=truth.labels.float() * 0 + 0.9,
                    masks=truth.masks.to_tensor(bool, 'cpu')))
            evaluator.process({}, [prediction])
        return evaluator.evaluate(len(dataset))

    return measure


@fuzz(few=10, many=2000)
@given(content=changed_json(CONTENT))
def test_validation_annotations(content: bytes, images: Path, metric: Callable) -> None:
    """A file is rejected, or the evaluation returns metrics."""
    file = images / 'changed.json'
    file.write_bytes(content)
    found = attempt(lambda: describe(images / 'intact.json', file, images))
    assert found is not None
    data, report = found
    if report.num_errors or not data.masks:
        event('errors')
        return
    with redirect_stdout(StringIO()):
        values = metric(file)
    assert -1 <= values['coco/bbox_mAP'] <= 1, values


@pytest.fixture(scope='module')
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of the same synthetic dataset in each format."""
    root = tmp_path_factory.mktemp('formats')
    parts: Parts = draw_dataset(root / 'drawn')
    for form, write in WRITERS.items():
        write(parts, root / form)
    return {form: root / form for form in WRITERS}


SUFFIXES = ('.json', '.txt', '.xml', '.yaml')
NUMBERS = count()


@pytest.mark.parametrize('form', WRITERS)
@fuzz(few=4, many=1500)
@given(draw=st.data())
def test_third_party_formats(form: str, formats: dict[str, Path], draw: st.DataObject) -> None:
    """A dataset is rejected by the path of a file, or converted to valid annotations."""
    folder = formats[form]
    files = [file for file in sorted(folder.rglob('*.*')) if file.suffix in SUFFIXES]
    file = draw.draw(st.sampled_from(files))
    source = file.read_bytes()
    if draw.draw(st.integers(0, 4)):
        text = draw.draw(changed_text(source.decode()))
        content = text.encode(errors='surrogatepass')
    else:
        content = draw.draw(changed_bytes(source))
    out = folder.parent / f'{form}_{next(NUMBERS)}.py'
    file.write_bytes(content)
    try:
        found = attempt(lambda: read(options(folder, out=out)), names=str(folder))
        if found is None:
            return
        written, report = found
        assert all(form in error for error in report.errors), report.errors
        for part, content in zip(('train', 'val'), written, strict=False):
            (folder.parent / f'{part}.json').write_text(json.dumps(content))
            quiet = Report()
            check_images, usage = make_header_check(folder), Usage(masks=False)
            check_instances(
                folder.parent / f'{part}.json',
                content,
                quiet,
                check_images=check_images,
                usage=usage)
            wrong = [error for error in quiet.errors if 'does not exist' not in error]
            assert form == 'coco' or not wrong, wrong
    finally:
        file.write_bytes(source)
        shutil.rmtree(out.with_name(f'{out.stem}_data'), ignore_errors=True)
