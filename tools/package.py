"""Share a trained model: pack weights, config and model card, push and pull them.

    colonnade package make CONFIG epoch_36.pth --out my_detector --metrics metrics.json
    colonnade package make work_dirs/shapes/iter_500.pth --out my_detector
    colonnade package check my_detector
    colonnade package push my_detector USER/my_detector
    colonnade package pull USER/my_detector --out my_detector
"""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from colonnade.inference.options import CheckPackageOptions, MakeOptions, PullOptions, PushOptions
from colonnade.tools.command_line import check_model_arguments, command

ACTIONS = dict(make=MakeOptions, check=CheckPackageOptions, push=PushOptions, pull=PullOptions)


def add_action(words: list[str]) -> None:
    """Insert the action into a command line that starts with a path: check a folder, or make.

    Args:
        words: Command line with the program first, modified in place.
    """
    if len(words) > 1 and words[1] not in ACTIONS and not words[1].startswith('-'):
        path = Path(words[1])
        if path.is_dir() and path.suffix != '.pth':  # a checkpoint in shards
            words.insert(1, 'check')
        elif path.suffix or '/' in words[1]:
            words.insert(1, 'make')


@command(ACTIONS, full_help=True)
def run(options: Any) -> None:
    """Make, check, push or pull a package."""
    if isinstance(options, MakeOptions):
        check_model_arguments(options.config, options.checkpoint)
    from colonnade.inference.packages import packaging  # slow
    getattr(packaging, next(name for name in ACTIONS if ACTIONS[name] is type(options)))(options)


def main() -> None:
    """Make, check, push or pull a package."""
    add_action(sys.argv)
    run()


if __name__ == '__main__':
    main()
