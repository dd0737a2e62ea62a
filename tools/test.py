"""Evaluate a checkpoint: mAP or PQ of a detector, mIoU of a segmenter.

    colonnade test configs/mask_rcnn/xcit_small_12_p16_3x_coco.py epoch_36.pth
"""
from __future__ import annotations

from contextlib import ExitStack
from types import ModuleType

from colonnade.evaluation.options import TestOptions
from colonnade.tools.command_line import command, report_user_errors


@command(TestOptions, 'colonnade.evaluation.testing')
def main(options: TestOptions, testing: ModuleType) -> None:
    """Evaluate, and print and write the metrics."""
    # Report errors before the stack closes, which waits for other processes.
    with ExitStack() as stack, report_user_errors('test'):
        runner = stack.enter_context(testing.prepared_runner(options))
        metrics = runner.test()
    testing.report_metrics(metrics, runner, options)


if __name__ == '__main__':
    main()
