"""Create a config that trains on your own data, and check the data.

    colonnade create-config configs/mask_rcnn/xcit_small_12_p16_3x_coco.py --data data.yaml
    colonnade create-config configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py \\
        --masks masks/train masks/val --images images/train images/val --classes road sky tree
    colonnade create-config mine.py --update
"""
from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
from difflib import unified_diff
from types import ModuleType

from colonnade.common.atomic_files import set_aside
from colonnade.common.errors import UserError, file_errors
from colonnade.common.options import format_words
from colonnade.recipes.options import NewConfigOptions
from colonnade.tools.command_line import (command, import_work, parse_options, print_report,
                                          print_untrusted)


def read_recorded_options(options: NewConfigOptions, data_options: ModuleType) -> NewConfigOptions:
    """Return the options with which the config of ``--update`` was created."""
    config = options.base_config
    if format_words(options) != [str(config), '--update']:
        raise UserError(
            '--update takes no other options: it repeats those of the config. To change '
            'them, create another config')
    words = data_options.read_command(config)
    recorded = parse_options(argparse.ArgumentParser(), NewConfigOptions, words=words)
    data_options.check_folder(config, recorded.out)
    recorded.out, recorded.command = config, shlex.join([*data_options.COMMAND.split(), *words])
    return recorded


@command(NewConfigOptions, 'colonnade.recipes.custom_data.data_options')
@file_errors()
def main(options: NewConfigOptions, data_options: ModuleType) -> None:
    """Check the data, list its errors, and write the config if there are none."""
    old, update = '', options.update
    with ExitStack() as stack:
        if update:
            options = read_recorded_options(options, data_options)
            assert options.out is not None  # set above
            old = options.out.read_text(encoding='utf-8')
            conversion = import_work('colonnade.datasets.formats.conversion')
            folder = conversion.get_folder(options)
            is_conversion = (folder / conversion.RECORD).is_file()
            backups = stack.enter_context(
                set_aside(options.out, *([folder] if is_conversion else [])))
        out = data_options.complete_options(options)
        config_creation = import_work('colonnade.recipes.custom_data.config_creation')
        report = config_creation.Report()
        print('reading annotations and image headers ...', flush=True)
        data = config_creation.create_config(options, report)
        can_skip = report.num_skippable and options.on_bad_data == 'error' and not update
        hint = '; --on-bad-data skip leaves out bad images' * bool(can_skip)
        print_report(report, 'create-config', f'no config was written{hint}')
        assert data is not None  # an error would have exited
    print('{} training and {} validation images'.format(*data.num_images))
    count = '1 class' if len(data.classes) == 1 else f'{len(data.classes)} classes'
    for line in (f'{count}: {", ".join(data.classes)}', *data.reasons):
        print_untrusted(line)
    if update:
        new = out.read_text(encoding='utf-8')
        for line in unified_diff(old.splitlines(), new.splitlines(), 'before', 'now', lineterm=''):
            print_untrusted(line)
        print(f'the previous files are kept as {", ".join(map(str, backups))}')
    train = config_creation.format_train_command(out, options.gpus)
    print(f'written: {out}\nlook at it: colonnade browse-dataset {shlex.quote(str(out))}')
    print(f'train with: {train}' + ' --allow-external-files' * bool(data.outside))


if __name__ == '__main__':
    main()
