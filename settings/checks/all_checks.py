"""All checks of configs; errors stop training and testing, ``check_config`` lists everything."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DefaultScope

from colonnade.common.errors import UserCodeError

from ..findings import Finding, drop_accepted, get_errors
from .class_checks import find_class_problems
from .dataset_checks import (find_label_setting_problems, find_metric_problems,
                             find_palette_problems, find_window_problems)
from .pipelines import find_pipeline_problems
from .pretrained_weights import (find_channel_problems, find_normalization_problems,
                                 find_start_problems, find_weight_problems)
from .schedule import find_completeness_problems, find_number_problems, find_schedule_problems
from .setting_types import find_setting_problems
from .widths import find_batch_problems, find_width_problems

ADVICE = 'If the data are correct, create a config for their classes with colonnade create-config'

#: function that yields findings, given a config and the keys of the dataloaders that will be read
Check = Callable[[Config, tuple[str, ...]], Iterable[Finding]]
#: checks of settings that change predictions
MODEL_CHECKS: tuple[Check, ...] = (find_width_problems, find_normalization_problems)
#: checks that do not read data
CHECKS: tuple[Check, ...] = (
    find_class_problems, find_batch_problems, find_number_problems, find_completeness_problems,
    find_metric_problems, find_pipeline_problems, find_label_setting_problems,
    find_palette_problems, *MODEL_CHECKS, find_setting_problems, find_window_problems,
    find_schedule_problems, find_start_problems, find_weight_problems, find_channel_problems
)  # yapf: disable


def find_problems(cfg: Config, dataloaders: tuple[str, ...],
                  further: Sequence[Check] = ()) -> list[Finding]:
    """Return what is wrong with a config, without building anything.

    Args:
        cfg: Config of a detector or segmenter. Widths of third-party backbones are not checked.
        dataloaders: Keys of the dataloaders that will be read.
        further: Checks of files. They run if there is no error yet; otherwise a note says so.
    """
    problems: list[Finding] = []
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for check in CHECKS:
            problems += run_check(check, cfg, dataloaders)
        for check in further:
            if get_errors(problems):
                problems.append(
                    Finding('not-checked', 'files were not checked: fix the errors first'))
            else:
                problems += run_check(check, cfg, dataloaders)
    return drop_accepted(problems, cfg)


def run_check(check: Check, cfg: Config, dataloaders: tuple[str, ...]) -> list[Finding]:
    """Return the findings of a check, and a note if unusual settings make it fail."""
    problems: list[Finding] = []
    try:
        for finding in check(cfg, dataloaders):
            problems.append(finding)
    except (TypeError, AttributeError, LookupError) as error:
        problems.append(
            Finding('not-checked', f'{check.__name__} does not support this config: {error}'))
    return problems


def check_config(cfg: Config, dataloaders: tuple[str, ...],
                 further: Sequence[Check] = ()) -> list[Finding]:
    """Raise a UserError that lists the errors of a config; return the warnings."""
    return raise_on_errors(find_problems(cfg, dataloaders, further))


def check_model(cfg: Config) -> list[Finding]:
    """Run :func:`check_config` for settings that change predictions: widths, strides, mean, std.

    Weights can be loaded even if a stride or the mean is wrong, but the predictions are wrong.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        problems = [finding for check in MODEL_CHECKS for finding in run_check(check, cfg, ())]
    return raise_on_errors(drop_accepted(problems, cfg))


def raise_on_errors(problems: list[Finding]) -> list[Finding]:
    """Raise a ValueError that lists the errors; return the warnings."""
    if errors := get_errors(problems):
        lines = [f'  {each}' for each in errors]
        lines += [ADVICE] * any('classes' in place for each in errors for place in each.places)
        cause = next((each.cause for each in errors if each.cause is not None), None)
        raise UserCodeError('\n'.join(['the config is inconsistent:', *lines])) from cause
    return [each for each in problems if each.severity == 'warning']


def log_warnings(warnings: Iterable[Finding]) -> None:
    """Write warnings to the log."""
    for warning in warnings:
        print_log(f'config: {warning}', logger='current', level=logging.WARNING)
