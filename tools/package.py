"""Share a trained model: pack weights, config and model card, push and pull them.

    colonnade package make CONFIG epoch_36.pth --out my_detector --metrics metrics.json
    colonnade package make work_dirs/shapes/iter_500.pth --out my_detector
    colonnade package check my_detector
    colonnade package push my_detector USER/my_detector
    colonnade package pull USER/my_detector --out my_detector
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from colonnade.tools.command_line import (check_model_arguments, print_any_name, stoppable,
                                          user_errors)

ACTIONS = ('make', 'check', 'push', 'pull')
TRUST = 'build and import whatever the config names, and run what is pickled\n' \
        'in the weights; only if you trust who made them'


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_action(sys.argv)
    actions = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    add_make(
        actions.add_parser('make', help='write a folder', formatter_class=parser.formatter_class))
    check = actions.add_parser('check', help='compare hashes, and load it')
    check.add_argument('folder', type=Path)
    check.add_argument('--trust', action='store_true', help=TRUST)
    push = actions.add_parser('push', help="upload a folder to a hub's repository")
    push.add_argument('folder', type=Path)
    push.add_argument('repository', metavar='OWNER/NAME', help='made if there is none')
    push.add_argument('--private', action='store_true', help='make a repository that is private')
    pull = actions.add_parser('pull', help="download a hub's repository to a folder")
    pull.add_argument('repository', metavar='OWNER/NAME[@REVISION]')
    pull.add_argument('--out', type=Path, required=True, help='folder to write')
    for remote in (push, pull):
        remote.add_argument(
            '--token-file', type=Path, help='file of an access token (HF_TOKEN, or the login)')
    return parser.parse_args()


def add_action(words: list[str]) -> None:
    """Insert the action that a path as first argument means: check a package, make one of others.

    Args:
        words: The command line, with the program first; changed.
    """
    if len(words) > 1 and words[1] not in ACTIONS and not words[1].startswith('-'):
        path = Path(words[1])
        if path.is_dir():
            words.insert(1, 'check')
        elif path.suffix or '/' in words[1]:
            words.insert(1, 'make')


def add_make(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``make``."""
    parser.add_argument(
        'config', type=Path, help='config file, the name of one of ours, or a checkpoint of a run')
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='file or URL of the trained model; left out where CONFIG is a checkpoint')
    parser.add_argument(
        '--out', type=Path, help='folder to write (default: packages/NAME_OF_CONFIG)')
    parser.add_argument('--metrics', type=Path, help='metrics.json of colonnade test')
    parser.add_argument('--data', help='what the metrics were computed on, for people')
    parser.add_argument('--name', help='of the model (the name of the folder)')
    parser.add_argument('--license', help='identifier of the licence, e.g. apache-2.0')
    parser.add_argument('--notes', type=Path, help='Markdown file, a section of the README')
    parser.add_argument('--trust', action='store_true', help=TRUST)


@stoppable('package')
def main() -> None:
    """Make, check, push or pull a package."""
    print_any_name()
    args = parse_args()
    with user_errors('package'):
        if args.action == 'make':
            check_model_arguments(args.config, args.checkpoint)
        from colonnade.inference.packages import packaging  # takes seconds
        getattr(packaging, args.action)(args)


if __name__ == '__main__':
    main()
