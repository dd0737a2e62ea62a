"""Train, evaluate and use detectors and segmenters on columnar backbones.

    colonnade train mask_rcnn/xcit_small_12_p16_3x_coco --data-root data/coco --work-dir run
    colonnade predict run/xcit_small_12_p16_3x_coco.py run/epoch_36.pth images --out predictions
"""
from __future__ import annotations

import ast
import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from colonnade.configs import list_configs

#: what users do -> its commands; each is a module of ``colonnade.tools`` with the same name
COMMANDS = {
    'Data': ('create_config', 'check_dataset', 'browse_dataset', 'make_shards', 'make_shapes'),
    'Training': ('check_config', 'train', 'build_report', 'compare_runs', 'list_param_groups'),
    'Evaluation': ('test', 'benchmark', 'complexity', 'rank_backbones'),
    'Inference': ('predict', 'visualize', 'serve', 'export', 'package'),
    'Conversion': ('convert_checkpoint', 'swap_backbone'),
}
TOOLS = tuple(sorted(chain(*COMMANDS.values())))


def summary_of(tool: str) -> str:
    """Return the first line of a tool's docstring, without importing it."""
    spec = find_spec(f'colonnade.tools.{tool}')
    assert spec is not None and spec.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding='utf-8')))
    return (docstring or '').splitlines()[0]


def print_help() -> None:
    """Print the commands, each with its summary."""
    print(__doc__)
    width = max(map(len, TOOLS)) + 2
    for title, tools in COMMANDS.items():
        print(f'{title}:')
        for tool in tools:
            print(f'  {tool:{width}}{summary_of(tool)}')
        print()
    print(
        f'{"  configs":{width + 2}}List the shipped configs, all or those that match patterns.\n\n'
        'colonnade COMMAND --help shows the options of a command.')


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
    """Run the command that the command line names."""
    given, *arguments = sys.argv[1:] or ['--help']
    name = given.replace('-', '_')
    if given in ('-h', '--help', 'help'):
        print_help()
    elif name == 'configs':
        list_names(arguments)
    elif name in TOOLS:
        sys.argv = [f'colonnade {name}', *arguments]
        import_module(f'colonnade.tools.{name}').main()
    else:
        close = get_close_matches(name, (*TOOLS, 'configs'), n=1)
        advice = f'did you mean {close[0]}? ' if close else ''
        sys.exit(f'colonnade: there is no command {given!r}: {advice}colonnade --help lists them')


if __name__ == '__main__':
    main()
