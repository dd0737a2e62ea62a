"""Train a detector and a segmenter from scratch on drawn shapes, on any machine, in minutes.

    python tools/demo.py

Draws the data set and trains XCiT-N12/16, or another trunk of that width and depth, with
tools/train.py: once under a slim Mask R-CNN, once under a slim Semantic FPN. Evaluates both with
tools/test.py and prints one table. Pictures show truth (left) and prediction (right). Each run has
a folder of its own.
"""
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from colonnade.tools.command_line import user_errors

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {  # trunk -> name of its config, which there is for both heads
    path.stem.partition('_nano_12')[0]: path.stem
    for path in sorted((ROOT / 'configs/mask_rcnn').glob('*_slim_shapes.py'))
}
HEADS = {  # folder of the config -> name, layout of the data set
    'mask_rcnn': ('Mask R-CNN', 'coco'),
    'sem_fpn': ('Semantic FPN', 'ade'),
}
ROWS = {  # row of the table -> metric, factor that makes it a percentage
    'box mAP': ('coco/bbox_mAP', 100),
    'box AP50': ('coco/bbox_mAP_50', 100),
    'mask mAP': ('coco/segm_mAP', 100),
    'mask AP50': ('coco/segm_mAP_50', 100),
    'mIoU': ('mIoU', 1),
}
PROGRESS = re.compile(r'Iter\(train\) \[ *(\d+)/(\d+)\].*eta: (\S+).* loss: (\S+)')


def run_tool(tool: str, log: Path, *arguments: str | Path, show: bool) -> None:
    """Run a tool, its output going to ``log``, the progress of training to the screen.

    Raises:
        RuntimeError: If the tool fails, with the end of its output.
    """
    command = [sys.executable, ROOT / 'tools' / tool, *arguments]
    tail: deque[str] = deque(maxlen=25)
    with open(log, 'a') as file, subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True) as process:
        for line in process.stdout or ():
            file.write(line)
            tail.append(line)
            if show and (found := PROGRESS.search(line)):
                print_progress(*found.groups())
    if process.returncode:
        raise RuntimeError(f'{tool} failed:\n{"".join(tail)}\nAll of it: {log}')


def print_progress(iteration: str, last: str, eta: str, loss: str) -> None:
    """One line that a terminal overwrites; in a log, every tenth."""
    text = f'  iteration {iteration:>4} of {last}, loss {float(loss):6.3f}, {eta} to go'
    if sys.stdout.isatty():
        print(f'\r{text}', end='\n' if iteration == last else '', flush=True)
    elif int(iteration) % 100 == 0 or iteration == last:
        print(text, flush=True)


def train_and_test(config: Path, data_root: Path, work_dir: Path, options: list[str]) -> dict:
    """Train and evaluate one config; returns its metrics."""
    head = config.parent.name
    common = (config, '--data-root', data_root, '--work-dir', work_dir)
    work_dir.mkdir(parents=True)
    log, metrics = work_dir / 'demo.log', work_dir / 'metrics.json'
    # evaluated once, behind training
    fixed = ['randomness.seed=0', 'val_dataloader=None', 'val_cfg=None', 'val_evaluator=None']
    run_tool('train.py', log, *common, '--cfg-options', *fixed, *options, show=True)
    checkpoint = (work_dir / 'last_checkpoint').read_text()
    run_tool(
        'test.py',
        log,
        config,
        checkpoint,
        *common[1:],
        '--out',
        metrics,
        '--cfg-options',
        'default_hooks.visualization.draw=True',
        f'visualizer.save_dir={work_dir}/pictures',
        *options,
        *(['default_hooks.visualization.test_out_dir=' +
           str(work_dir / 'pictures')] if head == 'mask_rcnn' else []),
        show=False)
    return json.loads(metrics.read_text())['metrics']


def print_table(title: str, metrics: dict[str, float], seconds: dict[str, float],
                out: Path) -> None:
    """What came out, how long it took and where things are."""
    print(f'\n{title} from scratch, on the validation part (percent)')
    for row, (key, factor) in ROWS.items():
        print(f'  {row:24}{factor * metrics[key]:8.1f}')
    for step, value in seconds.items():
        print(f'  {"time, " + step:24}{value:6.0f} s')
    print(f'  {"pictures, Mask R-CNN":24}  {out}/mask_rcnn/pictures')
    print(f'  {"pictures, Semantic FPN":24}  {out}/sem_fpn/pictures/vis_data/vis_image')
    print(f'  {"configs, checkpoints, logs":24}  {out}')


def draw(folder: Path) -> float:
    """Draw the data set if it is not there; returns the seconds that took."""
    if folder.exists():
        return 0.
    print('Drawing 800 + 100 images of shapes ...', flush=True)
    started = time.monotonic()
    from colonnade.engine.drawn_shapes import make_shapes  # takes seconds
    make_shapes(folder, num_train=800, num_val=100, size=128, seed=0)
    return time.monotonic() - started


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/demo'), help='folder for data and runs')
    parser.add_argument('--trunk', choices=CONFIGS, default='xcit', help='what to train (xcit)')
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='as in tools/train.py')
    return parser.parse_args()


def main() -> None:
    """Draw, train, evaluate and print."""
    args = parse_args()
    config, base = CONFIGS[args.trunk], args.out.resolve()
    out, data = base / time.strftime('%Y%m%d-%H%M%S'), base / 'shapes'
    metrics: dict[str, float] = {}
    seconds: dict[str, float] = {}
    with user_errors('demo', OSError, RuntimeError):
        if drawing := draw(data):
            seconds['data set'] = drawing
        for head, (name, layout) in HEADS.items():
            print(f'Training and evaluating {name} ...', flush=True)
            started = time.monotonic()
            metrics |= train_and_test(ROOT / 'configs' / head / f'{config}.py', data / layout,
                                      out / head, args.cfg_options)
            seconds[name] = time.monotonic() - started
    print_table(config.removesuffix('_slim_shapes'), metrics, seconds, out)


if __name__ == '__main__':
    main()
