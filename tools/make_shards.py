"""Pack a dataset into tar files (WebDataset), which train and test read directly.

    colonnade make-shards mask_rcnn/xcit_small_12_p16_3x_coco shards --data-root data/coco

For datasets with millions of files. Pass ``--data-root shards`` to ``colonnade train`` and
``colonnade test`` to read them, also after copying them elsewhere.
"""
from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from colonnade.common.name_lists import format_count
from colonnade.datasets.options import ShardOptions
from colonnade.tools.command_line import command


@command(ShardOptions, 'colonnade.datasets.shards.dataset_sharding')
def main(options: ShardOptions, dataset_sharding: ModuleType) -> None:
    """Write or verify shards."""
    if options.config is None:
        manifest = dataset_sharding.verify_shards(options.out)
        print(f'{options.out}: {format_counts(manifest)}; all checksums match')
        return
    manifest = dataset_sharding.make_shards(options)
    print(f'{options.out}: {format_counts(manifest)}; all were verified')
    for split in dict.fromkeys(shard['file'].rpartition('-')[0] for shard in manifest['shards']):
        shards = [each for each in manifest['shards'] if each['file'].startswith(f'{split}-')]
        num_files = sum(each['files'] for each in shards)
        print(f'  {split}: {format_count(len(shards), "shard")}, '
              f'{format_count(num_files, "file")}')
    print(f'to train or test on them, pass --data-root {Path(options.out)}')


def format_counts(manifest: dict[str, Any]) -> str:
    """Return the numbers of samples, files and shards as text."""
    return (f'{manifest["samples"]} samples, {manifest["files"]} files of '
            f'{manifest["bytes"] / 1e6:.1f} MB in {format_count(len(manifest["shards"]), "shard")}')


if __name__ == '__main__':
    main()
