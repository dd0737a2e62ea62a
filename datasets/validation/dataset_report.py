"""What ``tools/check_dataset.py`` does, from its options to a report."""
from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2

from colonnade.common.atomic_files import check_writable, write_json
from colonnade.common.errors import UserError
from colonnade.runtime.sanitize import one_line
from colonnade.settings.pipeline_steps import name_of
from colonnade.settings.reading import LaunchOptions, load_config
from colonnade.settings.rules import EFFECTS, RULES, STOPPING

from ..options import CheckDataOptions
from .conversion_sources import report_changes
from .listed_files import Depth
from .sources import Source, check_source, find_sources
from .validation_report import SHOWN_OF_A_KIND

CONSEQUENCES = {
    'loading': 'training stops',
    'sample': 'training stops at them, or skips them (--on-bad-sample skip)',
    'meaning': 'training goes on with other data than meant',
    'none': 'training goes on',
}
MOST_WORKERS = 8


def check_data_sets(options: CheckDataOptions) -> list[Source]:
    """Look at every file of the data sets of a config.

    Returns:
        The data sets, each with its report.

    Raises:
        OSError: If the config cannot be read, or the report cannot be written.
        ValueError: If the options do not fit the config, or it reads no files.
    """
    if options.workers is not None and options.workers < 1:
        raise UserError(f'--workers must be at least 1, got {options.workers}')
    if options.json:
        check_writable(Path(options.json))
    cfg = load_config(
        LaunchOptions(options.config, cfg_options=options.cfg_options, data_root=options.data_root))
    sources = list(find_sources(cfg, options.split))
    if not sources:
        raise UserError(f'{options.config} reads no files in {", ".join(options.split)}')
    workers = options.workers or min(os.cpu_count() or 1, MOST_WORKERS)
    cv2.setLogLevel(0)  # of each damaged image
    known: set[Path] = set()
    for source in sources:
        depth = Depth(True, workers, True, allow_external_files=options.allow_external_files)
        print(f'{source.name}: reading annotations and all files ...', flush=True)
        check_source(cfg, source, depth)
        report_changes(source.dataset, options.config, known, source.report)
    if options.json:
        write_json(Path(options.json), as_json(sources))
    return sources


def as_json(sources: Sequence[Source]) -> dict[str, Any]:
    """The report as JSON: at most a thousand findings of a kind and data set, and all numbers."""
    return dict(
        stops_training=stops_training(sources),
        data_sets=[
            dict(
                name=source.name,
                type=name_of(source.dataset.type),
                images=source.num_images,
                annotations=source.num_annotations,
                **source.report.to_json()) for source in sources
        ])


def stops_training(sources: Sequence[Source]) -> int:
    """How many findings stop training or evaluation."""
    return sum(source.report.number(*STOPPING) for source in sources)


def format_count(number: int, name: str) -> str:
    """A number of things, in the singular or plural."""
    return f'{number} {name}' + 's' * (number != 1)


def format_report(source: Source) -> Iterator[str]:
    """What was found in a data set, for a terminal: the first of each kind, and what to do."""
    number = source.num_annotations
    annotations = f', {format_count(number, "annotation")}' if number else ''
    total = sum(source.report.counts.values())
    yield f'{source.name}: {format_count(source.num_images, "image")}{annotations}, ' \
          f'{format_count(total, "finding") if total else "no findings"}'
    of_kind = defaultdict(list)
    for finding in source.report.findings:
        of_kind[finding.rule, finding.effect].append(finding)
    for key in sorted(of_kind, key=lambda key: EFFECTS.index(key[1])):
        rule, count = RULES[key[0]], source.report.counts[key]
        yield f'  {rule.title} ({count}): {CONSEQUENCES[key[1]]}. To do: {rule.fix}'
        for finding in of_kind[key][:SHOWN_OF_A_KIND]:
            yield f'    {one_line(finding.message)}'
        if count > SHOWN_OF_A_KIND:
            yield f'    and {count - SHOWN_OF_A_KIND} more of this kind'
