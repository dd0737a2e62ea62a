"""Count parameters and multiply-adds of a config, or of all shipped configs.

    colonnade complexity configs/upernet/xcit_small_12_p16_160k_ade20k.py --size 512 512
    colonnade complexity configs/dino/xcit_small_12_p16_12ep_coco.py --time
    colonnade complexity --table     # all backbones and published configs beside the papers'

One multiply-add counts once, as in the papers.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colonnade.common.options import CONFIG, UsageError, argument, option
from colonnade.configs import find_config
from colonnade.tools.command_line import command


@dataclass
class ComplexityOptions:
    """What is counted."""
    config: Path | None = argument(CONFIG, None)
    size: tuple[int, int] | None = option(
        'input in pixels (800 1280 for detectors, 512 512 for segmenters)',
        metavar=('HEIGHT', 'WIDTH'))
    time: bool = option(
        'also time and peak memory of the whole model, and time by part, as it is built and fused: '
        'random weights, on the CPU', False)
    table: bool = option('everything that the papers list', False)

    def __post_init__(self) -> None:
        if self.table == (self.config is not None):
            raise UsageError('either a config or --table')
        if self.table and self.time:
            raise UsageError('--time is for a config')


@command(ComplexityOptions)
def main(options: ComplexityOptions) -> None:
    """Count what the command line names."""
    config = find_config(options.config) if options.config else None
    from colonnade.models.complexity import model_table, published_table  # takes seconds
    for line in published_table() if config is None else model_table(config, options.size):
        print(line, flush=True)
    if config is None or not options.time:
        return
    from colonnade.evaluation.benchmark.full_models import cost_of
    from colonnade.evaluation.benchmark.model_profile import part_table
    print('\nas it is built, in a process of its own; its heads find what random weights find')
    print(f'{"time and peak memory":24} {cost_of(config, options.size)}', flush=True)
    print('\nby part, in turns; RoI heads find as many objects as they may', flush=True)
    for line in part_table(config, options.size):
        print(line)


if __name__ == '__main__':
    main()
