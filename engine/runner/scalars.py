"""Recording of losses and gradient norms without waiting for an accelerator in each iteration."""
from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from mmengine.hooks import CheckpointHook, LoggerHook, RuntimeInfoHook
from mmengine.runner import Runner
from torch import Tensor

from .hooks import get_optim_wrappers


def is_due(runner: Runner, index: int) -> bool:
    """Return True if a hook logs or saves after this iteration.

    Args:
        runner: Runner that is training.
        index: Index of the batch in the epoch, or of the iteration.
    """
    loader = runner.train_dataloader
    for hook in runner.hooks:
        if isinstance(hook, LoggerHook) and (
                type(hook).after_train_iter is not LoggerHook.after_train_iter
                or hook.every_n_inner_iters(index, hook.interval)
                or hook.end_of_epoch(loader, index)
                and (not hook.ignore_last or len(loader) <= hook.interval)):  # yapf: disable
            return True
        if isinstance(hook, CheckpointHook) and not hook.by_epoch and hook.every_n_train_iters(
                runner, hook.interval, hook.save_begin):
            return True
    return runner.iter + 1 >= runner.max_iters


def defer_scalars(runner: Runner) -> bool:
    """Replace mmengine's RuntimeInfoHook by a :class:`ScalarsHook`; return False without one."""
    for index, hook in enumerate(runner.hooks):
        if type(hook) is RuntimeInfoHook:
            runner.hooks[index] = replacement = ScalarsHook()
            replacement.__dict__ |= hook.__dict__  # its priority
            return True
    return False


class ScalarsHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, which fetches losses on a GPU only when they are logged or saved.

    mmengine fetches each loss in each iteration, and each time the host waits for the GPU. NaN and
    Inf are not recorded, because logs are means.

    Attributes:
        pending: Values of iterations whose losses are not fetched yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[dict[str, Any]] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: dict | None = None) -> None:  # yapf: disable
        """Keep the losses and gradient norms of an iteration, and record all that are due."""
        norms: dict[str, Tensor] = {}
        for wrapper in get_optim_wrappers(runner.optim_wrapper):
            norms |= getattr(wrapper, 'norms', {})  # of a StepGuard
        self.pending.append({
            key: value.detach() if isinstance(value, Tensor) else value
            for key, value in (norms | (outputs or {})).items()
        })
        if is_due(runner, batch_idx) or not any(map(
                is_elsewhere, self.pending[-1].values())):  # nothing waits on a CPU
            self.record(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self.record(runner)

    def before_val(self, runner: Runner) -> None:
        self.record(runner)
        super().before_val(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self.pending:
            self.record(runner)
            checkpoint['message_hub'] = runner.message_hub.state_dict()

    def record(self, runner: Runner) -> None:
        """Record all pending values, fetched at once."""
        pending, self.pending = fetch(self.pending), []
        for values in pending:
            for key, value in values.items():
                if isfinite(value):
                    runner.message_hub.update_scalar(f'train/{key}', value)


def is_elsewhere(value: Any) -> bool:
    """Return True if the host would wait for a value."""
    return isinstance(value, Tensor) and value.device.type != 'cpu'


def fetch(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return dicts whose tensors of one value are numbers, with one copy to the host."""
    by_type: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for each in values:
        for value in each.values():
            if isinstance(value, Tensor):
                by_type.setdefault((value.device, value.dtype), []).append(value.reshape(()))
    numbers = {key: iter(torch.stack(tensors).tolist()) for key, tensors in by_type.items()}
    return [{
        key: next(numbers[value.device, value.dtype]) if isinstance(value, Tensor) else value
        for key, value in each.items()
    } for each in values]
