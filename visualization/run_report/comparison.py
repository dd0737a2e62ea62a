"""Several runs side by side."""
from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mmengine.runner import Runner

from colonnade.common.atomic_files import check_writable
from colonnade.common.errors import UserError
from colonnade.evaluation.plots import COLORS

from ..html_pages import Section, Table, build_sections, write_page
from ..html_pages.page import Cell, SectionTable, tabulate_facts
from ..html_pages.plots import draw_curves
from .class_sections import COLUMNS, get_sort_key
from .record_folder import Curve, RecordedRun, read_run
from .report_page import NUM_DIGITS, describe_run, get_metric, is_plotted, shorten_hash
from .sample_images import build_legend, describe_threshold, read_samples

ABOUT_METRICS = 'At the best evaluation of each run, then at the last.'
ABOUT_SETTINGS = 'Variables of a config that training does not read are omitted.'
ABOUT = 'Metrics, curves, settings and data of several training runs.'
MAX_SETTING = 120  # characters of a setting
MAX_CLASSES = 20  # rows of a table that is not folded
MAX_RUNS = len(COLORS)
#: settings that training reads; other names are variables of a config
READ = {*inspect.signature(Runner).parameters, 'sync_bn', 'find_unused_parameters',
        'model_wrapper_cfg', 'activation_checkpointing', 'efficient_conv_bn_eval', 'compile',
        'strategy', 'runner_type', 'custom_imports', 'tta_model', 'tta_pipeline'}  # yapf: disable
NOT_COMPARED = ('work_dir', )  # differs in every run
Runs: TypeAlias = dict[str, RecordedRun]  # by name


def read_runs(folders: Sequence[Path]) -> Runs:
    """Return the runs of work dirs, by unique names."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError('the same run was passed twice')
    if not 2 <= len(folders) <= MAX_RUNS:
        raise UserError(f'expected 2 to {MAX_RUNS} runs to compare, got {len(folders)}')
    runs = [read_run(folder) for folder in folders]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return dict(zip(names, runs, strict=True))


def compare_runs(folders: Sequence[Path], out: Path) -> tuple[list[Table], list[str]]:
    """Write a page that shows runs side by side.

    Args:
        folders: Work dirs of the runs.
        out: Page to write.

    Returns:
        Tables that summarize the page, and warnings.

    Raises:
        OSError: If a run cannot be read, or the page exists or cannot be written.
        ValueError: If a folder is not a work dir, or there are too few or too many.
    """
    if out.exists():
        raise UserError(f'{out} already exists: choose another --out, or remove it')
    check_writable(out)
    runs = read_runs(folders)
    write_page(out, ' | '.join(runs), ABOUT, build_sections(SECTIONS, runs))
    return [tabulate_runs(runs), tabulate_metrics(runs), tabulate_settings(runs)], \
        find_data_warnings(runs)


def tabulate_runs(runs: Runs) -> Table:
    """Return state, progress, cost and hardware of the runs."""
    columns: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        machine = run.about.get('machine', {})
        columns[name] = describe_run(run) | dict(processor=machine.get('processor'),
                                                 GPU=machine.get('GPU 0'))  # yapf: disable
    return tabulate_facts(columns)


def tabulate_metrics(runs: Runs) -> Table:
    """Return all metrics of all runs, with gaps where a run has not computed one."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.metrics)
    evaluations = [run.best or {} for run in runs.values()]
    evaluations += [run.last or {} for run in runs.values()]
    header = [f'{name}, {which}' for which in ('best', 'last') for name in runs]
    rows = [[key, *(get_metric(each, key) for each in evaluations)] for key in keys]
    return Table(['metric', *header], rows)


def plot_metrics(runs: Runs) -> list[tuple[str, Any]]:
    """Return a plot of each main metric, with a curve for each run that has computed it."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.metrics if is_plotted(key))
    keys |= dict.fromkeys(filter(None, (run.main_metric for run in runs.values())))
    curves = {name: run.metrics for name, run in runs.items()}
    return [(key, plot_runs(curves, key, key)) for key in keys]


def plot_runs(curves: dict[str, dict[str, Curve]], key: str, label: str) -> Any:
    """Return a plot of one quantity, in which each run has its color of all plots."""
    lines = {name: each[key] for name, each in curves.items() if key in each}
    colors = dict(zip(curves, COLORS, strict=False))
    return draw_curves(lines, label, smooth=key == 'loss', colors=colors)


def compare_losses(runs: Runs) -> list[Section]:
    """Return loss and learning rate of all runs."""
    curves = {name: run.curves for name, run in runs.items()}
    plots = [(label, plot_runs(curves, key, label.lower()))
             for key, label in (('loss', 'Loss'), ('lr', 'Learning rate'))
             if any(key in each for each in curves.values())]  # yapf: disable
    return [Section('Loss and learning rate', plots=plots)] if plots else []


def compare_classes(runs: Runs) -> list[Section]:
    """Return the difference of class metrics between the first run and the last."""
    (first, one), *_, (second, other) = runs.items()
    metrics = [run.details.get('classes') or {} if run.best else {} for run in (one, other)]
    if not all(metrics) or get_sort_key(metrics[0]) != get_sort_key(metrics[1]):
        return []
    key = get_sort_key(metrics[0])
    before, after = (dict(zip(run.about['classes'], values[key], strict=True))
                     for run, values in zip((one, other), metrics, strict=True))
    rows = [(name, value, after[name], after[name] - value) for name, value in before.items()
            if value is not None and after.get(name) is not None]
    rows.sort(key=lambda row: -abs(row[3]))
    table = Table(['class', first, second, 'difference'], rows)
    text = f'{COLUMNS[key]} of each class at the best evaluation, the largest difference first.'
    if len(rows) <= MAX_CLASSES:
        return [Section('Classes', text, tables=[table])]
    part = Table(table.header, rows[:MAX_CLASSES], f'The first {MAX_CLASSES} of {len(rows)}.')
    return [
        Section('Classes', text, tables=[part]),
        Section(f'All {len(rows)} classes', tables=[table], folded=True)
    ]


def tabulate_settings(runs: Runs) -> Table:
    """Return the settings that differ."""
    configs = [run.about.get('config', {}) for run in runs.values()]
    rows: list[list[Cell]] = []
    for key in sorted(set().union(*configs)):
        values = [config.get(key) for config in configs]
        if key.partition('.')[0] in READ and key not in NOT_COMPARED and len(set(values)) > 1:
            rows.append([key, *(f'{text[:MAX_SETTING]}… ({len(text)} characters)' if text and
                                len(text) > MAX_SETTING else text
                                for text in values)])  # yapf: disable
    return Table(['setting', *runs], rows, '' if rows else 'None.')


def get_data(run: RecordedRun, split: str) -> tuple[int | None, list[str]]:
    """Return the number of images and the hashes of a split of a run's data."""
    about = run.about.get('data', {}).get(split, {})
    return about.get('images'), sorted(about.get('files', {}).values())


def compare_data(runs: Runs) -> list[Section]:
    """Return the number of images and the hashes of each split."""
    rows: list[list[Cell]] = []
    for split in ('training', 'validation'):
        data = [get_data(run, split) for run in runs.values()]
        rows.append([f'{split}, images', *(images for images, _ in data)])
        rows.append([
            f'{split}, hashes', *(' '.join(map(shorten_hash, hashes)) or None for _, hashes in data)
        ])
    text = f'The first {NUM_DIGITS} of 64 digits of each hash.'
    return [Section('Data', text, tables=[Table(['', *runs], rows)])]


def find_data_warnings(runs: Runs) -> list[str]:
    """Return why the metrics of runs may not be comparable."""
    warnings = []
    for split, verb in (('validation', 'evaluated'), ('training', 'trained')):
        data = {name: get_data(run, split) for name, run in runs.items()}
        known = {name: each for name, each in data.items() if each[0] is not None}
        if len({(images, *hashes) for images, hashes in known.values()}) > 1:
            warnings.append(f'Warning: the runs were {verb} on different data.')
        if split == 'validation' and len(known) < len(runs):
            missing = ', '.join(name for name in runs if name not in known)
            warnings.append(f'Warning: the validation data of {missing} are not recorded.')
    warnings += [f'Warning: the validation data of {name} changed at iteration {run.data_since}.'
                 for name, run in runs.items() if run.data_since]  # yapf: disable
    return warnings


def compare_samples(runs: Runs) -> list[Section]:
    """Return samples at the best evaluation, side by side for runs that drew the same images."""
    groups: dict[str, Runs] = {}
    for name, run in runs.items():
        if run.best in run.drawn:
            data = get_data(run, 'validation')
            facts = [run.about.get(key) for key in ('kind', 'classes', 'palette')]
            # Without recorded data, the samples are not comparable to those of another run.
            key = name if data[0] is None else repr((data, (run.best or {})['samples'], facts))
            groups.setdefault(key, {})[name] = run
    sections = []
    for group in groups.values():
        first = next(iter(group.values()))
        text = 'At the best evaluation.'
        if len(group) > 1:
            text = 'The same images, at the best evaluation of each run.'
        samples = read_samples([(name, run, run.best or {}) for name, run in group.items()])
        title = 'Samples' if len(groups) == 1 else f'Samples: {", ".join(group)}'
        sections.append(
            Section(title, text + describe_threshold(first), tiles=samples,
                    legend=build_legend(first)))  # yapf: disable
    return sections


#: parts of the page from top to bottom
SECTIONS: SectionTable[Runs] = {
    'Runs': lambda runs: [Section('Runs', ' '.join(find_data_warnings(runs)),
                                  tables=[tabulate_runs(runs)])],
    'Metrics': lambda runs: [Section('Metrics', ABOUT_METRICS, plot_metrics(runs),
                                     [tabulate_metrics(runs)])],
    'Loss and learning rate': compare_losses,
    'Classes': compare_classes,
    'Different settings': lambda runs: [Section('Different settings', ABOUT_SETTINGS,
                                                tables=[tabulate_settings(runs)])],
    'Data': compare_data,
    'Samples': compare_samples,
}  # yapf: disable
