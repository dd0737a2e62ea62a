"""Options of evaluations and benchmarks; importing them takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.common.options import FUSE, Amp, LaunchOptions, amp_option, argument, option


@dataclass
class TestOptions(LaunchOptions):
    """What an evaluation is told, as ``colonnade test --help`` says it."""
    __test__ = False  # pytest takes what is called Test for tests

    checkpoint: str = argument('file or URL, also of a published detector or segmenter')
    out: Path | str | None = option('JSON file for the metrics (WORK_DIR/TIMESTAMP/metrics.json)')
    tta: bool = option('merge six scales, flipped and not', False)
    amp: Amp = amp_option()
    fuse: bool | None = option(FUSE)


@dataclass
class BenchmarkOptions:
    """What is measured, as ``colonnade benchmark --help`` says it.

    Attributes:
        device: What measures.
        ours: The first contestant, of which the ratios are.
    """
    backbones: Sequence[str] = option(
        'backbones to measure', ('XCiT:small_12_p16', ), metavar='CLASS:ARCH')
    baselines: Sequence[str] = option(
        'timm, resnet50, swin_t, ours or detector; -compiled or -fused behind a name', ('timm', ),
        metavar='NAME')
    sizes: Sequence[str] = option(
        'side of square images, or HEIGHTxWIDTH', ('512', '1024'), metavar='PIXELS')
    batch_sizes: Sequence[int] = option('images at a time', (1, ))
    train: bool = option('forward and backward', False)
    pyramid: bool = option('with the pyramid behind the backbone', False)
    fuse: bool = option('fuse ours (evaluation only)', False)
    compile: bool = option('compile ours by torch.compile', False)
    dtype: Literal['float32', 'bfloat16', 'float16'] = option('of weights and images', 'float32')
    amp: Amp = amp_option()
    rounds: int = option('runs of which seconds are the median (%(default)s)', 5)
    threads: int = option("of the CPU (torch's choice)", 0)
    csv: Path | None = option('write the rows here')
    plot: Path | None = option('draw speed and memory against resolution here')
    device: str = 'cpu'
    ours: str = 'ours'
