"""Train EoMT, PMT and Mask2Former on synthetic shapes for equally long, from random weights.

    colonnade make-shapes data/shapes --num-train 800
    python docs/study_equal_time.py work_dirs/equal_time --data data/shapes --seconds 300

A first run of each config measures its time per iteration. A second one trains for as many
iterations as fit into the time. Runs that an earlier call has finished are not run again.
"""
from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACE_ITERATIONS = 40  # of which the last ten are timed
WARM_UP = 0.1  # part of the iterations with a rising learning rate
METRICS = {
    'panoptic': ('coco/', 'coco_panoptic/PQ'),
    'instances': ('coco/', 'coco/segm_mAP_50'),
    'semantic': ('ade/', 'mIoU'),
}
CONFIGS = {
    'EoMT': ('eomt{}/plain_vit_nano_12_slim_shapes{}', 'ViT, width 128, depth 12'),
    'PMT': ('pmt{}/xcit_nano_12_p16_slim_shapes{}', 'XCiT-N12/16'),
    'Mask2Former': ('mask2former{}/xcit_nano_12_p16_slim_shapes{}', 'XCiT-N12/16'),
}


def train(config: str, data: Path, work_dir: Path, iterations: int) -> list[dict[str, str]]:
    """Train a config, unless it is trained already, and return the rows of ``metrics.csv``."""
    metrics = work_dir / 'metrics.csv'
    if not (work_dir / f'iter_{iterations}.pth').exists():
        options = {
            'train_cfg.max_iters': iterations,
            'train_cfg.val_interval': iterations,
            'param_scheduler.0.end': max(1, round(WARM_UP * iterations)),
            'param_scheduler.1.end': iterations,
            'randomness.seed': 0,
        }
        command = [sys.executable, '-m', 'colonnade', 'train', config, '--data-root', str(data),
                   '--work-dir', str(work_dir), '--no-report', '--cfg-options']  # yapf: disable
        command += [f'{key}={value}' for key, value in options.items()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f'{" ".join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}')
    with metrics.open() as file:
        return list(csv.DictReader(file))


def measure(name: str, task: str, args: argparse.Namespace) -> str:
    """Return a row of the table."""
    data_root, metric = METRICS[task]
    folder, backbone = CONFIGS[name]
    config = folder.format('_semantic' * (task == 'semantic'), '_panoptic' * (task == 'panoptic'))
    data, work_dir = args.data / data_root, args.out / f'{name}_{task}'
    paced = train(config, data, work_dir / 'pace', PACE_ITERATIONS)
    pace = [float(row['iter_time']) for row in paced if row['iter_time']][-1]
    iterations = round(args.seconds / pace)
    value = [row[metric] for row in train(config, data, work_dir / 'run', iterations)
             if row.get(metric)][-1]  # yapf: disable
    row = f'| {name} | {backbone} | {metric} | {float(value):.3f} | {iterations} | {pace:.3f} s |'
    print(row, flush=True)
    return row


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path, help='folder of all runs')
    parser.add_argument('--data', type=Path, required=True, help='output of make-shapes')
    parser.add_argument('--seconds', type=float, default=300., help='of training, for each model')
    parser.add_argument('--tasks', nargs='+', choices=METRICS, default=list(METRICS))
    parser.add_argument('--heads', nargs='+', choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument(
        '--parallel', action='store_true', help='train the heads of a task at the same time')
    args = parser.parse_args()
    rows: list[str] = []
    for task in args.tasks:
        with ThreadPoolExecutor(len(args.heads) if args.parallel else 1) as pool:
            rows += pool.map(lambda name, task=task: measure(name, task, args), args.heads)
    print('| head | backbone | metric | value | iterations | time per iteration |')
    print('|---|---|---|---|---|---|', *rows, sep='\n')


if __name__ == '__main__':
    main()
