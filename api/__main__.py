"""``colonnade TOOL ...`` is ``python tools/TOOL.py ...``; ``colonnade configs`` lists the configs.

    colonnade configs 'mask_rcnn/*'
    colonnade predict sem_fpn/xcit_nano_12_p16_slim_shapes iter_500.pth images --out predictions
"""
from __future__ import annotations

import sys
from importlib import import_module

from colonnade.configs import list_configs

TOOLS = ('benchmark', 'complexity', 'convert_checkpoint', 'feature_agreement', 'make_shapes',
         'new_config', 'package', 'param_groups', 'predict', 'rank_trunks', 'serve', 'test',
         'train', 'transplant', 'visualize')


def main() -> None:
    """Run the tool that the command line names."""
    name, *arguments = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        print(f'{(__doc__ or "").strip()}\n\ntools: {", ".join(TOOLS)}\nEach has a --help.')
    elif name == 'configs':
        found = list_configs(*arguments[:1])
        if not found:
            sys.exit(f'colonnade: no config is called {arguments[0]}')
        print('\n'.join(found))
    elif name in TOOLS:
        sys.argv = [f'colonnade {name}', *arguments]
        import_module(f'colonnade.tools.{name}').main()
    else:
        sys.exit(f'colonnade: no tool {name}; there are configs, {", ".join(TOOLS)}')


if __name__ == '__main__':
    main()
