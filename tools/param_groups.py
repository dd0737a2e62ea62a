"""Print the learning rate and weight decay of every parameter, as a config sets them.

    python tools/param_groups.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py
"""
from __future__ import annotations

import argparse
import signal
from pathlib import Path

import torch
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS

from colonnade.engine.hooks import QuietFilter
from colonnade.engine.launch import read_config
from colonnade.engine.options import Options, merge_options


def main() -> None:
    """Print a line for each group of parameters, and below it their names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', type=Path, help='config file of mmdet or mmseg')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=Options,
        metavar='KEY=VALUE',
        help='as in tools/train.py')
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" is no error
    MMLogger.get_current_instance().addFilter(QuietFilter())
    try:
        cfg = read_config(args.config)
        merge_options(cfg, args.cfg_options or {})
        with torch.device('meta'):  # no memory for weights
            model = MODELS.build(cfg.model)
        optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    except (ValueError, OSError) as error:
        parser.exit(1, f'param_groups: {error}\n')

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[tuple[float, float], list[str]] = {}
    for group in optimizer.param_groups:
        key = (group['lr'], group['weight_decay'])
        found.setdefault(key, []).extend(names[id(p)] for p in group['params'])
    for (rate, decay), members in sorted(found.items()):
        print(f'rate {rate:.4g}, weight decay {decay:.4g}: {len(members)} parameters')
        for name in members:
            print(f'  {name}')
    trained = {name for members in found.values() for name in members}
    if frozen := [name for name in names.values() if name not in trained]:
        print(f'not trained: {len(frozen)} parameters')
        for name in frozen:
            print(f'  {name}')


if __name__ == '__main__':
    main()
