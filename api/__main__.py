"""Train, evaluate and use detectors and segmenters on columnar backbones.

    colonnade train mask_rcnn/xcit_small_12_p16_3x_coco --data-root data/coco --work-dir run
    colonnade predict run/xcit_small_12_p16_3x_coco.py run/epoch_36.pth images --out predictions
"""
from __future__ import annotations

import ast
import signal
import sys
from difflib import get_close_matches
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from colonnade.configs import list_configs

#: group of commands -> its commands, which are modules of ``colonnade.tools``
COMMANDS = {
    'Data': ('create_config', 'check_dataset', 'browse_dataset', 'make_shards', 'make_shapes'),
    'Training':
    ('check_config', 'train', 'tune', 'build_report', 'compare_runs', 'list_param_groups'),
    'Evaluation': ('test', 'benchmark', 'complexity', 'rank_backbones'),
    'Inference': ('predict', 'visualize', 'serve', 'export', 'package'),
    'Conversion': ('convert_checkpoint', 'swap_backbone'),
}
TOOLS = tuple(sorted(chain(*COMMANDS.values())))
OTHERS = ('env', 'completion')


def read_summary(tool: str) -> str:
    """Return the first line of a tool's docstring, without importing it."""
    spec = find_spec(f'colonnade.tools.{tool}')
    assert spec is not None and spec.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding='utf-8')))
    return (docstring or '').splitlines()[0]


def print_help() -> None:
    """Print all commands with their summaries."""
    print(__doc__)
    width = max(map(len, TOOLS)) + 2
    for title, tools in COMMANDS.items():
        print(f'{title}:')
        for tool in tools:
            print(f'  {tool.replace("_", "-"):{width}}{read_summary(tool)}')
        print()
    print(f'  {"configs":{width}}List all shipped configs, or those that match a pattern.')
    for tool in OTHERS:
        print(f'  {tool:{width}}{read_summary(tool)}')
    print('\nRun colonnade COMMAND --help for the options of a command.')


def list_names(patterns: list[str]) -> None:
    """Print the names of shipped configs that match a pattern, or of all."""
    if patterns[:1] in (['-h'], ['--help']):
        print("usage: colonnade configs [PATTERN ...], as in colonnade configs 'sem_fpn/*' '*p8*'")
        return
    names = sorted({name for pattern in patterns or ['*'] for name in list_configs(pattern)})
    if not names:
        sys.exit(f'colonnade: no config matches {" or ".join(patterns)}' +
                 f': use wildcards, as in "*{patterns[0]}*"' * ('*' not in patterns[0]))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" is not an error
    print('\n'.join(names))


def main() -> None:
    """Run a command."""
    command, *arguments = sys.argv[1:] or ['--help']
    name = command.replace('-', '_')
    if command in ('-h', '--help', 'help'):
        print_help()
    elif name == 'configs':
        list_names(arguments)
    elif command == '--version':
        print(f'colonnade {metadata.version("colonnade")}')
    elif name in (*TOOLS, *OTHERS):
        sys.argv = [f'colonnade {name.replace("_", "-")}', *arguments]
        import_module(f'colonnade.tools.{name}').main()
    else:
        matches = get_close_matches(name, (*TOOLS, *OTHERS, 'configs'), n=1)
        hint = f'did you mean {matches[0].replace("_", "-")}? ' if matches else ''
        sys.exit(f'colonnade: unknown command {command!r}: {hint}Run colonnade --help for a list')


if __name__ == '__main__':
    main()
