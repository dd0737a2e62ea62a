"""Implementation of ``colonnade check-dataset``."""
from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2

from colonnade.common.atomic_files import check_writable, write_json
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count
from colonnade.runtime.sanitize import one_line
from colonnade.settings.pipeline_steps import get_type_name
from colonnade.settings.reading import LaunchOptions, load_config
from colonnade.settings.rules import EFFECTS, RULES, STOPPING

from ..options import CheckDataOptions
from .conversion_sources import report_changes
from .listed_files import CheckLevel
from .sources import Source, check_source, find_sources
from .validation_report import NUM_SHOWN

CONSEQUENCES = {
    'loading': '{use} stops',
    'sample': '{use} stops at them{skip}',
    'meaning': '{use} continues with other data than intended',
    'none': '{use} continues',
}
MAX_WORKERS = 8


def check_datasets(options: CheckDataOptions) -> list[Source]:
    """Check every file of the datasets of a config.

    Returns:
        The datasets, each with its report.

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
        raise UserError(f'{options.config} reads no files for {", ".join(options.split)}')
    workers = options.workers or min(os.cpu_count() or 1, MAX_WORKERS)
    cv2.setLogLevel(0)  # OpenCV would log each damaged image
    known: set[Path] = set()
    for source in sources:
        level = CheckLevel(True, workers, True, allow_external_files=options.allow_external_files)
        print(f'{source.name}: reading annotations and all files ...', flush=True)
        check_source(cfg, source, level)
        report_changes(source.dataset, options.config, known, source.report)
    if options.json:
        write_json(
            Path(options.json),
            dict(
                stops_training=count_stopping_findings(sources),
                data_sets=[
                    dict(
                        name=source.name,
                        type=get_type_name(source.dataset.type),
                        images=source.num_images,
                        annotations=source.num_annotations,
                        **source.report.to_json()) for source in sources
                ]))
    return sources


def count_stopping_findings(sources: Sequence[Source]) -> int:
    """Return the number of findings that stop training or evaluation."""
    return sum(source.report.count_effects(*STOPPING) for source in sources)


def format_report(source: Source) -> Iterator[str]:
    """Yield lines with the first findings of each rule and effect, and how to fix them."""
    number = source.num_annotations
    annotations = f', {format_count(number, "annotation")}' if number else ''
    total = sum(source.report.counts.values())
    yield f'{source.name}: {format_count(source.num_images, "image")}{annotations}, ' \
          f'{format_count(total, "finding") if total else "no findings"}'
    use = 'evaluation' if source.split == 'test' else 'training'  # which evaluates, too
    skip = ', or skips them (--on-bad-sample skip)' if source.split == 'train' else ''
    groups = defaultdict(list)
    for finding in source.report.findings:
        groups[finding.rule, finding.effect].append(finding)
    for key in sorted(groups, key=lambda key: EFFECTS.index(key[1])):
        rule, count = RULES[key[0]], source.report.counts[key]
        consequence = CONSEQUENCES[key[1]].format(use=use, skip=skip)
        yield f'  {rule.title} ({count}): {consequence}. To do: {rule.fix}'
        for finding in groups[key][:NUM_SHOWN]:
            yield f'    {one_line(finding.message)}'
        if count > NUM_SHOWN:
            yield f'    and {count - NUM_SHOWN} more of this type'
