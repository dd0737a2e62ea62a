"""What runs leave in ``WORK_DIR/record``, written and read.

``run.json`` is about the run, ``iter_N/evaluation.json`` about one evaluation, with pictures
beside it. A page can be made from these files at any time.
"""
from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..locking import locked

RECORD, PAGE, VALUES = 'record', 'report.html', 'metrics.csv'
NOT_CURVES = ('iter', 'epoch', 'time')
Curve = list[tuple[int, float]]  # iterations and values


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it.

    Attributes:
        folder: Its work dir.
        about: The content of ``run.json``; empty if it recorded nothing.
        evaluations: Those of ``evaluation.json``, in the order of iterations.
        curves: Of ``metrics.csv``: losses, metrics and others by their names.
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
    def metrics(self) -> dict[str, Curve]:
        """What its evaluations measured."""
        found: dict[str, Curve] = {}
        for each in self.evaluations:
            for key, value in each['metrics'].items():
                if value is not None:
                    found.setdefault(key, []).append((each['iteration'], value))
        return found

    @property
    def main_metric(self) -> str | None:
        """The metric that says which checkpoint is best."""
        named = self.about.get('main_metric')
        if named in self.metrics:
            return named
        return main_metric(list(self.metrics))

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation of the best main metric, the first of several; None without any."""
        key, sign = self.main_metric, -1 if self.lower_is_better else 1
        measured = [each for each in self.evaluations if each['metrics'].get(key) is not None]
        return max(measured, key=lambda each: sign * each['metrics'][key], default=None)

    @property
    def lower_is_better(self) -> bool:
        """Whether the run says so of its main metric."""
        return self.about.get('rule') == 'less' and self.main_metric == self.about['main_metric']

    @property
    def last(self) -> dict[str, Any] | None:
        """The last evaluation; None without any."""
        return self.evaluations[-1] if self.evaluations else None


def main_metric(names: list[str]) -> str | None:
    """The metric that sums up an evaluation, where the run names none."""
    for ending in ('segm_mAP', 'bbox_mAP', 'mIoU', 'mAP', 'AP'):
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
    except FileExistsError:
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
        raise FileNotFoundError(f'{work_dir} is no folder: name the work dir of a run')
    record = record_of(work_dir)
    values = work_dir / VALUES
    if not (record / 'run.json').is_file() and not values.is_file():
        raise ValueError(f'{work_dir} is no work dir of a run: it has neither {RECORD}/run.json '
                         f'nor {VALUES}, which tools/train.py writes')
    about = read_json(record / 'run.json') if (record / 'run.json').is_file() else {}
    found = recorded_evaluations(record)
    rows = read_rows(values) if values.is_file() else []
    evaluations = found or evaluations_of(rows)
    live = is_training(work_dir) if is_live is None else is_live
    return Run(work_dir, about, evaluations, curves_of(rows), live)


def recorded_evaluations(record: Path) -> list[dict[str, Any]]:
    """Those of a record, in the order of iterations.

    Raises:
        ValueError: If a file is damaged.
    """
    found = [read_json(path) for path in record.glob('iter_*/evaluation.json')]
    return sorted(found, key=lambda each: each['iteration'])


def read_json(path: Path) -> dict[str, Any]:
    """A file of a record.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f'{path} is damaged: {error}') from error


def read_rows(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The rows of ``metrics.csv``: iterations, and the numbers that were written then.

    Raises:
        ValueError: If it is damaged.
    """
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    try:
        return [(int(row['iter']), {
            key: value
            for key, text in row.items()
            if key not in NOT_CURVES and (value := number_of(text)) is not None
        }) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path} is damaged: a row has no number in its column iter') from error


def curves_of(rows: list[tuple[int, dict[str, float]]]) -> dict[str, Curve]:
    """Each column of numbers over iterations, as far as it has any."""
    curves: dict[str, Curve] = {}
    for iteration, values in rows:
        for key, value in values.items():
            curves.setdefault(key, []).append((iteration, value))
    return curves


def evaluations_of(rows: list[tuple[int, dict[str, float]]]) -> list[dict[str, Any]]:
    """What rows say of evaluations, where nothing else does: those without a loss."""
    return [
        dict(iteration=iteration, metrics=values) for iteration, values in rows
        if values and 'loss' not in values
    ]


def number_of(text: str | None) -> float | None:
    """A finite number of a cell; None if it holds none."""
    try:
        value = float(text or '')
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def forget_after(work_dir: Path, iteration: int) -> None:
    """Remove evaluations that training will make again, because it starts before them.

    Raises:
        OSError: If they cannot be removed.
    """
    for folder in record_of(work_dir).glob('iter_*'):
        number = folder.name.removeprefix('iter_')
        if number.isdecimal() and int(number) > iteration:
            shutil.rmtree(folder)
