"""Settings for training on a folder of unlabeled images too, with a mean teacher."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.errors import UserError
from colonnade.datasets.bands import LoadBands, find_band_loader
from colonnade.datasets.validation.image_files import check_header
from colonnade.engine.mean_teacher import UnlabeledImages
from colonnade.engine.runner.hooks import is_ema_hook
from colonnade.settings.config_values import loads_segments
from colonnade.settings.pipeline_steps import get_step_type, is_loading_annotations

from .bands import COLOR_STEPS, MIXING_STEPS

ANNOTATION_STEPS = ('CopyPaste', 'FilterAnnotations', *COLOR_STEPS, *MIXING_STEPS)
MAX_SHOWN, MAX_CHECKED = 5, 1000
#: EMA momentum times the number of iterations, its bounds, and the fraction of a training after
#: which it is half of the initial 1, so that random weights are forgotten
MEMORY, SLOWEST, FASTEST, START = 10, 0.0005, 0.01, 0.05


def build_pipeline(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a training pipeline without steps that load, need or filter annotations, or change
    colors, which :class:`.PseudoLabelHook` does for the student.
    """
    kept = []
    for step in steps:
        kind = get_step_type(step)
        if is_loading_annotations(step) or kind in ANNOTATION_STEPS:
            continue
        if 'cat_max_ratio' in step:  # counts labels
            step = dict(step, cat_max_ratio=1.)
        kept.append(dict(step))
    return kept


def check_images(paths: Sequence[Path], bands: LoadBands | None) -> None:
    """Raise a UserError that lists images whose headers show that they cannot be loaded.

    Of many images, some are checked, since each is a file to open. Training stops at bad samples,
    or skips and lists them.
    """
    paths = paths[::-(-len(paths) // MAX_CHECKED)]
    num_bands = None if bands is None else 0 if bands.suffixes else bands.num_bands
    found = [
        each.message for path in paths if (each := check_header(path, None, num_bands=num_bands))
    ]
    if found:
        raise UserError(f'--unlabeled: {len(found)} images cannot be used: '
                        f'{"; ".join(found[:MAX_SHOWN])}')


def build_hooks(cfg: Config, hooks: Sequence[dict[str, Any]], folder: Path,
                steps: Sequence[dict[str, Any]], suffix: str | None, num_iterations: int,
                root: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the hooks of a config with those of the mean teacher, and a comment on them.

    Args:
        cfg: Base config.
        hooks: Hooks so far.
        folder: Folder of unlabeled images.
        steps: Pipeline of the training images.
        suffix: End of the names of files; None for all images.
        num_iterations: Length of the training.
        root: Value of ``data_root`` for the folder.

    Raises:
        FileNotFoundError: If the folder has no images.
        ValueError: If the model is panoptic.
    """
    if loads_segments(cfg):
        raise UserError('--unlabeled does not support panoptic models')
    images = UnlabeledImages(str(folder), suffix)
    check_images([Path(images.get_data_info(index)['img_path']) for index in range(len(images))],
                 find_band_loader(steps))
    loader: dict[str, Any] = dict(
        num_workers=cfg.train_dataloader.get('num_workers', 0),
        persistent_workers=cfg.train_dataloader.get('persistent_workers', False),
        sampler=dict(type='InfiniteSampler', shuffle=True),
        dataset=dict(
            type='mmengine.UnlabeledImages', data_root=root, pipeline=build_pipeline(steps)))
    if suffix:
        loader['dataset']['suffix'] = suffix
    added: list[dict[str, Any]] = []
    if not any(map(is_ema_hook, hooks)):
        momentum = min(FASTEST, max(SLOWEST, MEMORY / num_iterations))
        added.append(
            dict(
                type='EMAHook',
                ema_type='MomentumAnnealingEMA',
                momentum=momentum,
                gamma=max(1, round(START * num_iterations))))
    added.append(dict(type='PseudoLabelHook', dataloader=loader))
    return [*hooks,
            *added], (f'{len(images)} unlabeled images are learned with confident labels that '
                      'averaged weights predict')
