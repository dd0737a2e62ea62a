"""Splits into training and validation: classes on both sides, groups on one."""
from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from conftest import SHARED
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.datasets.formats.splitting import split_dataset

NAMES = st.dictionaries(st.text(max_size=6), st.sets(st.sampled_from('abcdef')), min_size=2)
FRACTIONS = st.floats(0.01, 0.99)
quickly = settings(max_examples=60, deadline=None)


@given(NAMES, FRACTIONS, st.integers(0, 5))
@quickly
def test_every_image_is_on_one_side(labels: dict, fraction: float, seed: int) -> None:
    train, val = split_dataset(labels, fraction, seed=seed)
    assert sorted(train + val) == sorted(labels)
    assert train and val
    for side in (train, val):
        assert side == [name for name in labels if name in set(side)]
    assert split_dataset(labels, fraction, seed=seed) == (train, val)


@given(st.lists(st.sampled_from('abcdef'), min_size=2, max_size=60), FRACTIONS)
@quickly
def test_class_of_two_images_is_on_both_sides(classes: list[str], fraction: float) -> None:
    labels = {str(i): {name} for i, name in enumerate(classes)}
    sides = [{name
              for image in side
              for name in labels[image]} for side in split_dataset(labels, fraction)]
    for name, count in Counter(classes).items():
        assert count == 1 or all(name in side for side in sides)


@given(st.lists(st.tuples(st.sampled_from('abc'), st.integers(0, 8)), min_size=2), FRACTIONS)
@quickly
def test_groups_stay_together(drawn: list[tuple[str, int]], fraction: float) -> None:
    labels = {str(i): {name} for i, (name, _) in enumerate(drawn)}
    groups = {str(i): str(group) for i, (_, group) in enumerate(drawn) if group}  # 0: no group
    if len(set(groups.values())) + len(labels) - len(groups) < 2:
        with pytest.raises(ValueError, match='at least two groups of images'):
            split_dataset(labels, fraction, groups=groups)
        return
    train, val = split_dataset(labels, fraction, groups=groups)
    assert train and val
    assert not {groups[n] for n in train if n in groups} & {groups[n] for n in val if n in groups}


def test_distribution_of_real_images() -> None:
    file = SHARED / 'data/coco/annotations/instances_train2017.json'
    if not file.is_file():
        pytest.skip(f'no sample annotations in {file}')
    content = json.loads(file.read_text())
    labels: dict[str, set[str]] = {str(image['id']): set() for image in content['images']}
    for annotation in content['annotations']:
        labels[str(annotation['image_id'])].add(str(annotation['category_id']))
    train, val = split_dataset(labels, 0.2)
    assert 0.18 < len(val) / len(labels) < 0.3  # rare classes need more
    counts = Counter(name for names in labels.values() for name in names)
    held = [Counter(name for image in side for name in labels[image]) for side in (train, val)]
    assert all(side[name] for name, count in counts.items() if count > 1 for side in held)
    assert 0.15 < held[1].total() / counts.total() < 0.35


@pytest.mark.parametrize('number, fraction, expected', [(20, 0.2, 4), (60, 0.1, 6), (21, 0.2, 4),
                                                        (3, 0.9, 2), (3, 0.01, 1), (2, 0.9, 1)])
def test_number_of_images_is_rounded(number: int, fraction: float, expected: int) -> None:
    """Images have several classes, whose fractions are not integers."""
    several = {str(i): {'abc'[i % 3], 'abcd'[i // 3 % 4]} for i in range(number)}
    labels = several if number > 3 else {name: set() for name in several}
    train, val = split_dataset(labels, fraction)
    assert len(val) == expected
    for side in (train, val) if number > 3 else ():
        assert {label for name in side for label in labels[name]} == set('abcd')


def test_groups_move_to_match_fraction() -> None:
    labels = {str(i): {'ab'[i % 2]} for i in range(40)}
    groups = {name: str(int(name) // 4) for name in labels}  # ten groups of four
    assert len(split_dataset(labels, 0.25, groups=groups)[1]) in (8, 12)
    assert len(split_dataset(labels, 0.4, groups=groups)[1]) == 16


def test_seed_changes_split() -> None:
    labels = {str(i): {'ab'[i % 2]} for i in range(40)}
    assert len({tuple(split_dataset(labels, 0.25, seed=seed)[1]) for seed in range(5)}) > 1
    assert len(split_dataset(labels, 0.25)[1]) == 10


def test_splitting_many_images_is_fast() -> None:
    labels = {str(i): {str(i % 91), str(i % 7 * 13)} if i % 3 else set() for i in range(20000)}
    start = time.process_time()
    split_dataset(labels, 0.1)
    assert time.process_time() - start < 3


@pytest.mark.parametrize('fraction', [0, 1, -0.2, 20, float('nan')])
def test_invalid_fractions(fraction: float) -> None:
    with pytest.raises(ValueError, match='must be between 0 and 1, got'):
        split_dataset({'a': set(), 'b': set()}, fraction)


def test_single_image_cannot_be_split() -> None:
    with pytest.raises(ValueError, match='at least two images, got 1'):
        split_dataset({'a': {'x'}}, 0.5)
