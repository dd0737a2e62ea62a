"""Implementation of ``colonnade create-config``, from its options to a config."""
from __future__ import annotations

import shlex
from pathlib import Path

from mmengine.config import Config

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserError
from colonnade.datasets.custom.instance_datasets import CustomDataset, describe_instances
from colonnade.datasets.custom.label_maps import describe_label_maps
from colonnade.datasets.data_index import LabelSet
from colonnade.datasets.formats.data_format import AnnotationType
from colonnade.datasets.formats.format_detection import open_dataset
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.validation_report import Report
from colonnade.settings.findings import Finding
from colonnade.settings.reading import read_file

from ..options import NewConfigOptions
from .config_text import build_settings, format_source, has_masks, load_recipe
from .data_options import complete_data_options


def read_recipe(args: NewConfigOptions) -> Config:
    """Read the base config, and fill in inferred options.

    Args:
        args: Options after :func:`.data_options.check_options`, modified in place.

    Raises:
        FileNotFoundError: If the base config does not exist.
        ValueError: If the options do not match it.
    """
    scopes = [scope for scope, data in (('mmdet', args.coco), ('mmseg', args.masks)) if data]
    cfg = load_recipe(args.base_config, scopes or ['mmdet', 'mmseg'])
    head = cfg.model.get('decode_head')
    pools_to_one = isinstance(head, dict) and 1 in head.get('pool_scales', ())
    if pools_to_one and args.batch_size == args.gpus == 1:
        raise UserError(f'--batch-size 1 is too small: {head.type} normalizes one value per image')
    complete_data_options(args)
    return cfg


def read_dataset_description(args: DataOptions,
                             report: Report,
                             *,
                             masks: bool,
                             filter_cfg: dict,
                             polygons_only: bool = False,
                             kind: AnnotationType | None = None) -> CustomDataset | None:
    """Return the description of a dataset, or None if it has errors.

    Args:
        args: Options after :func:`.data_options.complete_data_options`.
        report: Report, to which findings are added.
        masks: Whether to use the segmentations of a COCO file.
        filter_cfg: Setting of mmdet that excludes images from training.
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
                report=report)
        if data is None:
            return None
        return describe_instances(
            data,
            args.classes,
            masks=masks and not args.boxes_only,
            filter_cfg=filter_cfg,
            report=report,
            polygons_only=polygons_only)


def read_recipe_dataset(cfg: Config, args: NewConfigOptions,
                        report: Report) -> CustomDataset | None:
    """Call :func:`read_dataset_description` with the settings of a base config.

    External files are errors, because training would reject them, unless ``args`` allows them.
    """
    steps = cfg.train_dataloader.dataset.pipeline
    data = read_dataset_description(
        args,
        report,
        masks=has_masks(cfg),
        filter_cfg=cfg.train_dataloader.dataset.get('filter_cfg') or {},
        polygons_only=any(step.get('poly2mask') is False for step in steps),
        kind='labels' if cfg.default_scope == 'mmseg' else 'instances')
    if data and not args.allow_external_files:
        for path in data.outside:
            report.add(
                Finding(
                    'outside', f'{path} is outside of {data.root}: move it there, or pass '
                    '--allow-external-files', (str(path), )))
    return data


def write_config(cfg: Config, args: NewConfigOptions, data: CustomDataset) -> None:
    """Write the config.

    Raises:
        OSError: If it cannot be written.
        ValueError: If the base config cannot be adapted.
    """
    assert args.out is not None  # see check_options
    content = build_settings(
        cfg, data, out=args.out, batch_size=args.batch_size, num_gpus=args.gpus, epochs=args.epochs)
    write_text(args.out, format_source(args.base_config, args.out, content, data))
    try:
        read_file(args.out, import_modules=False)
    except UserError as error:
        args.out.unlink()
        raise type(error)(
            f'no config can inherit from {args.base_config}: {error}') from error.__cause__


def format_train_command(config: Path, num_gpus: int = 1) -> str:
    """Return the command line that trains a config."""
    name = shlex.quote(str(config))
    if num_gpus == 1:
        return f'colonnade train {name}'
    return f'torchrun --nproc-per-node {num_gpus} -m colonnade train {name} --launcher pytorch'
