"""A hook that records what a training is made with and what its evaluations find."""
from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, is_main_process, master_only
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement

from colonnade.common.atomic_files import write_json, write_text
from colonnade.common.errors import UserError
from colonnade.engine.distributed.fingerprints import describe_machine, get_versions
from colonnade.engine.work_dir.metric_values import fill_missing_metrics
from colonnade.inference.data_samples import kind_of
from colonnade.inference.ground_truth import label_map
from colonnade.runtime.colors import distinct_colors

from . import record_folder
from .average_precision import COCO_METRICS
from .class_metrics import compute_details
from .detections import Detections
from .pixel_counts import PixelCounts
from .record_folder import RecordedRun, get_evaluation_folder, get_record_folder
from .report_page import write_report
from .run_metadata import (describe_data, describe_start, find_changed_data, format_utc,
                           measure_memory)
from .sample_images import Legend, draw_truth_and_prediction, write_jpeg

NUM_SAMPLES = 4  # images that are drawn at each evaluation
IGNORED = 255  # label of pixels that do not count, where no metric says


class RunRecord(Hook):
    """Writes ``WORK_DIR/record`` and ``WORK_DIR/report.html`` at the start, at each evaluation and
    at the end of a training.

    It changes neither model nor metrics. Each of its steps runs in :meth:`guard`: an error there
    is a warning in the log, and the training continues.

    Args:
        digests: SHA-256 of files and folders of the data that are known already, by path.

    Attributes:
        strict: Whether errors end the training instead; for tests.
    """
    priority = 'LOWEST'  # runs after the hooks that write metrics
    strict = False

    def __init__(self, digests: Mapping[str, str] | None = None) -> None:
        self.digests = digests or {}
        self.images: list[Detections | PixelCounts] = []
        self.about: dict[str, Any] = {}
        self.indices: dict[str, int] = {}  # path of an image -> index in the validation set
        self.legend: Legend | None = None
        self.has_failed = False  # in this evaluation
        self.warnings: set[str] = set()
        self.spent = 0.  # seconds of recording
        self.evaluation_start = self.updated = time.monotonic()

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Context manager that logs an error once instead of raising it, and adds up the time."""
        started = time.monotonic()
        try:
            yield
        except Exception as error:  # no error of the record may end a training
            if self.strict:
                raise
            self.has_failed = True
            text = f'the report lacks {what}: {type(error).__name__}: {error}'
            if text not in self.warnings:
                self.warnings.add(text)
                print_log(text, logger='current', level=logging.WARNING)
        finally:
            self.spent += time.monotonic() - started

    @master_only
    def before_train(self, runner: Runner) -> None:
        """Record what the run is made with."""
        self.updated = time.monotonic()
        before: dict[str, Any] = {}
        with self.guard('what came before this start'):
            record_folder.remove_later_evaluations(Path(runner.work_dir), runner.iter)
            earlier = get_record_folder(Path(runner.work_dir)) / 'run.json'
            before = record_folder.read_record_file(
                earlier) if runner.iter and earlier.is_file() else {}
        with self.guard('what the run is made with'):
            self.about = describe_start(runner, before)
        with self.guard('versions and machine'):
            self.about |= dict(versions=get_versions(), machine=describe_machine())
        with self.guard('the hashes of the data'):
            self.about['data'] = describe_data(runner, self.digests)
            self.about['starts'][-1]['other_data'] = find_changed_data(before, self.about)
        with self.guard('the start of the run'):
            self.write(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Start to record an evaluation."""
        self.images, self.has_failed = [], False
        self.evaluation_start = time.monotonic()

    def after_val_iter(self,
                       runner: Runner,
                       batch_idx: int,
                       data_batch: Any = None,
                       outputs: Sequence[BaseDataElement] | None = None) -> None:
        """Record the predictions of a batch."""
        if self.has_failed:
            return
        with self.guard('this evaluation'):
            dataset = runner.val_loop.dataloader.dataset
            if not self.indices:
                paths = (dataset.get_data_info(i)['img_path'] for i in range(len(dataset)))
                self.indices = {path: index for index, path in enumerate(paths)}
            metrics = runner.val_loop.evaluator.metrics
            masks = find_masks(metrics, outputs or ())
            for sample, rles in zip(outputs or (), masks, strict=True):
                self.images.append(self.summarize(sample, rles, dataset, metrics))

    def summarize(self, sample: BaseDataElement, masks: Sequence[dict] | None, dataset: Any,
                  metrics: Sequence[BaseMetric]) -> Detections | PixelCounts:
        """Return the prediction for an image in little memory.

        Raises:
            ValueError: If it is not known which image that was.
        """
        path = sample.metainfo.get('img_path')
        if path not in self.indices:
            raise UserError(f'the validation set has no image {path}: let the pipeline pack '
                            'img_path (meta_keys)')
        index, classes = self.indices[path], tuple(dataset.metainfo['classes'])
        if 'pred_sem_seg' not in sample:
            if 'pred_instances' not in sample:
                raise UserError('the model answers neither instances nor a label map')
            return Detections.from_sample(sample, index, masks)
        predicted = sample.pred_sem_seg.data.squeeze()
        if 'gt_sem_seg' in sample:
            truth = sample.gt_sem_seg.data.squeeze()
        else:
            found = label_map(Legend('labels', classes, ()), dataset.get_data_info(index), path)
            truth = torch.from_numpy(found.labels.astype(np.int64))
        # Any metric may name the label, also one of somebody else.
        ignored = next((m.ignore_index for m in metrics if hasattr(m, 'ignore_index')), IGNORED)
        return PixelCounts.from_labels(predicted, truth.to(predicted.device), index, len(classes),
                                       ignored)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Gather the predictions of all processes, and write the evaluation in the first."""
        part = None
        with self.guard('this evaluation'):
            part = pickle.dumps(self.images)
        self.images = []
        # Not guarded: a process that continued would leave the others waiting.
        parts = all_gather_object(part)
        if not is_main_process():
            return
        with self.guard('this evaluation'):
            if None in parts:
                raise RuntimeError(f'process {parts.index(None)} cannot send what it found')
            images = {image.index: image for part in parts for image in pickle.loads(part)}
            self.write_evaluation(runner, dict(sorted(images.items())), metrics or {})
        with self.guard('what has become of the run'):
            self.write(runner)

    def write_evaluation(self, runner: Runner, images: dict[int, Detections | PixelCounts],
                         metrics: dict[str, float]) -> None:
        """Write the files of ``iter_N``.

        Args:
            runner: Runner of the training.
            images: Prediction for each image, by its index in the validation set.
            metrics: Metrics that the evaluators computed.
        """
        dataset = runner.val_loop.dataloader.dataset
        evaluators = runner.val_loop.evaluator.metrics
        content: dict[str, Any] = dict(
            iteration=runner.iter,
            metrics={
                key: value
                for key, value in fill_missing_metrics(metrics, evaluators).items()
                if value is None or isinstance(value, float)
            },
            images=len(dataset),
            recorded=len(images))
        folder = get_evaluation_folder(Path(runner.work_dir), runner.iter)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if images:
                legend = self.legend = self.legend or read_legend(dataset, runner.model)
                details = compute_details(list(images.values()), dataset, evaluators)
                for each in details['worst']:
                    each['name'] = get_file_name(dataset, each['index'])
                write_text(folder / record_folder.DETAILS, json.dumps(details, allow_nan=False))
                chosen = np.linspace(0, len(dataset) - 1, min(NUM_SAMPLES, len(dataset))).round()
                samples = [int(index) for index in chosen if index in images]
                content['samples'] = [get_file_name(dataset, index) for index in samples]
                for number, index in enumerate(samples):
                    self.draw(dataset, images[index], legend, folder.parent / f'truth_{number}.jpg',
                              folder / f'sample_{number}.jpg')
                if self.is_best(folder.parent, content):
                    for old in folder.parent.glob('iter_*/worst_*.jpg'):
                        old.unlink()
                    for number, each in enumerate(details['worst']):
                        self.draw(dataset, images[each['index']], legend,
                                  folder / f'worst_{number}_truth.jpg',
                                  folder / f'worst_{number}.jpg')
        finally:
            content['seconds'] = round(time.monotonic() - self.evaluation_start, 3)
            write_json(folder / record_folder.EVALUATION, content)

    def draw(self, dataset: Any, image: Detections | PixelCounts, legend: Legend, truth_path: Path,
             prediction_path: Path) -> None:
        """Write drawings of an image: its annotations, and its prediction."""
        truth, prediction = draw_truth_and_prediction(dataset, image, legend)
        write_jpeg(truth, truth_path)
        write_jpeg(prediction, prediction_path)

    def is_best(self, record: Path, content: dict[str, Any]) -> bool:
        """Return True unless an earlier evaluation was better."""
        others = [
            each for each in record_folder.read_evaluations(record)
            if each['iteration'] != content['iteration']
        ]
        best = RecordedRun(record, self.about, [*others, content]).best
        return best is None or best is content

    @master_only
    def after_train(self, runner: Runner) -> None:
        """Record that the training has ended."""
        with self.guard('the end of the run'):
            is_complete = runner.iter >= runner.max_iters
            self.about['state'] = 'finished' if is_complete else 'stopped early'
            self.write(runner)

    def write(self, runner: Runner) -> None:
        """Bring ``run.json`` and the page up to date."""
        if 'seconds' not in self.about:  # the start of the run could not be recorded
            return
        now = time.monotonic()
        self.about['seconds'] += now - self.updated
        self.about['seconds_of_recording'] += self.spent
        self.updated, self.spent = now, 0.
        self.about |= dict(
            iteration=runner.iter, written=format_utc(), **measure_memory(self.about))
        if self.legend is not None:
            self.about |= vars(self.legend)
        write_json(get_record_folder(Path(runner.work_dir)) / 'run.json', self.about)
        write_report(Path(runner.work_dir), is_live=self.about['state'] == 'running')


def read_legend(dataset: Any, model: torch.nn.Module) -> Legend:
    """Return kind and classes of a model that is evaluated on a dataset."""
    classes = tuple(dataset.metainfo['classes'])
    palette = dataset.metainfo.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) != len(classes):
        palette = distinct_colors(len(classes))
    bare = model.module if is_model_wrapper(model) else model
    return Legend(kind_of(bare), classes, tuple(map(tuple, palette)))


def find_masks(metrics: Sequence[BaseMetric],
               outputs: Sequence[BaseDataElement]) -> list[Sequence[dict] | None]:
    """Return masks as the RLEs that COCO's metric has just made; None where it has not.

    Encoding takes most of what recording would cost. The metric's results are pairs of truth and
    prediction.
    """
    for metric in metrics:
        if type(metric).__name__ in COCO_METRICS and outputs:
            results = [pair[1] for pair in metric.results[-len(outputs):]]
            if [each['img_id'] for each in results] == [each.img_id for each in outputs]:
                return [each.get('masks') for each in results]
    return [None] * len(outputs)


def get_file_name(dataset: Any, index: int) -> str:
    """Return the file name of an image."""
    return Path(dataset.get_data_info(index)['img_path']).name
