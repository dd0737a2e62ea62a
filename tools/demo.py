"""Train detectors and segmenters from scratch on drawn shapes, on any machine, in minutes each.

    python tools/demo.py
    python tools/demo.py --head cascade_mask_rcnn segformer

Draws the data set, and trains XCiT-N12/16 or another backbone of that width and depth with
tools/train.py. It does so under a slim Mask R-CNN and a slim Semantic FPN, or under the heads that
are named. Evaluates them with tools/test.py, prints one table and writes a page with annotations
(left) and predictions (right). Each run has a folder of its own.
"""
from __future__ import annotations

import json
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
HEADS = {  # folder of the configs -> name, layout of the data set
    'mask_rcnn': ('Mask R-CNN', 'coco'),
    'faster_rcnn': ('Faster R-CNN', 'coco'),
    'cascade_mask_rcnn': ('Cascade Mask R-CNN', 'coco'),
    'vitdet': ('ViTDet', 'coco'),
    'mask2former': ('Mask2Former', 'coco'),
    'dino': ('DINO', 'coco'),
    'rtmdet_ins': ('RTMDet-Ins', 'coco'),
    'sem_fpn': ('Semantic FPN', 'ade'),
    'upernet': ('UperNet', 'ade'),
    'segformer': ('SegFormer', 'ade'),
    'segmenter': ('Segmenter', 'ade'),
    'linear': ('Linear head', 'ade'),
    'mask2former_semantic': ('Mask2Former, semantic', 'ade'),
}
IMAGES = {'coco': 'val2017', 'ade': 'images/validation'}
ABOUT = 'Annotations left, predictions right. Type the commands in the folder of the clone.'
ROWS = {  # row of the table -> metric, factor that makes it a percentage
    'box mAP': ('coco/bbox_mAP', 100),
    'box AP50': ('coco/bbox_mAP_50', 100),
    'mask mAP': ('coco/segm_mAP', 100),
    'mask AP50': ('coco/segm_mAP_50', 100),
    'mIoU': ('mIoU', 1),
}
PROGRESS = re.compile(r'Iter\(train\) \[ *(\d+)/(\d+)\].*eta: (\S+).* loss: (\S+)')


def configs_of(head: str) -> dict[str, Path]:
    """The slim configs of a head on drawn shapes, by their backbones."""
    leaves = sorted((ROOT / 'configs' / head).glob('*_slim_shapes.py'))
    return {leaf.stem.partition('_nano_12')[0]: leaf for leaf in leaves}


def choose_configs(heads: Sequence[str], backbone: str) -> dict[str, Path]:
    """The config of each head on a backbone.

    Raises:
        ValueError: If a head has none on this backbone.
    """
    chosen = {}
    for head in heads:
        configs = configs_of(head)
        if backbone not in configs:
            raise UserError(
                f'--backbone {backbone}: {head} has slim configs on {", ".join(configs)}')
        chosen[head] = configs[backbone]
    return chosen


def run_tool(tool: str, log: Path, *arguments: str | Path, show: bool) -> None:
    """Run a tool, its output going to ``log``, the progress of training to the screen.

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
            if show and (found := PROGRESS.search(line)):
                print_progress(*found.groups())
    if process.returncode:
        raise UserError(f'{tool} failed:\n{"".join(tail)}\nAll of it: {log}')


def print_progress(iteration: str, last: str, eta: str, loss: str) -> None:
    """One line that a terminal overwrites; in a log, every tenth."""
    text = f'  iteration {iteration:>4} of {last}, loss {float(loss):6.3f}, {eta} to go'
    if sys.stdout.isatty():
        print(f'\r{text}', end='\n' if iteration == last else '', flush=True)
    elif int(iteration) % 100 == 0 or iteration == last:
        print(text, flush=True)


def train_and_test(config: Path, data_root: Path, work_dir: Path, options: Sequence[str]) -> dict:
    """Train and evaluate one config; returns its metrics."""
    common = (config, '--data-root', data_root, '--work-dir', work_dir)
    work_dir.mkdir(parents=True)
    log, metrics = work_dir / 'demo.log', work_dir / 'metrics.json'
    # evaluated once, behind training
    fixed = ['randomness.seed=0', 'val_dataloader=None', 'val_cfg=None', 'val_evaluator=None']
    run_tool('train.py', log, *common, '--cfg-options', *fixed, *options, show=True)
    checkpoint = (work_dir / 'last_checkpoint').read_text(encoding='utf-8')
    run_tool(
        'test.py',
        log,
        config,
        checkpoint,
        *common[1:],
        '--out',
        metrics,
        *(['--cfg-options', *options] if options else []),
        show=False)
    return json.loads(metrics.read_text(encoding='utf-8'))['metrics']


def rows_of(metrics: dict[str, float], seconds: float) -> list[tuple[str, str]]:
    """What came out of a head, in percent, and how long it took."""
    rows = [(row, f'{factor * metrics[key]:.1f}') for row, (key, factor) in ROWS.items()
            if key in metrics]  # yapf: disable
    return [*rows, ('time', f'{seconds:.0f} s')]


def print_table(title: str, tables: dict[str, list[tuple[str, str]]], out: Path) -> None:
    """The rows of each head, and where things are."""
    print(f'\n{title}')
    for head, rows in tables.items():
        print(HEADS[head][0])
        for row, value in rows:
            print(f'  {row:10}{value:>10}')
    print(f'configs, checkpoints, logs  {out}')


def write_report(title: str, configs: dict[str, Path], tables: dict[str, list[tuple[str, str]]],
                 data: Path, out: Path) -> Path:
    """A page with the rows of each head, pictures, and commands to go on with.

    Raises:
        OSError: If it cannot be written, or an image is missing.
    """
    from colonnade.visualization.html_pages import sample_section  # takes seconds
    from colonnade.visualization.html_pages import Section, write_page
    sections: list[Section] = []
    for head, config in configs.items():
        name, layout = HEADS[head]
        checkpoint = Path((out / head / 'last_checkpoint').read_text(encoding='utf-8'))
        model = f'{head}/{config.stem} {quote(str(checkpoint))}'
        images = data / layout / IMAGES[layout]
        first = quote(str(min(images.iterdir())))
        commands = [
            '. .venv/bin/activate',
            f'colonnade predict {model} {quote(str(images))} --out predictions/{head}',
            f'colonnade visualize {model} {first} --out pictures/{head}',
            f'colonnade serve {model}',
        ]
        options = {'test_dataloader.dataset.data_root': str(data / layout)}
        sections.append(
            sample_section(
                name, config, checkpoint, rows=tables[head], commands=commands,
                cfg_options=options))
    page = out / 'report.html'
    write_page(page, title, ABOUT, sections)
    return page


def draw(folder: Path) -> None:
    """Draw the data set if it is not there."""
    if folder.exists():
        return
    print('Drawing 800 + 100 images of shapes ...', flush=True)
    from colonnade.datasets.shapes_dataset import make_shapes  # takes seconds
    make_shapes(folder, num_train=800, num_val=100, size=128, seed=0)


@dataclass
class DemoOptions:
    """What the demo trains."""
    out: Path = option('folder for data and runs', Path('work_dirs/demo'))
    head: Sequence[str] = option(
        'folders of configs/ (mask_rcnn sem_fpn): %(choices)s', ('mask_rcnn', 'sem_fpn'),
        choices=[head for head in HEADS if configs_of(head)],
        metavar='NAME')
    backbone: str = option(
        'what to train under each head (%(default)s)',
        'xcit',
        choices=sorted({backbone
                        for head in HEADS
                        for backbone in configs_of(head)}))
    cfg_options: Sequence[str] = option('as in colonnade train', (), metavar='KEY=VALUE')


@command(DemoOptions)
@file_errors()
def main(options: DemoOptions) -> None:
    """Draw, train, evaluate and print."""
    base = options.out.resolve()
    out, data = base / time.strftime('%Y%m%d-%H%M%S'), base / 'shapes'
    tables: dict[str, list[tuple[str, str]]] = {}
    configs = choose_configs(options.head, options.backbone)
    draw(data)
    for head, config in configs.items():
        name, layout = HEADS[head]
        print(f'Training and evaluating {name} ...', flush=True)
        started = time.monotonic()
        metrics = train_and_test(config, data / layout, out / head, options.cfg_options)
        tables[head] = rows_of(metrics, time.monotonic() - started)
    backbone = next(iter(configs.values())).stem.removesuffix('_slim_shapes')
    title = f'{backbone} from scratch, on the validation part (percent)'
    print_table(title, tables, out)
    page = write_report(title, configs, tables, data, out)
    print(f'open in a browser           {page.as_uri()}')


if __name__ == '__main__':
    main()
