"""The files that runs write to ``WORK_DIR/record``.

``run.json`` is about the run, ``iter_N/evaluation.json`` about one evaluation. Next to it are
``details.json``, with classes and worst images, and images. A page can be made from these files
at any time.
"""
from __future__ import annotations

import csv
import json
import shutil
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.locking import lock_folder

RECORD, PAGE, VALUES = 'record', 'report.html', 'metrics.csv'
EVALUATION, DETAILS = 'evaluation.json', 'details.json'
NOT_CURVES = ('iter', 'epoch')
TIME = 'time'  # column of VALUES: seconds of training
#: metrics that sum up an evaluation, where the run names none; the first ones first
MAIN_METRICS = ('PQ', 'segm_mAP', 'bbox_mAP', 'mIoU', 'mAP', 'AP')
Curve: TypeAlias = np.ndarray  # iterations and values, (N, 2)
Evaluation: TypeAlias = dict[str, Any]  # content of EVALUATION


@dataclass(frozen=True)
class RecordedRun:
    """A run as it was recorded.

    Attributes:
        folder: Work dir.
        about: Content of ``run.json``; empty if there is none.
        evaluations: Contents of ``evaluation.json``, in the order of iterations.
        curves: Columns of ``metrics.csv`` by name: losses, metrics, time and others.
        is_live: Whether a process is training in the work dir.
    """
    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    is_live: bool = False

    @property
    def name(self) -> str:
        """Name of the work dir."""
        return self.folder.resolve().name

    @property
    def reached(self) -> tuple[int, float]:
        """Completed iterations, and seconds: of the record, or of the table if it is newer."""
        recorded = self.about.get('iteration', 0), self.about.get('seconds', 0.)
        logged = [(int(row[0]), float(row[1])) for row in self.curves.get(TIME, ())[-1:]]
        return max([recorded, *logged])

    @property
    def metrics(self) -> dict[str, Curve]:
        """Metrics of the evaluations."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for evaluation in self.evaluations:
            for key, value in evaluation['metrics'].items():
                if value is not None:
                    curves.setdefault(key, []).append((evaluation['iteration'], value))
        return {key: np.array(pairs, dtype=float) for key, pairs in curves.items()}

    @property
    def main_metric(self) -> str | None:
        """Metric by which the best checkpoint is chosen, or that sums up an evaluation."""
        names = list(self.metrics)
        if self.about.get('main_metric') in names:
            return self.about['main_metric']
        main = (name for ending in MAIN_METRICS for name in names
                if name.rpartition('/')[2] == ending)  # yapf: disable
        return next(main, names[0] if names else None)

    @property
    def lower_is_better(self) -> bool:
        """Whether the run says so of its main metric."""
        return self.about.get('rule') == 'less' and self.main_metric == self.about['main_metric']

    @property
    def best(self) -> Evaluation | None:
        """Evaluation of the best main metric, the last of several; None without any."""
        key, sign = self.main_metric, -1 if self.lower_is_better else 1
        measured = [each for each in self.evaluations if each['metrics'].get(key) is not None]
        return max(reversed(measured), key=lambda each: sign * each['metrics'][key], default=None)

    @property
    def last(self) -> Evaluation | None:
        """Last evaluation; None without any."""
        return self.evaluations[-1] if self.evaluations else None

    @cached_property
    def details(self) -> dict[str, Any]:
        """The best evaluation, or the last, with its classes and worst images.

        Raises:
            ValueError: If the file is damaged.
        """
        evaluation = self.best or self.last
        return {} if evaluation is None else self.read_details(evaluation)

    @property
    def data_since(self) -> int:
        """Iteration after which the validation data are those of ``about``."""
        return max((start['iteration'] for start in self.about.get('starts', ())
                    if 'validation' in start.get('other_data', ())), default=0)  # yapf: disable

    @property
    def drawn(self) -> list[Evaluation]:
        """Evaluations that drew the same images as the last."""
        drawn = [each for each in self.evaluations
                 if each.get('samples') and each['iteration'] > self.data_since]  # yapf: disable
        return [each for each in drawn if each['samples'] == drawn[-1]['samples']]

    def read_details(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return an evaluation with its details, which are large.

        Raises:
            ValueError: If the file is damaged.
        """
        path = get_evaluation_folder(self.folder, evaluation['iteration']) / DETAILS
        return evaluation | (read_record_file(path) if path.is_file() else {})


def get_record_folder(work_dir: Path) -> Path:
    """Return the folder of a run's record."""
    return work_dir / RECORD


def get_evaluation_folder(work_dir: Path, iteration: int) -> Path:
    """Return the folder of an evaluation."""
    return get_record_folder(work_dir) / f'iter_{iteration}'


def is_training(work_dir: Path) -> bool:
    """Return True if a process of this host trains in a work dir."""
    try:
        with lock_folder(work_dir, ''):
            return False
    except UserError:
        return True


def read_run(work_dir: Path, *, is_live: bool | None = None) -> RecordedRun:
    """Return the record of a run.

    Args:
        work_dir: Work dir.
        is_live: Whether it is training. Defaults to whether a process of this host is.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the folder is not a work dir, or a file of it is damaged.
    """
    if not work_dir.is_dir():
        raise MissingFileError(f'{work_dir} is no folder: name the work dir of a run')
    about_path, values = get_record_folder(work_dir) / 'run.json', work_dir / VALUES
    if not about_path.is_file() and not values.is_file():
        raise UserError(f'{work_dir} is no work dir of a run: it has neither {RECORD}/run.json '
                        f'nor {VALUES}, which colonnade train writes')
    about = read_record_file(about_path) if about_path.is_file() else {}
    columns = read_columns(values) if values.is_file() else {}
    evaluations = read_evaluations(get_record_folder(work_dir)) or find_evaluations(columns)
    live = is_training(work_dir) if is_live is None else is_live
    return RecordedRun(work_dir, about, evaluations, split_curves(columns), live)


def read_evaluations(record: Path) -> list[Evaluation]:
    """Return the evaluations of a record, in the order of iterations.

    Raises:
        ValueError: If a file is damaged.
    """
    evaluations = []
    for path in record.glob(f'iter_*/{EVALUATION}'):
        content = read_record_file(path)
        metrics = content.get('metrics')
        if type(content.get('iteration')) is not int or not isinstance(metrics, dict) or not all(
                value is None or isinstance(value, (int, float)) for value in metrics.values()):
            raise UserError(f'{path} is damaged: it needs an iteration and metrics, by numbers')
        evaluations.append(content)
    return sorted(evaluations, key=lambda each: each['iteration'])


def read_record_file(path: Path) -> dict[str, Any]:
    """Return the content of a file of a record.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path} is damaged: {error}') from error
    if not isinstance(content, dict):
        raise UserError(f'{path} is damaged: it holds no object')
    return content


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of ``metrics.csv``, with NaN for cells without a finite number.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        with path.open(newline='', encoding='utf-8') as file:
            rows = csv.DictReader(file)
            # The rows of a long run do not fit in memory as texts.
            cells = {name: array('d') for name in rows.fieldnames or ()}
            for row in rows:
                for name, column in cells.items():
                    column.append(parse_number(row[name]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{path} is damaged: {error}') from error
    columns = {name: np.array(column) for name, column in cells.items()}
    if columns and not np.isfinite(columns.get('iter', np.array([np.nan]))).all():
        raise UserError(f'{path} is damaged: a row has no number in its column iter')
    return columns


def parse_number(text: str | None) -> float:
    """Return the number of a cell, or NaN if it has none."""
    try:
        return float(text or 'nan')
    except ValueError:
        return float('nan')


def split_curves(columns: dict[str, np.ndarray]) -> dict[str, Curve]:
    """Return each column that has numbers, over iterations."""
    curves: dict[str, Curve] = {}
    for key, values in columns.items():
        known = np.isfinite(values)
        if key not in NOT_CURVES and known.any():
            curves[key] = np.stack([columns['iter'][known], values[known]], axis=1)
    return curves


def find_evaluations(columns: dict[str, np.ndarray]) -> list[Evaluation]:
    """Return the evaluations among the rows of a table: those without loss and learning rate."""
    if not columns:
        return []
    evaluations, none = [], np.full(len(columns['iter']), np.nan)
    trained = ~np.isnan(columns.get('loss', none)) | ~np.isnan(columns.get('lr', none))
    for row in np.flatnonzero(~trained):
        metrics = {
            key: float(values[row])
            for key, values in columns.items()
            if key not in (*NOT_CURVES, TIME) and np.isfinite(values[row])
        }
        if metrics:
            evaluations.append(dict(iteration=int(columns['iter'][row]), metrics=metrics))
    return evaluations


def remove_later_evaluations(work_dir: Path, iteration: int) -> None:
    """Remove evaluations that training will make again, because it starts before them.

    Raises:
        OSError: If they cannot be removed.
    """
    for folder in get_record_folder(work_dir).glob('iter_*'):
        number = folder.name.removeprefix('iter_')
        if number.isdecimal() and int(number) > iteration:
            shutil.rmtree(folder)
