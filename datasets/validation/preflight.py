"""Preflight check of the training data, whose result is cached for the next start."""
from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.logging import print_log

from colonnade.common.atomic_files import write_json
from colonnade.common.distributed import VARIABLES, wait_for_all
from colonnade.common.errors import UserCodeError, UserError
from colonnade.common.storage.file_access import is_remote
from colonnade.common.storage.object_storage import cache_folder
from colonnade.runtime.sanitize import one_line
from colonnade.settings.reading import report_third_party_errors
from colonnade.settings.rules import RULES, STOPPING

from .conversion_sources import report_changes
from .label_map_files import find_ignored_labels
from .listed_files import CheckLevel
from .sources import Source, check_source, find_sources
from .validation_report import Report

FORMAT = 5  # version of the cache; entries of other versions are not used
MAX_CACHED = 10  # findings per rule and effect
ADVICE = 'run colonnade check-dataset CONFIG to check every file and list all findings'


class BadDataError(UserError):
    """Data at which training would stop."""


def run_preflight_checks(cfg: Config, *, skip: bool) -> None:
    """Check annotations, file names and some headers, in one process per host.

    Args:
        cfg: Config of the training, whose process group is initialized.
        skip: Whether training skips samples that fail to load.

    Raises:
        BadDataError: In all processes, if training or evaluation would stop at the data.
    """
    local_rank = VARIABLES.get(cfg.get('launcher', 'none'), ('', '', ''))[2]
    reports = [] if int(os.environ.get(local_rank, 0)) else check_sources(cfg)
    wait_for_all()  # checking a large dataset for the first time takes minutes
    stopping, warning, is_skippable = [], [], True
    gathered = [each for reports in all_gather_object(reports) for each in reports]
    for each in {repr(each): each for each in gathered}.values():  # hosts can share data
        report, is_training = Report.from_json(each['report']), each['split'] == 'train'
        for finding in report.findings:
            if finding.rule in ('partly-checked', 'skipped-check'):
                print_log(f'{finding.message}; {ADVICE}', logger='current')
        sample = ('sample', )
        skips = skip and is_training
        stopping += _format_findings(report, each['name'], 'loading', *(() if skips else sample))
        warning += _format_findings(report, each['name'], 'meaning', *(sample if skips else ()))
        is_skippable &= not report.count_effects('loading', *(() if is_training else sample))
    for message, advice in warning:
        print_log(f'{message}. {advice}', logger='current', level=logging.WARNING)
    if stopping:
        hint = '; or pass --on-bad-sample skip to train without samples that fail to load' \
            if is_skippable else ''
        lines = [f'  {message}\n    {advice}' for message, advice in stopping]
        raise BadDataError('\n'.join(['training would stop at its data:', *lines, ADVICE + hint]))
    if warning:
        print_log(ADVICE, logger='current', level=logging.WARNING)


def _format_findings(report: Report, name: str, *effects: Any) -> list[tuple[str, str]]:
    """Return the first finding of each rule with one of some effects, and how to fix it."""
    lines = []
    for (rule_name, effect), count in report.counts.items():
        if effect in effects:
            rule = RULES[rule_name]
            first = next(each for each in report.findings
                         if (each.rule, each.effect) == (rule_name, effect))  # yapf: disable
            lines.append((f'{name}: {rule.title} ({count}): {one_line(first.message)}',
                          f'To do: {rule.fix}'))
    return lines


def check_sources(cfg: Config) -> list[dict[str, Any]]:
    """Return name, split and report (as JSON) of the training and validation datasets."""
    results: list[dict[str, Any]] = []
    conversions: set[Path] = set()
    try:
        with report_third_party_errors('the data could not be checked before training'):
            for source in find_sources(cfg, ('train', 'val')):
                report = _read_or_create_report(cfg, source)
                changes = Report()  # never cached, as it depends on files outside of the dataset
                report_changes(source.dataset, cfg.filename, conversions, changes)
                results += [
                    dict(name=source.name, split=source.split, report=each)
                    for each in (report, changes.to_json(MAX_CACHED))
                ]
    except UserCodeError as error:
        print_log(str(error), logger='current', level=logging.WARNING)
    return results


def _read_or_create_report(cfg: Config, source: Source) -> dict[str, Any]:
    """Return the report of a dataset, from the cache if no file has changed.

    Nothing is cached for data that are not all on this host. Findings that stop training are never
    cached, because permissions and disks can be fixed without changing files.
    """
    key = f'{FORMAT} {source.key} {sorted(find_ignored_labels(cfg))}'
    name = hashlib.sha256(key.encode(errors='replace')).hexdigest()[:32]
    path = cache_folder() / 'checked_data' / f'{name}.json'
    try:
        content = json.loads(path.read_bytes())
        states, report = content['states'], content['report']
        Report.from_json(report)
        if states and all(_read_state(each) == state for each, state in states.items()):
            return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged
        pass
    level = CheckLevel()
    check_source(cfg, source, level)
    report = source.report.to_json(MAX_CACHED)
    if not source.report.count_effects(*STOPPING) and not source.settings and not any(
            map(is_remote, level.visited)):
        try:
            write_json(path, dict(states={each: _read_state(each) for each in level.visited},
                                  report=report))  # yapf: disable
        except (OSError, ValueError, TypeError):  # read-only home directory; NaN as ID
            pass
    return report


def _read_state(path: str) -> list[int] | None:
    """Return what changes with a file or folder, or None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
