"""``report.html`` of a search for settings: all trials, and what each setting does."""
from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..html_pages import Section, Table, build_sections, write_page
from ..html_pages.page import SectionTable
from ..html_pages.plots import draw_points
from .report_page import format_duration

ABOUT = 'Trials of a search for settings.'
COMPLETE, PRUNED = 'complete', 'pruned'


@dataclass(frozen=True)
class Trial:
    """A training of a search."""
    number: int
    state: str  # 'complete', 'pruned', 'failed' or 'running'
    value: float | None  # best metric of its evaluations
    settings: dict[str, Any]
    iteration: int  # of its last evaluation
    seconds: float | None


@dataclass(frozen=True)
class Search:
    """Trials of a search.

    Attributes:
        folder: Work dir of the search.
        metric: Name of the metric.
        is_lower_better: Whether lower values are better.
        trials: Trials in the order of their numbers.
        log_settings: Settings that are searched on a logarithmic scale.
        train: Words of the command that trains with the settings of the config.
    """
    folder: Path
    metric: str
    is_lower_better: bool
    trials: Sequence[Trial]
    log_settings: Sequence[str]
    train: Sequence[str]

    @property
    def ordered(self) -> list[Trial]:
        """Trials, the best first; those that were stopped early follow, then those without a
        metric.
        """
        sign = 1 if self.is_lower_better else -1
        return sorted(self.trials, key=lambda each: (each.state != COMPLETE, each.value is None,
                                                     sign * (each.value or 0)))  # yapf: disable

    @property
    def best(self) -> Trial | None:
        """Best trial that was trained to its end, if there is any."""
        best = next(iter(self.ordered), None)
        return best if best is not None and best.state == COMPLETE else None

    @property
    def command(self) -> str:
        """Command that trains with the best settings, rounded to four digits."""
        settings = format_settings(self.best.settings) if self.best else []
        return shlex.join([*self.train, *settings])

    def tabulate(self) -> Table:
        """Return the trials as a table, the best first."""
        names = list(dict.fromkeys(key for each in self.trials for key in each.settings))
        rows = [[
            each.number, each.state, each.value, *(each.settings.get(name) for name in names),
            each.iteration, None if each.seconds is None else format_duration(each.seconds)
        ] for each in self.ordered]
        return Table(['trial', 'state', self.metric, *names, 'iterations', 'time'], rows)

    def format_csv(self) -> str:
        """Return the table as CSV, with all digits and the seconds."""
        table, text = self.tabulate(), io.StringIO()
        writer = csv.writer(text, lineterminator='\n')
        writer.writerow([*table.header[:-1], 'seconds'])
        writer.writerows([*row[:-1], each.seconds]
                         for row, each in zip(table.rows, self.ordered, strict=True))
        return text.getvalue()


def format_settings(settings: dict[str, Any]) -> list[str]:
    """Return settings as ``KEY=VALUE`` with four digits."""
    return [f'{key}={value:.4g}' if isinstance(value, float) else f'{key}={value}'
            for key, value in settings.items()]  # yapf: disable


def write_search(page: Path, search: Search) -> None:
    """Write the page of a search."""
    write_page(page, search.folder.resolve().name, ABOUT, build_sections(SECTIONS, search))


def build_best_sections(search: Search) -> list[Section]:
    """Return the best trial, and the command to train with its settings."""
    if search.best is None:
        return [Section('Best settings', 'No trial is complete.')]
    extreme = 'lowest' if search.is_lower_better else 'highest'
    text = (f'Trial {search.best.number} has the {extreme} {search.metric}: '
            f'{search.best.value:.4g}. Its model is in trial_{search.best.number}. To train again '
            'with its settings, rounded to four digits:')
    return [Section('Best settings', text, commands=[search.command])]


def build_trial_sections(search: Search) -> list[Section]:
    """Return a plot of the metric over trials, and the table."""
    plot = plot_trials(search, 'trial', [each.number for each in search.trials])
    return [Section('Trials', plots=[('Best metric of each trial', plot)],
                    tables=[search.tabulate()])]  # yapf: disable


def build_setting_sections(search: Search) -> list[Section]:
    """Return a plot of the metric over each setting with numbers."""
    plots = []
    for name in dict.fromkeys(key for each in search.trials for key in each.settings):
        values = [each.settings.get(name) for each in search.trials]
        if all(isinstance(value, (int, float)) for value in values):
            is_log = name in search.log_settings
            plots.append((name, plot_trials(search, name.rpartition('.')[2], values, log=is_log)))
    return [Section('Settings', plots=plots)] if plots else []


def plot_trials(search: Search, label: str, values: Sequence[Any], *, log: bool = False) -> Figure:
    """Return a plot of the metric over a value per trial, by state."""
    points = {
        state:
        np.array([(value, each.value) for value, each in zip(values, search.trials, strict=True)
                  if each.state == state and each.value is not None]).reshape(-1, 2)
        for state in (COMPLETE, PRUNED)
    }
    return draw_points(points, label, search.metric, log=log)


#: parts of the page from top to bottom
SECTIONS: SectionTable[Search] = {
    'Best settings': build_best_sections,
    'Trials': build_trial_sections,
    'Settings': build_setting_sections,
}
