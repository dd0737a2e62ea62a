"""The one list of checks: tools that train or test end at errors, ``check_config.py`` lists all."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DefaultScope

from colonnade.common.errors import UserCodeError

from ..findings import Finding, errors_of
from .class_checks import class_problems
from .dataset_checks import (label_setting_problems, metric_problems, palette_problems,
                             window_problems)
from .pipelines import pipeline_problems
from .pretrained_weights import (channel_problems, normalisation_problems, start_problems,
                                 weight_problems)
from .schedule import completeness_problems, number_problems, schedule_problems
from .setting_types import setting_problems
from .widths import batch_problems, width_problems

ADVICE = 'If the data are right, colonnade create_config writes a config like this for their classes'

#: yields the breaches of some rules, given a config and the dataloaders that will be read
Check = Callable[[Config, tuple[str, ...]], Iterable[Finding]]
#: checks on what predictions depend on
OF_MODELS: tuple[Check, ...] = (width_problems, normalisation_problems)
#: all checks that need no look at data
CHECKS: tuple[Check, ...] = (
    class_problems, batch_problems, number_problems, completeness_problems, metric_problems,
    pipeline_problems, label_setting_problems, palette_problems, *OF_MODELS, setting_problems,
    window_problems, schedule_problems, start_problems, weight_problems, channel_problems
)  # yapf: disable


def findings(cfg: Config, dataloaders: tuple[str, ...],
             further: Sequence[Check] = ()) -> list[Finding]:
    """Return what does not fit in a config, of which nothing is built.

    Args:
        cfg: Of a detector or segmenter; widths only of those on a backbone of ours.
        dataloaders: Those that will be read.
        further: Checks of files, which are run if there is no error yet; else a note says so.
    """
    found: list[Finding] = []
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for check in CHECKS:
            found += run_check(check, cfg, dataloaders)
        for check in further:
            if errors_of(found):
                name = check.__name__.replace('_', ' ')
                found.append(
                    Finding('not-checked', f'{name} were not looked for: correct the errors first'))
            else:
                found += run_check(check, cfg, dataloaders)
    return list(dict.fromkeys(found))


def run_check(check: Check, cfg: Config, dataloaders: tuple[str, ...]) -> list[Finding]:
    """Return what a check finds, and a note if it does not understand a config.

    Settings of unusual kinds are the business of those who read them.
    """
    found: list[Finding] = []
    try:
        for finding in check(cfg, dataloaders):
            found.append(finding)
    except (TypeError, AttributeError, LookupError) as error:
        found.append(
            Finding('not-checked', f'{check.__name__} does not understand this config: {error}'))
    return found


def check_config(cfg: Config, dataloaders: tuple[str, ...],
                 further: Sequence[Check] = ()) -> list[Finding]:
    """Raise a UserError that lists what does not fit in a config; return warnings."""
    return raise_on_errors(findings(cfg, dataloaders, further))


def check_model(cfg: Config) -> list[Finding]:
    """As :func:`check_config`, of what predictions depend on: arch, widths, strides, mean and std.

    Weights fit a model of which a stride or the mean is wrong, and what it predicts is wrong.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        return raise_on_errors(
            [finding for check in OF_MODELS for finding in run_check(check, cfg, ())])


def raise_on_errors(found: list[Finding]) -> list[Finding]:
    """Raise a ValueError that lists errors; returns warnings."""
    if errors := errors_of(found):
        lines = [f'  {each}' for each in errors]
        lines += [ADVICE] * any('classes' in place for each in errors for place in each.places)
        cause = next((each.cause for each in errors if each.cause is not None), None)
        raise UserCodeError('\n'.join(['the config does not fit together:', *lines])) from cause
    return [each for each in found if each.severity == 'warning']


def log_warnings(found: Iterable[Finding]) -> None:
    """Write warnings to the log of a run that goes on in spite of them."""
    for finding in found:
        print_log(f'config: {finding}', logger='current', level=logging.WARNING)
