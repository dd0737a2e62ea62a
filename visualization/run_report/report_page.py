"""``report.html``: what a run recorded, as a page."""
from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path

from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.metrics_table import SKIPPED

from ..html_pages import Section, Table, build_sections, write_page
from ..html_pages.page import SectionTable
from .class_sections import build_class_sections
from .image_sections import build_sample_sections, build_worst_sections
from .metric_sections import build_loss_sections, build_metric_sections
from .record_folder import PAGE, RecordedRun, read_run

MAX_CONFIG = 200_000  # letters of a config
NUM_DIGITS = 16  # of a hash that are shown
KINDS = dict(masks='detector with masks', boxes='detector', labels='segmenter')
ABOUT = 'What this training was made with, and what its evaluations found.'


def write_report(work_dir: Path, *, is_live: bool | None = None) -> Path:
    """Write the page of a run from its record, and return its path.

    Args:
        work_dir: Work dir.
        is_live: Whether it is training. Defaults to whether a process of this host is.

    Raises:
        OSError: If a file cannot be read or written.
        ValueError: If the folder is not a work dir, or a file of it is damaged.
    """
    run = read_run(work_dir, is_live=is_live)
    write_page(work_dir / PAGE, run.name, ABOUT, build_sections(SECTIONS, run))
    return work_dir / PAGE


def build_run_sections(run: RecordedRun) -> list[Section]:
    """Return what a run is and how far it is."""
    starts = run.about.get('starts', ())
    texts = [f'Started {starts[0]["time"]}.'] if starts else []
    for each in starts[1:]:
        other = [f'other {split} data' for split in each.get('other_data', ())]
        texts.append(f'Resumed {each["time"]} at iteration {each["iteration"]}' +
                     (f', with {" and ".join(other)}.' if other else '.'))
    if run.about.get('state') == 'running':
        texts.append(f'The record is of {run.about["written"]}, before the end of the run.')
    return [Section('Run', ' '.join(texts), tables=[Table((), describe_run(run))])]


def describe_state(run: RecordedRun) -> str:
    """Return whether a run is training, has ended, or was killed."""
    state = run.about.get('state', 'not recorded')
    if state != 'running':
        return state
    state = 'running' if run.is_live else 'killed, or training on another machine'
    return f'{state}; recorded up to iteration {run.reached[0]:,} of {run.about["max_iters"]:,}'


def describe_skipped_steps(run: RecordedRun) -> list[tuple[str, str]]:
    """Return how many steps were skipped since the latest start, if any was."""
    if SKIPPED not in run.curves:
        return []
    return [('steps skipped, as a number was not finite', f'{run.curves[SKIPPED][-1, 1]:.0f}')]


def describe_run(run: RecordedRun) -> list[tuple[str, str]]:
    """Return names and values of a run's facts."""
    about, best, (iteration, seconds) = run.about, run.best, run.reached
    rows = [('state', describe_state(run))]
    if 'kind' in about:
        rows.append(('model', f'{KINDS[about["kind"]]}, {len(about["classes"])} classes'))
    if not about:
        return rows + describe_skipped_steps(run)
    rows.append(('parameters', f'{about["parameters"]:,}'))
    if best is not None:
        key = run.main_metric
        rows.append((f'best {key}', f'{best["metrics"][key]:.4g} at iteration {best["iteration"]}'))
    rows += [
        ('iterations', f'{iteration:,} of {about["max_iters"]:,}'),
        ('time', format_duration(seconds)),
        ('of which for this record and page', f'{about["seconds_of_recording"]:.1f} s'),
    ]
    if pace := compute_pace(run):
        rows.append(('an iteration of training', f'{pace:.3g} s'))
        if about.get('batch'):
            rows.append(('images of training a second', f'{about["batch"] / pace:.3g}'))
    if 'seconds' in (run.last or {}):
        rows.append(('the last evaluation', f'{(run.last or {})["seconds"]:.3g} s'))
    rows += [
        *describe_skipped_steps(run),
        ('images an iteration', str(about['batch'] or 'varies')),
        ('seed', str(about['seed'])),
        ('most memory of the first process', f'{about["peak_memory"]:.2f} GiB'),
    ]
    if gpu := get_gpu_memory(run):
        rows.append(('most memory of its GPU', f'{gpu:.2f} GiB'))
    return rows


def get_gpu_memory(run: RecordedRun) -> float:
    """Return the peak memory of a GPU in GiB; mmengine logs it in MiB, of each start."""
    logged = run.curves['memory'][:, 1].max() if 'memory' in run.curves else 0.
    return max(logged / 1024, run.about.get('peak_gpu_memory', 0.))


def compute_pace(run: RecordedRun) -> float | None:
    """Return the seconds of an iteration, without evaluations; None before the first."""
    iteration, seconds = run.reached
    is_recorded = seconds == run.about.get('seconds')  # a table ends before the last evaluation
    evaluating = sum(each.get('seconds', 0.) for each in run.evaluations
                     if is_recorded or each['iteration'] < iteration)  # yapf: disable
    return max(0., seconds - evaluating) / iteration if iteration else None


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def shorten_hash(digest: str) -> str:
    """Return the first digits of a hash."""
    return digest.removeprefix('files ')[:NUM_DIGITS]


def build_data_sections(run: RecordedRun) -> list[Section]:
    """Return the number of images, and the hashes that identify the files of a run."""
    rows = []
    for split, about in run.about.get('data', {}).items():
        files = about['files'] or {'–': '–'}
        rows += [[split, about['images'], path, shorten_hash(digest)]
                 for path, digest in files.items()]  # yapf: disable
    text = (f'Hashes are the first {NUM_DIGITS} of 64 digits of SHA-256: of the content of '
            "annotation files, and of the names and sizes of a folder's files.")
    table = Table(['part', 'images', 'file or folder', 'hash'], rows)
    return [Section('Data', text, tables=[table])] if rows else []


def build_command_sections(run: RecordedRun) -> list[Section]:
    """Return what to type next."""
    config = shlex.quote(str(run.folder / run.about.get('config_file', 'CONFIG.py')))
    checkpoint = quote_checkpoint(run)
    commands = [
        f'colonnade test {config} {checkpoint}',
        f'colonnade predict {config} {checkpoint} IMAGES --out predictions',
        f'colonnade serve {config} {checkpoint}',
    ]
    if run.about.get('state') in ('running', 'stopped early'):
        folder = shlex.quote(str(run.folder))
        commands.append(f'colonnade train {config} --work-dir {folder} --resume')
    return [Section('Go on', commands=commands)]


def quote_checkpoint(run: RecordedRun) -> str:
    """Return the best or last checkpoint for a shell: by the file that names it, if possible."""
    best = run.folder / Run.BEST
    named = best if best.is_file() else run.folder / Run.LAST
    if named.is_file():
        path = Path(named.read_text(encoding='utf-8').strip())
        moved = run.folder / path.name
        if not path.is_file() and moved.is_file():
            return shlex.quote(str(moved))
    return f'"$(cat {shlex.quote(str(named))})"'


def build_environment_sections(run: RecordedRun) -> list[Section]:
    """Return versions and the machine."""
    facts = {**run.about.get('versions', {}), **run.about.get('machine', {})}
    table = Table((), [[key, str(value)] for key, value in facts.items()])
    return [Section('Versions and machine', tables=[table], folded=True)] if facts else []


def build_config_sections(run: RecordedRun) -> list[Section]:
    """Return the config that the run wrote."""
    path = run.folder / run.about.get('config_file', '')
    if not path.is_file():
        return []
    text, note = path.read_text(encoding='utf-8'), path.name
    if len(text) > MAX_CONFIG:
        note += f', the first {MAX_CONFIG:,} of {len(text):,} letters'
    return [Section('Config', note, commands=[text[:MAX_CONFIG]], folded=True)]


#: the page from top to bottom
SECTIONS: SectionTable[RecordedRun] = {
    'Run': build_run_sections,
    'Metrics': build_metric_sections,
    'Losses and learning rate': build_loss_sections,
    'Samples': build_sample_sections,
    'Classes': build_class_sections,
    'Worst images': build_worst_sections,
    'Data': build_data_sections,
    'Go on': build_command_sections,
    'Versions and machine': build_environment_sections,
    'Config': build_config_sections,
}
