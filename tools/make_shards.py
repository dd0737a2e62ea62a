"""Pack the images of a dataset into tar files, which train and test read as they are.

    colonnade make_shards mask_rcnn/xcit_small_12_p16_3x_coco shards --data-root data/coco

For data sets of millions of files. The layout is WebDataset's. ``--data-root shards`` of
``train.py`` and ``test.py`` then reads them, and so it does where they are copied to.
"""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.configs import find_config
from colonnade.tools.command_line import CONFIG, Options, stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', nargs='?', type=Path, help=f'{CONFIG}; left out with --verify')
    parser.add_argument('out', help='folder to make; with --verify also a URL')
    parser.add_argument(
        '--data-root', metavar='DIR', help='where the data set lies: a folder or a URL')
    parser.add_argument(
        '--shard-size', type=float, default=256, metavar='MB', help='megabytes of a shard (256)')
    parser.add_argument(
        '--verify',
        action='store_true',
        help='write nothing: compare all files in OUT with their checksums, after a copy')
    parser.add_argument(
        '--cfg-options',
        action=Options,
        help='settings that override the config, e.g. train_dataloader.dataset.data_root=/data')
    args = parser.parse_args()
    if args.verify == (args.config is not None):
        parser.error('name CONFIG and OUT, or OUT alone with --verify')
    return args


@stoppable('make_shards')
def main() -> None:
    """Write shards, or check them."""
    args = parse_args()
    with user_errors('make_shards'):
        if args.verify:
            from colonnade.datasets.shards.shard_verification import verify_shards  # takes seconds
            print(f'{args.out}: {described(verify_shards(args.out))}; all are what was written')
            return
        args.config = find_config(args.config)
        from colonnade.datasets.shards.dataset_sharding import ShardOptions, make_shards
        options = {key: value for key, value in vars(args).items() if key != 'verify'}
        found = make_shards(ShardOptions(**options))
    print(f'{args.out}: {described(found)}; all were read again')
    for part in dict.fromkeys(shard['file'].rpartition('-')[0] for shard in found['shards']):
        shards = [shard for shard in found['shards'] if shard['file'].startswith(f'{part}-')]
        print(f'  {part}: {number(shards)}, {sum(shard["files"] for shard in shards)} files')
    print(f'train and test from them with --data-root {Path(args.out)}')


def described(manifest: dict[str, Any]) -> str:
    """Numbers of samples, files and shards, in words."""
    return (f'{manifest["samples"]} samples, {manifest["files"]} files of '
            f'{manifest["bytes"] / 1e6:.1f} MB in {number(manifest["shards"])}')


def number(shards: Sequence[Any]) -> str:
    """How many shards there are."""
    return f'{len(shards)} shard{"s" * (len(shards) != 1)}'


if __name__ == '__main__':
    main()
