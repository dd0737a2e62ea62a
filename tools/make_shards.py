"""Pack the images of a dataset into tar files, which train and test read as they are.

    colonnade make_shards mask_rcnn/xcit_small_12_p16_3x_coco shards --data-root data/coco

For data sets of millions of files. The layout is WebDataset's. ``--data-root shards`` of
``train.py`` and ``test.py`` then reads them, and so it does where they are copied to.
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.configs import find_config
from colonnade.datasets.options import ShardOptions
from colonnade.tools.command_line import command


@command(ShardOptions)
def main(options: ShardOptions) -> None:
    """Write shards, or check them."""
    if options.config is None:
        from colonnade.datasets.shards.dataset_sharding import verify_shards  # takes seconds
        print(f'{options.out}: {described(verify_shards(options.out))}; all are what was written')
        return
    options.config = find_config(options.config)
    from colonnade.datasets.shards.dataset_sharding import make_shards
    found = make_shards(options)
    print(f'{options.out}: {described(found)}; all were read again')
    for part in dict.fromkeys(shard['file'].rpartition('-')[0] for shard in found['shards']):
        shards = [shard for shard in found['shards'] if shard['file'].startswith(f'{part}-')]
        print(f'  {part}: {number(shards)}, {sum(shard["files"] for shard in shards)} files')
    print(f'train and test from them with --data-root {Path(options.out)}')


def described(manifest: dict[str, Any]) -> str:
    """Numbers of samples, files and shards, in words."""
    return (f'{manifest["samples"]} samples, {manifest["files"]} files of '
            f'{manifest["bytes"] / 1e6:.1f} MB in {number(manifest["shards"])}')


def number(shards: Sequence[Any]) -> str:
    """How many shards there are."""
    return f'{len(shards)} shard{"s" * (len(shards) != 1)}'


if __name__ == '__main__':
    main()
