"""Swap the backbone of an mmdet or mmseg config, and add the right neck.

    colonnade swap_backbone mmdet::retinanet/retinanet_r50_fpn_1x_coco.py \\
        --backbone xcit_small_12_p16 --out mine.py
"""
from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from colonnade.common.errors import file_errors
from colonnade.common.options import argument, option
from colonnade.tools.command_line import command


@dataclass
class TransplantOptions:
    """Which backbone gets into which config."""
    config: str = argument('a config of mmdet or mmseg: its path, or mmdet::FOLDER/FILE.py')
    backbone: str = option(
        'as our configs are called: xcit_small_12_p16, cait_s24, resmlp_s24, '
        "simplified_vit_small_12_p16, or timm's name of a plain ViT, with the tag of its weights "
        'or without: vit_small_patch16_dinov3.lvd1689m', MISSING)
    out: Path | None = option('file to write (BACKBONE_CONFIG, here)')


@command(TransplantOptions)
@file_errors()
def main(options: TransplantOptions) -> None:
    """Write the config if it can be done, and say what it sets and what is left to decide."""
    from colonnade.recipes.backbone_swap import swap  # takes seconds
    from colonnade.recipes.custom_data.config_creation import train_command
    path = swap.config_file(options.config)
    out = options.out or Path(f'{options.backbone.replace(".", "_")}_{path.name}')
    notes = swap.transplant(options.config, options.backbone, out)
    print(out.read_text(encoding='utf-8'))
    for text in notes.undecided:
        print(f'undecided: {text}')
    print(f'written: {out}\ntrain with: {train_command(out)}')


if __name__ == '__main__':
    main()
