"""Print the learning rate and weight decay of every parameter, as a config sets them.

    colonnade param_groups configs/mask_rcnn/xcit_small_12_p16_3x_coco.py
"""
from __future__ import annotations

import argparse
import signal

from colonnade.configs import find_config
from colonnade.tools.command_line import add_config_arguments, stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_config_arguments(parser)
    return parser.parse_args()


@stoppable('param_groups')
def main() -> None:
    """Print a line for each group of parameters, and below it their names."""
    args = parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" is no error
    with user_errors('param_groups'):
        args.config = find_config(args.config)
        from colonnade.engine.optim.parameter_groups import parameter_groups  # takes seconds
        groups, frozen = parameter_groups(args.config, args.cfg_options or {})
    for (rate, decay), members in sorted(groups.items()):
        print(f'rate {rate:.4g}, weight decay {decay:.4g}: {len(members)} parameters')
        print(''.join(f'  {name}\n' for name in members), end='')
    if frozen:
        print(f'not trained: {len(frozen)} parameters')
        print(''.join(f'  {name}\n' for name in frozen), end='')


if __name__ == '__main__':
    main()
