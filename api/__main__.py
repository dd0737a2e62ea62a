"""``colonnade TOOL ...`` is ``python tools/TOOL.py ...``; ``colonnade configs`` lists the configs.

    colonnade configs 'mask_rcnn/*'
    colonnade predict sem_fpn/xcit_nano_12_p16_slim_shapes iter_500.pth images --out predictions
"""
from __future__ import annotations

import signal
import sys
from importlib import import_module

from colonnade.configs import list_configs

TOOLS = ('benchmark', 'browse', 'check_config', 'check_data', 'compare', 'complexity',
         'convert_checkpoint', 'export', 'make_shapes', 'make_shards', 'new_config', 'package',
         'param_groups', 'predict', 'rank_trunks', 'report', 'serve', 'test', 'train', 'transplant',
         'visualize')


def list_names(patterns: list[str]) -> None:
    """Print the names of the configs that match one of the patterns, of all without patterns."""
    if patterns[:1] in (['-h'], ['--help']):
        print("usage: colonnade configs [PATTERN ...], as in colonnade configs 'sem_fpn/*' '*p8*'")
        return
    found = sorted({name for pattern in patterns or ['*'] for name in list_configs(pattern)})
    if not found:
        sys.exit(f'colonnade: no config is called {" or ".join(patterns)}; patterns have stars, as '
                 f'in "*{patterns[0]}*"')
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" is no error
    print('\n'.join(found))


def main() -> None:
    """Run the tool that the command line names."""
    name, *arguments = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        print((__doc__ or '').replace('``', ''))
        print(f'tools: {", ".join(TOOLS)}\nEach has a --help.')
    elif name == 'configs':
        list_names(arguments)
    elif name in TOOLS:
        sys.argv = [f'colonnade {name}', *arguments]
        import_module(f'colonnade.tools.{name}').main()
    else:
        sys.exit(f'colonnade: no tool {name}; there are configs, {", ".join(TOOLS)}')


if __name__ == '__main__':
    main()
