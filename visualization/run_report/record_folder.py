"""What runs leave in ``WORK_DIR/record``, written and read.

``run.json`` is about the run, ``iter_N/evaluation.json`` about one evaluation. Beside it are
``details.json``, with classes and worst images, and pictures. A page can be made from these files
at any time.
"""
from __future__ import annotations

import csv
import json
import shutil
from array import array
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.locking import locked

RECORD, PAGE, VALUES = 'record', 'report.html', 'metrics.csv'
EVALUATION, DETAILS = 'evaluation.json', 'details.json'
NOT_CURVES = ('iter', 'epoch')
TIME = 'time'  # seconds of training, in VALUES
Curve: TypeAlias = np.ndarray  # iterations and values, (N, 2)


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it.

    Attributes:
        folder: Its work dir.
        about: The content of ``run.json``; empty if it recorded nothing.
        evaluations: Those of ``evaluation.json``, in the order of iterations.
        curves: Of ``metrics.csv``: losses, metrics, time and others by their names.
        is_live: Whether a process is training in it.
    """
    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    is_live: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def reached(self) -> tuple[int, float]:
        """Iterations that are done, and seconds: of the record, or of the table if it is newer."""
        recorded = self.about.get('iteration', 0), self.about.get('seconds', 0.)
        logged = [(int(row[0]), float(row[1])) for row in self.curves.get(TIME, ())[-1:]]
        return max([recorded, *logged])

    @property
    def metrics(self) -> dict[str, Curve]:
        """What its evaluations measured."""
        found: dict[str, list[tuple[int, float]]] = {}
        for each in self.evaluations:
            for key, value in each['metrics'].items():
                if value is not None:
                    found.setdefault(key, []).append((each['iteration'], value))
        return {key: np.array(pairs, dtype=float) for key, pairs in found.items()}

    @property
    def main_metric(self) -> str | None:
        """The metric that says which checkpoint is best."""
        named = self.about.get('main_metric')
        if named in self.metrics:
            return named
        return main_metric(list(self.metrics))

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation of the best main metric, the last of several; None without any."""
        key, sign = self.main_metric, -1 if self.lower_is_better else 1
        measured = [each for each in self.evaluations if each['metrics'].get(key) is not None]
        return max(reversed(measured), key=lambda each: sign * each['metrics'][key], default=None)

    @property
    def lower_is_better(self) -> bool:
        """Whether the run says so of its main metric."""
        return self.about.get('rule') == 'less' and self.main_metric == self.about['main_metric']

    @property
    def data_since(self) -> int:
        """The iteration from whose end on the validation data are those of ``about``."""
        return max((start['iteration'] for start in self.about.get('starts', ())
                    if 'validation' in start.get('other_data', ())), default=0)  # yapf: disable

    @property
    def drawn(self) -> list[dict[str, Any]]:
        """The evaluations that drew the same images as the last."""
        found = [each for each in self.evaluations
                 if each.get('samples') and each['iteration'] > self.data_since]  # yapf: disable
        return [each for each in found if each['samples'] == found[-1]['samples']]

    @property
    def last(self) -> dict[str, Any] | None:
        """The last evaluation; None without any."""
        return self.evaluations[-1] if self.evaluations else None

    def whole(self, evaluation: dict[str, Any] | None) -> dict[str, Any]:
        """An evaluation with its details, which one alone is read with: they are large.

        Raises:
            ValueError: If their file is damaged.
        """
        if evaluation is None:
            return {}
        path = evaluation_folder(self.folder, evaluation['iteration']) / DETAILS
        return evaluation | (read_json(path) if path.is_file() else {})


def main_metric(names: list[str]) -> str | None:
    """The metric that sums up an evaluation, where the run names none."""
    for ending in ('PQ', 'segm_mAP', 'bbox_mAP', 'mIoU', 'mAP', 'AP'):
        for name in names:
            if name.rpartition('/')[2] == ending:
                return name
    return names[0] if names else None


def record_of(work_dir: Path) -> Path:
    """The folder of what a run recorded."""
    return work_dir / RECORD


def evaluation_folder(work_dir: Path, iteration: int) -> Path:
    """The folder of an evaluation."""
    return record_of(work_dir) / f'iter_{iteration}'


def is_training(work_dir: Path) -> bool:
    """Whether a process of this machine trains in a work dir."""
    try:
        with locked(work_dir, ''):
            return False
    except UserError:
        return True


def read_run(work_dir: Path, *, is_live: bool | None = None) -> Run:
    """What a run has recorded.

    Args:
        work_dir: Of the run.
        is_live: Whether it is training; found out if not given.

    Raises:
        OSError: If it cannot be read.
        ValueError: If the folder is none of a run, or a file of it is damaged.
    """
    if not work_dir.is_dir():
        raise MissingFileError(f'{work_dir} is no folder: name the work dir of a run')
    record = record_of(work_dir)
    values = work_dir / VALUES
    if not (record / 'run.json').is_file() and not values.is_file():
        raise UserError(f'{work_dir} is no work dir of a run: it has neither {RECORD}/run.json '
                        f'nor {VALUES}, which colonnade train writes')
    about = read_json(record / 'run.json') if (record / 'run.json').is_file() else {}
    found = recorded_evaluations(record)
    columns = read_columns(values) if values.is_file() else {}
    evaluations = found or evaluations_of(columns)
    live = is_training(work_dir) if is_live is None else is_live
    return Run(work_dir, about, evaluations, curves_of(columns), live)


def recorded_evaluations(record: Path) -> list[dict[str, Any]]:
    """Those of a record, in the order of iterations.

    Raises:
        ValueError: If a file is damaged.
    """
    found = []
    for path in record.glob(f'iter_*/{EVALUATION}'):
        content = read_json(path)
        if type(content.get('iteration')) is not int or not is_measured(content.get('metrics')):
            raise UserError(f'{path} is damaged: it needs an iteration and metrics, by numbers')
        found.append(content)
    return sorted(found, key=lambda each: each['iteration'])


def is_measured(metrics: Any) -> bool:
    """Whether these are metrics as a record holds them: numbers, or null, by names."""
    return isinstance(metrics, dict) and all(
        value is None or isinstance(value, (int, float)) for value in metrics.values())


def read_json(path: Path) -> dict[str, Any]:
    """A file of a record.

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
    """The columns of ``metrics.csv``, NaN where a cell holds no finite number.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        with path.open(newline='', encoding='utf-8') as file:
            rows = csv.reader(file)
            names = next(rows, [])
            cells = [array('d') for _ in names]  # a long run has more rows than texts fit in memory
            for row in filter(None, rows):
                for column, text in zip_longest(cells, row[:len(cells)]):
                    column.append(number_of(text))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{path} is damaged: {error}') from error
    columns = {name: np.array(column) for name, column in zip(names, cells, strict=True)}
    if names and not np.isfinite(columns.get('iter', np.array([np.nan]))).all():
        raise UserError(f'{path} is damaged: a row has no number in its column iter')
    return columns


def curves_of(columns: dict[str, np.ndarray]) -> dict[str, Curve]:
    """Each column of numbers over iterations, as far as it has any."""
    curves: dict[str, Curve] = {}
    for key, values in columns.items():
        known = np.isfinite(values)
        if key not in NOT_CURVES and known.any():
            curves[key] = np.stack([columns['iter'][known], values[known]], axis=1)
    return curves


def evaluations_of(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """What rows say of evaluations, where nothing else does: those without loss and rate."""
    if not columns:
        return []
    found, none = [], np.full(len(columns['iter']), np.nan)
    trained = ~np.isnan(columns.get('loss', none)) | ~np.isnan(columns.get('lr', none))
    for row in np.flatnonzero(~trained):
        metrics = {
            key: float(values[row])
            for key, values in columns.items()
            if key not in (*NOT_CURVES, TIME) and np.isfinite(values[row])
        }
        if metrics:
            found.append(dict(iteration=int(columns['iter'][row]), metrics=metrics))
    return found


def number_of(text: str | None) -> float:
    """The number of a cell; NaN if it holds none."""
    try:
        return float(text or 'nan')
    except ValueError:
        return float('nan')


def forget_after(work_dir: Path, iteration: int) -> None:
    """Remove evaluations that training will make again, because it starts before them.

    Raises:
        OSError: If they cannot be removed.
    """
    for folder in record_of(work_dir).glob('iter_*'):
        number = folder.name.removeprefix('iter_')
        if number.isdecimal() and int(number) > iteration:
            shutil.rmtree(folder)
