"""Implementation of ``colonnade check-config``: everything that is wrong with a config."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.atomic_files import write_json
from colonnade.datasets.validation.label_map_files import find_label_problems
from colonnade.models.build_checks import check_model
from colonnade.settings.checks.all_checks import find_problems
from colonnade.settings.config_types import find_type_errors
from colonnade.settings.dataset_paths import (DATALOADERS, exists, find_datasets, get_dataset_paths,
                                              redirect_data_root)
from colonnade.settings.findings import Finding, drop_accepted, get_errors
from colonnade.settings.overrides import apply_options
from colonnade.settings.reading import read_config
from colonnade.settings.rules import SEVERITIES


def examine(config: str | Path,
            *,
            data_root: str | Path | None = None,
            cfg_options: dict[str, Any] | None = None,
            step: bool = False) -> list[Finding]:
    """Return everything that is wrong with a config, errors first.

    Args:
        config: Config file.
        data_root: Root of the dataset. If given, missing data are errors.
        cfg_options: Settings that override the config.
        step: Whether to run a training step on two synthetic images if there is no error.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it cannot be read, or is not a config of a detector or segmenter.
    """
    cfg = read_config(Path(config))
    if findings := _check_types(cfg):
        return [*findings, _note_skipped('all other rules')]
    if data_root is not None:
        try:
            redirect_data_root(cfg, data_root)
        except (OSError, ValueError) as error:
            findings.append(Finding('data-root', str(error), ('--data-root', )))
    wrong_options = apply_options(cfg, cfg_options or {})
    if type_errors := _check_types(cfg):
        return [*findings, *type_errors, _note_skipped('all other rules')]
    findings += [
        Finding('unknown-option', message, (key, )) for key, message in wrong_options.items()
    ]
    loaders = tuple(key for key in DATALOADERS if cfg.get(key))
    findings += [
        each for each in find_problems(cfg, loaders, [find_label_problems])
        if not wrong_options.keys() & set(each.places)
    ]
    findings += _check_data(cfg, is_required=data_root is not None)
    folder = Path(cfg.get('work_dir') or 'work_dirs').absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = 'not writable' if folder.is_dir() else 'not a directory'
        findings.append(
            Finding('work-dir', f'work_dir: {folder} is {reason}', ('work_dir', ),
                    'choose another folder'))
    if get_errors(findings):
        findings.append(_note_skipped('rules for built models'))
    else:
        findings += check_model(cfg, step=step)
    return sorted(drop_accepted(findings, cfg), key=lambda each: SEVERITIES.index(each.severity))


def _check_types(cfg: Config) -> list[Finding]:
    return [
        Finding('config-section', problem, (problem.split()[0], ))
        for problem in find_type_errors(cfg)
    ]


def _note_skipped(rules: str) -> Finding:
    return Finding('not-checked', f'{rules} were not checked: fix the errors first')


def _check_data(cfg: Config, *, is_required: bool) -> list[Finding]:
    """Return missing paths of datasets: as errors if they are required, otherwise as one note."""
    missing: dict[str, str] = {}
    for name, dataset in find_datasets(cfg):
        for path in get_dataset_paths(dataset):
            if not exists(path, dataset.get('backend_args')):
                missing.setdefault(path, name)
    if is_required:
        return [Finding('missing-data', f'{path} ({name}) does not exist', (name, ))
                for path, name in missing.items()]  # yapf: disable
    if not missing:
        return []
    text = f'classes and labels were not compared with the data: {next(iter(missing))} does not ' \
           'exist'
    places = tuple(dict.fromkeys(missing.values()))
    return [Finding('not-checked', text, places, 'pass --data-root DIR')]


def write_findings(path: Path, config: str | Path, findings: list[Finding]) -> None:
    """Write findings as JSON."""
    counts = {f'{kind}s': sum(each.severity == kind for each in findings) for kind in SEVERITIES}
    content = [each.to_json() for each in findings]
    write_json(path, dict(config=str(config), **counts, findings=content))
