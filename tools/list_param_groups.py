"""Print the learning rate and weight decay of every parameter, as a config sets them.

    colonnade list-param-groups configs/mask_rcnn/xcit_small_12_p16_3x_coco.py
"""
from __future__ import annotations

import signal

from colonnade.common.options import ConfigOptions
from colonnade.configs import find_config
from colonnade.tools.command_line import command


@command(ConfigOptions)
def main(options: ConfigOptions) -> None:
    """Print each group with its parameters."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" is not an error
    config = find_config(options.config)
    from colonnade.engine.optim.parameter_groups import find_parameter_groups  # slow
    groups, frozen = find_parameter_groups(config, options.cfg_options or {})
    for (rate, decay), members in sorted(groups.items()):
        print(f'rate {rate:.4g}, weight decay {decay:.4g}: {len(members)} parameters')
        print(''.join(f'  {name}\n' for name in members), end='')
    if frozen:
        print(f'not trained: {len(frozen)} parameters')
        print(''.join(f'  {name}\n' for name in frozen), end='')


if __name__ == '__main__':
    main()
