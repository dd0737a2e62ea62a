"""Train segmenters and detectors on synthetic shapes, in minutes on any machine.

    python tools/demo.py
    python tools/demo.py --head cascade_mask_rcnn segformer

Creates the dataset, and trains and evaluates slim configs: by default, Semantic FPN and Mask R-CNN
on XCiT-N12/16. The first head is trained from scratch, in four fifths of the config's iterations.
The others start from its backbone, and need a third. Trains in bfloat16 on CPUs where it is faster.
Then prints a table, and writes a page with annotations (left) and predictions (right). Each run has
its own folder.
"""
from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from colonnade.common.errors import UserError, file_errors
from colonnade.common.options import option
from colonnade.tools.command_line import command

ROOT = Path(__file__).resolve().parent.parent
HEADS = {  # folder of configs -> name, format of the dataset
    'mask_rcnn': ('Mask R-CNN', 'coco'),
    'faster_rcnn': ('Faster R-CNN', 'coco'),
    'cascade_mask_rcnn': ('Cascade Mask R-CNN', 'coco'),
    'vitdet': ('ViTDet', 'coco'),
    'mask2former': ('Mask2Former', 'coco'),
    'dino': ('DINO', 'coco'),
    'rtmdet_ins': ('RTMDet-Ins', 'coco'),
    'eomt': ('EoMT', 'coco'),
    'pmt': ('PMT', 'coco'),
    'sem_fpn': ('Semantic FPN', 'ade'),
    'upernet': ('UperNet', 'ade'),
    'segformer': ('SegFormer', 'ade'),
    'segmenter': ('Segmenter', 'ade'),
    'linear': ('Linear head', 'ade'),
    'mask2former_semantic': ('Mask2Former, semantic', 'ade'),
    'eomt_semantic': ('EoMT, semantic', 'ade'),
    'pmt_semantic': ('PMT, semantic', 'ade'),
}
IMAGES = {'coco': 'val2017', 'ade': 'images/validation'}
ABOUT = 'Annotations (left) and predictions (right). Run the commands in the folder of the clone.'
ROWS = {  # row of the table -> metric, factor to percent
    'box mAP': ('coco/bbox_mAP', 100),
    'box AP50': ('coco/bbox_mAP_50', 100),
    'mask mAP': ('coco/segm_mAP', 100),
    'mask AP50': ('coco/segm_mAP_50', 100),
    'mIoU': ('mIoU', 1),
}
# Fractions of the iterations from scratch, and from a trained backbone. They suffice if AdamW
# averages squared gradients over 20 iterations instead of 1,000, with a higher rate from scratch.
FROM_SCRATCH, FROM_BACKBONE = 0.8, 0.32
BETAS = 'optim_wrapper.optimizer.betas=(0.9,0.95)'
RATE_FACTOR = 1.5
PROGRESS = re.compile(r'Iter\(train\) \[ *(\d+)/(\d+)\].*eta: (\S+).* loss: (\S+)')


def list_configs(head: str) -> dict[str, Path]:
    """Return the slim configs of a head by backbone."""
    paths = sorted((ROOT / 'configs' / head).glob('*_slim_shapes.py'))
    return {path.stem.partition('_nano_12')[0]: path for path in paths}


def run_tool(tool: str, log: Path, *arguments: str | Path, show: bool) -> None:
    """Run a tool, write its output to ``log``, and print the progress of training if ``show``.

    Raises:
        UserError: If the tool fails, with the end of its output.
    """
    command = [sys.executable, ROOT / 'tools' / tool, *arguments]
    tail: deque[str] = deque(maxlen=25)
    with open(
            log, 'a', encoding='utf-8') as file, subprocess.Popen(
                list(map(str, command)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True) as process:
        for line in process.stdout or ():
            file.write(line)
            tail.append(line)
            if show and (match := PROGRESS.search(line)):
                print_progress(*match.groups())
    if process.returncode:
        raise UserError(f'{tool} failed:\n{"".join(tail)}\nSee the full output in {log}')


def print_progress(iteration: str, last: str, eta: str, loss: str) -> None:
    """Overwrite a line of the terminal; in a log, print every tenth line."""
    text = f'  iteration {iteration:>4} of {last}, loss {float(loss):6.3f}, {eta} left'
    if sys.stdout.isatty():
        print(f'\r{text}', end='\n' if iteration == last else '', flush=True)
    elif int(iteration) % 100 == 0 or iteration == last:
        print(text, flush=True)


def can_start_from(first: Path, config: Path) -> bool:
    """Return False if the backbone has a final norm that the one of ``first`` lacks."""
    from mmengine.config import Config  # slow
    cfg, before = Config.fromfile(config), Config.fromfile(first)
    return not cfg.model.backbone.get('norm_features') or bool(
        before.model.backbone.get('norm_features'))


def shorten(config: Path, is_from_scratch: bool, options: Sequence[str]) -> list[str]:
    """Return settings of a shorter training; none if ``options`` set the iterations."""
    from mmengine.config import Config  # slow
    if any(each.startswith('train_cfg.max_iters=') for each in options):
        return []
    cfg = Config.fromfile(config)
    fraction = FROM_SCRATCH if is_from_scratch else FROM_BACKBONE
    fewer = round(fraction * cfg.train_cfg.max_iters)
    rate = cfg.optim_wrapper.optimizer.lr * (RATE_FACTOR if is_from_scratch else 1)
    keys = ('train_cfg.max_iters', 'train_cfg.val_interval', 'param_scheduler.1.end')
    return [*(f'{key}={fewer}' for key in keys), BETAS, f'optim_wrapper.optimizer.lr={rate:g}']


def is_bfloat16_faster() -> bool:
    """Return True if training is on a CPU that multiplies matrices of bfloat16 faster."""
    from mmengine.device import get_device  # slow

    from colonnade.models.half_precision import explain_missing_bfloat16
    return get_device() == 'cpu' and not explain_missing_bfloat16()


def train(config: Path, data_root: Path, work_dir: Path, arguments: Sequence[str],
          options: Sequence[str]) -> dict[str, float]:
    """Train a config, and return the metrics of the evaluation at the end."""
    from colonnade.engine.work_dir import Run  # slow
    from colonnade.engine.work_dir.metrics_table import MetricsTable
    work_dir.mkdir(parents=True)
    run_tool(
        'train.py',
        work_dir / 'demo.log',
        config,
        '--data-root',
        data_root,
        '--work-dir',
        work_dir,
        *arguments,
        '--cfg-options',
        'randomness.seed=0',
        # a batch takes 15 ms to load: a process for it would compete for the cores
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        *options,
        show=True)
    table = MetricsTable(Run(work_dir).metrics)
    return {key: table.last(key) for key, _ in ROWS.values() if table.values(key)}


def write_report(title: str, configs: dict[str, Path], tables: dict[str, list[tuple[str, str]]],
                 data: Path, out: Path) -> Path:
    """Write a page with metrics, images and commands for each head, and return its path."""
    from colonnade.visualization import html_pages  # slow
    sections = []
    for head, config in configs.items():
        name, data_format = HEADS[head]
        checkpoint = Path((out / head / 'last_checkpoint').read_text(encoding='utf-8'))
        model = f'{head}/{config.stem} {quote(str(checkpoint))}'
        images = data / data_format / IMAGES[data_format]
        first = quote(str(min(images.iterdir())))
        commands = [
            '. .venv/bin/activate',
            f'colonnade predict {model} {quote(str(images))} --out predictions/{head}',
            f'colonnade visualize {model} {first} --out pictures/{head}',
            f'colonnade serve {model}',
        ]
        options = {'test_dataloader.dataset.data_root': str(data / data_format)}
        sections.append(
            html_pages.build_sample_section(
                name, config, checkpoint, rows=tables[head], commands=commands,
                cfg_options=options))
    page = out / 'report.html'
    html_pages.write_page(page, title, ABOUT, sections)
    return page


def create_dataset(folder: Path) -> None:
    """Create the dataset if it does not exist."""
    if folder.exists():
        return
    print('creating 800 + 100 images of shapes ...', flush=True)
    from colonnade.datasets.shapes_dataset import make_shapes  # slow
    make_shapes(folder, num_train=800, num_val=100, size=128, seed=0)


@dataclass
class DemoOptions:
    """Options of the demo."""
    out: Path = option('folder for data and runs (default: %(default)s)', Path('work_dirs/demo'))
    head: Sequence[str] = option(
        'heads to train: %(choices)s (default: sem_fpn mask_rcnn)', ('sem_fpn', 'mask_rcnn'),
        choices=[head for head in HEADS if list_configs(head)],
        metavar='NAME')
    backbone: str = option(
        'backbone to use with each head (default: %(default)s)',
        'xcit',
        choices=sorted({backbone
                        for head in HEADS
                        for backbone in list_configs(head)}))
    cfg_options: Sequence[str] = option(
        'settings that override the config, e.g. train_cfg.max_iters=100', (), metavar='KEY=VALUE')


@command(DemoOptions)
@file_errors()
def main(options: DemoOptions) -> None:
    """Create the dataset, train, evaluate and print the results."""
    base = options.out.resolve()
    out, data = base / time.strftime('%Y%m%d-%H%M%S'), base / 'shapes'
    tables: dict[str, list[tuple[str, str]]] = {}
    configs = {}
    for head in options.head:
        if options.backbone not in (choices := list_configs(head)):
            raise UserError(f'--backbone {options.backbone}: {head} has slim configs only for '
                            f'{", ".join(choices)}')
        configs[head] = choices[options.backbone]
    create_dataset(data)
    amp = ['--amp'] if is_bfloat16_faster() else []
    first = next(iter(configs))
    for head, config in configs.items():
        name, data_format = HEADS[head]
        begin, arguments, source = time.monotonic(), [*amp], ''
        if head != first and can_start_from(configs[first], config):
            checkpoint = (out / first / 'last_checkpoint').read_text(encoding='utf-8')
            arguments += ['--pretrained', checkpoint]
            source = f', from the backbone of {HEADS[first][0]}'
        print(f'training and evaluating {name}{source} ...', flush=True)
        settings = [*shorten(config, not source, options.cfg_options), *options.cfg_options]
        metrics = train(config, data / data_format, out / head, arguments, settings)
        tables[head] = [(row, f'{factor * metrics[key]:.1f}')
                        for row, (key, factor) in ROWS.items() if key in metrics]
        tables[head].append(('time', f'{time.monotonic() - begin:.0f} s'))
    backbone = next(iter(configs.values())).stem.removesuffix('_slim_shapes')
    title = f'{backbone} on the validation split (percent)'
    print(f'\n{title}')
    for head, rows in tables.items():
        print(HEADS[head][0])
        for row, value in rows:
            print(f'  {row:10}{value:>10}')
    print(f'configs, checkpoints, logs  {out}')
    page = write_report(title, configs, tables, data, out)
    print(f'open in a browser           {page.as_uri()}')


if __name__ == '__main__':
    main()
