"""What ``tools/create_config.py`` does, from its arguments to a config."""
from __future__ import annotations

import shlex
from pathlib import Path

from mmengine.config import Config

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserError
from colonnade.datasets.custom.instance_datasets import OwnData, describe_instances
from colonnade.datasets.custom.label_map_datasets import describe_label_maps
from colonnade.datasets.formats.data_format import Kind
from colonnade.datasets.formats.format_detection import open_dataset
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.validation_report import Report
from colonnade.settings.findings import Finding
from colonnade.settings.reading import read_file

from ..options import NewConfigOptions
from .config_text import config_source, has_masks, load_recipe, settings
from .data_options import complete_data_options


def read_recipe(args: NewConfigOptions) -> Config:
    """Read the recipe, and fill in the options that follow from others.

    Args:
        args: The options of ``create_config``, after :func:`.data_options.check_options`; changed.

    Raises:
        FileNotFoundError: If there is no recipe of this name.
        ValueError: If the options do not go together with the recipe.
    """
    scopes = [scope for scope, data in (('mmdet', args.coco), ('mmseg', args.masks)) if data]
    cfg = load_recipe(args.leaf, scopes or ['mmdet', 'mmseg'])
    check_batch_size(cfg, args)
    complete_data_options(args)
    return cfg


def check_batch_size(cfg: Config, args: NewConfigOptions) -> None:
    """Raise a ValueError if the recipe's heads need more than one image."""
    head = cfg.model.get('decode_head')
    pools_to_one = isinstance(head, dict) and 1 in head.get('pool_scales', ())
    if pools_to_one and args.batch_size == args.gpus == 1:
        raise UserError(f'--batch-size 1 is too small: {head.type} normalises one value per image')


def look_at_data(args: DataOptions,
                 report: Report,
                 *,
                 masks: bool,
                 filter_cfg: dict,
                 polygons_alone: bool = False,
                 kind: Kind | None = None) -> OwnData | None:
    """What the data set is; None if it cannot be used.

    Args:
        args: After :func:`.data_options.complete_data_options`; changed if a format is read.
        report: Takes what is wrong.
        masks: Whether to use the segmentations of a COCO file.
        filter_cfg: Which of its images mmdet leaves out of training.
        polygons_alone: Whether training takes polygons and no RLE.
        kind: What the model learns from; ``None`` takes what there is.

    Raises:
        OSError: If a conversion cannot be read or written, or differs from one that is there.
        ValueError: If ``--data`` has no known form, or cannot be split.
    """
    if kind == 'instances' and not masks:
        args.boxes = True  # no mask is completed that nobody reads
    with open_dataset(args, kind, report):
        if report.num_faults:
            return None
        return _described(
            args, report, masks=masks, filter_cfg=filter_cfg, polygons_alone=polygons_alone)


def _described(args: DataOptions, report: Report, *, masks: bool, filter_cfg: dict,
               polygons_alone: bool) -> OwnData | None:
    if args.coco:
        return describe_instances(
            args.coco,
            args.images,
            args.classes,
            masks=masks and not args.boxes,
            filter_cfg=filter_cfg,
            report=report,
            polygons_alone=polygons_alone)
    data = describe_label_maps(
        args.masks,
        args.images,
        args.suffixes and tuple(args.suffixes),
        args.classes,
        zero=args.zero,
        ignore_255=args.ignore_255,
        report=report,
        lists=args.lists)
    if data and args.palette and len(args.palette) == len(data.classes):
        data.palette = args.palette
    return data


def look_at_recipes_data(cfg: Config, args: NewConfigOptions, report: Report) -> OwnData | None:
    """As :func:`look_at_data`, with what a recipe uses of a COCO file.

    Files outside of the dataset's folder are faults, because training would refuse them, unless
    ``args`` allows them.
    """
    filter_cfg = cfg.train_dataloader.dataset.get('filter_cfg') or {}
    steps = cfg.train_dataloader.dataset.pipeline
    data = look_at_data(
        args,
        report,
        masks=has_masks(cfg),
        filter_cfg=filter_cfg,
        polygons_alone=any(step.get('poly2mask') is False for step in steps),
        kind='labels' if cfg.default_scope == 'mmseg' else 'instances')
    if data and not args.allow_external_files:
        for path in data.outside:
            text = f'{path} is outside of {data.root}: move it there, or pass --allow-external-files'
            report.add(Finding('outside', text, (str(path), )))
    return data


def write_config(cfg: Config, args: NewConfigOptions, data: OwnData) -> None:
    """Write the config, if it is one.

    Raises:
        OSError: If it cannot be written.
        ValueError: If it cannot be made of the recipe.
    """
    assert args.out is not None  # see check_options
    content = settings(
        cfg, data, out=args.out, batch_size=args.batch_size, num_gpus=args.gpus, epochs=args.epochs)
    write_text(args.out, config_source(args.leaf, args.out, content, data))
    try:
        read_file(args.out, import_modules=False)
    except UserError as error:
        args.out.unlink()
        raise type(error)(f'no config can start from {args.leaf}: {error}') from error.__cause__


def train_command(config: Path, num_gpus: int = 1) -> str:
    """Return the command that trains a config."""
    name = shlex.quote(str(config))
    if num_gpus == 1:
        return f'colonnade train {name}'
    return f'torchrun --nproc-per-node {num_gpus} -m colonnade train {name} --launcher pytorch'
