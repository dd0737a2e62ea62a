"""``report.html``: what a run recorded, as a page."""
from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path

from colonnade.engine.work_dir.metrics_table import SKIPPED

from ..html_pages import Section, Table, write_page
from .class_sections import class_sections
from .curve_sections import curve_section, metric_section
from .image_sections import sample_section, worst_section
from .page_parts import part
from .record_folder import PAGE, Run, read_run

MOST_LETTERS = 200_000  # of a config
DIGITS = 16  # of a hash that are shown
KINDS = dict(masks='detector with masks', boxes='detector', labels='segmenter')
ABOUT = 'What this training was made with, and what its evaluations found.'


def write_report(work_dir: Path, *, is_live: bool | None = None) -> Path:
    """Write the page of a run from what it has recorded; returns its path.

    Args:
        work_dir: Of the run.
        is_live: Whether it is training; found out if not given.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If the folder is none of a run, or a file of it is damaged.
    """
    run = read_run(work_dir, is_live=is_live)
    page = work_dir / PAGE
    write_page(page, run.name, ABOUT, sections_of(run))
    return page


def sections_of(run: Run) -> list[Section]:
    """The parts of the page, in order."""
    best, classes = run.whole(run.best or run.last), run.about.get('classes', ())
    return [
        *part('Run', state_section, run),
        *part('Metrics', metric_section, run),
        *part('Losses and learning rate', curve_section, run),
        *part('Samples', sample_section, run),
        *part('Classes', class_sections, best, classes),
        *part('Worst images', worst_section, run, best),
        *part('Data', data_section, run),
        *part('Go on', command_section, run),
        *part('Versions and machine', environment_section, run),
        *part('Config', config_section, run),
    ]


def state_of(run: Run) -> str:
    """Whether a run goes on, has ended, or was ended from outside."""
    state = run.about.get('state', 'not recorded')
    if state != 'running':
        return state
    state = 'running' if run.is_live else 'killed, or training on another machine'
    return f'{state}; recorded up to iteration {run.reached[0]:,} of {run.about["max_iters"]:,}'


def state_text(run: Run) -> str:
    """In words, when and how the run started and ended."""
    starts = run.about.get('starts', ())
    texts = [f'Started {starts[0]["time"]}.'] if starts else []
    for each in starts[1:]:
        other = [f'other {split} data' for split in each.get('other_data', ())]
        texts.append(f'Resumed {each["time"]} at iteration {each["iteration"]}' +
                     (f', with {" and ".join(other)}.' if other else '.'))
    if run.about.get('state') == 'running':
        texts.append(f'The record is of {run.about["written"]}, before the end of the run.')
    return ' '.join(texts)


def state_section(run: Run) -> list[Section]:
    """What a run is and how far it is."""
    return [Section('Run', rows=state_rows(run), text=state_text(run))]


def state_rows(run: Run) -> list[tuple[str, str]]:
    """What a run is, in a few lines."""
    about, best, (iteration, seconds) = run.about, run.best, run.reached
    rows = [('state', state_of(run))]
    if 'kind' in about:
        rows.append(('model', f'{KINDS[about["kind"]]}, {len(about["classes"])} classes'))
    if not about:
        return rows
    rows.append(('parameters', f'{about["parameters"]:,}'))
    if best is not None:
        key = run.main_metric
        rows.append((f'best {key}', f'{best["metrics"][key]:.4g} at iteration {best["iteration"]}'))
    rows += [
        ('iterations', f'{iteration:,} of {about["max_iters"]:,}'),
        ('time', clock(seconds)),
        ('of which for this record and page', f'{about["seconds_of_recording"]:.1f} s'),
        *pace_rows(run),
        *skipped_rows(run),
        ('images an iteration', str(about['batch'] or 'varies')),
        ('seed', str(about['seed'])),
        ('most memory of the first process', f'{about["peak_memory"]:.2f} GiB'),
    ]
    if gpu := gpu_memory(run):
        rows.append(('most memory of its GPU', f'{gpu:.2f} GiB'))
    return rows


def gpu_memory(run: Run) -> float:
    """The most memory of a GPU in GiB; mmengine's log has it in MiB, and starts anew each time."""
    logged = run.curves['memory'][:, 1].max() if 'memory' in run.curves else 0.
    return max(logged / 1024, run.about.get('peak_gpu_memory', 0.))


def pace_of(run: Run) -> float | None:
    """Seconds of an iteration of training, without evaluations; None before the first."""
    iteration, seconds = run.reached
    is_recorded = seconds == run.about.get('seconds')  # not so of a table, which ends before them
    evaluating = sum(each.get('seconds', 0.) for each in run.evaluations
                     if is_recorded or each['iteration'] < iteration)  # yapf: disable
    return max(0., seconds - evaluating) / iteration if iteration else None


def pace_rows(run: Run) -> list[tuple[str, str]]:
    """How long an iteration and an evaluation take."""
    rows, pace, last = [], pace_of(run), run.last
    if pace:
        rows.append(('an iteration of training', f'{pace:.3g} s'))
        if run.about.get('batch'):
            rows.append(('images of training a second', f'{run.about["batch"] / pace:.3g}'))
    if last is not None and 'seconds' in last:
        rows.append(('the last evaluation', f'{last["seconds"]:.3g} s'))
    return rows


def skipped_rows(run: Run) -> list[tuple[str, str]]:
    """How many steps were skipped since the latest start, if any."""
    if SKIPPED not in run.curves:
        return []
    return [('steps skipped, as a number was not finite', f'{run.curves[SKIPPED][-1, 1]:.0f}')]


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def data_section(run: Run) -> list[Section]:
    """Numbers of images, and what tells whether two runs read the same files."""
    rows = []
    for split, about in run.about.get('data', {}).items():
        rows += [[split, about['images'], path, digest]
                 for path, digest in about['files'].items()] or [[split, about['images'], '–', '–']]
    if not rows:
        return []
    text = (f'Hashes are the first {DIGITS} of 64 digits of SHA-256: of the content of annotation '
            "files, and of the names and sizes of a folder's files.")
    table = Table(
        ['part', 'images', 'file or folder', 'hash'],
        [[split, images, path, digest.removeprefix('files ')[:DIGITS]]
         for split, images, path, digest in rows])
    return [Section('Data', text=text, tables=[table])]


def command_section(run: Run) -> list[Section]:
    """What to type next."""
    config = shlex.quote(str(run.folder / run.about.get('config_file', 'CONFIG.py')))
    checkpoint = checkpoint_of(run)
    commands = [
        f'colonnade test {config} {checkpoint}',
        f'colonnade predict {config} {checkpoint} IMAGES --out predictions',
        f'colonnade serve {config} {checkpoint}',
    ]
    if run.about.get('state') in ('running', 'stopped early'):
        folder = shlex.quote(str(run.folder))
        commands.append(f'colonnade train {config} --work-dir {folder} --resume')
    return [Section('Go on', commands=commands)]


def checkpoint_of(run: Run) -> str:
    """The best or last checkpoint in a command: by the file that names it, unless it was moved."""
    best = run.folder / 'best_checkpoint'
    named = best if best.is_file() else run.folder / 'last_checkpoint'
    if named.is_file():
        path = Path(named.read_text(encoding='utf-8').strip())
        beside = run.folder / path.name
        if not path.is_file() and beside.is_file():
            return shlex.quote(str(beside))
    return f'"$(cat {shlex.quote(str(named))})"'


def environment_section(run: Run) -> list[Section]:
    """Versions and the machine."""
    rows = {**run.about.get('versions', {}), **run.about.get('machine', {})}
    table = Table(['', ''], [[key, str(value)] for key, value in rows.items()])
    return [Section('Versions and machine', tables=[table], folded=True)] if rows else []


def config_section(run: Run) -> list[Section]:
    """The config that the run wrote."""
    path = run.folder / run.about.get('config_file', '')
    if not path.is_file():
        return []
    text = path.read_text(encoding='utf-8')
    shown = text[:MOST_LETTERS]
    note = path.name
    if shown != text:
        note += f', the first {MOST_LETTERS:,} of {len(text):,} letters'
    return [Section('Config', text=note, commands=[shown], folded=True)]
