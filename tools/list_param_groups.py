"""Print the learning rate and weight decay of every parameter, as a config sets them.

    colonnade list-param-groups configs/mask_rcnn/xcit_small_12_p16_3x_coco.py
"""
from __future__ import annotations

import signal
from types import ModuleType

from colonnade.common.name_lists import format_count
from colonnade.common.options import ConfigOptions
from colonnade.tools.command_line import command


@command(ConfigOptions, 'colonnade.engine.optim.parameter_groups')
def main(options: ConfigOptions, parameter_groups: ModuleType) -> None:
    """Print each group with its parameters."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" is not an error
    groups, frozen = parameter_groups.find_parameter_groups(options.config, options.cfg_options
                                                            or {})
    for (rate, decay), members in sorted(groups.items()):
        print(f'learning rate {rate:.4g}, weight decay {decay:.4g}: '
              f'{format_count(len(members), "parameter")}')
        print(''.join(f'  {name}\n' for name in members), end='')
    if frozen:
        print(f'not trained: {format_count(len(frozen), "parameter")}')
        print(''.join(f'  {name}\n' for name in frozen), end='')


if __name__ == '__main__':
    main()
