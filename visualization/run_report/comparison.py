"""Several runs side by side."""
from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmengine.runner import Runner
from PIL import Image

from colonnade.common.atomic_files import check_writable
from colonnade.common.errors import UserError
from colonnade.common.plots import COLORS

from ..html_pages import Section, Table, write_page
from ..html_pages.page import Cell
from . import run_plots
from .class_sections import COLUMNS, main_key
from .curve_sections import defined, is_main
from .image_sections import drawn_text, legend_of
from .page_parts import part
from .record_folder import Run, evaluation_folder, read_run, record_of
from .report_page import DIGITS, KINDS, clock, gpu_memory, pace_of, state_of
from .sample_images import opened

ABOUT = 'Metrics, curves, settings and data of several trainings.'
MOST_LETTERS = 120  # of a setting
MOST_CLASSES = 20  # whose difference is shown
MOST_RUNS = 8  # as many as there are colours
#: parts of a config that a training reads; other names are variables of its file
READ = {*inspect.signature(Runner).parameters, 'sync_bn', 'find_unused_parameters',
        'model_wrapper_cfg', 'activation_checkpointing', 'efficient_conv_bn_eval', 'compile',
        'strategy', 'runner_type', 'custom_imports', 'tta_model', 'tta_pipeline'}  # yapf: disable
NOT_COMPARED = ('work_dir', )  # which every run has of its own


def read_runs(folders: Sequence[Path]) -> dict[str, Run]:
    """The runs of some folders, by names that tell them apart.

    Raises:
        OSError: If one cannot be read.
        ValueError: If one is no run, or there are too few or too many.
    """
    different = {folder.resolve(): folder for folder in folders}
    if len(different) < len(folders):
        raise UserError('a run is named twice')
    if not 2 <= len(folders) <= MOST_RUNS:
        number = f'{len(folders)} run' + 's' * (len(folders) != 1)
        raise UserError(f'{number} cannot be compared: name 2 to {MOST_RUNS}')
    runs = [read_run(folder) for folder in folders]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return dict(zip(names, runs, strict=True))


def compare(folders: Sequence[Path], out: Path) -> tuple[list[Table], list[str]]:
    """Write a page that lays runs side by side.

    Args:
        folders: Work dirs.
        out: File to write.

    Returns:
        The tables that sum it up, and what to beware of.

    Raises:
        OSError: If a run cannot be read, or the page exists or cannot be written.
        ValueError: If a folder is no run, or there are too few or too many.
    """
    if out.exists():
        raise UserError(f'{out} exists: name another --out, or remove it')
    check_writable(out)
    runs = read_runs(folders)
    warnings = data_warnings(runs)
    sections = [
        Section('Runs', text=' '.join(warnings), tables=[overview(runs)]),
        Section('Metrics', text='Each at the best evaluation of its run, then at the last.',
                tables=[metrics_table(runs)], plots=metric_plots(runs)),
        *part('Loss and learning rate', curve_section, runs),
        *part('Classes', class_section, runs),
        Section('Settings that differ',
                text='Names of a config that training does not read are left out.',
                tables=[settings_table(runs)]),
        Section('Data', text=f'Of each hash, the first {DIGITS} of 64 digits.',
                tables=[data_table(runs)]),
        *part('Samples', sample_section, runs),
    ]  # yapf: disable
    write_page(out, ' | '.join(runs), ABOUT, sections)
    return [overview(runs), metrics_table(runs), settings_table(runs)], warnings


def overview(runs: dict[str, Run]) -> Table:
    """What the runs are and what they cost."""
    columns = [facts_of(run) for run in runs.values()]
    return Table(['', *runs], [[key, *(each[key] for each in columns)] for key in columns[0]])


def facts_of(run: Run) -> dict[str, Cell]:
    """What a run is and what it cost; None for what it has not recorded."""
    about, pace, best = run.about, pace_of(run), run.best
    kind, batch, (iteration, seconds) = about.get('kind'), about.get('batch'), run.reached
    parameters = about.get('parameters')
    return {
        'state': state_of(run),
        'model': KINDS.get(kind or ''),
        'classes': len(about['classes']) if 'classes' in about else None,
        'parameters': None if parameters is None else f'{parameters:,}',
        'seed': about.get('seed'),
        'best by': run.main_metric,
        'best iteration': f'{best["iteration"]:,}' if best else None,
        'iterations': f'{iteration:,}',
        'time': clock(seconds),
        'seconds an iteration': pace,
        'images of training a second': batch / pace if batch and pace else None,
        'GiB of memory': about.get('peak_memory'),
        'GiB of GPU memory': gpu_memory(run) or None,
        'processor': about.get('machine', {}).get('processor'),
        'GPU': about.get('machine', {}).get('GPU 0'),
    }


def metrics_table(runs: dict[str, Run]) -> Table:
    """All metrics of all runs, with gaps where one has not measured it."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.metrics)
    evaluations = [(run.best or {}, run.last or {}) for run in runs.values()]
    rows = [[key, *(defined(key, each.get('metrics', {}).get(key))
                    for which in (0, 1)
                    for each in (pair[which] for pair in evaluations))]
            for key in keys]  # yapf: disable
    header = [f'{name}, {which}' for which in ('best', 'last') for name in runs]
    return Table(['metric', *header], rows)


def metric_plots(runs: dict[str, Run]) -> list[tuple[str, Any]]:
    """A plot of each main metric, with a curve for each run that has it."""
    keys = dict.fromkeys(key for run in runs.values() for key in run.metrics if is_main(key))
    keys |= dict.fromkeys(filter(None, (run.main_metric for run in runs.values())))
    values = {
        key: {
            name: run.metrics[key]
            for name, run in runs.items() if key in run.metrics
        }
        for key in keys
    }
    return [(key, run_plots.curves(lines, key, colours=colours_of(runs)))
            for key, lines in values.items()]


def colours_of(runs: Iterable[str]) -> dict[str, str]:
    """The colour of each run in all plots."""
    return dict(zip(runs, COLORS, strict=False))


def curve_section(runs: dict[str, Run]) -> list[Section]:
    """Loss and learning rate of all runs."""
    found = []
    for key, label in (('loss', 'loss'), ('lr', 'learning rate')):
        lines = {name: run.curves[key] for name, run in runs.items() if key in run.curves}
        if lines:
            plot = run_plots.curves(lines, label, smooth=key == 'loss', colours=colours_of(runs))
            found.append((label, plot))
    return [Section('Loss and learning rate', plots=found)] if found else []


def settings_table(runs: dict[str, Run]) -> Table:
    """The settings in which the configs differ."""
    configs = [run.about.get('config', {}) for run in runs.values()]
    keys = sorted(key for key in set().union(*configs) if key.partition('.')[0] in READ)
    rows = [[key, *(shortened(each.get(key)) for each in configs)] for key in keys
            if len({each.get(key)
                    for each in configs}) > 1 and key not in NOT_COMPARED]
    return Table(['setting', *runs], rows, '' if rows else 'None.')


def shortened(text: str | None) -> str | None:
    """The beginning of a long setting."""
    if text is None or len(text) <= MOST_LETTERS:
        return text
    return f'{text[:MOST_LETTERS]}… ({len(text)} letters)'


def data_of(run: Run, split: str) -> tuple[int | None, list[str]]:
    """Number of images and hashes of a part of a run's data."""
    about = run.about.get('data', {}).get(split, {})
    return about.get('images'), sorted(about.get('files', {}).values())


def data_table(runs: dict[str, Run]) -> Table:
    """Numbers of images and hashes of each part."""
    rows: list[list[Cell]] = []
    for split in ('training', 'validation'):
        found = [data_of(run, split) for run in runs.values()]
        rows.append([f'{split}, images', *(images for images, _ in found)])
        rows.append([f'{split}, hashes',
                     *(' '.join(each.removeprefix('files ')[:DIGITS] for each in hashes) or None
                       for _, hashes in found)])  # yapf: disable
    return Table(['', *runs], rows)


def data_warnings(runs: dict[str, Run]) -> list[str]:
    """Why the numbers of runs may not be comparable."""
    warnings = []
    for split, verb in (('validation', 'were evaluated'), ('training', 'were trained')):
        found = {name: data_of(run, split) for name, run in runs.items()}
        known = {name: each for name, each in found.items() if each[0] is not None}
        if len({(images, *hashes) for images, hashes in known.values()}) > 1:
            warnings.append(f'Warning: the runs {verb} on different data.')
        if split == 'validation' and len(known) < len(runs):
            missing = ', '.join(name for name in runs if name not in known)
            warnings.append(f'Warning: what {missing} evaluated on is not recorded.')
    warnings += [f'Warning: the validation data of {name} changed at iteration {run.data_since}.'
                 for name, run in runs.items() if run.data_since]  # yapf: disable
    return warnings


def class_section(runs: dict[str, Run]) -> list[Section]:
    """By how much classes differ between the first run and the last."""
    (first, one), *_, (second, other) = runs.items()
    measured: list[dict] = [run.whole(run.best).get('classes') or {} for run in (one, other)]
    if not all(measured) or main_key(measured[0]) != main_key(measured[1]):
        return []
    key = main_key(measured[0])
    values = [by_name(run, each[key]) for run, each in zip((one, other), measured, strict=True)]
    shared = [name for name in values[0] if name in values[1]]
    rows = sorted(((name, values[0][name], values[1][name], values[1][name] - values[0][name])
                   for name in shared),
                  key=lambda row: -abs(row[3]))
    table = Table(['class', first, second, 'difference'], rows)
    text = f'{COLUMNS[key]} of each class at the best evaluation, the largest difference first.'
    if len(rows) <= MOST_CLASSES:
        return [Section('Classes', text=text, tables=[table])]
    return [
        Section('Classes', text=text,
                tables=[Table(table.header, rows[:MOST_CLASSES],
                              f'the first {MOST_CLASSES} of {len(rows)}')]),
        Section(f'All {len(rows)} classes', tables=[table], folded=True),
    ]  # yapf: disable


def by_name(run: Run, values: Sequence[float | None]) -> dict[str, float]:
    """The values of a run's classes by their names, where there are any."""
    named = zip(run.about['classes'], values, strict=True)
    return {name: value for name, value in named if value is not None}


def sample_section(runs: dict[str, Run]) -> list[Section]:
    """Samples at the best evaluation: of runs that drew the same side by side, else apart."""
    groups: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        if run.best in run.drawn:
            groups.setdefault(drawn_by(name, run), {})[name] = run
    return [
        Section('Samples' if len(groups) == 1 else f'Samples: {", ".join(group)}',
                text=sample_text(list(group.values())), tiles=tiles_of(group),
                legend=legend_of(next(iter(group.values())))) for group in groups.values()
    ]  # yapf: disable


def drawn_by(name: str, run: Run) -> str:
    """What runs share whose samples are comparable; the name of a run that has not recorded it."""
    if data_of(run, 'validation')[0] is None:
        return name
    shown = [run.about.get(key) for key in ('kind', 'classes', 'palette')]
    return repr((data_of(run, 'validation'), (run.best or {})['samples'], shown))


def sample_text(runs: Sequence[Run]) -> str:
    """What the samples of some runs are."""
    text = 'The same images, at the best evaluation of each run.'
    return (text if len(runs) > 1 else 'At the best evaluation.') + drawn_text(runs[0])


def tiles_of(runs: dict[str, Run]) -> list[tuple[str, list[tuple[str, Image.Image]]]]:
    """The truth of each sample, and what each run answered."""
    first, images = next(iter(runs.values())), []
    for number, name in enumerate((first.best or {})['samples']):
        tiles = [('truth', record_of(first.folder) / f'truth_{number}.jpg')]
        tiles += [(title, evaluation_folder(run.folder, (run.best or {})['iteration'])
                   / f'sample_{number}.jpg') for title, run in runs.items()]  # yapf: disable
        images.append((name, opened(tiles)))
    return images
