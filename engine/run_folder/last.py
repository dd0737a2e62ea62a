"""The last checkpoints of a run, of which the oldest stays until a new one is saved."""
from __future__ import annotations

from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner


def save_before_deleting(hook: CheckpointHook) -> None:
    """Let mmengine's hook delete the oldest checkpoint after it has saved a new one.

    It would do so before. With ``max_keep_ckpts=1``, a run that is killed in between has no state
    to go on from.

    Args:
        hook: Changed in place.
    """
    save = hook._save_checkpoint_with_step

    def save_then_delete(runner: Runner, step: int, meta: dict[str, Any]) -> None:
        oldest = None
        if hook.max_keep_ckpts > 0:
            kept = hook.keep_ckpt_ids
            if len(kept) == hook.max_keep_ckpts and kept[-1] != step:
                oldest = kept.popleft()
        save(runner, step, meta)
        if oldest is None or not is_main_process():
            return
        files = hook.file_backend
        path = files.join_path(hook.out_dir, hook.filename_tmpl.format(oldest))
        if files.isfile(path):
            files.remove(path)
        elif files.isdir(path):  # shards
            files.rmtree(path)

    hook._save_checkpoint_with_step = save_then_delete
