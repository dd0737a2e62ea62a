"""Checkpoints without NaN and infinity, and the last one that is known to be good."""
from __future__ import annotations

from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.distributed.tensor import DTensor

from colonnade.common.name_lists import format_names

from ..work_dir.last_checkpoint import RunCheckpoints, saving_hook
from ..work_dir.run import Run
from .diagnosis import bare
from .finite import NonFiniteError, not_finite, tensors_in

PARTS = ('state_dict', 'ema_state_dict', 'optimizer')  # of checkpoints, that must be finite
ADVICE = ('mend the data or lower optim_wrapper.optimizer.lr, or clip gradients with '
          'optim_wrapper.clip_grad.max_norm')


class GoodCheckpoints(Hook):
    """Keeps NaN and infinity out of checkpoints, and knows the last good one.

    A step may make weights so large that the next loss is infinite. The checkpoint of that step is
    of no use, although its weights are finite. While steps are skipped, checkpoints wait, so that
    none takes the place of a good one; at the end of training there always is one.

    Attributes:
        path: The last checkpoint whose weights gave a finite loss; empty if there is none.
        latest: The last checkpoint before this iteration.
        saving: The hook that saves checkpoints; None if there is none.
    """

    priority = 'LOWEST'  # behind what puts averaged weights in

    def __init__(self) -> None:
        self.path = self.latest = ''
        self.saving: RunCheckpoints | None = None
        self.infinite: tuple[str, ...] = ()  # buffers that are on purpose, as masks of attention

    def before_train(self, runner: Runner) -> None:
        """Note which buffers hold infinity anyway, and which checkpoint there is."""
        self.infinite = tuple(not_finite(bare(runner.model).named_buffers()))
        self.saving = saving_hook(runner)
        self.path = self.latest = Run(runner.work_dir).last if self.saving else ''

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Note the checkpoint that this iteration starts with or behind."""
        self.latest = self.saving and self.saving.last_ckpt or self.latest

    def confirm(self) -> None:
        """Note that the loss and the gradient of this iteration are finite."""
        self.path = self.latest

    def let_wait(self, is_bad: bool) -> None:
        """Let checkpoints wait while steps are skipped."""
        if self.saving is not None:
            self.saving.is_suspect = is_bad

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Look at weights, averages and the optimizer's state.

        Raises:
            NonFiniteError: If any of them is not finite.
        """
        held = {part: checkpoint[part] for part in PARTS if part in checkpoint}
        tensors = {name: value for name, value in tensors_in(held)
                   if not (self.infinite and name.endswith(self.infinite))}  # yapf: disable
        names = not_finite(tensors.items())
        if any(isinstance(value, DTensor) for value in tensors.values()):  # all processes save
            names = next(filter(None, all_gather_object(names)), [])
        if names:
            iteration = checkpoint['meta']['iter']
            raise NonFiniteError(
                f'training stops at iteration {iteration} of {runner.max_iters}: no checkpoint is '
                f'saved, as {format_names(names, 8)} are not finite\n{resume_hint(self.path)}')


def resume_hint(path: str) -> str:
    """Return what to do after training has stopped.

    Args:
        path: The last good checkpoint; empty if there is none.
    """
    if not path:
        return f'there is no good checkpoint yet: {ADVICE}, and start again'
    return f'the last good checkpoint is {path}: {ADVICE}, and go on with --resume {path}'
