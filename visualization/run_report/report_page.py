"""``report.html``: the record of a run as a page."""
from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from colonnade.common.name_lists import format_count
from colonnade.datasets.bad_samples import read_skipped
from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.metric_values import is_at_minimum
from colonnade.engine.work_dir.metrics_table import SKIPPED

from ..html_pages import Section, Table, build_sections, write_page
from ..html_pages.page import SectionTable
from ..html_pages.plots import draw_bars, draw_curves
from .class_sections import build_class_sections
from .record_folder import RecordedRun, read_run
from .sample_images import build_extreme_sections, build_sample_sections

MAX_CONFIG = 200_000  # characters of a config
NUM_DIGITS = 16  # visible digits of a hash
TASKS = dict(
    masks='detector with masks',
    boxes='detector',
    labels='segmenter',
    panoptic='panoptic segmenter')
ABOUT = 'Configuration and results of a training run.'
MAX_CURVES = 8  # in a plot
MAX_SKIPPED = 30  # samples in a table
SIZES = ('small', 'medium', 'large')  # areas to 32², to 96², and above, as COCO defines them
PLOTTED = ('PQ', 'bbox_mAP', 'bbox_mAP_50', 'segm_mAP', 'segm_mAP_50', 'mIoU', 'mAcc', 'aAcc',
           'mAP', 'AP50')


def write_report(work_dir: Path, *, is_live: bool | None = None) -> Path:
    """Write the page of a run from its record, and return its path.

    Args:
        work_dir: Work dir of the run.
        is_live: Whether the run is training. Defaults to whether a process of this host is.

    Raises:
        OSError: If a file cannot be read or written.
        ValueError: If the folder is not a work dir, or a file in it is damaged.
    """
    run, page = read_run(work_dir, is_live=is_live), Run(work_dir).report
    write_page(page, run.name, ABOUT, build_sections(SECTIONS, run))
    return page


def build_run_sections(run: RecordedRun) -> list[Section]:
    """Return state, progress and cost of a run."""
    starts = run.about.get('starts', ())
    texts = [f'Started {starts[0]["time"]}.'] if starts else []
    for each in starts[1:]:
        other = [f'other {split} data' for split in each.get('other_data', ())]
        texts.append(f'Resumed {each["time"]} at iteration {each["iteration"]}' +
                     (f', with {" and ".join(other)}.' if other else '.'))
    if run.about.get('state') == 'running':
        texts.append(f'Written {run.about["written"]}, before the end of the run.')
    return [Section('Run', ' '.join(texts), tables=[Table((), list(describe_run(run).items()))])]


def describe_state(run: RecordedRun) -> str:
    """Return whether a run is training, has ended, or was killed."""
    state = run.about.get('state', 'not recorded')
    if state != 'running':
        return state
    state = 'running' if run.is_live else 'killed, or training on another host'
    return f'{state}; recorded up to iteration {run.reached[0]:,} of {run.about["max_iters"]:,}'


def describe_run(run: RecordedRun) -> dict[str, str]:
    """Return what is known about a run, by name."""
    about, best, (iteration, seconds) = run.about, run.best, run.reached
    pace, batch = compute_pace(run), about.get('batch')
    # mmengine logs the peak memory of a GPU since the latest start in MiB.
    logged = run.curves['memory'][:, 1].max() if 'memory' in run.curves else 0.
    gpu = max(logged / 1024, about.get('peak_gpu_memory', 0.))
    best_text = None
    if best is not None:
        key = run.main_metric
        best_text = f'{key} {best["metrics"][key]:.4g} at iteration {best["iteration"]}'
    facts = {
        'state': describe_state(run),
        'model': TASKS.get(about.get('kind') or ''),
        'classes': f'{len(about["classes"])}' if 'classes' in about else None,
        'parameters': f'{about["parameters"]:,}' if 'parameters' in about else None,
        'best evaluation': best_text,
        'iterations': f'{iteration:,}' +
                      (f' of {about["max_iters"]:,}' if 'max_iters' in about else ''),
        'time': format_duration(seconds),
        'time for record and report': f'{about["seconds_of_recording"]:.1f} s'
                                      if 'seconds_of_recording' in about else None,
        'training iteration': f'{pace:.3g} s' if pace else None,
        'training images per second': f'{batch / pace:.3g}' if batch and pace else None,
        'last evaluation': f'{run.last["seconds"]:.3g} s'
                           if run.last and 'seconds' in run.last else None,
        'skipped steps (NaN or Inf)': f'{run.curves[SKIPPED][-1, 1]:.0f}'
                                      if SKIPPED in run.curves else None,
        'batch size': str(batch or 'varies') if about else None,
        'seed': str(about['seed']) if 'seed' in about else None,
        'peak memory': f'{about["peak_memory"]:.2f} GiB' if 'peak_memory' in about else None,
        'peak GPU memory': f'{gpu:.2f} GiB' if gpu else None,
    }  # yapf: disable
    return {name: value for name, value in facts.items() if value is not None}


def compute_pace(run: RecordedRun) -> float | None:
    """Return the seconds per iteration without evaluations; None before the first."""
    iteration, seconds = run.reached
    is_recorded = seconds == run.about.get('seconds')  # metrics.csv ends before an evaluation
    evaluating = sum(each.get('seconds', 0.) for each in run.evaluations
                     if is_recorded or each['iteration'] < iteration)  # yapf: disable
    return max(0., seconds - evaluating) / iteration if iteration else None


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def build_metric_sections(run: RecordedRun) -> list[Section]:
    """Return the metrics of the best and the last evaluation, and a plot over iterations."""
    best, last = run.best, run.last
    if best is None or last is None:
        return [Section('Metrics', 'No evaluation has computed a metric.')]
    rows = [[key, *(get_metric(each, key) for each in (best, last))] for key in last['metrics']]
    table = Table(['metric', f'best: iteration {best["iteration"]}', f'last: {last["iteration"]}'],
                  rows)
    key = run.main_metric or ''
    mark = best['iteration'], best['metrics'][key]
    text = (f'The best evaluation has the {"lowest" if run.is_lower_better else "highest"} {key}; '
            'of equal ones, it is the last.')
    if is_at_minimum(key, mark[1]):
        text = f'{key} has its lowest value in all evaluations, so the best one is the last.'
    if run.data_since:
        text += f' The validation data changed at iteration {run.data_since}.'
    plots = plot_sizes(best)
    if len(run.evaluations) == 1:
        return [Section('Metrics', text, plots, [table])]
    plotted = {key: curve for key, curve in run.metrics.items() if is_plotted(key)}
    curves = dict(list((plotted or run.metrics).items())[:MAX_CURVES])
    plot = draw_curves(curves, 'metric', best=mark if key in curves else None)
    return [Section('Metrics', text, [('Metrics of the evaluations', plot), *plots], [table])]


def plot_sizes(evaluation: dict[str, Any]) -> list[tuple[str, Figure]]:
    """Return a plot of the AP of small, medium and large objects, if a metric has several."""
    series = {name: {size: get_metric(evaluation, f'coco/{task}_mAP_{size[0]}') for size in SIZES}
              for name, task in (('boxes', 'bbox'), ('masks', 'segm'))}  # yapf: disable
    series = {name: values for name, values in series.items() if set(values.values()) != {None}}
    sizes = [size for size in SIZES if any(each[size] is not None for each in series.values())]
    if len(sizes) < 2:
        return []
    bars = {name: [values[size] or 0. for size in sizes] for name, values in series.items()}
    caption = 'AP by size of the objects at the best evaluation: below 32², to 96², and larger'
    return [(caption, draw_bars(sizes, bars, 'AP'))]


def get_metric(evaluation: dict, key: str) -> float | None:
    """Return a metric, or None for -1, which COCO's metric returns without objects."""
    value = evaluation.get('metrics', {}).get(key)
    return None if value == -1 and 'mAP' in key else value


def is_plotted(key: str) -> bool:
    """Return True for a metric that is plotted."""
    return key.rpartition('/')[2] in PLOTTED


def build_loss_sections(run: RecordedRun) -> list[Section]:
    """Return plots of losses, learning rate and gradient norm."""
    losses = {
        key: curve
        for key, curve in run.curves.items()
        if key.rpartition('.')[2].startswith('loss') or '.loss' in key
    }
    plots = []
    if len(losses) == 2 and 'loss' in losses:  # The only part is equal to the total.
        losses = {'loss': losses['loss']}
    if losses:
        ordered = sorted(losses.items(), key=lambda item: item[0] != 'loss')
        caption = f'The first {MAX_CURVES} losses' if len(losses) > MAX_CURVES else 'Losses'
        plots.append((caption, draw_curves(dict(ordered[:MAX_CURVES]), 'loss', smooth=True)))
    for key, label in (('lr', 'Learning rate'), ('grad_norm', 'Gradient norm')):
        if key in run.curves:
            curves = {key: run.curves[key]}
            plots.append((label, draw_curves(curves, label.lower(), smooth=key != 'lr')))
    return [Section('Losses and learning rate', plots=plots)] if plots else []


def shorten_hash(digest: str) -> str:
    """Return the first digits of a hash."""
    return digest.removeprefix('files ')[:NUM_DIGITS]


def build_data_sections(run: RecordedRun) -> list[Section]:
    """Return the number of images, and hashes of the files of a run's data."""
    rows = []
    for split, about in run.about.get('data', {}).items():
        files = about['files'] or {'–': '–'}
        rows += [[split, about['images'], path, shorten_hash(digest)]
                 for path, digest in files.items()]  # yapf: disable
    text = (f'Hashes are the first {NUM_DIGITS} of 64 digits of SHA-256, computed from the content '
            'of annotation files, and from the names and file sizes of folders.')
    table = Table(['split', 'images', 'file or folder', 'hash'], rows)
    return [Section('Data', text, tables=[table])] if rows else []


def build_skip_sections(run: RecordedRun) -> list[Section]:
    """Return the training samples that could not be loaded and were skipped, if there are any."""
    counts = read_skipped(run.folder)
    if not counts:
        return []
    samples = format_count(len(counts), 'training sample')
    text = f'{samples} could not be loaded (--on-bad-sample skip).'
    if len(counts) > MAX_SKIPPED:
        text += f' The {MAX_SKIPPED} that were skipped most often are shown.'
    table = Table(['error', 'times'], counts.most_common(MAX_SKIPPED))
    return [Section('Skipped samples', text, tables=[table])]


def build_command_sections(run: RecordedRun) -> list[Section]:
    """Return commands that use the trained model, resume the run, or repeat it."""
    folder = shlex.quote(str(run.folder))
    commands: list[str] = []
    if Run(run.folder).checkpoints():
        commands = [
            f'colonnade test {folder}',
            f'colonnade predict {folder} IMAGES --out predictions',
            f'colonnade serve {folder}',
        ]
    if run.about.get('state') in ('running', 'stopped early'):
        config = shlex.quote(str(run.folder / run.about.get('config_file', 'CONFIG.py')))
        commands.append(f'colonnade train {config} --work-dir {folder} --resume')
    start: dict[str, Any] = next(iter(run.about.get('starts', ())), {})
    if 'command' not in start:
        return [Section('Commands', commands=commands)] if commands else []
    processes = start.get('processes', 1)
    text = 'The last command repeats the run'
    if processes > 1:
        text += f'. Start it with a launcher, since the run had {processes} processes'
    seed = f'randomness.seed={run.about.get("seed")}'
    again = (f'cd {shlex.quote(start["folder"])} && {start["command"]} --work-dir '
             f'{shlex.quote(f"{run.folder.resolve()}_again")} --cfg-options {seed}')
    return [Section('Commands', f'{text}.', commands=[*commands, again])]


def build_environment_sections(run: RecordedRun) -> list[Section]:
    """Return versions and hardware."""
    facts = {**run.about.get('versions', {}), **run.about.get('machine', {})}
    table = Table((), [[key, str(value)] for key, value in facts.items()])
    return [Section('Environment', tables=[table], folded=True)] if facts else []


def build_config_sections(run: RecordedRun) -> list[Section]:
    """Return the config that the run wrote."""
    path = run.folder / run.about.get('config_file', '')
    if not path.is_file():
        return []
    text, note = path.read_text(encoding='utf-8'), path.name
    if len(text) > MAX_CONFIG:
        note += f', the first {MAX_CONFIG:,} of {len(text):,} characters'
    return [Section('Config', note, commands=[text[:MAX_CONFIG]], folded=True)]


#: parts that a notebook shows
CURVES: SectionTable[RecordedRun] = {
    'Metrics': build_metric_sections,
    'Losses and learning rate': build_loss_sections,
}
#: parts of the page from top to bottom
SECTIONS: SectionTable[RecordedRun] = {
    'Run': build_run_sections,
    **CURVES,
    'Samples': build_sample_sections,
    'Classes': build_class_sections,
    'Worst and best images': build_extreme_sections,
    'Data': build_data_sections,
    'Skipped samples': build_skip_sections,
    'Commands': build_command_sections,
    'Environment': build_environment_sections,
    'Config': build_config_sections,
}
