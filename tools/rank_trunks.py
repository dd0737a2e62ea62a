"""Rank pretrained backbones on your own data, in minutes and without training them.

    colonnade rank_trunks --masks data --out ranking \\
        --trunks xcit_small_12_p16_384.fb_dist_in1k vit_small_patch16_dinov3.lvd1689m
    colonnade rank_trunks --coco train.json val.json --images images --out ranking \\
        --trunks xcit_small_12_p16=run/epoch_36.pth xcit_small_12_p16=random

Features of the frozen trunks are computed once. A linear layer and nearest neighbours then predict
the classes of patches. Table and picture show their mIoU beside the trunks' cost.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import (add_data_arguments, print_any_name, print_report,
                                          stoppable, user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.RawTextHelpFormatter)
    add_data_arguments(parser)
    parser.add_argument(
        '--trunks',
        nargs='+',
        required=True,
        metavar='TRUNK',
        help="timm's NAME.TAG, NAME=FILE with weights of your own, or NAME=random;\n"
        'NAME as timm has it, or CLASS:ARCH')
    parser.add_argument('--random', action='store_true', help='random weights for trunks without =')
    parser.add_argument('--out', type=Path, required=True, help='folder to write, a new one')
    parser.add_argument(
        '--max-images', type=int, default=500, help='images of each split at most (500)')
    parser.add_argument(
        '--size', type=int, default=512, help='pixels of the shorter side of images (512)')
    parser.add_argument(
        '--out-indices',
        nargs='+',
        type=int,
        default=[-1],
        help='blocks whose outputs are the features, side by side; negative\n'
        'numbers count from the last (-1)')
    parser.add_argument('--steps', type=int, default=1000, help='of the linear probe (1000)')
    parser.add_argument(
        '--memory', type=int, default=50000, help='patches that neighbours are among (50000)')
    parser.add_argument(
        '--neighbours', type=int, default=30, help='patches that vote for a patch (30)')
    parser.add_argument(
        '--temperature', type=float, default=0.02, help='of the weights of their votes (0.02)')
    parser.add_argument(
        '--cost',
        choices=['time', 'multiply-adds', 'parameters'],
        default='time',
        help='what the picture shows quality against (time)')
    parser.add_argument('--seed', type=int, default=0, help='of all that is drawn (0)')
    parser.add_argument('--device', choices=['cpu', 'cuda'], help='cuda if there is one')
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        '--cache', type=Path, help='folder of features ($XDG_CACHE_HOME or ~/.cache/colonnade)')
    kept.add_argument('--no-cache', action='store_true', help='keep no features')
    parser.add_argument(
        '--trust',
        action='store_true',
        help='run what is pickled in weight files; only if you trust who made them')
    return parser.parse_args()


@stoppable('rank_trunks')
def main() -> None:
    """Check the data, measure each trunk, and end with status 1 if one failed."""
    print_any_name()
    args = parse_args()
    with user_errors('rank_trunks'), file_errors():
        from colonnade.recipes.custom_data.data_options import (check_data_options,
                                                                complete_data_options)
        check_data_options(args)
        complete_data_options(args)
        from colonnade.settings.reading import import_quietly
        import_quietly('colonnade.recipes.backbone_ranking')  # takes seconds
        from colonnade.recipes import backbone_ranking
        trunks, report = backbone_ranking.complete(args), backbone_ranking.Report()
        print('reading annotations and the headers of images ...', flush=True)
        data = backbone_ranking.look(args, report)
        print_report(report, 'rank_trunks', 'nothing was compared')
        assert data is not None  # without faults
        failures = backbone_ranking.rank(args, trunks, data)
    if failures:
        sys.exit('\n'.join(
            (f'rank_trunks: {len(failures)} of {len(trunks)} trunks failed', *failures)))


if __name__ == '__main__':
    main()
