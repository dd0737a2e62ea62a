"""Measure time and memory of the start of training on large datasets.

    python docs/measure_start.py                    # 10 thousand, 100 thousand, 1 million images
    python docs/measure_start.py --images 1000 --objects 7

Annotations in COCO's format are drawn. All images are links to a few small files, of which a start
reads a hundred headers. Each start has a process of its own, and ends before the first iteration.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[1] / 'configs/mask_rcnn/xcit_nano_12_p16_slim_shapes.py'
CLASSES = ('disc', 'square', 'triangle')
SIDE, NUM_VAL = 64, 100
LINKS = 10_000  # hard links to one file; file systems have a limit
GIB = 2**30
MODES = ('loading', 'first', 'later')


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', nargs='+', type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument('--objects', type=int, default=2, help='objects per image (%(default)s)')
    parser.add_argument('--child', choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument('--data', help=argparse.SUPPRESS)
    return parser.parse_args()


def draw_split(root: Path, split: str, num_images: int, num_objects: int) -> None:
    """Write annotations of random rectangles, and link the images."""
    import cv2
    import numpy as np
    folder = root / f'{split}2017'
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for index in range(num_images):
        path = folder / f'{index:012}.jpg'
        if index % LINKS:
            os.link(folder / f'{index // LINKS * LINKS:012}.jpg', path)
        else:
            cv2.imwrite(str(path), np.full((SIDE, SIDE, 3), len(split), np.uint8))
    images = [
        dict(id=index, file_name=f'{index:012}.jpg', width=SIDE, height=SIDE)
        for index in range(num_images)
    ]
    annotations: list[dict[str, Any]] = []
    for index in range(num_images * num_objects):
        left, top = draw.randrange(SIDE - 20), draw.randrange(SIDE - 20)
        right, bottom = left + draw.randrange(5, 20), top + draw.randrange(5, 20)
        width, height = right - left, bottom - top
        annotations.append(
            dict(
                id=index + 1,
                image_id=index // num_objects,
                category_id=1 + index % len(CLASSES),
                bbox=[left, top, width, height],
                area=width * height,
                iscrowd=0,
                segmentation=[[left, top, right, top, right, bottom, left, bottom]]))
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)]
    (root / 'annotations').mkdir(exist_ok=True)
    with open(root / f'annotations/instances_{split}2017.json', 'w') as file:
        json.dump(dict(images=images, annotations=annotations, categories=categories), file)


def run_child(mode: str, data: str) -> None:
    """Start a training, or only load its training set as mmdet does; print seconds and GiB."""
    from mmengine.hooks import Hook
    from mmengine.registry import DATASETS

    from colonnade.common.process_memory import get_peak_memory
    from colonnade.engine.training import TrainOptions, prepare_runner
    from colonnade.settings.reading import LaunchOptions, load_config

    class Ready(Exception):
        """All is ready for the first iteration."""

    class EndHere(Hook):
        """Hook that ends a training before its first iteration."""

        priority = 'LOWEST'

        def before_train(self, runner: Any) -> None:
            """End it."""
            raise Ready

    work_dir = Path(data, 'run', mode)
    if mode == 'loading':
        cfg = load_config(LaunchOptions(CONFIG, data_root=data, work_dir=work_dir))
        started = time.perf_counter()
        DATASETS.build(cfg.train_dataloader.dataset)
    else:
        started = time.perf_counter()
        try:
            with prepare_runner(TrainOptions(CONFIG, data_root=data, work_dir=work_dir)) as runner:
                runner.register_hook(EndHere())
                runner.train()
        except Ready:
            pass
    print(f'\n{time.perf_counter() - started} {get_peak_memory() / GIB}')


def measure(mode: str, data: str) -> tuple[float, float]:
    """Return seconds and GiB of a child process."""
    done = subprocess.run([sys.executable, __file__, '--child', mode, '--data', data],
                          env={**os.environ, 'COLONNADE_CACHE': f'{data}/cache'},
                          check=True, stdout=subprocess.PIPE, text=True)  # yapf: disable
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), float(memory)


def main() -> None:
    """Print a row for each number of images."""
    args = parse_args()
    if args.child:
        run_child(args.child, args.data)
        return
    print('| images | annotations | mmdet loads them | first start | later starts |')
    print('|---|---|---|---|---|')
    for num_images in args.images:
        with tempfile.TemporaryDirectory() as data:
            draw_split(Path(data), 'train', num_images, args.objects)
            draw_split(Path(data), 'val', NUM_VAL, args.objects)
            size = Path(data, 'annotations/instances_train2017.json').stat().st_size
            cells = [f'{seconds:.1f} s, {memory:.2f} GiB' for seconds, memory in
                     (measure(mode, data) for mode in MODES)]  # yapf: disable
        print(f'| {num_images:,} | {size / 10**6:.0f} MB |', *(f' {cell} |' for cell in cells),
              sep='', flush=True)  # yapf: disable


if __name__ == '__main__':
    main()
