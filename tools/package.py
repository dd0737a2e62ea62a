"""Share a trained model: pack weights, config and model card, push and pull them.

    colonnade package make CONFIG epoch_36.pth --out my_detector --metrics metrics.json
    colonnade package make work_dirs/shapes --out my_detector
    colonnade package check my_detector
    colonnade package push my_detector USER/my_detector
    colonnade package pull USER/my_detector --out my_detector
"""
from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from colonnade.inference.options import CheckPackageOptions, MakeOptions, PullOptions, PushOptions
from colonnade.tools.command_line import command

ACTIONS = dict(make=MakeOptions, check=CheckPackageOptions, push=PushOptions, pull=PullOptions)


def add_action(words: list[str]) -> None:
    """Insert the action into a command line that starts with a path: check a package, or make one.

    Args:
        words: Command line with the program first, modified in place.
    """
    if len(words) > 1 and words[1] not in ACTIONS and not words[1].startswith('-'):
        path = Path(words[1])
        is_run = any((path / name).is_file() for name in ('best_checkpoint', 'last_checkpoint'))
        if path.is_dir() and path.suffix != '.pth' and not is_run:  # .pth: checkpoint in shards
            words.insert(1, 'check')
        elif is_run or path.suffix or '/' in words[1]:
            words.insert(1, 'make')


@command(ACTIONS, 'colonnade.inference.packages.packaging', full_help=True)
def run(options: Any, packaging: ModuleType) -> None:
    """Make, check, push or pull a package."""
    actions = {
        MakeOptions: packaging.make,
        CheckPackageOptions: packaging.check,
        PushOptions: packaging.push,
        PullOptions: packaging.pull
    }
    actions[type(options)](options)


@wraps(run)
def main() -> None:
    """Make, check, push or pull a package."""
    add_action(sys.argv)
    run()


if __name__ == '__main__':
    main()
