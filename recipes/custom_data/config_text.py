"""Content and source of a config for a custom dataset."""
from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.errors import MissingFileError, UserError
from colonnade.datasets.custom.instance_datasets import CustomDataset
from colonnade.runtime.colors import distinct_colors
from colonnade.settings.classes import adapt_num_classes
from colonnade.settings.config_writer import (Source, format_base_path, format_comments,
                                              format_config)
from colonnade.settings.reading import read_file

from .scaled_schedule import scale_schedule

SPLITS = ('train', 'val')
REQUIRED_KEYS = ('default_scope', 'model', 'train_dataloader.batch_size',
                 'train_dataloader.dataset', 'val_dataloader.dataset', 'val_evaluator', 'train_cfg',
                 'optim_wrapper.optimizer.lr', 'param_scheduler', 'default_hooks.checkpoint')


def load_recipe(path: Path, scopes: Collection[str] = ('mmdet', 'mmseg')) -> Config:
    """Return a config that can be adapted to a custom dataset.

    Args:
        path: Config file.
        scopes: Libraries that can train on the dataset.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the config cannot be adapted.
    """
    if not os.path.isfile(path):
        raise MissingFileError(f'no config file {path}')
    cfg = read_file(path, import_modules=False)
    missing = [key for key in REQUIRED_KEYS if _at(cfg, key) is None]
    if missing:
        raise UserError(f'{path} is not a config for training and evaluation: it has no '
                        f'{", ".join(missing)}')
    if cfg.default_scope not in scopes:
        raise UserError('--coco is for detectors and --masks for segmenters, but '
                        f'{path} is a config of {cfg.default_scope}')
    if not isinstance(cfg.val_evaluator, dict):
        raise UserError(f'{path}: val_evaluator must be a single metric')
    for split in SPLITS:
        dataset = _at(cfg, f'{split}_dataloader.dataset')
        if not isinstance(dataset.get('pipeline'), list):
            raise UserError(f'{path}: {split}_dataloader.dataset must be a single dataset, got a '
                            f'{dataset.get("type")}')
    if adapt_num_classes(cfg.model, 1) is None:
        raise UserError(f'{path}: nothing in model sets num_classes')
    return cfg


def _at(cfg: Any, key: str) -> Any:
    """Return the value at a dotted key, or None."""
    for part in key.split('.'):
        cfg = cfg.get(part) if isinstance(cfg, (dict, Config)) else None
    return cfg


def has_masks(cfg: Config) -> bool:
    """Return True if a detector is trained with masks."""
    return any(step.get('with_mask') for step in cfg.train_dataloader.dataset.pipeline)


def build_settings(cfg: Config,
                   data: CustomDataset,
                   *,
                   out: Path,
                   batch_size: int | None = None,
                   num_gpus: int = 1,
                   epochs: int | None = None) -> dict[str, Any]:
    """Return the settings of the config, in order.

    Args:
        cfg: Base config.
        data: Dataset; reasons for settings are added.
        out: Path of the config.
        batch_size: Images per GPU. Defaults to that of the base config.
        num_gpus: Number of training processes.
        epochs: See :func:`~.scaled_schedule.scale_schedule`.
    """
    palette = [tuple(map(int, c)) for c in data.palette or distinct_colors(len(data.classes))]
    model = adapt_num_classes(cfg.model, len(data.classes))
    common = dict(data_root=Source('data_root'), metainfo=Source('metainfo'))
    datasets = [dict(dataset, **common) for dataset in data.datasets]
    for split, dataset in zip(SPLITS, datasets, strict=True):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        if any('reduce_zero_label' in step for step in pipeline):
            # Many mmseg pipelines repeat a setting that the dataset class determines.
            dataset['pipeline'] = [{
                key: step[key]
                for key in step if key != 'reduce_zero_label'
            } for step in pipeline]
    evaluator = {}
    if data.ann_file:
        slash = '' if str(data.root) == '/' else '/'
        evaluator['ann_file'] = Source(f'data_root + {slash + data.ann_file!r}')
    if has_masks(cfg) and not data.masks:
        _remove_masks(cfg, model, datasets, evaluator)
    train: dict[str, Any]
    train, val = ({'dataset': dataset} for dataset in datasets)
    if batch_size:
        train = dict(batch_size=batch_size, **train)
    changes, reasons = scale_schedule(
        cfg,
        data.num_images[0],
        num_val=data.num_images[1],
        images_per_gpu=batch_size,
        num_gpus=num_gpus,
        epochs=epochs)
    root, note = _format_root(data.root, out)
    data.reasons += [*reasons, note]
    content = dict(
        data_root=root,
        metainfo=dict(classes=data.classes, palette=palette),
        model=model,
        train_dataloader=train,
        val_dataloader=val,
        test_dataloader=Source('val_dataloader'))
    if evaluator:
        content |= dict(val_evaluator=evaluator, test_evaluator=Source('val_evaluator'))
    return content | changes


def _remove_masks(cfg: Config, model: dict, datasets: list[dict], evaluator: dict) -> None:
    """Remove everything that needs masks, which turns Mask R-CNN into Faster R-CNN."""
    if 'roi_head' not in model:
        raise UserError(f'{cfg.model.type} cannot be trained without masks: use a detector of '
                        'boxes, such as those in configs/faster_rcnn and configs/dino')
    if cfg.model.type == 'MaskRCNN':
        model['type'] = 'FasterRCNN'
    model['data_preprocessor'] = dict(pad_mask=False)
    model['roi_head'] = dict(model['roi_head'], mask_roi_extractor=None, mask_head=None)
    for split, dataset in zip(SPLITS, datasets, strict=True):
        dataset['pipeline'] = [
            dict(step, **{key: False
                          for key in ('with_mask', 'by_mask') if key in step})
            for step in cfg[f'{split}_dataloader'].dataset.pipeline
        ]
    evaluator['metric'] = 'bbox'


def _format_root(root: Path, out: Path) -> tuple[str, str]:
    """Return the value of ``data_root`` and a comment on it.

    It is relative if config and data are in the current directory, so that a project can be moved.
    """
    here, folder = Path.cwd(), Path(os.path.realpath(out)).parent
    # mmengine inserts the folder into the source without escaping it.
    plain = not set('\'"\\{}\n') & {*str(folder), *str(root)}
    if plain and root.is_relative_to(here) and folder.is_relative_to(here):
        below = os.path.relpath(root, folder)
        text = '{{ fileDirname }}' + (f'/{below}' if below != '.' else '')
        return Source(repr(text)), \
            'data_root is relative to the folder of this file: move both together'
    return str(root), 'data_root is absolute: if the data move, change it or pass --data-root'


def format_source(base_config: Path, out: Path, content: dict[str, Any],
                  data: CustomDataset) -> str:
    """Return the source of the config, with comments on the dataset and the settings."""
    num_train, num_val = data.num_images
    base = format_base_path(base_config, out)
    if os.path.isabs(base):
        data.reasons.append('_base_ is an absolute path: change it on another machine')
    comments = [
        f'{num_train} training and {num_val} validation images, {len(data.classes)} classes, as '
        'found by colonnade create-config.', *data.reasons
    ]
    return format_config([*format_comments(comments), f'_base_ = {base!r}', ''], content)
