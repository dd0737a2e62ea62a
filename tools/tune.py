"""Search for better settings, such as the learning rate, with Optuna.

    colonnade tune my_config.py --work-dir search --trials 20
    colonnade tune my_config.py --work-dir search --trials 40 --resume
    colonnade tune my_config.py --work-dir search --search \\
        optim_wrapper.optimizer.lr=1e-5:1e-3:log model.backbone.drop_path_rate=0,0.1,0.2

Each trial is a training, which is stopped early if it lags behind.
"""
from __future__ import annotations

import sys
from types import ModuleType

from colonnade.common.errors import file_errors
from colonnade.recipes.options import TuneOptions
from colonnade.tools.command_line import command
from colonnade.tools.train import INTERRUPTED


@command(TuneOptions, 'colonnade.recipes.tuning', full_help=True)
@file_errors()
def main(options: TuneOptions, tuning: ModuleType) -> None:
    """Run the trials, print their table, and exit with status 75 if a signal interrupts."""
    try:
        table, command_line = tuning.tune(options)
    except tuning.Interrupted as stop:
        print(f'\ntune: {stop}; continue with --resume', file=sys.stderr)
        sys.exit(INTERRUPTED if stop.saved else 128 + stop.signal)
    print(f'\n{table.format_text()}\n\nbest settings:\n{command_line}')
    print(f'written: {(options.work_dir / tuning.PAGE).resolve().as_uri()}')


if __name__ == '__main__':
    main()
