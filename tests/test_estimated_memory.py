"""Estimates of memory and time, compared with real trainings in processes of their own."""
from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import config as slim

from colonnade.datasets.shapes_dataset import make_shapes

PIPELINE = '''_base_ = {base!r}
train_dataloader = dict(batch_size={images}, dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'{with_boxes}),
    dict(type='Resize', scale=({side}, {side}), keep_ratio=False),
    dict(type='Pack{kind}Inputs')]))
'''
LOADED = {  # head: what annotations have
    'mask_rcnn': ', with_bbox=True, with_mask=True',
    'dino': ', with_bbox=True'
}
CASES = [  # head, images, side, whether the plan is from a quarter and half of the side
    ('mask_rcnn', 4, 320, False),
    ('sem_fpn', 8, 256, False),
    ('upernet', 4, 320, False),
    ('segmenter', 4, 384, False),
    ('dino', 2, 384, False),
    ('mask_rcnn', 2, 512, True),
    ('upernet', 2, 512, True),
]
ITERATIONS = 10
WARM = 3  # iterations that allocate and choose kernels
OPTIONS = {
    'train_cfg.max_iters': ITERATIONS,
    'default_hooks.logger.interval': 1,
    'log_processor.window_size': 1,
    'val_dataloader': None,
    'val_evaluator': None,
    'val_cfg': None
}


def estimate_run(config: Path, data: Path, smaller: bool) -> tuple[float, float]:
    """Return estimated bytes without those of imports, and seconds per iteration."""
    from colonnade.engine.resource_estimation.estimate import EstimateOptions, estimate_training
    from colonnade.engine.resource_estimation.trial_steps import Trial
    from colonnade.engine.training import TrainOptions
    if smaller:
        Trial.measure_sizes = at_smaller_sizes
    found = estimate_training(
        TrainOptions(config, cfg_options=OPTIONS, data_root=data), EstimateOptions())
    return sum(found.memory.values()) - found.imports, found.seconds


def at_smaller_sizes(trial: Any, size: tuple[int, int], _: float, num_timed: int) -> list[Any]:
    """Measure a quarter and half of the size, as for images that are too large."""
    return [
        trial.measure((size[0] // part, size[1] // part), num_timed=num_timed) for part in (4, 2)
    ]


def measure_run(config: Path, data: Path, work_dir: Path) -> tuple[float, float]:
    """Return the same numbers of a real training, without the time of waiting for data."""
    from colonnade import train
    from colonnade.common.process_memory import get_peak_memory
    from colonnade.engine.resource_estimation.trial_steps import measure_imports
    from colonnade.settings.reading import read_config
    imports = measure_imports(read_config(config).default_scope)
    with redirect_stdout(StringIO()):
        train(config, cfg_options=OPTIONS, data_root=data, work_dir=work_dir)
    log = next(work_dir.glob('*/*.log')).read_text()
    spent = [
        float(total) - float(waiting)
        for total, waiting in re.findall(r' time: ([\d.]+)  data_time: ([\d.]+)', log)
    ]
    return get_peak_memory() - imports, median(spent[WARM:])


def in_a_process(function: partial[tuple[float, float]]) -> tuple[float, float]:
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        return pool.submit(function).result()


@pytest.mark.slow
@pytest.mark.parametrize('head, images, side, smaller', CASES)
def test_estimated_memory_matches_training(head: str, images: int, side: int, smaller: bool,
                                           tmp_path: Path) -> None:
    make_shapes(tmp_path / 'shapes', num_train=16, num_val=2, size=128, seed=0)
    with_boxes = LOADED.get(head, '')
    data = tmp_path / 'shapes' / ('coco' if with_boxes else 'ade')
    path = tmp_path / f'{head}.py'
    path.write_text(
        PIPELINE.format(
            base=str(slim(head)),
            images=images,
            side=side,
            with_boxes=with_boxes,
            kind='Det' if with_boxes else 'Seg'))
    memory, seconds = in_a_process(partial(estimate_run, path, data, smaller))
    real_memory, real_seconds = in_a_process(partial(measure_run, path, data, tmp_path / 'run'))
    print(f'\n{head}, {images} x {side}²{", from smaller sizes" * smaller}: '
          f'estimated {memory / 2**20:.0f} MiB, {seconds:.2f} s; '
          f'measured {real_memory / 2**20:.0f} MiB, {real_seconds:.2f} s')
    assert memory == pytest.approx(real_memory, rel=0.15)
