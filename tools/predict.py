"""Predict images and videos: visualizations, COCO results, label maps.

    colonnade predict mask_rcnn/xcit_small_12_p16_3x_coco epoch_36.pth images --out predictions
    colonnade predict mine.py run/iter_500.pth 'shots/*.png' video.mp4 --out predictions
"""
from __future__ import annotations

import sys
from types import ModuleType

from colonnade.inference.options import PredictOptions
from colonnade.tools.command_line import STOPPED, command

UNREADABLE = 3  # exit status if inputs could not be read


@command(
    PredictOptions,
    'colonnade.inference.prediction_run',
    intermixed=True,
    epilog=f'exit status: {UNREADABLE} if inputs could not be read, {STOPPED} if stopped')
def main(options: PredictOptions, prediction_run: ModuleType) -> None:
    """Predict all inputs, and exit with status 3 if some could not be read."""
    try:
        inputs = prediction_run.resolve_inputs(options)
        errors = prediction_run.run(options, inputs)
    except KeyboardInterrupt:
        print('\npredict: stopped; resume with the same command and --resume', file=sys.stderr)
        sys.exit(STOPPED)
    if len(errors) < len(inputs):
        print(f'written: {options.out}')
    if errors:
        print(f'predict: {len(errors)} of {len(inputs)} inputs could not be read: '
              f'{options.out / "errors.txt"}', file=sys.stderr)  # yapf: disable
        sys.exit(UNREADABLE)


if __name__ == '__main__':
    main()
