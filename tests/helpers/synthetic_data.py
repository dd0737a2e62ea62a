"""Tiny synthetic datasets for detectors and segmenters, and helpers for reported errors."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import NO_WORKERS, ROOT

WIDTH, HEIGHT = 48, 40
CLASSES = ('disc', 'square')
SHORT = [
    '--cfg-options', 'train_cfg.max_iters=2', 'default_hooks.checkpoint.interval=1',
    'train_dataloader.batch_size=2', 'val_dataloader=None', 'val_evaluator=None', 'val_cfg=None',
    *NO_WORKERS[:1]
]


def leaf(head: str, recipe: str = 'nano_12_p16_slim_{}') -> Path:
    data = 'coco' if head == 'mask_rcnn' else 'ade20k'
    return ROOT / f'configs/{head}/xcit_{recipe.format(data)}.py'


def draw_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    cv2.imwrite(str(path), image)


def coco_content(num_images: int = 2, first: int = 1) -> dict[str, list]:
    """Return the content of a COCO file with one instance of each class per image."""
    ids = range(first, first + num_images)
    images = [dict(id=i, file_name=f'{i}.jpg', width=WIDTH, height=HEIGHT) for i in ids]
    annotations = [
        dict(
            id=2 * i + category,
            image_id=i,
            category_id=category,
            bbox=[4, 4 + 16 * category, 16, 12],
            area=192,
            iscrowd=0,
            segmentation=[[4, 4 + 16 * category, 20, 4 + 16 * category, 20, 16 + 16 * category]])
        for i in ids for category in range(2)
    ]
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES)]
    return dict(images=images, annotations=annotations, categories=categories)


def draw_instances(folder: Path, num_images: int = 2) -> list[str | Path]:
    """Write two COCO files with images, and return the arguments of ``create_config`` for them."""
    for split, first in (('train', 1), ('val', 100)):
        content = coco_content(num_images, first)
        for image in content['images']:
            draw_image(folder / split / image['file_name'])
        (folder / f'{split}.json').write_text(json.dumps(content))
    return ['--coco', folder / 'train.json', folder / 'val.json',
            '--images', folder / 'train', folder / 'val']  # yapf: disable


def change(file: Path, kind: str, index: int, **values: object) -> None:
    """Overwrite values of one entry of a COCO file; ``...`` removes the key."""
    content = json.loads(file.read_text())
    entry = content[kind][index] | values
    content[kind][index] = {key: value for key, value in entry.items() if value is not ...}
    file.write_text(json.dumps(content))


def remove(file: Path, *keys: str) -> None:
    """Remove keys of all annotations."""
    content = json.loads(file.read_text())
    for annotation in content['annotations']:
        for key in keys:
            del annotation[key]
    file.write_text(json.dumps(content))


def draw_label_maps(folder: Path,
                    labels: tuple[int, ...] = (0, 1),
                    mask_name: str = '{}.png',
                    image_name: str = '{}.jpg',
                    num_images: int = 2) -> list[str | Path]:
    """Write images and label maps, and return the arguments of ``create_config`` for them."""
    label_map = np.resize(np.array(labels, np.uint8), (HEIGHT, WIDTH))
    for split in ('train', 'val'):
        (folder / 'masks' / split).mkdir(parents=True)
        for stem in 'abcdef'[:num_images]:
            draw_image(folder / 'images' / split / image_name.format(stem))
            cv2.imwrite(str(folder / 'masks' / split / mask_name.format(stem)), label_map)
    return ['--masks', folder / 'masks/train', folder / 'masks/val',
            '--images', folder / 'images/train', folder / 'images/val']  # yapf: disable


def train_and_test(run_tool: Callable, config: Path) -> dict[str, float]:
    """Train and evaluate a config briefly, and return its metrics."""
    work_dir = config.parent / 'run'
    run_tool('train', config, '--work-dir', work_dir, *SHORT)
    run_tool('test', config, work_dir / 'iter_2.pth', '--work-dir', work_dir, '--out',
             work_dir / 'm.json', '--cfg-options', 'test_dataloader.dataset.indices=2', *NO_WORKERS)
    return json.loads((work_dir / 'm.json').read_text())['metrics']


def run_and_get_errors(run_tool: Callable, *arguments: object) -> list[str]:
    """Return the errors, then the warnings, of a ``create_config`` that writes no config."""
    out, printed, errors = Path('own_that_is_not_written.py'), StringIO(), StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(errors), pytest.raises(
                SystemExit, match='no config was written'):
            run_tool('create_config', *arguments, '--out', out)
        assert not out.exists()
    finally:  # a config that was written must not make other tests fail
        out.unlink(missing_ok=True)
        shutil.rmtree(out.with_name(f'{out.stem}_data'), ignore_errors=True)
    lines = (errors.getvalue() + printed.getvalue()).splitlines()
    return [line for line in lines if ': ' in line]


def assert_messages(said: list[str], *texts: str) -> None:
    for text in texts:
        assert any(text in line for line in said), (text, said)
