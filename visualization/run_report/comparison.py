"""Several runs side by side."""
from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mmengine.runner import Runner

from colonnade.common.atomic_files import check_writable
from colonnade.common.errors import UserError
from colonnade.evaluation.plots import COLORS

from ..html_pages import Section, Table, build_sections, write_page
from ..html_pages.page import Cell, SectionTable
from .class_sections import COLUMNS, get_sort_key
from .image_sections import build_legend, describe_threshold, read_samples
from .metric_sections import get_metric, is_plotted
from .record_folder import RecordedRun, read_run
from .report_page import (KINDS, NUM_DIGITS, compute_pace, describe_state, format_duration,
                          get_gpu_memory, shorten_hash)
from .run_plots import draw_curves

ABOUT = 'Metrics, curves, settings and data of several trainings.'
MAX_SETTING = 120  # letters of a setting
MAX_CLASSES = 20  # whose difference is not folded
MAX_RUNS = len(COLORS)
#: settings that training reads; other names are variables of a config
READ = {*inspect.signature(Runner).parameters, 'sync_bn', 'find_unused_parameters',
        'model_wrapper_cfg', 'activation_checkpointing', 'efficient_conv_bn_eval', 'compile',
        'strategy', 'runner_type', 'custom_imports', 'tta_model', 'tta_pipeline'}  # yapf: disable
NOT_COMPARED = ('work_dir', )  # differs in every run
Runs: TypeAlias = dict[str, RecordedRun]  # by name


def read_runs(folders: Sequence[Path]) -> Runs:
    """Return the runs of some work dirs, by names that distinguish them.

    Raises:
        OSError: If one cannot be read.
        ValueError: If one is not a work dir, or there are too few or too many.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError('a run is named twice')
    if not 2 <= len(folders) <= MAX_RUNS:
        number = f'{len(folders)} run' + 's' * (len(folders) != 1)
        raise UserError(f'{number} cannot be compared: name 2 to {MAX_RUNS}')
    runs = [read_run(folder) for folder in folders]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return dict(zip(names, runs, strict=True))


def compare(folders: Sequence[Path], out: Path) -> tuple[list[Table], list[str]]:
    """Write a page that shows runs side by side.

    Args:
        folders: Work dirs.
        out: File to write.

    Returns:
        The tables that summarize it, and warnings.

    Raises:
        OSError: If a run cannot be read, or the page exists or cannot be written.
        ValueError: If a folder is not a work dir, or there are too few or too many.
    """
    if out.exists():
        raise UserError(f'{out} exists: name another --out, or remove it')
    check_writable(out)
    runs = read_runs(folders)
    write_page(out, ' | '.join(runs), ABOUT, build_sections(SECTIONS, runs))
    tables = [tabulate_facts(runs), tabulate_metrics(runs), tabulate_settings(runs)]
    return tables, find_data_warnings(runs)


def compare_facts(runs: Runs) -> list[Section]:
    """Return what the runs are, and what to beware of."""
    return [Section('Runs', ' '.join(find_data_warnings(runs)), tables=[tabulate_facts(runs)])]


def tabulate_facts(runs: Runs) -> Table:
    """Return what the runs are and what they cost."""
    columns = [collect_facts(run) for run in runs.values()]
    return Table(['', *runs], [[key, *(each[key] for each in columns)] for key in columns[0]])


def collect_facts(run: RecordedRun) -> dict[str, Cell]:
    """Return what a run is and what it cost; None for what it has not recorded."""
    about, pace, (iteration, seconds) = run.about, compute_pace(run), run.reached
    batch, parameters = about.get('batch'), about.get('parameters')
    machine = about.get('machine', {})
    return {
        'state': describe_state(run),
        'model': KINDS.get(about.get('kind') or ''),
        'classes': len(about['classes']) if 'classes' in about else None,
        'parameters': None if parameters is None else f'{parameters:,}',
        'seed': about.get('seed'),
        'best by': run.main_metric,
        'best iteration': f'{run.best["iteration"]:,}' if run.best else None,
        'iterations': f'{iteration:,}',
        'time': format_duration(seconds),
        'seconds an iteration': pace,
        'images of training a second': batch / pace if batch and pace else None,
        'GiB of memory': about.get('peak_memory'),
        'GiB of GPU memory': get_gpu_memory(run) or None,
        'processor': machine.get('processor'),
        'GPU': machine.get('GPU 0'),
    }


def compare_metrics(runs: Runs) -> list[Section]:
    """Return the metrics of all runs, and plots of the main ones."""
    text = 'Each at the best evaluation of its run, then at the last.'
    return [Section('Metrics', text, plot_metrics(runs), [tabulate_metrics(runs)])]


def tabulate_metrics(runs: Runs) -> Table:
    """Return all metrics of all runs, with gaps where one has not computed it."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.metrics)
    evaluations = [run.best or {} for run in runs.values()]
    evaluations += [run.last or {} for run in runs.values()]
    header = [f'{name}, {which}' for which in ('best', 'last') for name in runs]
    rows = [[key, *(get_metric(each, key) for each in evaluations)] for key in keys]
    return Table(['metric', *header], rows)


def plot_metrics(runs: Runs) -> list[tuple[str, Any]]:
    """Return a plot of each main metric, with a curve for each run that has it."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.metrics if is_plotted(key))
    keys |= dict.fromkeys(filter(None, (run.main_metric for run in runs.values())))
    plots = []
    for key in keys:
        lines = {name: run.metrics[key] for name, run in runs.items() if key in run.metrics}
        plots.append((key, draw_curves(lines, key, colors=assign_colors(runs))))
    return plots


def assign_colors(runs: Iterable[str]) -> dict[str, str]:
    """Return the color of each run in all plots."""
    return dict(zip(runs, COLORS, strict=False))


def compare_losses(runs: Runs) -> list[Section]:
    """Return loss and learning rate of all runs."""
    plots = []
    for key, label in (('loss', 'loss'), ('lr', 'learning rate')):
        lines = {name: run.curves[key] for name, run in runs.items() if key in run.curves}
        if lines:
            plot = draw_curves(lines, label, smooth=key == 'loss', colors=assign_colors(runs))
            plots.append((label, plot))
    return [Section('Loss and learning rate', plots=plots)] if plots else []


def compare_classes(runs: Runs) -> list[Section]:
    """Return by how much classes differ between the first run and the last."""
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
    part = Table(table.header, rows[:MAX_CLASSES], f'the first {MAX_CLASSES} of {len(rows)}')
    return [
        Section('Classes', text, tables=[part]),
        Section(f'All {len(rows)} classes', tables=[table], folded=True)
    ]


def compare_settings(runs: Runs) -> list[Section]:
    """Return the settings in which the configs differ."""
    text = 'Names of a config that training does not read are left out.'
    return [Section('Settings that differ', text, tables=[tabulate_settings(runs)])]


def tabulate_settings(runs: Runs) -> Table:
    """Return the settings in which the configs differ."""
    configs = [run.about.get('config', {}) for run in runs.values()]
    rows: list[list[Cell]] = []
    for key in sorted(set().union(*configs)):
        values = [config.get(key) for config in configs]
        if key.partition('.')[0] in READ and key not in NOT_COMPARED and len(set(values)) > 1:
            rows.append([key, *map(shorten_setting, values)])
    return Table(['setting', *runs], rows, '' if rows else 'None.')


def shorten_setting(text: str | None) -> str | None:
    """Return the beginning of a long setting."""
    if text is None or len(text) <= MAX_SETTING:
        return text
    return f'{text[:MAX_SETTING]}… ({len(text)} letters)'


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
    text = f'Of each hash, the first {NUM_DIGITS} of 64 digits.'
    return [Section('Data', text, tables=[Table(['', *runs], rows)])]


def find_data_warnings(runs: Runs) -> list[str]:
    """Return why the metrics of runs may not be comparable."""
    warnings = []
    for split, verb in (('validation', 'were evaluated'), ('training', 'were trained')):
        data = {name: get_data(run, split) for name, run in runs.items()}
        known = {name: each for name, each in data.items() if each[0] is not None}
        if len({(images, *hashes) for images, hashes in known.values()}) > 1:
            warnings.append(f'Warning: the runs {verb} on different data.')
        if split == 'validation' and len(known) < len(runs):
            missing = ', '.join(name for name in runs if name not in known)
            warnings.append(f'Warning: what {missing} evaluated on is not recorded.')
    warnings += [f'Warning: the validation data of {name} changed at iteration {run.data_since}.'
                 for name, run in runs.items() if run.data_since]  # yapf: disable
    return warnings


def compare_samples(runs: Runs) -> list[Section]:
    """Return samples at the best evaluation; side by side if runs drew the same images."""
    groups: dict[str, Runs] = {}
    for name, run in runs.items():
        if run.best in run.drawn:
            groups.setdefault(identify_samples(name, run), {})[name] = run
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


def identify_samples(name: str, run: RecordedRun) -> str:
    """Return what runs with comparable samples share; its name for a run that recorded no data."""
    data = get_data(run, 'validation')
    if data[0] is None:
        return name
    shown = [run.about.get(key) for key in ('kind', 'classes', 'palette')]
    return repr((data, (run.best or {})['samples'], shown))


#: the page from top to bottom
SECTIONS: SectionTable[Runs] = {
    'Runs': compare_facts,
    'Metrics': compare_metrics,
    'Loss and learning rate': compare_losses,
    'Classes': compare_classes,
    'Settings that differ': compare_settings,
    'Data': compare_data,
    'Samples': compare_samples,
}
