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
from colonnade.engine.distributed.fingerprints import machine, versions
from colonnade.engine.work_dir.metric_values import complete
from colonnade.inference.data_samples import kind_of
from colonnade.runtime.colors import distinct_colors

from . import record_folder, sample_images
from .class_metrics import evidence_of
from .detections import Found, found_in
from .label_counts import Labelled, labelled
from .record_folder import Run
from .report_page import write_report
from .run_metadata import about_run, changed_data, data_of_run, memory, utc
from .sample_images import Legend

SAMPLES = 4  # images that are drawn at each evaluation


class RunRecord(Hook):
    """Writes ``WORK_DIR/record`` and ``WORK_DIR/report.html`` at the start, at each evaluation and
    at the end of a training.

    It changes neither model nor metrics. What goes wrong in it is a warning in the log, and the
    training goes on.

    Args:
        digests: SHA-256 of files and folders of the data that are known already, by path.

    Attributes:
        strict: Whether what goes wrong is an error instead; for tests.
    """
    priority = 'LOWEST'  # behind the hooks that write metrics
    strict = False

    def __init__(self, digests: Mapping[str, str] | None = None) -> None:
        self.digests = digests or {}
        self.images: list[Found | Labelled] = []
        self.about: dict[str, Any] = {}
        self.places: dict[str, int] = {}  # of images in the validation set, by path
        self.legend: Legend | None = None
        self.failed = False  # this evaluation
        self.told: set[str] = set()  # what went wrong
        self.spent = 0.  # seconds of recording
        self.evaluating = self.updated = time.monotonic()

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Log an error instead of raising it, and add up the time."""
        started = time.monotonic()
        try:
            yield
        except Exception as error:
            if self.strict:
                raise
            self.failed = True
            text = f'the report lacks {what}: {type(error).__name__}: {error}'
            if text not in self.told:
                self.told.add(text)
                print_log(text, logger='current', level=logging.WARNING)
        finally:
            self.spent += time.monotonic() - started

    @master_only
    def before_train(self, runner: Runner) -> None:
        """Record what the run is made with."""
        self.updated = time.monotonic()
        before: dict[str, Any] = {}
        with self.guard('what came before this start'):
            record_folder.forget_after(Path(runner.work_dir), runner.iter)
            earlier = record_folder.record_of(Path(runner.work_dir)) / 'run.json'
            before = record_folder.read_json(earlier) if runner.iter and earlier.is_file() else {}
        with self.guard('what the run is made with'):
            self.about = about_run(runner, before)
        with self.guard('versions and machine'):
            self.about |= dict(versions=versions(), machine=machine())
        with self.guard('the hashes of the data'):
            self.about['data'] = data_of_run(runner, self.digests)
            self.about['starts'][-1]['other_data'] = changed_data(before, self.about)
        with self.guard('the start of the run'):
            self.write(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Start to record an evaluation."""
        self.images, self.failed = [], False
        self.evaluating = time.monotonic()

    def after_val_iter(self,
                       runner: Runner,
                       batch_idx: int,
                       data_batch: Any = None,
                       outputs: Sequence[BaseDataElement] | None = None) -> None:
        """Record what was found in a batch."""
        if self.failed:
            return
        with self.guard('this evaluation'):
            dataset = runner.val_loop.dataloader.dataset
            if not self.places:
                paths = (dataset.get_data_info(i)['img_path'] for i in range(len(dataset)))
                self.places = {path: index for index, path in enumerate(paths)}
            metrics = runner.val_loop.evaluator.metrics
            masks = masks_of(metrics, outputs or ())
            for sample, codes in zip(outputs or (), masks, strict=True):
                self.images.append(self.compact(sample, codes, dataset, metrics))

    def compact(self, sample: BaseDataElement, masks: Sequence[dict] | None, dataset: Any,
                metrics: Sequence[BaseMetric]) -> Found | Labelled:
        """What was found in an image.

        Raises:
            ValueError: If it is not known which image that was.
        """
        path = sample.metainfo.get('img_path')
        if path not in self.places:
            raise UserError(f'the validation set has no image {path}: let the pipeline pack '
                            'img_path (meta_keys)')
        index, number = self.places[path], len(dataset.metainfo['classes'])
        if 'pred_sem_seg' not in sample:
            if 'pred_instances' not in sample:
                raise UserError('the model answers neither instances nor a label map')
            return found_in(sample, index, masks)
        predicted = sample.pred_sem_seg.data.squeeze()
        if 'gt_sem_seg' in sample:
            truth = sample.gt_sem_seg.data.squeeze().to(predicted.device)
        else:
            legend = Legend('labels', tuple(dataset.metainfo['classes']), ())
            found = sample_images.label_map(legend, dataset.get_data_info(index), path)
            truth = torch.from_numpy(found.labels.astype(np.int64)).to(predicted.device)
        ignored = next((m.ignore_index for m in metrics if hasattr(m, 'ignore_index')), 255)
        return labelled(predicted, truth, index, number, ignored)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Gather what all processes found, and write it down in the first."""
        dataset, part = runner.val_loop.dataloader.dataset, None
        with self.guard('this evaluation'):
            part = pickle.dumps(self.images)
        self.images = []
        # Not guarded: whoever went on alone would leave the others waiting.
        parts = all_gather_object(part)
        if not is_main_process():
            return
        with self.guard('this evaluation'):
            if None in parts:
                raise RuntimeError(f'process {parts.index(None)} cannot send what it found')
            found = [each for part in parts for each in pickle.loads(part)]
            unique = {each.index: each for each in found}  # loaders may repeat the first
            self.evaluate(runner, dataset, [unique[index] for index in sorted(unique)], metrics)
        with self.guard('what has become of the run'):
            self.write(runner)

    def evaluate(self, runner: Runner, dataset: Any, found: list[Found | Labelled],
                 metrics: dict[str, float] | None) -> None:
        """Write the files of ``iter_N``."""
        evaluator = runner.val_loop.evaluator
        measured = complete(metrics or {}, evaluator.metrics)
        content: dict[str, Any] = dict(
            iteration=runner.iter,
            metrics={
                key: v
                for key, v in measured.items() if v is None or isinstance(v, float)
            },
            images=len(dataset),
            recorded=len(found))
        here = record_folder.evaluation_folder(Path(runner.work_dir), runner.iter)
        here.mkdir(parents=True, exist_ok=True)
        try:
            if found:
                self.legend = self.legend or legend_of(dataset, runner.model)
                details = evidence_of(found, dataset, evaluator.metrics)
                for each in details['worst']:
                    each['name'] = name_of(dataset, each['index'])
                write_text(here / record_folder.DETAILS, json.dumps(details, allow_nan=False))
                by_index = {each.index: each for each in found}
                self.draw(here, dataset, by_index, content)
                self.draw_worst(here, dataset, by_index, content, details['worst'])
        finally:
            content['seconds'] = round(time.monotonic() - self.evaluating, 3)
            write_json(here / record_folder.EVALUATION, content)

    def draw(self, here: Path, dataset: Any, found: dict[int, Found | Labelled],
             content: dict[str, Any]) -> None:
        """Pictures of the samples."""
        legend = self.legend
        assert legend is not None
        chosen = np.linspace(0, len(dataset) - 1, min(SAMPLES, len(dataset))).round().astype(int)
        content['samples'] = [name_of(dataset, i) for i in chosen.tolist() if i in found]
        for number, index in enumerate(i for i in chosen.tolist() if i in found):
            truth, answer = sample_images.truth_and_prediction(dataset, found[index], legend)
            sample_images.save(truth, here.parent / f'truth_{number}.jpg')
            sample_images.save(answer, here / f'sample_{number}.jpg')

    def draw_worst(self, here: Path, dataset: Any, found: dict[int, Found | Labelled],
                   content: dict[str, Any], worst: Sequence[dict[str, Any]]) -> None:
        """Pictures of the worst images, unless an earlier evaluation was better."""
        legend = self.legend
        assert legend is not None
        others = [
            each for each in record_folder.recorded_evaluations(here.parent)
            if each['iteration'] != content['iteration']
        ]
        best = Run(here, self.about, [*others, content]).best
        if best is not None and best is not content:
            return
        for old in here.parent.glob('iter_*/worst_*.jpg'):
            old.unlink()
        for number, each in enumerate(worst):
            truth, answer = sample_images.truth_and_prediction(dataset, found[each['index']],
                                                               legend)
            sample_images.save(truth, here / f'worst_{number}_truth.jpg')
            sample_images.save(answer, here / f'worst_{number}.jpg')

    @master_only
    def after_train(self, runner: Runner) -> None:
        """Record that the training has ended."""
        with self.guard('the end of the run'):
            complete = runner.iter >= runner.max_iters
            self.about['state'] = 'finished' if complete else 'stopped early'
            self.write(runner)

    def write(self, runner: Runner) -> None:
        """Bring ``run.json`` and the page up to date."""
        if 'seconds' not in self.about:  # the start of the run could not be recorded
            return
        now = time.monotonic()
        self.about['seconds'] += now - self.updated
        self.about['seconds_of_recording'] += self.spent
        self.updated, self.spent = now, 0.
        iteration = runner.iter
        self.about |= dict(iteration=iteration, written=utc(), **memory(self.about))
        if self.legend is not None:
            self.about |= dict(
                kind=self.legend.kind, classes=self.legend.classes, palette=self.legend.palette)
        write_json(record_folder.record_of(Path(runner.work_dir)) / 'run.json', self.about)
        write_report(Path(runner.work_dir), is_live=self.about['state'] == 'running')


def legend_of(dataset: Any, model: torch.nn.Module) -> Legend:
    """Kind and classes of a model that is evaluated on a data set."""
    classes = tuple(dataset.metainfo['classes'])
    palette = dataset.metainfo.get('palette')
    usable = isinstance(palette, (list, tuple)) and len(palette) == len(classes)
    colours = [tuple(each) for each in palette] if usable else distinct_colors(len(classes))
    bare = model.module if is_model_wrapper(model) else model
    return Legend(kind_of(bare), classes, tuple(colours))


def masks_of(metrics: Sequence[BaseMetric],
             outputs: Sequence[BaseDataElement]) -> list[Sequence[dict] | None]:
    """Masks in run-length code, as COCO's metric has just made them; None where it has not.

    Coding takes most of what recording would cost. The metric's results are pairs of truth and
    prediction.
    """
    for metric in metrics:
        if type(metric).__name__ in ('CocoMetric', 'FasterCocoMetric') and outputs:
            results = metric.results[-len(outputs):]
            found = [pair[1] for pair in results]
            if [each['img_id'] for each in found] == [each.img_id for each in outputs]:
                return [each.get('masks') for each in found]
    return [None] * len(outputs)


def name_of(dataset: Any, index: int) -> str:
    """The file name of an image."""
    return Path(dataset.get_data_info(index)['img_path']).name
