"""Train SimplifiedViT, plain blocks and XCiT from scratch, and draw how the metric rises.

    python tools/make_shapes.py data/shapes --num-train 800
    python docs/study_simplified_vit.py work_dirs/study --shapes data/shapes \\
        --plot docs/images/simplified_vit.png

All have width 128, depth 12 and 4 heads, and train under the slim Semantic FPN by tools/train.py.
Runs that an earlier call has finished are not run again. So a call may be stopped, and two calls
may share out the seeds.
"""
from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import report_user_errors
from colonnade.tools.demo import run_tool

ROOT = Path(__file__).resolve().parent.parent
LEAVES = {  # data set -> config that the runs start from
    'shapes': ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_shapes.py',
    'ade20k': ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_ade20k.py',
}
BACKBONES: dict[str, dict[str, Any]] = {
    'xcit': dict(type='XCiT'),
    'plain': dict(type='SimplifiedViT', img_size=128, block='plain'),
    'parallel': dict(type='SimplifiedViT', img_size=128, block='parallel'),
    'sequential': dict(type='SimplifiedViT', img_size=128, block='sequential'),
    'parallel_identity': dict(
        type='SimplifiedViT', img_size=128, block='parallel', init=(1., 0.)),
    'parallel_centred': dict(
        type='SimplifiedViT', img_size=128, block='parallel', init=(1., 1.), centring=True),
}  # yapf: disable
Curve = list[tuple[int, float]]  # iteration, mIoU


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path, help='folder of all runs')
    parser.add_argument('--shapes', type=Path, help='drawn shapes, as tools/make_shapes.py writes')
    parser.add_argument('--ade20k', type=Path, help='a folder that is laid out as ADE20k')
    parser.add_argument('--backbones', nargs='+', choices=BACKBONES, default=list(BACKBONES))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--patch-size', type=int, choices=[8, 16], default=16)
    parser.add_argument('--iterations', type=int, default=500)
    parser.add_argument('--interval', type=int, default=50, help='iterations between evaluations')
    parser.add_argument('--plot', type=Path, help='draw the curves here')
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='as in tools/train.py')
    args = parser.parse_args()
    if not (args.shapes or args.ade20k):
        parser.error('give --shapes, --ade20k or both')
    return args


def backbone_of(kind: str, patch_size: int) -> dict[str, Any]:
    """Return the backbone settings of a kind."""
    return dict(BACKBONES[kind], arch=f'nano_12_p{patch_size}')


def config_of(data: str, kind: str, patch_size: int) -> str:
    """Return the text of a config."""
    backbone = backbone_of(kind, patch_size) | dict(_delete_=True)
    return (f'_base_ = {str(LEAVES[data])!r}\n\n'
            f'model = dict(backbone={backbone!r}, neck=dict(stride={patch_size}))\n')


def curve_of(work_dir: Path) -> Curve:
    """Return the logged curve of the latest run in a folder."""
    logs = sorted(work_dir.glob('*/vis_data/scalars.json'))
    rows = [json.loads(line) for line in logs[-1].read_text().splitlines()] if logs else []
    return [(row['step'], row['mIoU']) for row in rows if 'mIoU' in row]


def train(args: argparse.Namespace, data: str, kind: str, seed: int) -> Curve:
    """Return the curve of a run, and train it first if it does not exist."""
    work_dir = args.out / f'{data}_{kind}_p{args.patch_size}_seed{seed}'
    if (curve := curve_of(work_dir)) and curve[-1][0] == args.iterations:
        return curve
    print(f'{work_dir} ...', flush=True)
    work_dir.mkdir(parents=True, exist_ok=True)
    config = work_dir / f'{kind}.py'
    config.write_text(config_of(data, kind, args.patch_size))
    folder = args.shapes / 'ade' if data == 'shapes' else args.ade20k
    options = [
        f'randomness.seed={seed}',
        f'train_cfg.max_iters={args.iterations}',
        f'train_cfg.val_interval={args.interval}',
        f'param_scheduler.1.end={args.iterations}',
        f'default_hooks.checkpoint.interval={args.iterations + 1}',  # none is kept
        'default_hooks.checkpoint.save_last=False',
        *args.cfg_options,
    ]
    run_tool(
        'train.py',
        work_dir / 'train.log',
        config,
        '--data-root',
        folder,
        '--work-dir',
        work_dir,
        '--cfg-options',
        *options,
        show=True)
    return curve_of(work_dir)


def rows(curves: dict[str, dict[str, list[Curve]]], patch_size: int) -> Iterator[str]:
    """Return a table of the last evaluations: mean, minimum and maximum over seeds."""
    from colonnade.backbones import BACKBONES as CLASSES
    yield '| backbone | parameters | ' + ' | '.join(f'mIoU, {data}' for data in curves) + ' |'
    yield '|---|---|' + '---|' * len(curves)
    for kind in next(iter(curves.values())):
        settings = backbone_of(kind, patch_size)
        backbone = CLASSES[settings.pop('type')](**settings)
        cells = [f'{sum(p.numel() for p in backbone.parameters()):,}']
        for runs in curves.values():
            last = [curve[-1][1] for curve in runs[kind]]
            cells.append(f'{sum(last) / len(last):.1f} ({min(last):.1f} – {max(last):.1f})')
        yield f'| {kind} | ' + ' | '.join(cells) + ' |'


def draw(curves: dict[str, dict[str, list[Curve]]], path: Path) -> None:
    """Plot a panel for each dataset: the mean over seeds, and their range."""
    from matplotlib.figure import Figure
    figure = Figure((5.5 * len(curves), 4.), layout='constrained')
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (data, backbones) in zip(panels, curves.items(), strict=True):
        for kind, runs in backbones.items():
            steps = [step for step, _ in runs[0]]
            values = [[value for _, value in curve] for curve in runs]
            columns = list(zip(*values, strict=True))
            axes.plot(steps, [sum(column) / len(column) for column in columns], label=kind)
            axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.2)
        axes.set(xlabel='iteration', ylabel='mIoU', title=data)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Train what is missing, print the table and draw the curves."""
    args = parse_args()
    sets = [data for data in LEAVES if getattr(args, data)]
    with report_user_errors('study'), file_errors():
        curves = {
            data: {kind: [train(args, data, kind, seed) for seed in args.seeds]
                   for kind in args.backbones} for data in sets
        }  # yapf: disable
    for row in rows(curves, args.patch_size):
        print(row)
    if args.plot:
        draw(curves, args.plot)


if __name__ == '__main__':
    main()
