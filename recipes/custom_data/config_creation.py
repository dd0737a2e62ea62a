"""Implementation of ``colonnade create-config``, from its options to a config."""
from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import MissingFileError, UserError
from colonnade.datasets.custom.instance_datasets import CustomDataset, describe_instances
from colonnade.datasets.custom.label_maps import describe_label_maps
from colonnade.datasets.data_index import LabelSet
from colonnade.datasets.formats.data_format import AnnotationType
from colonnade.datasets.formats.format_detection import open_dataset
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.validation_report import Report
from colonnade.runtime.colors import distinct_colors
from colonnade.runtime.sanitize import one_line
from colonnade.settings.classes import adapt_num_classes
from colonnade.settings.config_values import has_masks, loads_segments
from colonnade.settings.config_writer import (Source, format_base_path, format_comments,
                                              format_config)
from colonnade.settings.findings import Finding
from colonnade.settings.reading import read_file

from ..options import NewConfigOptions
from .bands import IMPORTS, adapt_pipeline, build_band_settings, build_loading
from .scaled_schedule import scale_schedule

SPLITS = ('train', 'val')
REQUIRED_KEYS = ('default_scope', 'model', 'train_dataloader.batch_size',
                 'train_dataloader.dataset', 'val_dataloader.dataset', 'val_evaluator', 'train_cfg',
                 'optim_wrapper.optimizer.lr', 'param_scheduler', 'default_hooks.checkpoint')


def create_config(args: NewConfigOptions, report: Report) -> CustomDataset | None:
    """Check a dataset, and write the config unless the report has errors.

    Args:
        args: Options after :func:`.data_options.complete_options`.
        report: Report, to which findings are added.

    Returns:
        The dataset; None if it could not be read.

    Raises:
        OSError: If a file does not exist or cannot be written.
        ValueError: If the base config cannot be adapted, or the options do not match it.
    """
    cfg = read_base_config(args)
    data = read_dataset_for(cfg, args, report)
    if data is not None and not report.num_errors:
        write_config(cfg, args, data)
    return data


def read_base_config(args: NewConfigOptions) -> Config:
    """Return the base config, if it can be adapted to a custom dataset.

    Args:
        args: Options after :func:`.data_options.complete_options`.

    Raises:
        FileNotFoundError: If the base config does not exist.
        ValueError: If it cannot be adapted, or the options do not match it.
    """
    path = args.base_config
    if not path.is_file():
        raise MissingFileError(f'no such config file: {path}')
    cfg = read_file(path, import_modules=False)
    if missing := [key for key in REQUIRED_KEYS if _at(cfg, key) is None]:
        raise UserError(f'{path} is not a config for training and evaluation: it has no '
                        f'{", ".join(missing)}')
    scopes = [scope for scope, data in (('mmdet', args.coco), ('mmseg', args.masks)) if data]
    if cfg.default_scope not in (scopes or ['mmdet', 'mmseg']):
        raise UserError('--coco is for detectors and --masks for segmenters, but '
                        f'{path} is an {cfg.default_scope} config')
    if not isinstance(cfg.val_evaluator, dict):
        raise UserError(f'{path}: val_evaluator must be a single metric')
    for split in SPLITS:
        dataset = _at(cfg, f'{split}_dataloader.dataset')
        if not isinstance(dataset.get('pipeline'), list):
            raise UserError(f'{path}: {split}_dataloader.dataset must be a single dataset, got '
                            f'{dataset.get("type")}: start from a config for COCO or ADE20k')
    if adapt_num_classes(cfg.model, 1, 1 if loads_segments(cfg) else None) is None:
        raise UserError(f'{path}: nothing in model sets num_classes')
    head = cfg.model.get('decode_head')
    pools_to_one = isinstance(head, dict) and 1 in head.get('pool_scales', ())
    if pools_to_one and args.batch_size == args.gpus == 1:
        raise UserError(f'--batch-size 1 is too small: {head.type} would normalize over a single '
                        'value per channel')
    return cfg


def _at(cfg: Any, key: str) -> Any:
    """Return the value at a dotted key, or None."""
    for part in key.split('.'):
        cfg = cfg.get(part) if isinstance(cfg, (dict, Config)) else None
    return cfg


def read_dataset_description(args: DataOptions,
                             report: Report,
                             *,
                             masks: bool,
                             filter_cfg: dict,
                             num_bands: int | None = None,
                             polygons_only: bool = False,
                             kind: AnnotationType | None = None) -> CustomDataset | None:
    """Return the description of a dataset, or None if it has errors.

    Args:
        args: Options after :func:`.data_options.complete_data_options`.
        report: Report, to which findings are added.
        masks: Whether to use the segmentations of a COCO file.
        filter_cfg: Setting of mmdet that excludes images from training.
        num_bands: Bands of each image file, see :func:`.read_image_size`.
        polygons_only: Whether training supports polygons but not RLE.
        kind: Annotation type of the model. Defaults to that of the dataset.

    Raises:
        OSError: If a conversion cannot be read or written, or differs from an existing one.
        ValueError: If ``--data`` has an unknown format, or cannot be split.
    """
    if kind == 'instances' and not masks:
        args.boxes_only = True  # skips the completion of masks
    with open_dataset(args, kind, report) as data:
        if isinstance(data, LabelSet):
            return describe_label_maps(
                data,
                args.classes,
                label_zero=args.label_zero,
                ignore_255=args.ignore_255,
                num_bands=num_bands,
                report=report)
        if data is None:
            return None
        return describe_instances(
            data,
            args.classes,
            masks=masks and not args.boxes_only,
            filter_cfg=filter_cfg,
            report=report,
            num_bands=num_bands,
            polygons_only=polygons_only)


def read_dataset_for(cfg: Config, args: NewConfigOptions, report: Report) -> CustomDataset | None:
    """Call :func:`read_dataset_description` with the settings of a base config.

    External files are errors, because training would reject them, unless ``args`` allows them.
    """
    steps = cfg.train_dataloader.dataset.pipeline
    data = read_dataset_description(
        args,
        report,
        masks=has_masks(cfg),
        filter_cfg=cfg.train_dataloader.dataset.get('filter_cfg') or {},
        num_bands=args.num_bands,
        polygons_only=any(step.get('poly2mask') is False for step in steps),
        kind='labels'
        if cfg.default_scope == 'mmseg' else 'panoptic' if loads_segments(cfg) else 'instances')
    if data and not args.allow_external_files:
        for path in data.outside:
            report.add(
                Finding(
                    'outside', f'{path} is outside of {data.root}: move it there, or pass '
                    '--allow-external-files', (str(path), )))
    return data


def write_config(cfg: Config, args: NewConfigOptions, data: CustomDataset) -> None:
    """Write the config, with comments on the dataset and the settings.

    Args:
        cfg: Base config.
        args: Options of ``create-config``.
        data: Dataset; reasons for settings are added.

    Raises:
        OSError: If it cannot be written.
        ValueError: If the base config cannot be adapted.
    """
    assert args.out is not None  # see complete_options
    content = _build_settings(cfg, args, data, args.out)
    base = format_base_path(args.base_config, args.out)
    if os.path.isabs(base):
        data.reasons.append('_base_ is an absolute path: change it on another machine')
    num_train, num_val = data.num_images
    comments = [
        f'{num_train} training and {num_val} validation images, {len(data.classes)} classes, as '
        'found by colonnade create-config.', *data.reasons
    ]
    # A command with line breaks or other control characters could not be read back.
    command = [f'# {args.command}'] if one_line(args.command) == args.command else []
    head = [*command, *format_comments(comments), f'_base_ = {base!r}', '']
    write_text(args.out, format_config(head, content))
    try:
        read_file(args.out, import_modules=False)
    except UserError as error:
        args.out.unlink()
        raise type(error)(
            f'no config can inherit from {args.base_config}: {error}') from error.__cause__


def _build_settings(cfg: Config, args: NewConfigOptions, data: CustomDataset,
                    out: Path) -> dict[str, Any]:
    """Return the settings of the config, in order."""
    palette = [tuple(map(int, c)) for c in data.palette or distinct_colors(len(data.classes))]
    model = adapt_num_classes(cfg.model, len(data.classes), data.num_things)
    loading = build_loading(args) if args.in_channels else None
    common = dict(data_root=Source('data_root'), metainfo=Source('metainfo'))
    datasets = [dict(dataset, **common) for dataset in data.datasets]
    for split, dataset in zip(SPLITS, datasets, strict=True):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        if loading:
            dataset['pipeline'] = pipeline = adapt_pipeline(pipeline, loading)
        if any('reduce_zero_label' in step for step in pipeline):
            # Many mmseg pipelines repeat a setting that the dataset class determines.
            dataset['pipeline'] = [{
                key: step[key]
                for key in step if key != 'reduce_zero_label'
            } for step in pipeline]
    evaluator, slash = {}, '' if str(data.root) == '/' else '/'
    if data.ann_file:
        evaluator['ann_file'] = Source(f'data_root + {slash + data.ann_file!r}')
    metainfo = dict(classes=data.classes, palette=palette)
    if data.num_things is not None:
        metainfo |= dict(
            thing_classes=data.classes[:data.num_things],
            stuff_classes=data.classes[data.num_things:])
        evaluator['seg_prefix'] = Source(
            f'data_root + {slash + datasets[1]["data_prefix"]["seg"]!r}')
    if has_masks(cfg) and not data.masks:
        _remove_masks(cfg, model, datasets, evaluator)
    batch: dict[str, Any] = dict(batch_size=args.batch_size) if args.batch_size else {}
    changes, reasons = scale_schedule(
        cfg,
        data.num_images[0],
        num_val=data.num_images[1],
        images_per_gpu=args.batch_size,
        num_gpus=args.gpus,
        epochs=args.epochs)
    imports = list(IMPORTS[cfg.default_scope]) if args.in_channels else []
    if args.unlabeled:
        from .unlabeled import build_hooks  # imports torchvision
        imports.append('colonnade.engine.mean_teacher')
        changes['custom_hooks'], note = build_hooks(
            cfg,
            changes.get('custom_hooks') or [hook for hook in cfg.get('custom_hooks') or [] if hook],
            args.unlabeled, datasets[0].get('pipeline', cfg.train_dataloader.dataset.pipeline),
            args.band_suffixes[0] if args.band_suffixes else None,
            _count_iterations(changes['train_cfg'], data.num_images[0],
                              batch.get('batch_size', cfg.train_dataloader.batch_size) * args.gpus),
            _format_root(Path(os.path.abspath(args.unlabeled)), out)[0])
        reasons.append(note)
    root, note = _format_root(data.root, out)
    data.reasons += [*reasons, note]
    content: dict[str, Any] = {}
    if imports:
        content['custom_imports'] = dict(
            imports=[*cfg.custom_imports.imports, *imports], allow_failed_imports=False)
    if loading:
        changed, note = build_band_settings(cfg, args, data)
        model |= {key: model.get(key, {}) | value for key, value in changed.items()}
        data.reasons.append(note)
        if 'tta_pipeline' in cfg:
            content['tta_pipeline'] = adapt_pipeline(cfg.tta_pipeline, loading)
    content |= dict(
        data_root=root,
        metainfo=metainfo,
        model=model,
        train_dataloader=dict(batch, dataset=datasets[0]),
        val_dataloader=dict(dataset=datasets[1]),
        test_dataloader=Source('val_dataloader'))
    if evaluator:
        content |= dict(val_evaluator=evaluator, test_evaluator=Source('val_evaluator'))
    return content | changes


def _count_iterations(train_cfg: dict[str, Any], num_images: int, images_per_step: int) -> int:
    """Return the length of a training in iterations."""
    epochs = train_cfg.get('max_epochs')
    return epochs * -(-num_images // images_per_step) if epochs else train_cfg['max_iters']


def _remove_masks(cfg: Config, model: dict, datasets: list[dict], evaluator: dict) -> None:
    """Remove everything that needs masks, which turns Mask R-CNN into Faster R-CNN."""
    if 'roi_head' not in model:
        raise UserError(f'{cfg.model.type} cannot be trained without masks: use a box '
                        'detector, such as those in configs/faster_rcnn and configs/dino')
    if cfg.model.type == 'MaskRCNN':
        model['type'] = 'FasterRCNN'
    model['data_preprocessor'] = dict(pad_mask=False)
    model['roi_head'] = dict(model['roi_head'], mask_roi_extractor=None, mask_head=None)
    for split, dataset in zip(SPLITS, datasets, strict=True):
        dataset['pipeline'] = [
            dict(step, **{key: False
                          for key in ('with_mask', 'by_mask') if key in step})
            for step in dataset.get('pipeline', cfg[f'{split}_dataloader'].dataset.pipeline)
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


def format_train_command(config: Path, num_gpus: int = 1) -> str:
    """Return the command line that trains a config."""
    name = shlex.quote(str(config))
    if num_gpus == 1:
        return f'colonnade train {name}'
    return f'torchrun --nproc-per-node {num_gpus} -m colonnade train {name} --launcher pytorch'
