"""Checkpoints without NaN and infinity, and the last one that is known to be good."""
from __future__ import annotations

from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner
from torch.distributed.tensor import DTensor

from ..work_dir.deferred_checkpoints import SaveBetweenSteps
from ..work_dir.resume import noted
from ..work_dir.saving import saving_hook
from .diagnosis import bare
from .finite import NonFiniteError, gathered, not_finite, shortened, tensors_in

PARTS = ('state_dict', 'ema_state_dict', 'optimizer')  # of checkpoints, that must be finite
ADVICE = ('lower optim_wrapper.optimizer.lr, or clip gradients with '
          'optim_wrapper.clip_grad.max_norm')


class GoodCheckpoint:
    """The last checkpoint whose weights gave a finite loss.

    A step may make weights so large that the next loss is infinite. The checkpoint of that step is
    of no use, although its weights are finite. While steps are skipped, checkpoints wait, so that
    none takes the place of a good one; at the end of training there always is one.

    Attributes:
        path: Of that checkpoint; empty if there is none.
        is_final: Whether the loss has exploded since: later ones are not good.
        suspect: Whether the latest step was skipped, in which processes agree.
    """

    def __init__(self) -> None:
        self.path = self.candidate = ''
        self.is_final = self.suspect = False
        self.saving: CheckpointHook | None = None

    def watch(self, runner: Runner) -> None:
        """Begin a training."""
        self.saving = saving_hook(runner)
        if self.saving is None:
            return
        self.path = self.candidate = noted(runner.work_dir)
        for hook in runner.hooks:
            if isinstance(hook, SaveBetweenSteps):
                hook.is_suspect = lambda: self.suspect

    def begin_iteration(self) -> None:
        """Note the checkpoint that this iteration starts with or behind."""
        if self.saving is not None:
            self.candidate = self.saving.last_ckpt or self.candidate

    def confirm(self) -> None:
        """Say that this iteration's loss and gradient are finite."""
        if not self.is_final:
            self.path = self.candidate

    def how_to_go_on(self, trusts_latest: bool = False) -> str:
        """A sentence on what to do after training has stopped.

        Args:
            trusts_latest: Whether the data are the cause, and not the weights.
        """
        path = self.candidate if trusts_latest and not self.is_final else self.path
        if not path:
            return f'there is no good checkpoint yet: mend the data or {ADVICE}, and start again'
        return (f'the last good checkpoint is {path}: mend the data or {ADVICE}, and go on with '
                f'--resume {path}')


class FiniteCheckpoints(Hook):
    """Keeps NaN and infinity out of checkpoints.

    Args:
        good: Which is named.
    """

    priority = 'LOWEST'  # behind what puts averaged weights in

    def __init__(self, good: GoodCheckpoint) -> None:
        self.good = good
        self.known: tuple[str, ...] = ()

    def before_train(self, runner: Runner) -> None:
        """Note which buffers hold infinity anyway, such as masks of attention."""
        self.known = tuple(not_finite(bare(runner.model).named_buffers()))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Look at weights, averages and the optimizer's state.

        Raises:
            NonFiniteError: If any of them is not finite.
        """
        held = {part: checkpoint[part] for part in PARTS if part in checkpoint}
        tensors = {name: value for name, value in tensors_in(held)
                   if not (self.known and name.endswith(self.known))}  # yapf: disable
        names = not_finite(tensors.items())
        if any(isinstance(value, DTensor) for value in tensors.values()):  # all processes save
            names = next(filter(None, gathered(names)), [])
        if names:
            iteration = checkpoint['meta']['iter']
            raise NonFiniteError(
                f'training stops at iteration {iteration} of {runner.max_iters}: no checkpoint is '
                f'saved, as {shortened(names)} are not finite\n{self.good.how_to_go_on()}')
