"""What ``tools/rank_backbones.py`` does, from its arguments to a table and a picture."""
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
from colonnade.datasets.custom.instance_datasets import OwnData
from colonnade.datasets.validation.validation_report import Report, find_repeated
from colonnade.evaluation.probing.backbones import RANDOM, NamedBackbone, named_backbones
from colonnade.evaluation.probing.feature_cache import CacheError, default_folder, size_of
from colonnade.evaluation.probing.probe_data import samples_of, subset
from colonnade.evaluation.probing.ranking import MIB, Probes, Row
from colonnade.evaluation.probing.ranking_plot import draw
from colonnade.evaluation.probing.ranking_table import classes_csv, markdown, summary_csv

from .custom_data.config_creation import look_at_data
from .options import RankOptions


def complete(args: RankOptions) -> list[NamedBackbone]:
    """Check the options, fill in what follows from others, and name the backbones.

    Args:
        args: Of ``tools/rank_backbones.py``; changed.

    Raises:
        OSError: If a file is missing, or the folder to write exists.
        ValueError: If the options do not go together.
    """
    if os.path.lexists(args.out):
        raise UserError(f'{args.out} exists: name another --out')
    for option in ('max_images', 'steps', 'memory', 'neighbours', 'size'):
        if getattr(args, option) < 1:
            raise UserError(f'--{option.replace("_", "-")} must be at least 1')
    if not 0 < args.temperature < math.inf:
        raise UserError(f'--temperature must be positive, got {args.temperature}')
    check_writable(args.out)
    texts = [text if '=' in text or not args.random else f'{text}={RANDOM}'
             for text in args.backbones]  # yapf: disable
    if twice := find_repeated(texts):
        raise UserError(f'--backbones must differ, got {", ".join(twice)} more than once')
    args.device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    return named_backbones(texts)


def look(args: RankOptions, report: Report) -> OwnData | None:
    """What the data set is; None if it cannot be used."""
    return look_at_data(args, report, masks=True, filter_cfg={})


def probes_of(args: RankOptions, data: OwnData, cache: Path) -> Probes:
    """What is done with the data set, on a part of it if it is large; features go to ``cache``."""
    classes, train, val = samples_of(data)
    for split, samples in (('training', train), ('validation', val)):
        if len(samples) > args.max_images:
            print(f'remark: {args.max_images} of {len(samples)} {split} images are drawn '
                  '(--max-images)')
    return Probes(
        classes=classes,
        train=subset(train, args.max_images, args.seed),
        val=subset(val, args.max_images, args.seed),
        size=args.size,
        out_indices=args.out_indices,
        steps=args.steps,
        memory=args.memory,
        neighbours=args.neighbours,
        temperature=args.temperature,
        seed=args.seed,
        device=args.device,
        cache=cache,
        trust=args.trust)


@contextmanager
def cache_folder(args: RankOptions) -> Iterator[Path]:
    """Where features are kept; with ``--no-cache`` as long as the context is open."""
    if not args.no_cache:
        yield args.cache or default_folder()
        return
    with tempfile.TemporaryDirectory(prefix='colonnade_') as folder:
        yield Path(folder)


def rank(args: RankOptions, backbones: Sequence[NamedBackbone], data: OwnData) -> list[str]:
    """Measure all backbones; write the table after each, print and draw it at the end.

    Returns:
        A sentence for each backbone that failed.

    Raises:
        OSError: If features or results cannot be written.
    """
    rows: list[Row] = []
    failures: list[str] = []
    with cache_folder(args) as folder:
        probes = probes_of(args, data, folder)
        print('\n'.join([*data.reasons, setting(probes)]))
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
            write_tables(args.out, rows, probes, failures)
        if not args.no_cache:
            print(f'all features in {folder}: {size_of(folder) / MIB:.1f} MiB')
    if rows:
        write_tables(args.out, rows, probes, failures)
        write_pictures(args.out, rows, probes, args.cost)
        print(f'\n{markdown(rows)}\nwritten: {args.out}')
    return failures


def setting(probes: Probes) -> str:
    """What all rows have in common."""
    threads = f', threads: {torch.get_num_threads()}' if probes.device == 'cpu' else ''
    return ', '.join([
        f'{len(probes.train)} training and {len(probes.val)} validation images',
        f'{len(probes.classes)} classes',
        f'shorter side {probes.size} pixels',
        f'blocks {probes.out_indices}',
        f'{probes.steps} steps',
        f'{probes.neighbours} neighbours of {probes.memory} patches',
        f'temperature {probes.temperature}',
        f'seed {probes.seed}',
        f'{probes.device}{threads}',
        f'torch {torch.__version__}',
    ])


def write_tables(out: Path, rows: Sequence[Row], probes: Probes, failures: Sequence[str]) -> None:
    """Write the table, the same as CSV, and the IoU of each class."""
    failed = ''.join(f'\nFailed: {failure}\n' for failure in failures)
    command = shlex.join(['python', *sys.argv])
    write_text(out / 'table.md', f'{markdown(rows)}\n{setting(probes)}\n\n    {command}\n{failed}')
    write_text(out / 'table.csv', summary_csv(rows))
    write_text(out / 'classes.csv', classes_csv(rows, probes.classes))


def write_pictures(out: Path, rows: Sequence[Row], probes: Probes, cost: str) -> None:
    """Draw quality against cost."""
    title = f'{len(probes.train)} + {len(probes.val)} images, {len(probes.classes)} classes, ' \
            f'{probes.size} pixels'
    for kind in ('png', 'svg'):
        draw(rows, out / f'picture.{kind}', title, cost)
