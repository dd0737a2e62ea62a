"""Masks of COCO files: nothing that a file can hold gives a traceback, here or in pycocotools."""
from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from drawn_data import HEIGHT, WIDTH, coco_content, draw_image
from hypothesis import HealthCheck, example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from pycocotools import mask as coco_masks

from colonnade.engine.data_files import Report
from colonnade.engine.own_data import describe_instances
from colonnade.engine.segmentations import decoded_counts, segmentation_fault


def test_compressed_run_lengths_are_pycocotools() -> None:
    generator = np.random.default_rng(0)
    for density in (0.001, 0.1, 0.9):
        mask = np.asfortranarray((generator.random((300, 400)) < density).astype(np.uint8))
        if density < 0.01:
            mask[:, 200:] = 1
        encoded = coco_masks.encode(mask)
        counts = list(decoded_counts(encoded['counts'].decode()))
        assert sum(counts) == mask.size
        assert sum(counts[1::2]) == mask.sum()
        back = coco_masks.frPyObjects(dict(size=[300, 400], counts=counts), 300, 400)
        assert back['counts'] == encoded['counts']


ODD = st.one_of(st.none(), st.booleans(), st.just(float('nan')), st.just(float('inf')), st.just(''),
                st.just('a'), st.just([]), st.just({}), st.just([[1, 2]]), st.just([None]),
                st.just({'a': [1]}), st.just([[]]), st.just(10**400), st.just(-1), st.just(0),
                st.integers(), st.floats(), st.text(max_size=3),
                st.lists(st.integers(), max_size=4))


def places(content: Any, path: tuple = ()) -> Iterator[tuple]:
    """All keys and indices in nested JSON."""
    items = content.items() if isinstance(content, dict) else \
        enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def file_to_break() -> dict[str, list]:
    content = coco_content()
    content['annotations'][1]['segmentation'] = dict(size=[HEIGHT, WIDTH], counts=[20, 1900])
    mask = coco_masks.encode(np.eye(HEIGHT, WIDTH, dtype=np.uint8, order='F'))
    mask['counts'] = mask['counts'].decode()
    content['annotations'][2]['segmentation'] = mask
    return content


def reported(content: dict, folder: Path) -> list[str]:
    """The faults of training and evaluating with a file of that content."""
    files = [folder / 'train.json', folder / 'val.json']
    for file in files:
        file.write_text(json.dumps(content))
    report = Report()
    filter_cfg = dict(filter_empty_gt=True, min_size=16)
    data = describe_instances(
        files, [folder] * 2, None, masks=True, filter_cfg=filter_cfg, report=report)
    assert data is not None or report.faults
    return report.faults


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(list(places(file_to_break()))), st.one_of(st.just(...), ODD)),
        min_size=1,
        max_size=3))
@example(changes=[(('annotations', 0, 'segmentation', 0, 2), None)])
@example(changes=[(('annotations', 1, 'segmentation', 'counts', 0), None)])
@example(changes=[(('images', 0, 'file_name'), 7), (('annotations', ), None)])
@example(changes=[(('images', 0, 'id'), [1])])
@example(changes=[(('images', 0, 'width'), '48'), (('images', 1, 'height'), None)])
@example(changes=[(('annotations', 0, 'bbox', 1), 10**400)])
@example(changes=[(('annotations', 2, 'segmentation', 'counts'), 'zz')])
@example_settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_gives_a_traceback(changes: list, tmp_path: Path) -> None:
    """Entries replaced by anything JSON can hold, or removed (``...``)."""
    for image in file_to_break()['images']:
        if not (tmp_path / image['file_name']).exists():
            draw_image(tmp_path / image['file_name'])
    assert not reported(file_to_break(), tmp_path)
    content = deepcopy(file_to_break())
    for path, value in changes:
        parent = content
        for key in path[:-1]:
            try:
                parent = parent[key]
            except (KeyError, IndexError, TypeError):
                break  # an earlier change took it away
        else:
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
                if value is not ...:
                    parent[path[-1]] = deepcopy(value)
            elif isinstance(parent, list) and path[-1] < len(parent) and value is not ...:
                parent[path[-1]] = deepcopy(value)
    assert all(isinstance(line, str) for line in reported(content, tmp_path))


@given(
    bits=st.lists(st.booleans(), min_size=24, max_size=24),
    at=st.integers(0, 30),
    character=st.characters(min_codepoint=32, max_codepoint=120))
@example_settings(max_examples=300, deadline=None)
def test_accepted_run_lengths_decode(bits: list[bool], at: int, character: str) -> None:
    """What is not refused, pycocotools decodes to a mask of the image's size."""
    encoded = coco_masks.encode(np.array(bits, np.uint8, order='F').reshape(4, 6, order='F'))
    counts = encoded['counts'].decode()
    assert segmentation_fault(dict(size=[4, 6], counts=counts), [4, 6], evaluated=True) is None
    counts = counts[:at] + character + counts[at + 1:]
    if segmentation_fault(dict(size=[4, 6], counts=counts), [4, 6], evaluated=True) is None:
        runs = list(decoded_counts(counts))
        assert coco_masks.decode(dict(size=[4, 6], counts=counts)).sum() == sum(runs[1::2])
