"""Table of ``colonnade benchmark``: candidates measured in turns, and their ratios."""
from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.common.errors import UserError, file_errors
from colonnade.export.exporter import require_packages
from colonnade.models.fusion import fuse
from colonnade.models.half_precision import get_half_type, get_type_name

from ..options import BenchmarkOptions
from .candidates import DETECTORS, EXPORTED, NAMES, build_backbone
from .machine import describe_machine, measure_matmul_speed
from .measurement import (Job, compute_median_and_spread, compute_work, measure_candidate_memory,
                          run_in_new_process, time_in_turns)

DTYPES = dict(float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16)


@dataclass
class BenchmarkRow:
    """Measurements of a candidate."""
    backbone: str
    height: int
    width: int
    batch_size: int
    mode: str
    contestant: str
    seconds: float  # median
    spread: float  # half the range
    time_ratio: float  # time of the first candidate over that of this one
    images_per_second: float
    gflops: float  # operations per second of the papers' form, two per multiply-add
    share: float  # share of the matmul speed of the machine
    memory_mib: float
    memory_ratio: float  # memory of the first candidate over that of this one
    weights_mib: float

    def __str__(self) -> str:
        return (f'{self.backbone:20} {f"{self.height}x{self.width}":>9} {self.batch_size:3} '
                f'{self.mode:5} {self.contestant:15} {self.seconds:8.3f} ±{self.spread:6.3f} s '
                f'{self.time_ratio:5.2f} {self.images_per_second:8.2f} {self.gflops:7.0f} '
                f'{self.share:5.0%} {self.memory_mib:8.0f} MiB {self.memory_ratio:5.2f} '
                f'{self.weights_mib:6.0f} MiB')


HEADER = (f'{"backbone":20} {"size":>9} {"B":>3} {"mode":5} {"candidate":15} {"seconds":>18} '
          f'{"ratio":>5} {"images/s":>8} {"GFLOP/s":>7} {"share":>5} {"memory":>12} '
          f'{"ratio":>5} {"weights":>10}')


def measure_candidates(job: Job, names: list[str], rounds: int, limit: float) -> list[BenchmarkRow]:
    """Return a row for each candidate, with ratios to the first; ``limit`` is in GFLOP/s."""
    seconds = time_in_turns(job, names, rounds)
    memory = {name: run_in_new_process(measure_candidate_memory, job, name) for name in names}
    measured = {name: compute_median_and_spread(values) for name, values in seconds.items()}
    first, rows = names[0], []
    for name in names:
        work = job.batch_size * compute_work(job, name) * (3 if job.train else 1)
        median, spread = measured[name]
        speed = work / median
        rows.append(
            BenchmarkRow(job.backbone, *job.size, job.batch_size, 'train' if job.train else 'eval',
                         name, median, spread, measured[first][0] / median,
                         job.batch_size / median, speed, speed / limit, memory[name][0],
                         memory[first][0] / memory[name][0], memory[name][1]))  # yapf: disable
    return rows


def draw_benchmark(rows: list[BenchmarkRow], path: Path) -> None:
    """Plot images per second and memory over resolution (as in XCiT's Figures 2 and D.1)."""
    figure = Figure((11, 4.5), layout='constrained')
    left, right = figure.subplots(1, 2)
    for backbone, name in dict.fromkeys((row.backbone, row.contestant) for row in rows):
        line = [row for row in rows if (row.backbone, row.contestant) == (backbone, name)]
        sides = [(row.height * row.width)**0.5 for row in line]
        label = f'{backbone} {name}'
        left.plot(sides, [row.images_per_second for row in line], 'o-', label=label)
        right.plot(sides, [row.memory_mib for row in line], 'o-', label=label)
    for axes, label in ((left, 'images per second'), (right, 'MiB above weights')):
        axes.set(xscale='log', yscale='log', xlabel='pixels, root of height x width', ylabel=label)
        axes.legend()
    figure.savefig(path)


def check_options(args: BenchmarkOptions) -> None:
    """Check the options, and set those that depend on the machine."""
    if unknown := [name for name in args.baselines if name not in NAMES]:
        raise UserError(f'--baselines must be chosen from {", ".join(NAMES)}, got '
                        f'{", ".join(map(repr, unknown))}')
    if min(args.rounds, *args.batch_sizes) < 1:
        raise UserError('--rounds and --batch-sizes must be at least 1')
    detectors = [
        name for name in args.baselines if name.partition('-')[0] in ('detector', *DETECTORS)
    ]
    if args.train and (detectors or args.fuse):
        raise UserError('--train does not support detectors or --fuse')
    if detectors and len(detectors) < len(args.baselines):
        raise UserError('detectors can be compared only with detectors: remove '
                        f'{", ".join(set(args.baselines) - set(detectors))}')
    if args.fuse and args.compile:
        raise UserError('--fuse and --compile cannot be combined')
    fused = args.fuse or any(name.endswith('-fused') for name in args.baselines)
    if fused and args.dtype != 'float32':
        raise UserError('fused models need --amp instead of --dtype for half precision')
    args.threads = args.threads or torch.get_num_threads()
    args.device = 'cuda' if torch.cuda.is_available() else 'cpu'
    args.amp = get_half_type(args.amp, args.device)  # type: ignore[assignment]
    if args.amp and args.dtype != 'float32':
        raise UserError(f'--amp needs float32 weights: remove --dtype {args.dtype}')
    for name in (name for name in args.baselines if name in EXPORTED):
        if args.train or args.device != 'cpu' or args.amp or args.dtype != 'float32':
            raise UserError(f'{name} runs only in float32 on a CPU, without --train')
        require_packages(EXPORTED[name])
    if args.device == 'cpu' and not Path('/proc/self/clear_refs').exists():
        raise UserError('measuring memory without a GPU needs /proc, which only Linux has')
    for spec in args.backbones:
        with on_meta_device():
            built = build_backbone(spec).eval()
        if fused:
            fuse(built)  # raises an error if it cannot be fused
    parse_sizes(args)
    args.ours = ('detector' if detectors else 'ours') + ('-fused' if args.fuse else
                                                         '-compiled' if args.compile else '')


def parse_sizes(args: BenchmarkOptions) -> list[tuple[int, int]]:
    """Return heights and widths."""
    texts = [size.split('x') for size in args.sizes]
    sizes = [(int(text[0]), int(text[-1])) for text in texts
             if len(text) < 3 and all(side.isdecimal() for side in text)]  # yapf: disable
    if len(sizes) < len(texts) or any(side % 16 or not side for size in sizes for side in size):
        raise UserError('--sizes must be PIXELS or HEIGHTxWIDTH, in multiples of 16, got '
                        f'{", ".join(args.sizes)}')
    return sizes


def run_benchmark(args: BenchmarkOptions) -> Iterator[str]:
    """Measure all candidates, and yield the lines of the table. Call check_options() first."""
    limit = measure_matmul_speed(args.device, args.amp or DTYPES[args.dtype], args.threads)
    precision = f'autocast in {get_type_name(args.amp)}' if args.amp else args.dtype
    yield from describe_machine(args.device)
    yield f'{args.threads} threads, {precision}, median of {args.rounds} rounds ± half their range'
    yield f'share is of the {limit:.0f} GFLOP/s of the fastest matmul'
    yield HEADER
    rows: list[BenchmarkRow] = []
    for job in (Job(backbone, size, batch_size, args.train, args.pyramid, args.device, args.threads,
                    DTYPES[args.dtype], args.amp)
                for backbone in args.backbones for size in parse_sizes(args)
                for batch_size in args.batch_sizes):  # yapf: disable
        measured = measure_candidates(job, [args.ours, *args.baselines], args.rounds, limit)
        rows += measured
        yield from map(str, measured)
        if args.csv:
            with file_errors(), args.csv.open('w', newline='', encoding='utf-8') as file:
                writer = csv.DictWriter(file, asdict(rows[0]).keys())
                writer.writeheader()
                writer.writerows(map(asdict, rows))
    if args.plot:
        draw_benchmark(rows, args.plot)
