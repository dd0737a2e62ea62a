"""What ``tools/check_config.py`` does: everything that is wrong with a config, at once."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.atomic_files import write_json
from colonnade.datasets.validation.label_map_files import find_label_problems
from colonnade.models.build_checks import building_problems
from colonnade.settings.checks.all_checks import findings
from colonnade.settings.config_types import kind_problems
from colonnade.settings.dataset_paths import (DATALOADERS, exists, find_datasets, paths_of,
                                              redirect_data_root)
from colonnade.settings.findings import Finding, errors_of
from colonnade.settings.overrides import apply_options
from colonnade.settings.reading import read_config
from colonnade.settings.rules import SEVERITIES


def examine(config: str | Path,
            *,
            data_root: str | Path | None = None,
            cfg_options: dict[str, Any] | None = None,
            step: bool = False) -> list[Finding]:
    """Everything that is wrong with a config, the errors first.

    Args:
        config: A file.
        data_root: Where the data are; if it is given, they must be there.
        cfg_options: Settings that override the config.
        step: If nothing else is wrong, take a step of training on two drawn images.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read, or is no config of a detector or segmenter.
    """
    cfg = read_config(Path(config))
    if found := kind_findings(cfg):
        return [*found, not_run('all other rules')]
    if data_root is not None:
        try:
            redirect_data_root(cfg, data_root)
        except (OSError, ValueError) as error:
            found.append(Finding('data-root', str(error), ('--data-root', )))
    wrong = apply_options(cfg, cfg_options or {})
    if of_options := kind_findings(cfg):
        return [*found, *of_options, not_run('all other rules')]
    found += [Finding('unknown-option', says, (key, )) for key, says in wrong.items()]
    loaders = tuple(key for key in DATALOADERS if cfg.get(key))
    found += [
        each for each in findings(cfg, loaders, [find_label_problems])
        if not wrong.keys() & set(each.places)
    ]
    found += missing_data(cfg, must_be_there=data_root is not None)
    found += work_dir_problem(cfg)
    if errors_of(found):
        found.append(not_run('rules on the model when it is built'))
    else:
        found += building_problems(cfg, step=step)
    return sorted(dict.fromkeys(found), key=lambda each: SEVERITIES.index(each.severity))


def kind_findings(cfg: Config) -> list[Finding]:
    """Sections that have no settings, of which nothing else can be asked."""
    return [
        Finding('config-section', problem, (problem.split()[0], )) for problem in kind_problems(cfg)
    ]


def not_run(rules: str) -> Finding:
    """Return a note on rules that earlier errors keep from being asked."""
    return Finding('not-checked', f'{rules} were not asked: correct the errors first')


def missing_data(cfg: Config, *, must_be_there: bool) -> list[Finding]:
    """Paths of data sets that are not there."""
    missing: dict[str, str] = {}
    for name, dataset in find_datasets(cfg):
        for path in paths_of(dataset):
            if not exists(path, dataset.get('backend_args')):
                missing.setdefault(path, name)
    if must_be_there:
        return [Finding('missing-data', f'{path} ({name}) does not exist', (name, ))
                for path, name in missing.items()]  # yapf: disable
    if not missing:
        return []
    text = f'there are no data, as in {next(iter(missing))}: classes and labels were not ' \
           'compared with them'
    places = tuple(dict.fromkeys(missing.values()))
    return [Finding('not-checked', text, places, '--data-root DIR says where they are')]


def work_dir_problem(cfg: Config) -> list[Finding]:
    """A work dir that cannot be written."""
    place = Path(cfg.get('work_dir') or 'work_dirs').absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK):
        return []
    reason = 'cannot be written' if place.is_dir() else 'is no folder'
    return [Finding('work-dir', f'work_dir: {place} {reason}', ('work_dir', ), 'name another')]


def write(path: Path, config: str | Path, found: list[Finding]) -> None:
    """Write what was found in a config as JSON."""
    counts = {f'{kind}s': sum(each.severity == kind for each in found) for kind in SEVERITIES}
    content = [each.to_json() for each in found]
    write_json(path, dict(config=str(config), **counts, findings=content))
