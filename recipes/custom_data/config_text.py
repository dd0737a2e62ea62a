"""The config of a recipe for one's own data, as its source."""
from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.errors import MissingFileError, UserError
from colonnade.datasets.custom.instance_datasets import OwnData
from colonnade.runtime.colors import distinct_colors
from colonnade.settings.classes import with_num_classes
from colonnade.settings.config_writer import Source, base_path, comment_lines, laid_out
from colonnade.settings.reading import read_file

from .scaled_schedule import schedule

SPLITS = ('train', 'val')
NEEDED = ('default_scope', 'model', 'train_dataloader.batch_size', 'train_dataloader.dataset',
          'val_dataloader.dataset', 'val_evaluator', 'train_cfg', 'optim_wrapper.optimizer.lr',
          'param_scheduler', 'default_hooks.checkpoint')


def load_recipe(leaf: Path, scopes: Collection[str] = ('mmdet', 'mmseg')) -> Config:
    """A config that can be changed to train on one's own data.

    Args:
        leaf: Its file.
        scopes: Which of mmdet and mmseg can train on the data.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is none.
    """
    if not os.path.isfile(leaf):
        raise MissingFileError(f'no config file {leaf}')
    cfg = read_file(leaf, import_modules=False)
    missing = [key for key in NEEDED if _at(cfg, key) is None]
    if missing:
        raise UserError(f'{leaf} is no config that trains and evaluates: it has no '
                        f'{", ".join(missing)}')
    if cfg.default_scope not in scopes:
        raise UserError('--coco is for detectors, --masks for segmenters, and '
                        f'{leaf} is a config of {cfg.default_scope}')
    if not isinstance(cfg.val_evaluator, dict):
        raise UserError(f'{leaf}: val_evaluator must be one metric')
    for split in SPLITS:
        dataset = _at(cfg, f'{split}_dataloader.dataset')
        if not isinstance(dataset.get('pipeline'), list):
            raise UserError(f'{leaf}: {split}_dataloader.dataset must be one data set, not a '
                            f'{dataset.get("type")}')
    if with_num_classes(cfg.model, 1) is None:
        raise UserError(f'{leaf}: nothing in model says num_classes')
    return cfg


def _at(cfg: Any, key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    for part in key.split('.'):
        cfg = cfg.get(part) if isinstance(cfg, dict) or isinstance(cfg, Config) else None
    return cfg


def has_masks(cfg: Config) -> bool:
    """Whether a detector is trained with masks."""
    return any(step.get('with_mask') for step in cfg.train_dataloader.dataset.pipeline)


def settings(cfg: Config,
             data: OwnData,
             *,
             out: Path,
             batch_size: int | None = None,
             num_gpus: int = 1,
             epochs: int | None = None) -> dict[str, Any]:
    """All that the config sets, in order.

    Args:
        cfg: The recipe.
        data: What it is to train on; takes the reasons for what is set.
        out: Where the config will lie.
        batch_size: Images a GPU; ``None`` is the recipe's.
        num_gpus: How many GPUs, or processes, will train.
        epochs: See :func:`~.scaled_schedule.schedule`.
    """
    colours = data.palette or distinct_colors(len(data.classes))
    palette = [tuple(map(int, colour)) for colour in colours]
    model = with_num_classes(cfg.model, len(data.classes))
    common = dict(data_root=Source('data_root'), metainfo=Source('metainfo'))
    datasets = [dict(dataset, **common) for dataset in data.datasets]
    _leave_zero_label_to_the_data(cfg, datasets)
    evaluator = {}
    if data.ann_file:
        slash = '' if str(data.root) == '/' else '/'
        evaluator['ann_file'] = Source(f'data_root + {slash + data.ann_file!r}')
    if has_masks(cfg) and not data.masks:
        _train_boxes_alone(cfg, model, datasets, evaluator)
    train: dict[str, Any]
    train, val = ({'dataset': dataset} for dataset in datasets)
    if batch_size:
        train = dict(batch_size=batch_size, **train)
    changes, reasons = schedule(
        cfg,
        data.num_images[0],
        num_val=data.num_images[1],
        images_per_gpu=batch_size,
        num_gpus=num_gpus,
        epochs=epochs)
    root, where = _root(data.root, out)
    data.reasons += [*reasons, where]
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


def _leave_zero_label_to_the_data(cfg: Config, datasets: list[dict]) -> None:
    """Pipelines without what they say of label 0, as many of mmseg's configs do."""
    for split, dataset in zip(SPLITS, datasets, strict=True):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        if any('reduce_zero_label' in step for step in pipeline):
            dataset['pipeline'] = [{
                key: step[key]
                for key in step if key != 'reduce_zero_label'
            } for step in pipeline]


def _train_boxes_alone(cfg: Config, model: dict, datasets: list[dict], evaluator: dict) -> None:
    """Leave out all that needs masks: of Mask R-CNN, Faster R-CNN remains."""
    if 'roi_head' not in model:
        raise UserError(f'{cfg.model.type} cannot be trained without masks: take a detector of '
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


def _root(root: Path, out: Path) -> tuple[str, str]:
    """The folder of the data as the config names it, and why.

    Both below the current directory are parts of one project, which may move.
    """
    here, folder = Path.cwd(), Path(os.path.realpath(out)).parent
    # mmengine puts it into the source as it is
    plain = not set('\'"\\{}\n') & {*str(folder), *str(root)}
    if plain and root.is_relative_to(here) and folder.is_relative_to(here):
        below = os.path.relpath(root, folder)
        text = '{{ fileDirname }}' + (f'/{below}' if below != '.' else '')
        return Source(repr(text)), \
            'data_root starts from the folder of this file: move both together'
    return str(root), 'data_root is absolute: if the data move, change it or say --data-root'


def config_source(leaf: Path, out: Path, content: dict[str, Any], data: OwnData) -> str:
    """The config file: what was found and chosen as comments, the recipe, and what it sets."""
    trained, evaluated = data.num_images
    base = base_path(leaf, out)
    if os.path.isabs(base):
        data.reasons.append('_base_ is an absolute path: on another machine, change it to where '
                            'the config is there')
    comments = [
        f'{trained} training and {evaluated} validation images, {len(data.classes)} classes, as '
        'colonnade create_config found them.', *data.reasons
    ]
    return laid_out([*comment_lines(comments), f'_base_ = {base!r}', ''], content)
