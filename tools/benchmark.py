"""Measure time and peak memory of backbones and baselines on the same images.

    colonnade benchmark                                # XCiT-S12/16 against timm's
    colonnade benchmark --backbones CaiT:s24 --sizes 512 --train
    colonnade benchmark --baselines timm timm-compiled ours-fused --csv b.csv --plot b.png
    colonnade benchmark --baselines resnet50 swin_t    # Mask R-CNN with different backbones

Models alternate in one process. A training step includes AdamW: fused, as in Colonnade's configs,
or for timm as torch creates it by default. timm models of a fixed size are built at the measured
size. Memory is the peak above the weights and, in training, their gradients, without AdamW's. On a
GPU, it is the memory of the allocator. On a CPU, it is the resident set of a separate process that
returns freed memory at once. Permanent buffers of the first run are included, except for compiled
models, where they would include the memory of the compiler.

`share` is relative to the fastest matmul of the libraries on this machine. These environment
variables simulate processors without AMX, and with AVX2 only:

    ONEDNN_MAX_CPU_ISA=AVX512_CORE colonnade benchmark
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
        colonnade benchmark
"""
from __future__ import annotations

from types import ModuleType

from colonnade.evaluation.options import BenchmarkOptions
from colonnade.tools.command_line import command


@command(BenchmarkOptions, 'colonnade.evaluation.benchmark.benchmark_table')
def main(options: BenchmarkOptions, benchmark_table: ModuleType) -> None:
    """Measure all models, and print a table."""
    benchmark_table.check_options(options)
    for line in benchmark_table.run_benchmark(options):
        print(line, flush=True)


if __name__ == '__main__':
    main()
