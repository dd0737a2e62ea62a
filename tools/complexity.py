"""Count parameters and multiply-adds of a config, or of all shipped configs.

    colonnade complexity configs/upernet/xcit_small_12_p16_160k_ade20k.py --size 512 512
    colonnade complexity configs/dino/xcit_small_12_p16_12ep_coco.py --time
    colonnade complexity eomt/vit_small_patch16_dinov3_24ep_coco --time --amp
    colonnade complexity --table     # all backbones and published configs, with the papers' numbers

A multiply-add counts as one operation, as in the papers.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.options import CONFIG, Amp, UsageError, amp_option, argument, option
from colonnade.tools.command_line import command


@dataclass
class ComplexityOptions:
    """Options of ``colonnade complexity``."""
    config: Path | None = argument(CONFIG, None)
    size: tuple[int, int] | None = option(
        'image size in pixels (default: 800 1280 for detectors, 512 512 for segmenters)',
        metavar=('HEIGHT', 'WIDTH'))
    time: bool = option(
        'also measure time and peak memory of the full model, and time per module, unfused and '
        'fused, with random weights', False)
    device: str | None = option(
        'device for --time, e.g. cpu or cuda:0 (default: a GPU if available)')
    amp: Amp = amp_option()
    table: bool = option('print a table of all backbones and published configs', False)

    def __post_init__(self) -> None:
        if self.table == (self.config is not None):
            raise UsageError('pass either CONFIG or --table')
        if self.table and self.time:
            raise UsageError('--time requires CONFIG')
        if not self.time and (self.amp or self.device):
            raise UsageError('--device and --amp require --time')


@command(ComplexityOptions, 'colonnade.models.complexity',
         'colonnade.evaluation.benchmark.model_profile', 'colonnade.inference.loading')
def main(options: ComplexityOptions, complexity: ModuleType, model_profile: ModuleType,
         loading: ModuleType) -> None:
    """Print the counts, and measure time with ``--time``."""
    config, size = options.config, options.size
    lines = complexity.format_model(config, size) if config else complexity.format_published()
    for line in lines:
        print(line, flush=True)
    if not options.time:
        return
    where = dict(device=str(loading.get_torch_device(options.device)), amp=options.amp)
    print(f'\nunfused, on {where["device"]}; with random weights, heads detect random objects')
    cost = model_profile.measure_cost(config, size, **where)
    print(f'{"time and peak memory":24} {cost}', flush=True)
    print('\nper module, alternating; RoI heads get the maximum number of objects', flush=True)
    for line in model_profile.format_parts(config, size, **where):
        print(line)


if __name__ == '__main__':
    main()
