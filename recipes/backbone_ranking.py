"""Implementation of ``colonnade rank-backbones``, from its options to a table and a plot."""
from __future__ import annotations

import math
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from colonnade.common.atomic_files import check_writable, write_text
from colonnade.common.errors import UserError
from colonnade.datasets.custom.instance_datasets import CustomDataset
from colonnade.datasets.validation.validation_report import Report, find_repeated
from colonnade.evaluation.probing.backbones import RANDOM, NamedBackbone, parse_backbones
from colonnade.evaluation.probing.feature_cache import (CacheError, compute_cache_size,
                                                        get_default_cache)
from colonnade.evaluation.probing.probe_data import build_samples, draw_subset
from colonnade.evaluation.probing.ranking import MIB, Probes, RankingRow
from colonnade.evaluation.probing.ranking_plot import draw_ranking
from colonnade.evaluation.probing.ranking_table import (format_class_csv, format_ranking,
                                                        format_ranking_csv)

from .custom_data.config_creation import read_dataset_description
from .options import RankOptions


def complete_options(args: RankOptions) -> list[NamedBackbone]:
    """Check the options, fill in inferred ones, and return the backbones.

    Args:
        args: Options of ``colonnade rank-backbones``, modified in place.

    Raises:
        OSError: If a file is missing, or the output folder exists.
        ValueError: If an option has an invalid value.
    """
    if os.path.lexists(args.out):
        raise UserError(f'{args.out} already exists: choose another --out')
    for option in ('max_images', 'probe_steps', 'knn_patches', 'knn_k', 'size'):
        if (value := vars(args)[option]) < 1:
            raise UserError(f'--{option.replace("_", "-")} must be at least 1, got {value}')
    if not 0 < args.knn_temperature < math.inf:
        raise UserError(f'--knn-temperature must be positive, got {args.knn_temperature}')
    if args.in_channels is not None:
        raise UserError('--in-channels is not supported: backbones are ranked on RGB images')
    check_writable(args.out)
    names = [name if '=' in name or not args.random else f'{name}={RANDOM}'
             for name in args.backbones]  # yapf: disable
    if repeated := find_repeated(names):
        raise UserError(f'--backbones must be distinct, got {", ".join(repeated)} more than once')
    return parse_backbones(names)


def read_dataset(args: RankOptions, report: Report) -> CustomDataset | None:
    """Return the description of the dataset, or None if it has errors."""
    return read_dataset_description(args, report, masks=True, filter_cfg={})


def _build_probes(args: RankOptions, data: CustomDataset, cache: Path) -> Probes:
    """Return the probes on a random subset of at most ``--max-images``."""
    classes, train, val = build_samples(data)
    for split, samples in (('training', train), ('validation', val)):
        if len(samples) > args.max_images:
            print(f'using {args.max_images} of {len(samples)} {split} images (--max-images)')
    return Probes(
        classes=classes,
        train=draw_subset(train, args.max_images, args.seed),
        val=draw_subset(val, args.max_images, args.seed),
        size=args.size,
        out_indices=list(args.out_indices),
        probe_steps=args.probe_steps,
        knn_patches=args.knn_patches,
        knn_k=args.knn_k,
        knn_temperature=args.knn_temperature,
        seed=args.seed,
        device=args.device or ('cuda' if torch.cuda.is_available() else 'cpu'),
        cache=cache,
        trust=args.trust)


@contextmanager
def _open_cache(args: RankOptions) -> Iterator[Path]:
    """Context manager that returns the folder of features, a temporary one with ``--no-cache``."""
    if not args.no_cache:
        yield args.cache or get_default_cache()
        return
    with tempfile.TemporaryDirectory(prefix='colonnade_') as folder:
        yield Path(folder)


def rank_backbones(args: RankOptions, backbones: Sequence[NamedBackbone],
                   data: CustomDataset) -> list[str]:
    """Measure all backbones, update the table after each, and draw the plot at the end.

    Returns:
        A message for each backbone that failed.

    Raises:
        OSError: If features or results cannot be written.
    """
    rows: list[RankingRow] = []
    failures: list[str] = []
    with _open_cache(args) as folder:
        probes = _build_probes(args, data, folder)
        print('\n'.join([*data.reasons, _describe_settings(probes)]))
        for number, backbone in enumerate(backbones, 1):
            print(f'[{number}/{len(backbones)}] {backbone.text}', flush=True)
            try:
                rows.append(probes.measure(backbone))
            except CacheError:
                raise
            except (ValueError, OSError, RuntimeError) as error:
                failures.append(f'{backbone.text}: {error}')
                print(f'  failed: {error}', file=sys.stderr, flush=True)
                continue
            rows.sort(key=lambda row: (-row.linear_miou, row.seconds))
            _write_tables(args.out, rows, probes, failures)
        if not args.no_cache:
            print(f'features are cached in {folder}: {compute_cache_size(folder) / MIB:.1f} MiB')
    if rows:
        _write_tables(args.out, rows, probes, failures)
        title = f'{len(probes.train)} + {len(probes.val)} images, {len(probes.classes)} classes, ' \
                f'{probes.size} pixels'
        for suffix in ('png', 'svg'):
            draw_ranking(rows, args.out / f'picture.{suffix}', title, args.cost)
        print(f'\n{format_ranking(rows)}\nwritten: {args.out}')
    return failures


def _describe_settings(probes: Probes) -> str:
    """Return the settings that all rows share."""
    threads = f', threads: {torch.get_num_threads()}' if probes.device == 'cpu' else ''
    return ', '.join([
        f'{len(probes.train)} training and {len(probes.val)} validation images',
        f'{len(probes.classes)} classes',
        f'shorter side {probes.size} pixels',
        f'blocks {probes.out_indices}',
        f'{probes.probe_steps} steps',
        f'{probes.knn_k} neighbors of {probes.knn_patches} patches',
        f'temperature {probes.knn_temperature}',
        f'seed {probes.seed}',
        f'{probes.device}{threads}',
        f'torch {torch.__version__}',
    ])


def _write_tables(out: Path, rows: Sequence[RankingRow], probes: Probes,
                  failures: Sequence[str]) -> None:
    """Write the table as Markdown and CSV, and the IoU of each class."""
    failed = ''.join(f'\nFailed: {failure}\n' for failure in failures)
    command = shlex.join(['python', *sys.argv])
    settings = _describe_settings(probes)
    write_text(out / 'table.md', f'{format_ranking(rows)}\n{settings}\n\n    {command}\n{failed}')
    write_text(out / 'table.csv', format_ranking_csv(rows))
    write_text(out / 'classes.csv', format_class_csv(rows, probes.classes))
