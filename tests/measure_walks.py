"""Print how many files and functions of the product three commands call.

    python tests/measure_walks.py

These are training until the first iteration, prediction of one image, and the conversion of a YOLO
folder to a config. Calls in this process and its threads count, imports do not.
"""
from __future__ import annotations

import runpy
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
OTHERS = {'tests', 'docs', 'configs', '.venv'}  # folders without functions of the product
DETECTOR = ROOT / 'configs/mask_rcnn/xcit_nano_12_p16_slim_shapes.py'


class Walk:
    """Functions of the product that were called."""

    def __init__(self) -> None:
        self.called: set[CodeType] = set()

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; stop after the first iteration of training."""
        if event == 'call':
            self.called.add(frame.f_code)
            if frame.f_locals.get('fn_name') == 'after_train_iter':
                threading.setprofile(None)
                sys.setprofile(None)

    def run(self, tool: str, *arguments: object) -> Walk:
        """Run a command, and record its calls."""
        sys.argv = [tool, *map(str, arguments)]
        threading.setprofile(self.record)
        sys.setprofile(self.record)
        try:
            runpy.run_module(f'colonnade.tools.{tool}', run_name='__main__')
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self

    def __str__(self) -> str:
        functions = set()
        for code in self.called:
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in OTHERS:
                functions.add((path.relative_to(ROOT), code.co_firstlineno, code.co_name))
        functions = {each for each in functions if each[-1] != '<module>'}
        files = {path for path, *_ in functions}
        rooms = {path.parts[0] for path in files}
        return f'{len(files):4} files {len(functions):6,} functions {len(rooms):4} rooms'


def write_yolo(folder: Path) -> Path:
    """Write one training and one validation image with a box each, and return the folder."""
    for index, split in enumerate(('train', 'val')):
        for name in ('images', 'labels'):
            (folder / name / split).mkdir(parents=True)
        pixels = np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f'images/{split}/{index}.png'), pixels)
        label = folder / f'labels/{split}/{index}.txt'
        label.write_text('0 0.5 0.5 0.25 0.25\n', encoding='utf-8')
    (folder / 'data.yaml').write_text(
        'path: .\ntrain: images/train\nval: images/val\nnames: [square]\n', encoding='utf-8')
    return folder


def build_walks(folder: Path) -> dict[str, Callable[[], Walk]]:
    """Return functions that run the commands, by title."""
    options = [
        'train_cfg.max_iters=1', 'train_dataloader.batch_size=1',
        'default_hooks.checkpoint.interval=1', 'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False', 'val_dataloader=None', 'val_evaluator=None',
        'val_cfg=None'
    ]
    data = folder / 'shapes/coco'
    Walk().run('make_shapes', folder / 'shapes', '--num-train', 2, '--num-val', 1, '--size', 64)
    train = [DETECTOR, '--data-root', data, '--work-dir', folder / 'run', '--cfg-options', *options]
    image = next(data.rglob('*.jpg'))
    predict = [DETECTOR, folder / 'run/iter_1.pth', image, '--out', folder / 'out', '--outputs']
    create = [DETECTOR, '--data', write_yolo(folder / 'yolo'), '--out', folder / 'config.py']
    return {
        'train to its first iteration': lambda: Walk().run('train', *train),
        'one image to results.json': lambda: Walk().run('predict', *predict, 'results'),
        'a YOLO folder to a config': lambda: Walk().run('create_config', *create)
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [f'{title:32}{walk()}' for title, walk in build_walks(Path(folder)).items()]
    print(*lines, sep='\n')


if __name__ == '__main__':
    main()
