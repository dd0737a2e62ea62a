"""Time and peak memory of our trunks, as ratios to timm's modules of the same architecture.

    python tools/benchmark.py                          # CaiT-S24 and ResMLP-S24 at 512 and 1024
    python tools/benchmark.py --trunks CaiT:s24 --sizes 512 --train

Both run on the same images in turns in one process; timm's modules of a fixed size are built at the
size that is measured. Memory is the peak above the weights (and, in training, their gradients): of
the resident set in a process of its own, or of the allocator on a GPU.
"""
from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from timm.models.cait import Cait
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from timm.models.xcit import Xcit
from torch import Tensor, nn

from colonnade.backbones import CaiT, ColumnarBackbone, ResMLP, XCiT

TRUNKS = {cls.__name__: cls for cls in (CaiT, ResMLP, XCiT)}
MIB = 2**20


@dataclass(frozen=True)
class Job:
    """What is measured."""
    trunk: str  # CLASS:ARCH, and :token_mixing for ResMLP
    size: int
    batch_size: int
    train: bool
    device: str
    threads: int

    def build(self, opponent: str) -> nn.Module:
        """From images to the maps of four taps, ours or timm's."""
        backbone = build_trunk(self.trunk)
        module = backbone if opponent == 'ours' else timm_module(backbone, self.size)
        module.train(self.train).to(self.device)
        if module is backbone:
            return backbone
        return Intermediates(module, backbone.out_indices)

    def images(self) -> Tensor:
        return torch.rand(self.batch_size, 3, self.size, self.size, device=self.device)

    def run(self, model: nn.Module, images: Tensor) -> None:
        """One forward pass, in training also the backward pass."""
        with torch.set_grad_enabled(self.train):
            maps = model(images)
            if self.train:
                model.zero_grad()
                sum(m.square().mean() for m in maps).backward()
        if self.device != 'cpu':
            torch.cuda.synchronize()


class Intermediates(nn.Module):
    """timm's trunk, giving the maps of some blocks."""

    def __init__(self, trunk: nn.Module, indices: tuple[int, ...]) -> None:
        super().__init__()
        self.trunk, self.indices = trunk, list(indices)

    def forward(self, img: Tensor) -> list[Tensor]:
        return self.trunk.forward_intermediates(img, indices=self.indices, intermediates_only=True)


def build_trunk(name: str) -> ColumnarBackbone:
    """``CLASS:ARCH`` or ``ResMLP:ARCH:TOKEN_MIXING``, without stochastic depth.

    Raises:
        ValueError: If there is no such trunk.
    """
    kind, *rest = name.split(':')
    if kind not in TRUNKS or not 1 <= len(rest) <= (2 if kind == 'ResMLP' else 1):
        raise ValueError(f'a trunk is named CLASS:ARCH, with {", ".join(TRUNKS)} for CLASS, and '
                         f'ResMLP:ARCH:TOKEN_MIXING; got {name!r}')
    mixing = dict(token_mixing=rest[1]) if len(rest) == 2 else {}
    return TRUNKS[kind](rest[0], drop_path_rate=0., **mixing)


def timm_module(backbone: ColumnarBackbone, img_size: int, num_classes: int = 0) -> nn.Module:
    """timm's own module of the same architecture, for square images of one size if it must be."""
    row = backbone.settings
    common = dict(embed_dim=row['embed_dim'], patch_size=row['patch_size'], num_classes=num_classes)
    init = row['layer_scale_init_value']
    if isinstance(backbone, ResMLP):
        return MlpMixer(
            img_size=img_size,
            num_blocks=row['depth'],
            mlp_ratio=4,
            block_layer=partial(ResBlock, init_values=init),
            norm_layer=Affine,
            **common)
    common |= dict(depth=row['depth'], num_heads=row['num_heads'])
    if isinstance(backbone, CaiT):
        return Cait(img_size=img_size, init_values=init, **common)
    return Xcit(eta=init, tokens_norm=row['tokens_norm'], **common)


def time_in_turns(job: Job, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, ours and timm's, after a round to warm up."""
    torch.set_num_threads(job.threads)
    models = {opponent: job.build(opponent) for opponent in ('ours', 'timm')}
    images = job.images()
    seconds: dict[str, list[float]] = {opponent: [] for opponent in models}
    for index in range(rounds + 1):
        for opponent, model in models.items():
            started = time.perf_counter()
            job.run(model, images)
            if index:
                seconds[opponent].append(time.perf_counter() - started)
    return seconds


def peak_memory(job: Job, opponent: str) -> float:
    """Peak MiB above weights and gradients; to be run in a process of its own."""
    torch.set_num_threads(job.threads)
    model, images = job.build(opponent), job.images()
    if job.device == 'cpu':
        small = torch.rand(64, 64, requires_grad=True)
        (small @ small).sum().backward()  # what torch allocates once
        Path('/proc/self/clear_refs').write_text('5')  # the peak starts from here
        before, read = process_memory('VmRSS'), partial(process_memory, 'VmHWM')
    else:
        torch.cuda.reset_peak_memory_stats()
        before, read = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated
    job.run(model, images)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return (read() - before - gradients) / MIB


def process_memory(field: str) -> int:
    """A field of Linux's ``/proc/self/status``, in bytes."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(f'{field}:'):
            return 1024 * int(line.split()[1])
    raise ValueError(f'/proc/self/status has no {field}')


def weights_of(job: Job, opponent: str) -> float:
    """MiB of the parameters."""
    with torch.device('meta'):
        backbone = build_trunk(job.trunk)
        module = backbone if opponent == 'ours' else timm_module(backbone, job.size)
    return sum(parameter.nbytes for parameter in module.parameters()) / MIB


def measure(job: Job, rounds: int) -> str:
    """A row of the table: medians, their spread, and ours to timm's."""
    seconds = time_in_turns(job, rounds)
    memory = {}
    for opponent in seconds:  # a fresh process each
        with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
            memory[opponent] = pool.submit(peak_memory, job, opponent).result()
    middle = {opponent: statistics.median(values) for opponent, values in seconds.items()}
    cells = [f'{job.trunk:20} {job.size:5} {"train" if job.train else "eval":5}']
    for opponent in ('ours', 'timm'):
        spread = (max(seconds[opponent]) - min(seconds[opponent])) / 2
        cells.append(f'{middle[opponent]:8.3f} ±{spread:6.3f} s')
    cells.append(f'{middle["ours"] / middle["timm"]:6.2f}')
    cells += [f'{memory[opponent]:8.0f} MiB' for opponent in ('ours', 'timm')]
    cells.append(f'{memory["ours"] / memory["timm"]:6.2f}')
    cells += [f'{weights_of(job, opponent):8.0f} MiB' for opponent in ('ours', 'timm')]
    return ' '.join(cells)


def main() -> None:
    """Measure what the command line names, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--trunks', nargs='+', default=['CaiT:s24', 'ResMLP:s24:resample', 'ResMLP:s24:window'])
    parser.add_argument('--sizes', nargs='+', type=int, default=[512, 1024], metavar='PIXELS')
    parser.add_argument('--batch-size', type=int, default=1)
    parser.add_argument('--train', action='store_true', help='forward and backward')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        if device == 'cpu' and not Path('/proc/self/clear_refs').exists():
            raise ValueError('memory without a GPU is read from /proc, which Linux alone has')
        for trunk in args.trunks:
            with torch.device('meta'):
                build_trunk(trunk)
        for size in args.sizes:
            if size <= 0 or size % 16:
                raise ValueError(f'--sizes must be multiples of 16 for timm, got {size}')
    except ValueError as error:
        parser.exit(1, f'benchmark: {error}\n')
    print(f'{device}, {args.threads} threads, float32, batch {args.batch_size}, '
          f'median of {args.rounds} rounds ± half their range; memory above the weights')
    print(f'{"trunk":20} {"size":>5} {"mode":5} {"time, ours":>18} {"timm":>18} {"ratio":>6} '
          f'{"memory, ours":>12} {"timm":>12} {"ratio":>6} {"weights":>12} {"timm":>12}')
    for trunk in args.trunks:
        for size in args.sizes:
            job = Job(trunk, size, args.batch_size, args.train, device, args.threads)
            print(measure(job, args.rounds), flush=True)


if __name__ == '__main__':
    main()
