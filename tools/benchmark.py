"""Measure time and peak memory of backbones and baselines, in turns on the same images.

    colonnade benchmark                                # XCiT-S12/16 against timm's
    colonnade benchmark --trunks CaiT:s24 --sizes 512 --train
    colonnade benchmark --opponents timm timm-compiled ours-fused --csv b.csv --plot b.png
    colonnade benchmark --opponents resnet50 swin_t    # Mask R-CNN on our trunk and on theirs

All run in turns in one process. timm's modules of a fixed size are built at the size that is
measured. Memory is the peak above the weights and, in training, their gradients. On a CPU it is
that of the resident set, in a process of its own that returns freed memory at once. On a GPU it is
the allocator's. Lasting buffers of a first run are counted, but not for compiled models, where they
would include the compiler's memory.

`share` is that of the fastest product of matrices which the libraries of this machine compute.
These variables, set before the start, imitate processors without AMX, and with AVX2 alone:

    ONEDNN_MAX_CPU_ISA=AVX512_CORE colonnade benchmark
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
        colonnade benchmark
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.tools.command_line import add_amp, stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--trunks', nargs='+', default=['XCiT:small_12_p16'], metavar='CLASS:ARCH')
    parser.add_argument(
        '--opponents',
        nargs='+',
        default=['timm'],
        metavar='NAME',
        help='timm, resnet50, swin_t, ours or detector; -compiled or -fused behind a name')
    parser.add_argument(
        '--sizes',
        nargs='+',
        default=['512', '1024'],
        metavar='PIXELS',
        help='side of square images, or HEIGHTxWIDTH')
    parser.add_argument('--batch-sizes', nargs='+', type=int, default=[1])
    parser.add_argument('--train', action='store_true', help='forward and backward')
    parser.add_argument('--pyramid', action='store_true', help='with the pyramid behind the trunk')
    parser.add_argument('--fuse', action='store_true', help='fuse ours (evaluation only)')
    parser.add_argument('--compile', action='store_true', help='compile ours by torch.compile')
    parser.add_argument(
        '--dtype',
        choices=['float32', 'bfloat16', 'float16'],
        default='float32',
        help='of weights and images')
    add_amp(parser)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--threads', type=int, help="of the CPU (torch's choice)")
    parser.add_argument('--csv', type=Path, help='write the rows here')
    parser.add_argument('--plot', type=Path, help='draw speed and memory against resolution here')
    return parser.parse_args()


@stoppable('benchmark')
def main() -> None:
    """Measure what the command line names, and print a table."""
    args = parse_args()
    with user_errors('benchmark'):
        from colonnade.evaluation.benchmark.benchmark_table import benchmark, check  # takes seconds
        check(args)
    for line in benchmark(args):
        print(line, flush=True)


if __name__ == '__main__':
    main()
