"""Swap the backbone of an mmdet or mmseg config, and add the right neck.

    colonnade swap-backbone mmdet::retinanet/retinanet_r50_fpn_1x_coco.py \\
        --backbone xcit_small_12_p16 --out mine.py
"""
from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class SwapOptions:
    """Options of ``colonnade swap-backbone``."""
    config: str = argument('config file of mmdet or mmseg, or mmdet::FOLDER/FILE.py')
    backbone: str = option(
        'backbone as in config names, e.g. xcit_small_12_p16 or cait_s24, or the timm name of '
        'a plain ViT, with or without the tag of its weights, e.g. '
        'vit_small_patch16_dinov3.lvd1689m',
        MISSING,
        metavar='NAME')
    out: Path | None = option(
        'file to write (default: BACKBONE_CONFIG in the current directory)', metavar='FILE')


@command(SwapOptions, 'colonnade.recipes.backbone_swap.swap',
         'colonnade.recipes.custom_data.config_creation')
@file_errors()
def main(options: SwapOptions, swap: ModuleType, config_creation: ModuleType) -> None:
    """Write the config, and print what it sets and what the user has to decide."""
    path = swap.find_base_config(options.config)
    out = options.out or Path(f'{options.backbone.replace(".", "_")}_{path.name}')
    notes = swap.swap_backbone(options.config, options.backbone, out)
    print(out.read_text(encoding='utf-8'))
    for text in notes.open_questions:
        print(f'undecided: {text}')
    print(f'written: {out}\ntrain with: {config_creation.format_train_command(out)}')


if __name__ == '__main__':
    main()
