"""What the best and the last checkpoints of a run have in common."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner


def saving_hook(runner: Runner) -> CheckpointHook | None:
    """The hook of a runner that saves checkpoints."""
    return next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)


@contextmanager
def unless_it_fails(runner: Runner) -> Iterator[None]:
    """A block whose changes to what is noted in checkpoints are undone if it raises."""
    infos = runner.message_hub.runtime_info
    before = dict(infos)
    try:
        yield
    except BaseException:
        infos.clear()
        infos.update(before)
        raise
