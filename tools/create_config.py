"""Create a config that trains on your own data, and check the data.

    colonnade create-config configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data data.yaml
    colonnade create-config configs/mask_rcnn/xcit_small_12_p16_3x_coco.py \\
        --coco train.json val.json --images train/ val/
    colonnade create-config configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py \\
        --masks masks/train masks/val --images images/train images/val --classes road sky tree
"""
from __future__ import annotations

from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.configs import find_config
from colonnade.recipes.options import NewConfigOptions
from colonnade.tools.command_line import command, import_work, print_report, print_untrusted


@command(NewConfigOptions, 'colonnade.recipes.custom_data.data_options')
@file_errors()
def main(options: NewConfigOptions, data_options: ModuleType) -> None:
    """Check the data, list its errors, and write the config if there are none."""
    options.base_config = find_config(options.base_config)
    out = data_options.complete_options(options)
    config_creation = import_work('colonnade.recipes.custom_data.config_creation')
    report = config_creation.Report()
    print('reading annotations and image headers ...', flush=True)
    data = config_creation.create_config(options, report)
    print_report(report, 'create-config', 'no config was written')
    assert data is not None  # an error would have exited
    print('{} training and {} validation images'.format(*data.num_images))
    for line in (f'{len(data.classes)} classes: {", ".join(data.classes)}', *data.reasons):
        print_untrusted(line)
    train = config_creation.format_train_command(out, options.gpus)
    print(f'written: {out}\ntrain with: {train}' + ' --allow-external-files' * bool(data.outside))


if __name__ == '__main__':
    main()
