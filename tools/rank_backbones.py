"""Rank pretrained backbones on your own data, in minutes and without training.

    colonnade rank-backbones --masks data --out ranking \\
        --backbones xcit_small_12_p16_384.fb_dist_in1k vit_small_patch16_dinov3.lvd1689m
    colonnade rank-backbones --coco train.json val.json --images images --out ranking \\
        --backbones xcit_small_12_p16=run/epoch_36.pth xcit_small_12_p16=random

Features of the frozen backbones are computed once. A linear layer and k-NN then predict the classes
of patches. A table and a plot compare their mIoU with the cost of the backbones.
"""
from __future__ import annotations

import sys
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.recipes.options import RankOptions
from colonnade.tools.command_line import command, import_work, print_report


@command(RankOptions, 'colonnade.recipes.custom_data.data_options')
@file_errors()
def main(options: RankOptions, data_options: ModuleType) -> None:
    """Check the data, measure each backbone, and exit with status 1 if one failed."""
    data_options.complete_data_options(options)
    backbone_ranking = import_work('colonnade.recipes.backbone_ranking')
    backbones, report = backbone_ranking.complete_options(options), backbone_ranking.Report()
    print('reading annotations and image headers ...', flush=True)
    data = backbone_ranking.read_dataset(options, report)
    print_report(report, 'rank-backbones', 'nothing was measured')
    assert data is not None  # an error would have exited
    if failures := backbone_ranking.rank_backbones(options, backbones, data):
        sys.exit('\n'.join(
            (f'rank-backbones: {len(failures)} of {len(backbones)} backbones failed', *failures)))


if __name__ == '__main__':
    main()
