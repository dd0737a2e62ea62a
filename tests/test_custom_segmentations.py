"""Masks of COCO files: no content causes a traceback, here or in pycocotools."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faster_coco_eval
import numpy as np
import pycocotools.coco
from helpers.synthetic_data import HEIGHT, WIDTH, coco_content, draw_image
from hypothesis import HealthCheck, example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset
from pycocotools import mask as coco_masks

from colonnade.datasets.custom.instance_datasets import describe_instances
from colonnade.datasets.data_index import DataIndex
from colonnade.datasets.validation.coco_files import load_coco
from colonnade.datasets.validation.segmentations import decode_counts, find_segmentation_error
from colonnade.datasets.validation.validation_report import Report


def test_decode_counts_matches_pycocotools() -> None:
    generator = np.random.default_rng(0)
    for density in (0.001, 0.1, 0.9):
        mask = np.asfortranarray((generator.random((300, 400)) < density).astype(np.uint8))
        if density < 0.01:
            mask[:, 200:] = 1
        encoded = coco_masks.encode(mask)
        counts = list(decode_counts(encoded['counts'].decode()))
        assert sum(counts) == mask.size
        assert sum(counts[1::2]) == mask.sum()
        back = coco_masks.frPyObjects(dict(size=[300, 400], counts=counts), 300, 400)
        assert back['counts'] == encoded['counts']


ODD = st.one_of(st.none(), st.booleans(), st.just(float('nan')), st.just(float('inf')), st.just(''),
                st.just('a'), st.just([]), st.just({}), st.just([[1, 2]]), st.just([None]),
                st.just({'a': [1]}), st.just([[]]), st.just(10**400), st.just(-1), st.just(0),
                st.integers(), st.floats(), st.text(max_size=3),
                st.lists(st.integers(), max_size=4))


def iter_paths(content: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the paths of all values in nested JSON."""
    items = content.items() if isinstance(content, dict) else \
        enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from iter_paths(value, (*path, key))


def replace_value(content: Any, path: tuple, value: Any) -> Any:
    """Return the content with the value at a path replaced or removed, if there is one."""
    if not path:
        return value
    if isinstance(content, dict) and path[0] in content:
        changed = {**content, path[0]: replace_value(content[path[0]], path[1:], value)}
        return {key: item for key, item in changed.items() if item is not ...}
    if isinstance(content, list) and path[0] in range(len(content)):
        changed = [*content]
        changed[path[0]] = replace_value(content[path[0]], path[1:], value)
        return [item for item in changed if item is not ...]
    return content


def make_content() -> dict[str, list]:
    content = coco_content()
    content['annotations'][1]['segmentation'] = dict(size=[HEIGHT, WIDTH], counts=[20, 1900])
    mask = coco_masks.encode(np.eye(HEIGHT, WIDTH, dtype=np.uint8, order='F'))
    mask['counts'] = mask['counts'].decode()
    content['annotations'][2]['segmentation'] = mask
    return content


def find_errors(content: dict, folder: Path) -> list[str]:
    """Return the errors of a dataset with this content for training and validation."""
    files = [folder / 'train.json', folder / 'val.json']
    for file in files:
        file.write_text(json.dumps(content))
    report = Report()
    filter_cfg = dict(filter_empty_gt=True, min_size=16)
    contents = [load_coco(file, report) for file in files]
    if report.errors:
        return report.errors
    indices = [
        DataIndex(folder, each, file=file) for file, each in zip(files, contents, strict=True)
    ]
    data = describe_instances(indices, None, masks=True, filter_cfg=filter_cfg, report=report)
    assert data is not None or report.errors
    if not report.errors:
        assert_mmdet_and_pycocotools_read(files[1], data.classes)
    return report.errors


def assert_mmdet_and_pycocotools_read(file: Path, classes: tuple[str, ...]) -> None:
    dataset = CocoDataset(
        ann_file=str(file),
        data_prefix=dict(img=str(file.parent)),
        metainfo=dict(classes=classes),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmdet.LoadAnnotations', with_bbox=True, with_mask=True)
        ])
    for index, image in enumerate(dataset):
        info = dataset.get_data_info(index)
        assert image['img_shape'] == (info['height'], info['width'])
    for module in (pycocotools.coco, faster_coco_eval):
        read = module.COCO(str(file))
        for annotation in read.dataset['annotations']:
            read.annToRLE(annotation)


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(list(iter_paths(make_content()))), st.one_of(st.just(...), ODD)),
        min_size=1,
        max_size=3))
@example(changes=[])
@example(changes=[(('annotations', 0, 'segmentation', 0, 2), None)])
@example(changes=[(('annotations', 1, 'segmentation', 'counts', 0), None)])
@example(changes=[(('images', 0, 'file_name'), 7), (('annotations', ), None)])
@example(changes=[(('images', 0, 'id'), [1])])
@example(changes=[(('images', 0, 'file_name'), 'a\0b')])
@example(changes=[(('images', 0, 'width'), '48'), (('images', 1, 'height'), None)])
@example(changes=[(('annotations', 0, 'bbox', 1), 10**400)])
@example(changes=[(('annotations', 2, 'segmentation', 'counts'), 'zz')])
@example_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_causes_traceback(changes: list, tmp_path: Path) -> None:
    """Values are replaced by any JSON or removed; what is accepted can be read."""
    for image in make_content()['images']:
        if not (tmp_path / image['file_name']).exists():
            draw_image(tmp_path / image['file_name'])
    content = make_content()
    for path, value in changes:
        content = replace_value(content, path, value)
    errors = find_errors(content, tmp_path)
    assert changes or not errors


@given(
    bits=st.lists(st.booleans(), min_size=24, max_size=24),
    at=st.integers(0, 30),
    character=st.characters(min_codepoint=32, max_codepoint=120))
@example_settings(max_examples=300, deadline=None)
def test_accepted_run_lengths_decode(bits: list[bool], at: int, character: str) -> None:
    """pycocotools decodes what is not rejected to a mask of the image's size."""
    encoded = coco_masks.encode(np.array(bits, np.uint8, order='F').reshape(4, 6, order='F'))
    counts = encoded['counts'].decode()
    assert find_segmentation_error(dict(size=[4, 6], counts=counts), [4, 6], evaluated=True) is None
    counts = counts[:at] + character + counts[at + 1:]
    if find_segmentation_error(dict(size=[4, 6], counts=counts), [4, 6], evaluated=True) is None:
        runs = list(decode_counts(counts))
        assert coco_masks.decode(dict(size=[4, 6], counts=counts)).sum() == sum(runs[1::2])
