"""Options of evaluations and benchmarks; importing them is fast."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.common.options import CONFIG, FUSE, Amp, LaunchOptions, amp_option, argument, option


@dataclass
class TestOptions(LaunchOptions):
    """Options of :func:`evaluate`, as in ``colonnade test --help``."""
    __test__ = False  # Otherwise, pytest would collect the class.

    config: Path = argument(f'{CONFIG}; or the work dir of a run')
    checkpoint: str | None = argument(
        'file or URL of the full model (default for a work dir: its best checkpoint, or else the '
        'last)', None)
    out: Path | str | None = option(
        'JSON file for the metrics (default: WORK_DIR/TIMESTAMP/metrics.json)', metavar='FILE')
    tta: bool = option('test-time augmentation: merge predictions over several scales and flips',
                       False)
    amp: Amp = amp_option()
    fuse: bool | None = option(FUSE)


@dataclass
class BenchmarkOptions:
    """Options of ``colonnade benchmark``.

    Attributes:
        device: Device of the measurement.
        ours: First candidate, to which ratios are relative.
    """
    backbones: Sequence[str] = option(
        'backbones to measure (default: XCiT:small_12_p16)', ('XCiT:small_12_p16', ),
        metavar='CLASS:ARCH')
    baselines: Sequence[str] = option(
        'candidates to compare with: timm, resnet50, swin_t, ours or detector, optionally with '
        'the suffix -compiled or -fused, or ours-onnx or ours-openvino (default: timm)', ('timm', ),
        metavar='NAME')
    sizes: Sequence[str] = option(
        'side of square images, or HEIGHTxWIDTH (default: 512 1024)', ('512', '1024'),
        metavar='PIXELS')
    batch_sizes: Sequence[int] = option('batch sizes (default: 1)', (1, ), metavar='N')
    train: bool = option("measure training: forward and backward pass, and AdamW's step", False)
    pyramid: bool = option('add a pyramid after the backbone', False)
    fuse: bool = option('fuse the backbone (evaluation only)', False)
    compile: bool = option('compile the backbone with torch.compile', False)
    dtype: Literal['float32', 'bfloat16',
                   'float16'] = option('data type of weights and images (default: %(default)s)',
                                       'float32')
    amp: Amp = amp_option()
    rounds: int = option(
        'number of rounds; the median is reported (default: %(default)s)', 5, metavar='N')
    threads: int = option("number of CPU threads (default: torch's choice)", 0, metavar='N')
    csv: Path | None = option('CSV file for the table', metavar='FILE')
    plot: Path | None = option(
        'image file for a plot of speed and memory by resolution', metavar='FILE')
    device: str = 'cpu'
    ours: str = 'ours'
