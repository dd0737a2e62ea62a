"""Measure time and peak memory of backbones and baselines, in turns on the same images.

    colonnade benchmark                                # XCiT-S12/16 against timm's
    colonnade benchmark --backbones CaiT:s24 --sizes 512 --train
    colonnade benchmark --baselines timm timm-compiled ours-fused --csv b.csv --plot b.png
    colonnade benchmark --baselines resnet50 swin_t    # Mask R-CNN on our backbone and on theirs

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

from colonnade.evaluation.options import BenchmarkOptions
from colonnade.tools.command_line import command


@command(BenchmarkOptions)
def main(options: BenchmarkOptions) -> None:
    """Measure what the command line names, and print a table."""
    from colonnade.evaluation.benchmark.benchmark_table import benchmark, check  # takes seconds
    check(options)
    for line in benchmark(options):
        print(line, flush=True)


if __name__ == '__main__':
    main()
