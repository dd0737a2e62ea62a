"""Train on drawn images of five bands, of which only the fourth tells two classes apart.

    python docs/study_bands.py [FOLDER] [--iterations 300]

Trains one segmenter on the first three bands and one on all five, and prints the IoU of each class.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

SIDE, CLASSES = 96, ('ground', 'dry', 'wet')
DRY, WET = -700, 900  # contrast in the fourth band; 900 for both in the first three


def draw_split(folder: Path, split: str, num_images: int, num_bands: int, seed: int) -> None:
    """Write images of up to three discs on noise, and their label maps."""
    rng = np.random.default_rng(seed)
    images, masks = folder / 'images' / split, folder / 'masks' / split
    for each in (images, masks):
        each.mkdir(parents=True)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for number in range(num_images):
        bands = rng.normal(1000, 150, (SIDE, SIDE, 5))
        labels = np.zeros((SIDE, SIDE), np.uint8)
        for label in rng.integers(1, 3, 3):
            radius = rng.integers(10, 18)
            y, x = rng.integers(radius, SIDE - radius, 2)
            disc = (rows - y)**2 + (columns - x)**2 < radius**2
            if not labels[disc].any():
                labels[disc] = label
                bands[disc, :3] += 900
                bands[disc, 3] += DRY if label == 1 else WET
        tifffile.imwrite(
            images / f'{number:03}.tif',
            bands[..., :num_bands].clip(0, 65535).astype(np.uint16),
            photometric='minisblack',
            planarconfig='contig')
        Image.fromarray(labels).save(masks / f'{number:03}.png')


def measure(folder: Path, num_bands: int, iterations: int) -> dict[str, float]:
    """Draw, train and evaluate in a folder, and return the metrics."""
    draw_split(folder, 'train', 160, num_bands, seed=1)
    draw_split(folder, 'val', 40, num_bands, seed=2)
    run('create-config', 'sem_fpn/xcit_nano_12_p16_slim_shapes', '--masks', folder / 'masks/train',
        folder / 'masks/val', '--images', folder / 'images/train', folder / 'images/val',
        '--classes', *CLASSES, '--label-zero', 'class', '--in-channels', num_bands, '--out',
        folder / 'own.py')  # yapf: disable
    run('train', folder / 'own.py', '--work-dir', folder / 'run', '--cfg-options',
        f'train_cfg.max_iters={iterations}', f'train_cfg.val_interval={iterations}',
        f'param_scheduler.1.end={iterations}', 'randomness.seed=0')
    run('test', folder / 'own.py', folder / f'run/iter_{iterations}.pth', '--out',
        folder / 'metrics.json')
    return json.loads((folder / 'metrics.json').read_text())['metrics']


def run(*arguments: object) -> None:
    """Run a command of Colonnade, whose output goes to standard error."""
    subprocess.run([sys.executable, '-m', 'colonnade', *map(str, arguments)], check=True,
                   stdout=2)  # the file descriptor of standard error


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', nargs='?', type=Path, default=Path('work_dirs/study_bands'))
    parser.add_argument('--iterations', type=int, default=300)
    options = parser.parse_args()
    for bands in (3, 5):
        metrics = measure(options.folder / str(bands), bands, options.iterations)
        print(f'{bands} bands: {metrics}', flush=True)
