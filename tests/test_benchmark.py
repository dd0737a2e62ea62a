"""The command ``colonnade benchmark``, and measuring scripts of the docs."""
from __future__ import annotations

import csv
import logging
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest
import torch
from conftest import ROOT, config, run_python
from helpers.rounding import check_all_rounding, doubled

from colonnade.evaluation.benchmark.candidates import build_backbone, build_candidate
from colonnade.evaluation.benchmark.machine import describe_machine, list_matmuls, uses_onednn
from colonnade.evaluation.benchmark.measurement import Job, compute_work

needs_linux = pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(), reason='needs Linux')


@needs_linux
@pytest.mark.slow
def test_benchmark_table(run_tool: Callable, tmp_path: Path,
                         capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('benchmark', '--backbones', 'ResMLP:s12:token_mixing=window', '--sizes', '256',
             '--rounds', 2, '--train', '--csv', tmp_path / 'b.csv', '--plot', tmp_path / 'b.png')
    printed = capsys.readouterr().out
    assert float(re.search(r'share is of the (\d+) GFLOP/s', printed)[1]) > 1
    with (tmp_path / 'b.csv').open() as file:
        ours, timms = csv.DictReader(file)
    assert (ours['contestant'], timms['contestant']) == ('ours', 'timm')
    assert re.search(r'^ResMLP:s12:token_mixing=window +256x256 +1 train timm ', printed,
                     re.MULTILINE)
    for name, ratio in (('seconds', 'time_ratio'), ('memory_mib', 'memory_ratio')):
        assert float(timms[ratio]) == pytest.approx(float(ours[name]) / float(timms[name]))
        assert float(ours[ratio]) == 1.
    assert 0 < float(ours['share']) < 1.5
    assert float(ours['weights_mib']) == pytest.approx(15.2 * 4 / 1.048576, rel=0.05)
    assert float(ours['images_per_second']) == pytest.approx(1 / float(ours['seconds']))
    assert cv2.imread(str(tmp_path / 'b.png')).std() > 1


@pytest.mark.parametrize('arguments, message', [
    (['--backbones', 'Swin:t'], "CLASS one of CaiT, .*XCiT.* got 'Swin:t'"),
    (['--backbones', 'CaiT:s25'], "CaiT has no arch 's25'"),
    (['--backbones', 'ResMLP:s12:token_mixing=tile'
      ], "token_mixing must be resample or window, got 'tile'"),
    (['--sizes', '100'], 'PIXELS or HEIGHTxWIDTH, in multiples of 16, got 100'),
    (['--sizes', '64x0'], 'in multiples of 16, got 64x0'),
    (['--sizes', 'big'], 'in multiples of 16, got big'),
    (['--backbones', 'SimplifiedViT:small_12_p16', '--fuse'], 'benchmark: .* cannot be fused'),
    (['--train', '--fuse'], '--train does not support detectors or --fuse'),
    (['--train', '--baselines', 'ours-onnx'], 'ours-onnx runs only in float32 on a CPU'),
    (['--baselines', 'resnet50', 'timm'
      ], 'detectors can be compared only with detectors: remove timm'),
])
def test_invalid_options(arguments: list, message: str, run_tool: Callable,
                         capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool('benchmark', *arguments)
    assert re.search(message, str(stopped.value))


@pytest.mark.parametrize('name', [
    'detector-fused', 'resnet50', pytest.param('swin_t', marks=pytest.mark.slow)
])  # yapf: disable
@torch.no_grad()
def test_run_full_detectors(name: str) -> None:
    model = build_candidate(
        name, 'XCiT:nano_12_p16', (64, 96), train=False, pyramid=False, device='cpu')
    samples = model(torch.rand(2, 3, 64, 96))
    assert [sample.pred_instances.bboxes.shape[1] for sample in samples] == [4, 4]


def test_describe_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ONEDNN_MAX_CPU_ISA', 'AVX512_CORE')
    name, libraries, limits = describe_machine('cpu')
    assert name and torch.__version__ in libraries and 'ONEDNN_MAX_CPU_ISA=AVX512_CORE' in limits
    assert uses_onednn(torch.float32) and 'lacks fast bfloat16 matmuls' in libraries
    products = [multiply() for multiply in list_matmuls(8, 'cpu', torch.float32)]
    assert len({product.numel() for product in products}) == 1


@pytest.mark.parametrize('name, least, most', [
    ('ours', 0.15, 0.5),
    pytest.param('detector', 3., 40., marks=pytest.mark.slow),
])
def test_work_of_candidates(name: str, least: float, most: float) -> None:
    """Fused candidates have the same work, that of the paper's form."""
    job = Job('XCiT:nano_12_p16', (96, 96), 1, False, False, 'cpu', 1)
    assert least < compute_work(job, name) == compute_work(job, f'{name}-fused') < most


@torch.no_grad()
def test_pyramid_of_patch_size_14() -> None:
    model = build_candidate(
        'ours',
        'PlainViT:vit_small_patch14_dinov2', (56, 84),
        train=False,
        pyramid=True,
        device='cpu')
    levels = model(torch.rand(1, 3, 56, 84))
    assert [tuple(level.shape[2:]) for level in levels] == [(16, 24), (8, 12), (4, 6), (2, 3)]


@pytest.mark.slow
@torch.no_grad()
def test_exported_candidate() -> None:
    job = Job('XCiT:nano_12_p16', (64, 96), 2, False, True, 'cpu', 1)
    model, exported = job.build('ours'), job.build('ours-onnx')
    images = job.draw_images()
    for level, expected in zip(exported(images), model(images), strict=True):
        torch.testing.assert_close(level, expected, rtol=1e-3, atol=1e-4)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert exported.nbytes == pytest.approx(weights, rel=0.5)


@pytest.mark.parametrize(
    'spec', ['XCiT:nano_12_p16',
             pytest.param('CaiT:xxs24', marks=pytest.mark.slow), 'ResMLP:s12'])
@torch.no_grad()
def test_candidates_agree_with_timm(spec: str) -> None:
    backbone = build_backbone(spec).eval()
    size = backbone.settings.get('img_size', 64)
    timms = backbone.build_timm_module(size).eval()
    timms.load_state_dict({**timms.state_dict(), **backbone.state_dict()})
    job = Job(spec, (size, size), 1, False, False, 'cpu', 1)
    images = job.draw_images()
    plain, exact = (model.forward_intermediates(
        given, indices=list(backbone.out_indices), intermediates_only=True)
                    for model, given in ((timms, images), (doubled(timms), images.double())))
    check_all_rounding(backbone(images), plain, exact)


@pytest.mark.slow
@pytest.mark.parametrize('head, layout', [('mask_rcnn', 'coco'), ('sem_fpn', 'ade')])
def test_measure_throughput(head: str, layout: str, shapes: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    script = str(ROOT / 'docs/measure_throughput.py')
    options = ['--images', '2', '--rounds', '1']
    monkeypatch.setattr('sys.argv', [script, str(config(head)), str(shapes / layout), *options])
    try:
        runpy.run_path(script, run_name='__main__')
    finally:
        logging.disable(logging.NOTSET)
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row[:20].strip() for row in rows] == ['test.py', 'mmengine, test', 'predict.py',
                                                  'inferencer']  # yapf: disable
    for row in rows:
        per_second, seconds, share = row[20:].split()
        assert float(per_second) == pytest.approx(1 / float(seconds), rel=0.1)
        assert 0 < int(share.rstrip('%')) <= 100


@pytest.mark.slow
def test_measure_start() -> None:
    printed = run_python('docs/measure_start.py', '--images', '10', '20')
    rows = [[cell.strip() for cell in line.split('|')] for line in printed.splitlines()[2:]]
    assert [row[1] for row in rows] == ['10', '20']
    for row in rows:
        for cell in row[3:6]:
            seconds, memory = map(float, re.fullmatch(r'([\d.]+) s, ([\d.]+) GiB', cell).groups())
            assert seconds >= 0 and 0.1 < memory < 8
