"""Files that a run writes to ``WORK_DIR/record``, from which pages can be built at any time.

``run.json`` describes the run and ``iter_N/evaluation.json`` an evaluation. Next to the latter are
images and ``details.json``, with class metrics and the worst images.
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
from colonnade.engine.work_dir import Run

RECORD, ABOUT = 'record', 'run.json'
EVALUATION, DETAILS = 'evaluation.json', 'details.json'
NOT_CURVES = ('iter', 'epoch')  # columns of metrics.csv
TIME = 'time'  # column of metrics.csv: seconds of training
#: metrics that summarize an evaluation, by descending priority
MAIN_METRICS = ('PQ', 'segm_mAP', 'bbox_mAP', 'mIoU', 'mAP', 'AP')
Curve: TypeAlias = np.ndarray  # iterations and values, (N, 2)
Evaluation: TypeAlias = dict[str, Any]  # content of EVALUATION


@dataclass(frozen=True)
class RecordedRun:
    """Record of a run."""
    folder: Path  # work dir
    about: dict[str, Any] = field(default_factory=dict)  # content of run.json, or empty
    evaluations: list[Evaluation] = field(default_factory=list)  # in the order of iterations
    curves: dict[str, Curve] = field(default_factory=dict)  # columns of metrics.csv
    is_live: bool = False  # whether a process is training in the work dir

    @property
    def name(self) -> str:
        """Name of the work dir."""
        return self.folder.resolve().name

    @property
    def reached(self) -> tuple[int, float]:
        """Number of completed iterations, and seconds of training."""
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
        """Metric of the best checkpoint, or else one that summarizes an evaluation."""
        names = list(self.metrics)
        if self.about.get('main_metric') in names:
            return self.about['main_metric']
        main = (name for ending in MAIN_METRICS for name in names
                if name.rpartition('/')[2] == ending)  # yapf: disable
        return next(main, names[0] if names else None)

    @property
    def is_lower_better(self) -> bool:
        """True if lower values of the main metric are better."""
        return self.about.get('rule') == 'less' and self.main_metric == self.about['main_metric']

    @property
    def best(self) -> Evaluation | None:
        """Evaluation with the best main metric, the last one if several are equal."""
        key, sign = self.main_metric, -1 if self.is_lower_better else 1
        measured = [each for each in self.evaluations if each['metrics'].get(key) is not None]
        return max(reversed(measured), key=lambda each: sign * each['metrics'][key], default=None)

    @property
    def last(self) -> Evaluation | None:
        """Last evaluation, if there is any."""
        return self.evaluations[-1] if self.evaluations else None

    @cached_property
    def details(self) -> dict[str, Any]:
        """Best or else last evaluation, with class metrics and worst images."""
        evaluation = self.best or self.last
        return {} if evaluation is None else self.read_details(evaluation)

    @property
    def data_since(self) -> int:
        """Last iteration before the validation data changed."""
        return max((start['iteration'] for start in self.about.get('starts', ())
                    if 'validation' in start.get('other_data', ())), default=0)  # yapf: disable

    @property
    def drawn(self) -> list[Evaluation]:
        """Evaluations that drew the same images as the last."""
        drawn = [each for each in self.evaluations
                 if each.get('samples') and each['iteration'] > self.data_since]  # yapf: disable
        return [each for each in drawn if each['samples'] == drawn[-1]['samples']]

    def read_details(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return an evaluation with the content of its ``details.json``."""
        path = get_evaluation_folder(self.folder, evaluation['iteration']) / DETAILS
        return evaluation | (read_record_file(path) if path.is_file() else {})


def get_evaluation_folder(work_dir: Path, iteration: int) -> Path:
    """Return the folder of an evaluation."""
    return work_dir / RECORD / f'iter_{iteration}'


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
        work_dir: Work dir of the run.
        is_live: Whether the run is training. Defaults to whether a process of this host is.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the folder is not a work dir, or a file in it is damaged.
    """
    if not work_dir.is_dir():
        raise MissingFileError(f'{work_dir} is not a folder: pass the work dir of a run')
    about_path, table = work_dir / RECORD / ABOUT, Run(work_dir).metrics
    if not about_path.is_file() and not table.is_file():
        raise UserError(f'{work_dir} is not the work dir of a run: it contains neither '
                        f'{RECORD}/{ABOUT} nor {table.name}')
    about = read_record_file(about_path) if about_path.is_file() else {}
    columns = read_columns(table) if table.is_file() else {}
    evaluations = read_evaluations(work_dir / RECORD) or find_evaluations(columns)
    curves: dict[str, Curve] = {}
    for key, values in columns.items():
        known = np.isfinite(values)
        if key not in NOT_CURVES and known.any():
            curves[key] = np.stack([columns['iter'][known], values[known]], axis=1)
    live = is_training(work_dir) if is_live is None else is_live
    return RecordedRun(work_dir, about, evaluations, curves, live)


def read_evaluations(record: Path) -> list[Evaluation]:
    """Return the evaluations of a record, in the order of iterations."""
    evaluations = []
    for path in record.glob(f'iter_*/{EVALUATION}'):
        content = read_record_file(path)
        metrics = content.get('metrics')
        if type(content.get('iteration')) is not int or not isinstance(metrics, dict) or not all(
                value is None or isinstance(value, (int, float)) for value in metrics.values()):
            raise UserError(f'{path} is damaged: expected an integer iteration and numeric metrics')
        evaluations.append(content)
    return sorted(evaluations, key=lambda each: each['iteration'])


def read_record_file(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a record."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path} is damaged: {error}') from error
    if not isinstance(content, dict):
        raise UserError(f'{path} is damaged: expected a JSON object')
    return content


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of ``metrics.csv``, with NaN for cells without a number."""
    try:
        with path.open(newline='', encoding='utf-8') as file:
            rows = csv.DictReader(file)
            # The rows of a long run would not fit in memory as strings.
            cells = {name: array('d') for name in rows.fieldnames or ()}
            for row in rows:
                for name, column in cells.items():
                    column.append(parse_number(row[name]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{path} is damaged: {error}') from error
    columns = {name: np.array(column) for name, column in cells.items()}
    if columns and not np.isfinite(columns.get('iter', np.array([np.nan]))).all():
        raise UserError(f'{path} is damaged: a row has no number in column iter')
    return columns


def parse_number(text: str | None) -> float:
    """Return the number in a cell, or NaN if there is none."""
    try:
        return float(text or 'nan')
    except ValueError:
        return float('nan')


def find_evaluations(columns: dict[str, np.ndarray]) -> list[Evaluation]:
    """Return the rows of ``metrics.csv`` that are evaluations: without loss and learning rate."""
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
    """Remove evaluations after the iteration from which training resumes."""
    for folder in (work_dir / RECORD).glob('iter_*'):
        number = folder.name.removeprefix('iter_')
        if number.isdecimal() and int(number) > iteration:
            shutil.rmtree(folder)
