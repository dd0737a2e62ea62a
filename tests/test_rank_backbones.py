"""The command ``colonnade rank-backbones``: table, plot, cache and error messages."""
from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers import toy_backbone  # noqa: F401, registers it
from helpers.synthetic_data import draw_instances, draw_label_maps

from colonnade.backbones import XCiT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.evaluation.probing import ranking_plot
from colonnade.evaluation.probing.backbones import IMAGENET, NamedBackbone, parse_backbones
from colonnade.evaluation.probing.ranking import RankingRow
from colonnade.evaluation.probing.ranking_plot import (COSTS, build_steps, draw_ranking,
                                                       find_pareto_front)

FEW = ['--probe-steps', 5, '--size', 32]


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def rank(run_tool: Callable, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that runs the command and returns its output folder."""
    numbers = itertools.count()

    def run(*arguments: object) -> Path:
        out = tmp_path / f'out{next(numbers)}'
        where = [] if '--no-cache' in arguments else ['--cache', tmp_path / 'cache']
        run_tool('rank_backbones', *arguments, *FEW, *where, '--out', out)
        return out

    return run


@pytest.mark.slow
def test_rank_backbones(rank: Callable, shapes: Path, tmp_path: Path,
                        monkeypatch: pytest.MonkeyPatch,
                        capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / 'mine.pth'
    torch.save(XCiT('nano_12_p16').state_dict(), weights)
    backbones = [f'xcit_nano_12_p16={weights}', 'Toy:tiny=random', 'Toy:tiny']
    command = ['--masks', shapes / 'ade', '--backbones', *backbones]
    with pytest.raises(SystemExit) as stopped:
        rank(*command, '--max-images', 3)
    assert stopped.value.code.startswith('rank-backbones: 1 of 3 backbones failed\nToy:tiny: ')
    out = tmp_path / 'out0'
    rows = read_rows(out / 'table.csv')
    assert {row['backbone'] for row in rows} == {'xcit_nano_12_p16 (mine.pth)', 'Toy:tiny (random)'}
    quality = [float(row['linear_miou']) for row in rows]
    assert quality == sorted(quality, reverse=True)
    nano, = (row for row in rows if row['backbone'].startswith('xcit'))
    assert int(nano['parameters']) == sum(p.numel() for p in XCiT('nano_12_p16').parameters())
    assert int(nano['feature_bytes']) == 2 * 2 * 128 * 2 and float(nano['seconds']) > 0
    printed = capsys.readouterr().out
    table = (out / 'table.md').read_text()
    assert '3 training and 3 validation images, 4 classes' in table and table[:400] in printed
    assert 'Failed: Toy:tiny: ' in table and 'computed for 6 of 6 images' in printed
    assert {row['probe'] for row in read_rows(out / 'classes.csv')} == {'linear', 'k-NN'}
    assert cv2.imread(str(out / 'picture.png')).std() > 1
    assert (out / 'picture.svg').read_text().count('xcit_nano_12_p16 (mine.pth)') == 1

    def stop(*_: object) -> None:
        raise AssertionError('the backbone is used')

    monkeypatch.setattr('colonnade.recipes.backbone_ranking.draw_ranking', lambda *_: None)
    monkeypatch.setattr('colonnade.evaluation.probing.ranking.time_image', lambda *_: 0.1)
    monkeypatch.setattr('colonnade.evaluation.probing.frozen_features.Extractor.__call__', stop)
    again = rank(*command[:-1], '--max-images', 3)
    assert 'computed for 0 of 6 images' in capsys.readouterr().out
    same = ('backbone', 'linear_miou', 'knn_miou', 'parameters', 'multiply_adds')
    assert [[row[key] for key in same] for row in read_rows(again / 'table.csv')] == \
        [[row[key] for key in same] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize('boxes', [[], ['--boxes-only']])
def test_rank_on_instances(boxes: list[str], rank: Callable, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('colonnade.recipes.backbone_ranking.draw_ranking', lambda *_: None)
    out = rank(*draw_instances(tmp_path / 'data'), *boxes, '--random', '--backbones', 'Toy:tiny',
               '--no-cache')
    header = (out / 'classes.csv').read_text().splitlines()[0]
    assert header == 'backbone,probe,background,disc,square'
    assert not (tmp_path / 'cache').exists()


@pytest.mark.parametrize('options, message', [
    (['--backbones', 'a=b', 'a=b'], '--backbones must be distinct, got a=b more than once'),
    (['--backbones', 'Toy:tiny', '--probe-steps', 0], '--probe-steps must be at least 1, got 0'),
    (['--backbones', 'Toy:tiny', '--knn-temperature', 0
      ], '--knn-temperature must be positive, got 0.0'),
    (['--backbones', 'Toy:tiny', '--out', '.'], '. already exists: choose another --out'),
    (['--backbones', 'Toy:tiny', '--boxes-only'], '--boxes-only requires --coco'),
    (['--backbones', 'Toy:tiny', '--random', '--cache', 'file'], 'cannot write features to file'),
])
def test_invalid_options(options: list, message: str, run_tool: Callable, tmp_path: Path,
                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').touch()
    arguments = draw_label_maps(tmp_path / 'data')
    with pytest.raises(SystemExit) as stopped:
        run_tool('rank_backbones', *arguments, '--out', 'out', *options)
    assert str(stopped.value).startswith(f'rank-backbones: {message}')
    assert not (tmp_path / 'out').exists()


def test_invalid_data(rank: Callable, tmp_path: Path) -> None:
    arguments = draw_label_maps(tmp_path / 'data')
    (tmp_path / 'data/masks/train/a.png').unlink()
    with pytest.raises(SystemExit, match='rank-backbones: 1 (error|fault), nothing was measured'):
        rank(*arguments, '--backbones', 'Toy:tiny', '--random')


@pytest.mark.parametrize('text, described', [
    ('xcit_small_12_p16_384.fb_dist_in1k', 'XCiT small_12_p16'),
    ('xcit_small_12_p8', 'XCiT small_12_p8'),
    ('cait_s24', 'CaiT s24'),
    ('resmlp_24_224.fb_distilled_in1k', 'ResMLP s24'),
    ('vit_small_patch14_dinov2.lvd142m', 'PlainViT'),
    ('SimplifiedViT:nano_12_p16', 'SimplifiedViT'),
])
def test_build_backbones_by_name(text: str, described: str) -> None:
    with on_meta_device():
        backbone = NamedBackbone(f'{text}=random').build([-1], seed=0)
    assert described in backbone.describe()
    assert backbone.norm_features == ('dinov2' in text)


@pytest.mark.parametrize('text, message', [
    ('resnet50=random', 'resnet50 matches none of the known formats'),
    ('nothing=random', "'nothing' is neither a timm model nor CLASS:ARCH"),
    ('Swin:tiny=random', r"CLASS in CLASS:ARCH must be one of .*XCiT.*, got 'Swin'"),
    ('XCiT:huge=random', "XCiT has no arch 'huge'"),
    ('XCiT:nano_12_p16=missing.pth', 'no such weights file: missing.pth'),
    ('XCiT:nano_12_p16', 'timm has no pretrained weights named XCiT:nano_12_p16'),
    ('vit_small_patch16_dinov3.none=random', 'timm has no weights'),
])
def test_invalid_backbones(text: str, message: str) -> None:
    with on_meta_device(), pytest.raises((ValueError, FileNotFoundError), match=message):
        NamedBackbone(text).build([-1], seed=0)


def test_labels_omit_folders() -> None:
    backbones = parse_backbones(['a', 'a=x/1.pth', 'b=x/1.pth', 'a=y/1.pth'])
    assert [backbone.label
            for backbone in backbones] == ['a', 'a=x/1.pth', 'b (1.pth)', 'a=y/1.pth']


def test_normalization_matches_weights() -> None:
    assert NamedBackbone('vit_base_patch16_siglip_512.v2_webli').normalisation[0] == [127.5] * 3
    for text in ('Toy:tiny', 'xcit_nano_12_p16=mine.pth'):
        np.testing.assert_allclose(NamedBackbone(text).normalisation, IMAGENET, rtol=1e-3)


def test_find_pareto_front() -> None:
    assert find_pareto_front([(1, 1), (2, 3), (3, 2), (4, 3), (5, 5)]) == [0, 1, 4]
    assert find_pareto_front([(1, 1), (1, 2)]) == [1]
    assert find_pareto_front([(1, 2), (1, 2)]) == [0, 1]


def test_build_steps() -> None:
    assert build_steps([(1, 1), (2, 3), (5, 4)]) == [(1, 1), (2, 1), (2, 3), (5, 3), (5, 4)]
    assert build_steps([(1, 1)]) == [(1, 1)]


def build_row(name: str, seconds: float, quality: float) -> RankingRow:
    return RankingRow(name, quality, quality - 3, 1, 1, seconds, 1, np.zeros(1), np.zeros(1))


@pytest.mark.slow
def test_plot_labels_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, boxes = (0.1, 0.101, 0.102, 0.103, 0.5), []
    place = ranking_plot._place_label

    def placed(*arguments: object) -> object:
        boxes.append(place(*arguments))
        return boxes[-1]

    monkeypatch.setattr(ranking_plot, '_place_label', placed)
    rows = [build_row(f'vit_large_patch16_{i}.with_a_long_name', s, 40 + i / 10)
            for i, s in enumerate(seconds)]  # yapf: disable
    written = []
    for cost in ('time', 'time', *COSTS):
        draw_ranking(rows, tmp_path / 'a.svg', 'title', cost)
        written.append((tmp_path / 'a.svg').read_text())
    assert written[0] == written[1] == written[2] and len(set(written)) == len(COSTS)
    assert len(boxes) == len(written) * len(seconds)
    for one, other in itertools.combinations(boxes[:len(seconds)], 2):
        assert not one.overlaps(other)
