"""A look at the data of a training before it starts; what was found is kept for the next start."""
from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.logging import print_log

from colonnade.common.atomic_files import write_json
from colonnade.common.distributed import VARIABLES, wait_for_all
from colonnade.common.errors import UserError
from colonnade.common.storage.file_access import is_remote
from colonnade.common.storage.object_storage import cache_folder
from colonnade.runtime.sanitize import one_line
from colonnade.settings.rules import RULES, STOPPING

from .conversion_sources import report_changes
from .label_map_files import ignored_labels
from .listed_files import Depth
from .sources import Source, check_source, find_sources
from .validation_report import Report

FORMAT = 4  # of what is kept; another one is looked at anew
SHOWN = 10  # findings of a kind that are kept
ADVICE = 'colonnade check_dataset CONFIG looks at every file and lists all'


class BadDataError(UserError):
    """Data that training would stop at."""


def run_preflight_checks(cfg: Config, *, skip: bool) -> None:
    """Look at annotations, names of files and some headers, in one process of each machine.

    Args:
        cfg: Of the training, whose processes have found each other.
        skip: Whether training goes on without samples that break.

    Raises:
        BadDataError: In all processes, if training or evaluation would stop at the data.
    """
    local_rank = VARIABLES.get(cfg.get('launcher', 'none'), ('', '', ''))[2]
    found = [] if int(os.environ.get(local_rank, 0)) else check_sources(cfg)
    wait_for_all()  # the first start with a large data set takes minutes
    stop, warn, skippable = [], [], True
    for each in unique(each for part in all_gather_object(found) for each in part):
        report = Report.from_json(each['report'])
        may_skip = skip and each['split'] == 'train'
        for finding in report.findings:
            if finding.rule in ('partly-checked', 'skipped-check'):
                print_log(f'{finding.message}. {ADVICE}', logger='current')
        stop += format_findings(report, each['name'], 'loading', *(() if may_skip else
                                                                   ('sample', )))
        warn += format_findings(report, each['name'], 'meaning', *(('sample', ) if may_skip else
                                                                   ()))
        skippable &= not report.number('loading', *(() if each['split'] == 'train' else
                                                    ('sample', )))  # yapf: disable
    for found_line, to_do in warn:
        print_log(f'{found_line}. {to_do}', logger='current', level=logging.WARNING)
    if stop:
        hint = '; --on-bad-sample skip trains without samples that break' if skippable else ''
        lines = [f'  {found_line}\n    {to_do}' for found_line, to_do in stop]
        raise BadDataError('\n'.join(['training would stop at its data:', *lines, ADVICE + hint]))
    if warn:
        print_log(ADVICE, logger='current', level=logging.WARNING)


def unique(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What machines found, once where they share the data."""
    return list({repr(item): item for item in items}.values())


def format_findings(report: Report, name: str, *effects: Any) -> list[tuple[str, str]]:
    """The first of each kind of finding of some effects, and what to do."""
    lines = []
    for (name_of_rule, effect), number in report.counts.items():
        if effect in effects:
            rule = RULES[name_of_rule]
            first = next(each for each in report.findings
                         if (each.rule, each.effect) == (name_of_rule, effect))  # yapf: disable
            lines.append((f'{name}: {rule.title} ({number}): {one_line(first.message)}',
                          f'To do: {rule.fix}'))
    return lines


def check_sources(cfg: Config) -> list[dict[str, Any]]:
    """Name, split and report of the data sets of training and validation."""
    found: list[dict[str, Any]] = []
    conversions: set[Path] = set()
    try:
        for source in find_sources(cfg, ('train', 'val')):
            report = read_or_make_report(cfg, source)
            changes = Report()  # of other files than the dataset's, whose report may be a kept one
            report_changes(source.dataset, cfg.filename, conversions, changes)
            found += [
                dict(name=source.name, split=source.split, report=each)
                for each in (report, changes.to_json(SHOWN))
            ]
    except Exception as error:  # data sets of others raise of all kinds; loading says it in full
        print_log(
            f'the data could not be looked at before training: {type(error).__name__}: {error}',
            logger='current',
            level=logging.WARNING)
    return found


def read_or_make_report(cfg: Config, source: Source) -> dict[str, Any]:
    """The report of a data set, from the cache if nothing has changed since.

    The cache is left out where the data are not all on this machine, or it cannot be written. What
    stops training is never kept: permissions and disks are repaired without a change of files.
    """
    about = f'{FORMAT} {source.key} {sorted(ignored_labels(cfg))}'
    key = hashlib.sha256(about.encode(errors='replace')).hexdigest()[:32]
    path = cache_folder() / 'checked_data' / f'{key}.json'
    try:
        content = json.loads(path.read_bytes())
        states, report = content['states'], content['report']
        Report.from_json(report)
        if states and all(read_state(each) == state for each, state in states.items()):
            return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # or it is damaged
        pass
    depth = Depth()
    check_source(cfg, source, depth)
    report = source.report.to_json(SHOWN)
    stops = source.report.number(*STOPPING)
    if not stops and not source.settings and not any(map(is_remote, depth.seen)):
        try:
            write_json(path, dict(states={each: read_state(each) for each in depth.seen},
                                  report=report))  # yapf: disable
        except (OSError, ValueError, TypeError):  # a home that is read-only; ids that are NaN
            pass
    return report


def read_state(path: str) -> list[int] | None:
    """What changes with a file or folder: size, times, inode; None if it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
