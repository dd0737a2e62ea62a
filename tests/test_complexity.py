"""Parameters and multiply-adds, computed by hand and published in papers."""
from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT
from helpers.backbones import tiny
from torch import nn

from colonnade.backbones import CaiT, ResMLP, XCiT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.evaluation.benchmark.model_profile import Stopwatch, format_parts
from colonnade.models.complexity import (build_from_file, count_classifier, count_multiply_adds,
                                         count_parameters, iter_backbone_rows, iter_model_rows,
                                         iter_parts, sum_parts)

MMDET = Path(find_spec('mmdet').origin).parent / '.mim/configs'


def linear(tokens: int, *widths: int) -> int:
    """Return the multiply-adds of consecutive linear layers."""
    return sum(tokens * a * b for a, b in pairwise(widths))


def test_count_every_matmul() -> None:
    """Blocks have width 32 and 4 heads of 8, on 64 tokens, or 16 with CaiT's patches."""

    def count_block(cls: type) -> int:
        with torch.device('meta'):
            image = torch.empty(1, 3, 64, 64)
            deep, shallow = (tiny(cls, out_indices=(last, )).eval().requires_grad_(False)
                             for last in (3, 2))  # yapf: disable
        return count_multiply_adds(deep, image)[0] - count_multiply_adds(shallow, image)[0]

    def count_linear(tokens: int) -> int:
        return linear(tokens, 32, 96) + linear(tokens, 32, 32) + linear(tokens, 32, 128, 32)

    covariance = 2 * 4 * 8 * 8 * 64  # keys by queries, and their product with the values
    local = 2 * 64 * 32 * 9  # two depth-wise 3 x 3 convolutions
    talking_heads = 2 * 16 * 16 * 4 * 4
    assert count_block(XCiT) == count_linear(64) + covariance + local
    assert count_block(ResMLP) == 64 * 64 * 32 + linear(64, 32, 128, 32)
    assert count_block(CaiT) == count_linear(16) + 2 * 16 * 16 * 32 + talking_heads


@pytest.mark.parametrize('name', [
    'mask_rcnn/xcit_nano_12_p16_slim_shapes', 'sem_fpn/cait_nano_12_slim_shapes',
    'upernet/resmlp_nano_12_slim_shapes'
])
def test_parts_sum_up_to_model(name: str) -> None:
    model, _ = build_from_file(ROOT / f'configs/{name}.py')
    parts = list(iter_parts(model, 128, 128))
    assert sum_parts(parts).parameters == count_parameters(model)
    assert all(part.multiply_adds or part.name == 'auxiliary_head' for part in parts)


@pytest.mark.slow
def test_counts_match_papers_backbones() -> None:
    rows = list(iter_backbone_rows())
    assert len(rows) == 14 * 2 + 9 * 3
    for name, quantity, ours, paper in rows:
        digit = 0.5 if name.startswith('XCiT') and 'parameters' in quantity else 0.05
        near = 'multiply-adds' in quantity and abs(ours / paper - 1) <= 0.02
        if name == 'XCiT nano_12_p16' and 'multiply-adds' in quantity:
            assert int(10 * ours) / 10 == paper  # 0.55, printed as 0.5
        else:
            assert near or abs(ours - paper) <= digit + 0.001, (name, quantity, ours, paper)


@pytest.mark.slow
def test_counts_match_papers_models() -> None:
    rows = list(iter_model_rows())
    assert len(rows) == 24
    for name, _, ours, paper in rows:
        assert ours == paper, name


@pytest.mark.slow
def test_metafiles_match_counts() -> None:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    models = [
        model for path in index['Import']
        for model in yaml.safe_load((ROOT / path).read_text())['Models']
    ]
    assert len({model['Config'] for model in models}) == 24
    readme = (ROOT / 'README.md').read_text()
    for described in models:
        model, _ = build_from_file(ROOT / described['Config'])
        metadata = described['Metadata']
        total = sum_parts(list(iter_parts(model, *metadata['Input Size'])))
        assert metadata['Parameters'] == total.parameters, described['Name']
        assert metadata['FLOPs'] == total.multiply_adds, described['Name']
        metrics = [str(v) for result in described['Results'] for v in result['Metrics'].values()]
        assert f'[{" / ".join(metrics)}]({described["Config"]})' in readme
        name = described['Config'].split('/')[-1].split('_3x')[0].split('_80k')[0].split('_160k')[0]
        assert described['Weights'].endswith(f'_{name}.pth')


def test_count_classifier() -> None:
    """timm lists 15.35 M and 3.01 G for resmlp_12_224."""
    with on_meta_device():
        parameters, work = count_classifier(ResMLP('s12'), 224)
    assert (round(parameters / 1e6, 2), round(work / 1e9, 2)) == (15.35, 3.01)


XCIT = 'configs/sem_fpn/xcit_nano_12_p16_slim_shapes.py'
MODEL = f'_base_ = {str(ROOT / XCIT)!r}\nmodel = dict(backbone=dict({{}}))\n'


@pytest.mark.parametrize('config, arguments, message', [
    (XCIT, ['--size', 8, 64], r'images must be at least 16 x 16 \(one patch\), got 8 x 64'),
    (XCIT, ['--size', 0, 64], '--size must be two positive integers, got 0 64'),
    (XCIT, ['--size', 64, -16], '--size must be two positive integers, got 64 -16'),
    ('no.py', [], 'no such config file: no.py'),
    ('setup.cfg', [], 'setup.cfg is not a config'),
    ('a = 1', [], 'is not a config of a detector or segmenter'),
    ('a = (', [], 'own.py cannot be read: SyntaxError'),
    (MODEL.format("type='XCIT'"), [], "the type XCIT is not known; did you mean XCiT"),
    (MODEL.format("type='XCiT', arch='small'"), [], "XCiT has no arch 'small'"),
    (MODEL.format("type='XCiT', archs='small_12_p16'"), [], "cannot be built: .*'archs'"),
    ('mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py', [],
     r'model.rpn_head \(EmbeddingRPNHead\) cannot be counted separately: '),
])
def test_invalid_configs_and_options(config: str, arguments: list, message: str, run_tool: Callable,
                                     tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / config
    if config.startswith('mmdet::'):
        path = MMDET / config.removeprefix('mmdet::')
    elif '=' in config:
        path = tmp_path / 'own.py'
        path.write_text(config)
    elif config == 'no.py':
        path = Path(config)
    with pytest.raises(SystemExit) as stopped:
        run_tool('complexity', path, *arguments)
    assert re.search(f'^complexity: .*{message}', str(stopped.value))


@pytest.mark.parametrize('config, parts', [
    ('mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', 6),
    ('faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', 5),
    ('retinanet/retinanet_swin-t-p4-w7_fpn_1x_coco.py', 4),
    ('cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py', 6),
    ('detr/detr_r50_8xb2-150e_coco.py', 4),
    ('mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', 3),
])
def test_count_mmdet_models(config: str, parts: int, run_tool: Callable,
                            capsys: pytest.CaptureFixture[str]) -> None:
    if 'swin' in config:  # looks at values as it is built
        config = 'swin/' + config.split('/')[1]
    run_tool('complexity', MMDET / config, '--size', 64, 64)
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == parts and rows[-1].startswith('full model')


@pytest.mark.slow
def test_time_and_memory(run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('complexity', ROOT / XCIT, '--size', 64, 96, '--time', '--device', 'cpu')
    assert re.search(r'^time and peak memory +\d\.\d+ ± *\d\.\d+ s +\d+ MiB$',
                     capsys.readouterr().out, re.MULTILINE)


HEADS = sorted(path.parent.name for path in ROOT.glob('configs/*/xcit_*_slim_shapes.py'))


@pytest.mark.slow
@pytest.mark.parametrize('head', HEADS)
def test_time_by_part(head: str) -> None:
    path = ROOT / 'configs' / head / 'xcit_nano_12_p16_slim_shapes.py'
    title, *rows, total, limit = format_parts(path, (64, 96), rounds=1)
    found = {row[:20].strip(): row[20:].split() for row in rows}
    expected = ['backbone', 'pyramid', 'head', 'post-processing']
    if head == 'mask_rcnn':
        expected = ['backbone', 'pyramid', 'RPN', 'proposals', 'RoIAlign of boxes', 'box head',
                    'RoIAlign of masks', 'mask head', 'post-processing']  # yapf: disable
    if head in ('mask_rcnn', 'sem_fpn'):
        assert list(found) == expected
    work, *seconds = total[20:].split()
    assert float(work) == pytest.approx(sum(float(values[0]) for values in found.values()), abs=0.5)
    assert float(seconds[0]) == pytest.approx(sum(float(v[1]) for v in found.values()), abs=0.01)
    assert float(found['backbone'][0]) > 0 and 'GFLOP/s' in limit


@pytest.mark.slow
def test_time_models_without_fusion() -> None:
    path = ROOT / 'configs/sem_fpn/simplified_vit_nano_12_slim_shapes.py'
    title, *rows, total, _ = format_parts(path, (64, 96), rounds=1)
    assert title.split() == ['part', 'GFLOP', 'as', 'built', 'share']
    assert all(len(row[20:].split()) == 4 for row in (*rows, total))


def test_stopwatch_of_nested_parts() -> None:
    model = nn.ModuleDict(dict(rpn_head=nn.ModuleDict(), neck=nn.Identity()))
    model.rpn_head.predict = lambda: work(10) + model.neck(1)
    model.neck.forward = lambda _: work(100)
    clock = [0.]

    def work(amount: int) -> int:
        clock[0] += amount
        return amount

    watch = Stopwatch(model, lambda: clock[0])
    for _ in range(2):  # each for itself
        spent = watch.measure(lambda: work(1) + model.rpn_head.predict())
        assert spent == {'post-processing': 1, 'proposals': 10, 'pyramid': 100}


def test_command_line(run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('complexity', ROOT / XCIT, '--size', 64, 96)
    printed = capsys.readouterr().out
    assert re.search(r'^backbone +\d+\.\d+ M +\d+\.\d+ G$', printed, re.MULTILINE)
    assert 'at 64 x 96' in printed
    for arguments, message in (((), 'pass either CONFIG or --table'),
                               ((ROOT / XCIT, '--device', 'cpu'), '--device and --amp require')):
        with pytest.raises(SystemExit, match='2'):
            run_tool('complexity', *arguments)
        assert message in capsys.readouterr().err
