"""The table that tools/benchmark.py prints: contestants measured in turns, and their ratios."""
from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.common.errors import UserError, file_errors
from colonnade.models.fusion import fuse
from colonnade.models.half_precision import half_type, name_of_type

from ..options import BenchmarkOptions
from .candidates import DETECTORS, NAMES, build_backbone
from .machine import described, product_limit
from .measurement import Job, middle_and_spread, peak_memory, time_in_turns, work_of

#: of weights, by their names on the command line
DTYPES = dict(float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16)


@dataclass
class Row:
    """One contestant's numbers."""
    backbone: str
    height: int
    width: int
    batch_size: int
    mode: str
    contestant: str
    seconds: float  # median
    spread: float  # half the range
    time_ratio: float  # of ours to this one
    images_per_second: float
    gflops: float  # of the products that the paper's form needs, two operations each
    share: float  # of those per second that the machine can do
    memory_mib: float
    memory_ratio: float  # of ours to this one
    weights_mib: float

    def __str__(self) -> str:
        return (f'{self.backbone:20} {f"{self.height}x{self.width}":>9} {self.batch_size:3} '
                f'{self.mode:5} {self.contestant:15} {self.seconds:8.3f} ±{self.spread:6.3f} s '
                f'{self.time_ratio:5.2f} {self.images_per_second:8.2f} {self.gflops:7.0f} '
                f'{self.share:5.0%} {self.memory_mib:8.0f} MiB {self.memory_ratio:5.2f} '
                f'{self.weights_mib:6.0f} MiB')


HEADER = (f'{"backbone":20} {"size":>9} {"B":>3} {"mode":5} {"contestant":15} {"seconds":>18} '
          f'{"ratio":>5} {"images/s":>8} {"GFLOP/s":>7} {"share":>5} {"memory":>12} '
          f'{"ratio":>5} {"weights":>10}')


def measure(job: Job, names: list[str], rounds: int, limit: float) -> list[Row]:
    """A row for each contestant, the first of which the ratios are of.

    Args:
        job: What is measured.
        names: Of contestants.
        rounds: Of which seconds are the median.
        limit: GFLOP/s of products on this machine.
    """
    seconds = time_in_turns(job, names, rounds)
    memory = {name: peak_memory(job, name) for name in names}
    measured = {name: middle_and_spread(values) for name, values in seconds.items()}
    first, rows = names[0], []
    for name in names:
        work = job.batch_size * work_of(job, name) * (3 if job.train else 1)
        middle, spread = measured[name]
        speed = work / middle
        rows.append(
            Row(job.backbone, *job.size, job.batch_size, 'train' if job.train else 'eval', name,
                middle, spread, measured[first][0] / middle, job.batch_size / middle, speed,
                speed / limit, memory[name][0], memory[first][0] / memory[name][0],
                memory[name][1]))
    return rows


@file_errors()
def write_csv(rows: list[Row], path: Path) -> None:
    with path.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, asdict(rows[0]).keys())
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def draw(rows: list[Row], path: Path) -> None:
    """Images per second and memory against resolution (as XCiT's figures 2 and D.1)."""
    figure = Figure((11, 4.5), layout='constrained')
    left, right = figure.subplots(1, 2)
    for backbone, name in dict.fromkeys((row.backbone, row.contestant) for row in rows):
        line = [row for row in rows if (row.backbone, row.contestant) == (backbone, name)]
        sides = [(row.height * row.width)**0.5 for row in line]
        left.plot(sides, [row.images_per_second for row in line], 'o-', label=f'{backbone} {name}')
        right.plot(sides, [row.memory_mib for row in line], 'o-', label=f'{backbone} {name}')
    for axes, label in ((left, 'images per second'), (right, 'MiB above weights')):
        axes.set(xscale='log', yscale='log', xlabel='pixels, root of height x width', ylabel=label)
        axes.legend()
    figure.savefig(path)


def check(args: BenchmarkOptions) -> None:
    """Raise a ValueError for what cannot be measured, and set what depends on the machine."""
    if unknown := [name for name in args.baselines if name not in NAMES]:
        raise UserError(f'--baselines must be among {", ".join(NAMES)}, got {", ".join(unknown)}')
    if min(args.rounds, *args.batch_sizes) < 1:
        raise UserError('--rounds and --batch-sizes must be at least 1')
    detectors = [
        name for name in args.baselines if name.partition('-')[0] in ('detector', *DETECTORS)
    ]
    if args.train and (detectors or args.fuse):
        raise UserError('--train is for backbones that are not fused')
    if detectors and len(detectors) < len(args.baselines):
        raise UserError('detectors are compared with detectors: leave out '
                        f'{", ".join(set(args.baselines) - set(detectors))}')
    if args.fuse and args.compile:
        raise UserError('--fuse and --compile are measured one at a time')
    fused = args.fuse or any(name.endswith('-fused') for name in args.baselines)
    if fused and args.dtype != 'float32':
        raise UserError('fused models compute in half precision with --amp, not with --dtype')
    args.threads = args.threads or torch.get_num_threads()
    args.device = 'cuda' if torch.cuda.is_available() else 'cpu'
    args.amp = half_type(args.amp, args.device)
    if args.amp and args.dtype != 'float32':
        raise UserError(f'--amp goes with weights of float32, leave out --dtype {args.dtype}')
    if args.device == 'cpu' and not Path('/proc/self/clear_refs').exists():
        raise UserError('memory without a GPU is read from /proc, which Linux alone has')
    for backbone in args.backbones:
        with without_memory():
            built = build_backbone(backbone).eval()
        if fused:
            fuse(built)  # which raises if it cannot be
    sizes_of(args)
    args.ours = ('detector' if detectors else 'ours') + ('-fused' if args.fuse else
                                                         '-compiled' if args.compile else '')


def sizes_of(args: BenchmarkOptions) -> list[tuple[int, int]]:
    """Heights and widths.

    Raises:
        ValueError: If one is none that can be measured.
    """
    texts = [size.split('x') for size in args.sizes]
    sizes = [(int(text[0]), int(text[-1])) for text in texts
             if len(text) < 3 and all(side.isdecimal() for side in text)]  # yapf: disable
    if len(sizes) < len(texts) or any(side % 16 or not side for size in sizes for side in size):
        raise UserError('--sizes must be multiples of 16 for timm, PIXELS or HEIGHTxWIDTH, got '
                        f'{", ".join(args.sizes)}')
    return sizes


def jobs_of(args: BenchmarkOptions) -> list[Job]:
    """What is to be measured; see :func:`check`."""
    return [
        Job(backbone, size, batch_size, args.train, args.pyramid, args.device, args.threads,
            DTYPES[args.dtype], args.amp) for backbone in args.backbones for size in sizes_of(args)
        for batch_size in args.batch_sizes
    ]


def benchmark(args: BenchmarkOptions) -> Iterator[str]:
    """Measure, write what is asked for, and give the table's lines as they come.

    Args:
        args: Of ``tools/benchmark.py``, after :func:`check`.
    """
    jobs = jobs_of(args)
    limit = product_limit(args.device, args.amp or DTYPES[args.dtype], args.threads)
    precision = f'autocast in {name_of_type(args.amp)}' if args.amp else args.dtype
    yield from described(args.device)
    yield f'{args.threads} threads, {precision}, median of {args.rounds} rounds ± half their range'
    yield f'share is of the {limit:.0f} GFLOP/s that a product of matrices reaches'
    yield HEADER
    rows: list[Row] = []
    for job in jobs:
        found = measure(job, [args.ours, *args.baselines], args.rounds, limit)
        rows += found
        yield from map(str, found)
        if args.csv:
            write_csv(rows, args.csv)
    if args.plot:
        draw(rows, args.plot)
