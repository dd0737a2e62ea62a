"""Print the script that completes commands, options, files and configs in a shell.

    source <(colonnade completion bash)
    colonnade completion zsh > ~/.zfunc/_colonnade
"""
from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from colonnade.common.errors import UserError
from colonnade.common.options import argument
from colonnade.tools.command_line import add_options, command

FILES = {'bash': '_shtab_compgen_files', 'zsh': '_files'}
CONFIGS = {'bash': '_colonnade_configs', 'zsh': '_colonnade_configs'}
PREAMBLE = {
    'bash': '_colonnade_configs() { compgen -f -- "$1"; '
            'compgen -W "$(colonnade configs)" -- "$1"; }',
    'zsh': '_colonnade_configs() { _files; compadd -- ${(f)"$(colonnade configs)"}; }',
}  # yapf: disable


@dataclass
class CompletionOptions:
    """Options of the command."""
    shell: Literal['bash', 'zsh'] = argument('the shell', choices=('bash', 'zsh'))


def build_parser() -> argparse.ArgumentParser:
    """Return a parser of all commands whose arguments know how to be completed."""
    from colonnade.__main__ import OTHERS, TOOLS, read_summary
    parser = argparse.ArgumentParser('colonnade')
    tools = parser.add_subparsers()
    for tool in (*TOOLS, *OTHERS):
        name = tool.replace('_', '-')
        each = tools.add_parser(name, help=read_summary(tool))
        if tool == 'env':  # it has no options
            continue
        options = import_module(f'colonnade.tools.{tool}').main.options
        if isinstance(options, Mapping):
            actions = each.add_subparsers()
            for action, dataclass_ in options.items():
                add_completed_options(actions.add_parser(action), dataclass_)
        else:
            add_completed_options(each, options)
    tools.add_parser('configs', help='List shipped configs.')
    return parser


def add_completed_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add the options of a dataclass, with files and names of configs as their completions."""
    add_options(parser, options)
    for action in parser._actions:
        if action.dest in ('config', 'configs'):
            action.complete = CONFIGS  # type: ignore[attr-defined]
        elif action.type is Path or action.dest in ('checkpoint', 'images', 'load_from'):
            action.complete = FILES  # type: ignore[attr-defined]


@command(CompletionOptions, full_help=True)
def main(options: CompletionOptions) -> None:
    """Print the script."""
    try:
        import shtab
    except ImportError:
        raise UserError('completion needs the package shtab: pip install shtab') from None
    preamble: Any = PREAMBLE  # a dict, which shtab's annotation lacks
    print(shtab.complete(build_parser(), options.shell, preamble=preamble))


if __name__ == '__main__':
    main()
