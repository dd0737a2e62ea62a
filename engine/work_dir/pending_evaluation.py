"""An evaluation that a run was stopped in, and makes when it goes on."""
from __future__ import annotations

from mmengine.dist import broadcast_object_list
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from .metrics_table import MetricsTable


class PendingEvaluation(Hook):
    """Evaluates before training goes on, where the checkpoint was saved and its evaluation not.

    Args:
        table: Of the run; if it is empty, the run did not begin in this folder.
    """

    priority = 'LOWEST'  # behind all others, which are ready for an evaluation then

    def __init__(self, table: MetricsTable) -> None:
        self.table = table

    def before_train(self, runner: Runner) -> None:
        """Evaluate if that is due."""
        if not runner.iter or not is_due(runner):
            return
        lacks = [bool(self.table.rows()) and not self.table.is_evaluated(runner.iter)]
        broadcast_object_list(lacks)  # the first process has the table
        if lacks[0]:
            runner.logger.info(f'the evaluation of iteration {runner.iter} is missing, and made')
            runner.val_loop.run()


def is_due(runner: Runner) -> bool:
    """Whether mmengine's loops evaluate behind this iteration."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return False
    if isinstance(loop, EpochBasedTrainLoop):
        place, end = loop.epoch, loop.max_epochs
        if loop.iter != place * len(loop.dataloader):
            return False
    elif isinstance(loop, IterBasedTrainLoop):
        place, end = loop.iter, loop.max_iters
    else:
        return False
    loop._decide_current_val_interval()
    return place >= loop.val_begin and (place % loop.val_interval == 0 or place == end)
