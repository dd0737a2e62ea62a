"""Create a config that trains a recipe on your own data, and check the data on the way.

    colonnade new_config configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data data.yaml
    colonnade new_config configs/mask_rcnn/xcit_small_12_p16_3x_coco.py \\
        --coco train.json val.json --images train/ val/
    colonnade new_config configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py \\
        --masks masks/train masks/val --images images/train images/val --classes road sky tree
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.configs import find_config
from colonnade.tools.command_line import (add_allow_outside, add_data_arguments, print_any_name,
                                          print_report, stoppable, user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        'leaf', type=Path, help='the config to start from: a file, or the name of one of ours')
    add_data_arguments(parser)
    parser.add_argument('--batch-size', type=int, help="images a GPU (the recipe's)")
    parser.add_argument('--gpus', type=int, default=1, help='GPUs, or processes (1)')
    parser.add_argument('--epochs', type=int, help="passes over the data (the recipe's, or more)")
    parser.add_argument('--out', type=Path, help='file to write (LEAF_own.py, here)')
    add_allow_outside(parser)
    return parser.parse_args()


@stoppable('new_config')
def main() -> None:
    """Check the data, list all that is wrong, and write the config if nothing is."""
    print_any_name()
    args = parse_args()
    with user_errors('new_config'), file_errors():
        args.leaf = find_config(args.leaf)
        from colonnade.recipes.custom_data.data_options import check_options
        check_options(args)
        from colonnade.recipes.custom_data import config_creation  # takes seconds
        cfg, report = config_creation.read_recipe(args), config_creation.Report()
        print('reading annotations and the headers of images ...', flush=True)
        data = config_creation.look_at_recipes_data(cfg, args, report)
    print_report(report, 'new_config', 'no config was written')
    assert data is not None  # without faults
    with user_errors('new_config'), file_errors():
        config_creation.write_config(cfg, args, data)
    print('{} training and {} validation images'.format(*data.num_images))
    from colonnade.runtime.printing import one_line
    found = f'{len(data.classes)} classes: {", ".join(data.classes)}'
    print('\n'.join(map(one_line, (found, *data.reasons))))
    train = config_creation.train_command(args.out,
                                          args.gpus) + ' --allow-outside' * bool(data.outside)
    print(f'written: {args.out}\ntrain with: {train}')


if __name__ == '__main__':
    main()
