"""Swap the backbone of an mmdet or mmseg config, and add the right neck.

    colonnade transplant mmdet::retinanet/retinanet_r50_fpn_1x_coco.py \\
        --trunk xcit_small_12_p16 --out mine.py
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.tools.command_line import stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        'config', help='a config of mmdet or mmseg: its path, or mmdet::FOLDER/FILE.py')
    parser.add_argument(
        '--trunk',
        required=True,
        help='as our configs are called: xcit_small_12_p16, cait_s24, resmlp_s24,\n'
        "simplified_vit_small_12_p16, or timm's name of a plain ViT, with the tag\n"
        'of its weights or without: vit_small_patch16_dinov3.lvd1689m')
    parser.add_argument('--out', type=Path, help='file to write (TRUNK_CONFIG, here)')
    return parser.parse_args()


@stoppable('transplant')
def main() -> None:
    """Write the config if it can be done, and say what it sets and what is left to decide."""
    args = parse_args()
    with user_errors('transplant'), file_errors():
        from colonnade.recipes.backbone_swap import swap  # takes seconds
        from colonnade.recipes.custom_data.config_creation import train_command
        path = swap.config_file(args.config)
        out = args.out or Path(f'{args.trunk.replace(".", "_")}_{path.name}')
        notes = swap.transplant(args.config, args.trunk, out)
    print(out.read_text(encoding='utf-8'))
    for text in notes.undecided:
        print(f'undecided: {text}')
    print(f'written: {out}\ntrain with: {train_command(out)}')


if __name__ == '__main__':
    main()
