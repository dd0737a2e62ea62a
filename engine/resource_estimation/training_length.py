"""How long a training is, and what it writes to the disk."""
from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config

from ..optim.batch_size import batch_size
from ..work_dir.best_metric import checkpoint_hook


@dataclass(frozen=True)
class Schedule:
    """Of a whole training.

    Attributes:
        images: Of all processes in a step of the optimizer.
        iterations: None where epochs are counted and the number of images is not known.
        steps: Of the optimizer; None as well.
        epochs: None where iterations are counted and the number of images is not known.
    """
    images: int
    iterations: int | None
    steps: int | None
    epochs: float | None

    @classmethod
    def of(cls, cfg: Config, num_images: int | None) -> Schedule:
        """That of a config whose batch is settled, on so many images."""
        at_once = batch_size(cfg)
        accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
        iterations, epochs = cfg.train_cfg.get('max_iters'), cfg.train_cfg.get('max_epochs')
        if epochs and num_images:
            iterations = epochs * -(-num_images // at_once)
        elif iterations and num_images:
            epochs = iterations * at_once / num_images
        steps = None if iterations is None else -(-iterations // accumulated)
        return cls(at_once * accumulated, iterations, steps, epochs)


def checkpoints(cfg: Config, schedule: Schedule) -> int | None:
    """How many whole checkpoints are on the disk at once; None if that is not known.

    The oldest is deleted when the next one is whole.
    """
    hook = checkpoint_hook(cfg)
    if hook is None:
        return 0
    by_epoch = hook.get('by_epoch', True)
    length = cfg.train_cfg.get('max_epochs') if by_epoch else schedule.iterations
    kept = hook.get('max_keep_ckpts', -1)
    saved = None if length is None else max(1, int(length) // max(1, hook.get('interval', 1)))
    if kept < 1 or saved is None:
        return saved
    return min(saved, kept + 1)


def keeps_best(cfg: Config) -> bool:
    """Whether the best weights are kept too."""
    return bool((checkpoint_hook(cfg) or {}).get('save_best'))


def free_room(work_dir: str | Path) -> int | None:
    """Free bytes where a work dir is or will be; None if it is not on this machine."""
    if '://' in str(work_dir):
        return None
    path = Path(work_dir).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
