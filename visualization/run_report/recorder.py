"""Hook that records the configuration, the evaluations and the cost of a training run."""
from __future__ import annotations

import json
import logging
import os
import pickle
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, get_world_size, is_main_process, master_only
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement

from colonnade.common.atomic_files import write_json, write_text
from colonnade.common.errors import UserError
from colonnade.common.process_memory import get_peak_memory
from colonnade.engine.distributed.fingerprints import (compute_data_checksums, describe_machine,
                                                       get_versions)
from colonnade.engine.work_dir.metric_values import fill_missing_metrics
from colonnade.evaluation.panoptic_quality import PanopticQuality
from colonnade.inference.model import get_model_kind
from colonnade.settings.config_values import flat, plain

from .class_metrics import COCO_METRICS, compute_details
from .predictions import ImageRecord, Legend, compact_prediction
from .record_folder import (ABOUT, DETAILS, EVALUATION, RECORD, RecordedRun, get_evaluation_folder,
                            read_evaluations, read_record_file, remove_later_evaluations)
from .report_page import write_report
from .sample_images import draw_image

NUM_SAMPLES = 4  # images that are drawn at each evaluation
SPLITS = dict(training='train_dataloader', validation='val_dataloader')


class RunRecord(Hook):
    """Hook that writes ``WORK_DIR/record`` and ``WORK_DIR/report.html`` at the start, at each
    evaluation and at the end of training.

    It changes neither model nor metrics. An error in the recorder becomes a warning in the log, and
    training continues.

    Args:
        digests: Known SHA-256 of files and folders of the data, by path.

    Attributes:
        strict: Whether errors of the recorder end training, for tests.
    """
    priority = 'LOWEST'  # runs after the hooks that write metrics
    strict = False

    def __init__(self, digests: Mapping[str, str] | None = None) -> None:
        self.digests = digests or {}
        self.images: list[ImageRecord] = []
        self.about: dict[str, Any] = {}  # content of run.json
        self.indices: dict[str, int] = {}  # path of an image -> index in the validation set
        self.legend: Legend | None = None
        self.has_failed = False  # in this evaluation
        self.warnings: set[str] = set()
        self.spent = 0.  # seconds of recording
        self.evaluation_start = self.updated = time.monotonic()

    @contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Context manager that logs an error once instead of raising it, and measures the time."""
        started = time.monotonic()
        try:
            yield
        except Exception as error:  # No error of the recorder may end training.
            if self.strict:
                raise
            self.has_failed = True
            text = f'the report lacks {part}: {type(error).__name__}: {error}'
            if text not in self.warnings:
                self.warnings.add(text)
                print_log(text, logger='current', level=logging.WARNING)
        finally:
            self.spent += time.monotonic() - started

    @master_only
    def before_train(self, runner: Runner) -> None:
        """Record the configuration of the run."""
        self.updated = time.monotonic()
        work_dir = Path(runner.work_dir)
        before: dict[str, Any] = {}
        with self.guard('the record of earlier starts'):
            remove_later_evaluations(work_dir, runner.iter)
            earlier = work_dir / RECORD / ABOUT
            before = read_record_file(earlier) if runner.iter and earlier.is_file() else {}
        with self.guard('the configuration of the run'):
            self.about = describe_start(runner, before)
        with self.guard('versions and hardware'):
            self.about |= dict(versions=get_versions(), machine=describe_machine())
        with self.guard('hashes of the data'):
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
            evaluated = find_evaluated(metrics, outputs or ())
            for sample, values in zip(outputs or (), evaluated, strict=True):
                path = sample.metainfo.get('img_path')
                if path not in self.indices:
                    raise UserError(
                        f'the img_path of a prediction, {path!r}, is not in the validation '
                        'set: add img_path to meta_keys in the pipeline')
                image = compact_prediction(sample, self.indices[path], values, dataset, metrics)
                self.images.append(image)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Gather the predictions of all processes, and write the evaluation in the first."""
        part = None
        with self.guard('this evaluation'):
            part = pickle.dumps(self.images)
        self.images = []
        # Not guarded, because other processes would wait for one that continued.
        parts = all_gather_object(part)
        if not is_main_process():
            return
        with self.guard('this evaluation'):
            if None in parts:
                raise RuntimeError(f'process {parts.index(None)} failed to send its predictions')
            images = {image.index: image for part in parts for image in pickle.loads(part)}
            self.write_evaluation(runner, dict(sorted(images.items())), metrics or {})
        with self.guard('the state of the run'):
            self.write(runner)

    def write_evaluation(self, runner: Runner, images: dict[int, ImageRecord],
                         metrics: dict[str, float]) -> None:
        """Write the files of ``iter_N``, given the prediction for each image by its index."""
        dataset = runner.val_loop.dataloader.dataset
        evaluators = runner.val_loop.evaluator.metrics
        numbers = {key: value for key, value in fill_missing_metrics(metrics, evaluators).items()
                   if value is None or isinstance(value, float)}  # yapf: disable
        content: dict[str, Any] = dict(iteration=runner.iter, metrics=numbers, images=len(dataset),
                                       recorded=len(images))  # yapf: disable
        folder = get_evaluation_folder(Path(runner.work_dir), runner.iter)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if images:
                self.legend = self.legend or Legend.read(dataset,
                                                         get_model_kind(unwrap(runner.model)))
                details = compute_details(list(images.values()), dataset, evaluators)
                for each in [*details['worst'], *details['best']]:
                    each['name'] = get_file_name(dataset, each['index'])
                write_text(folder / DETAILS, json.dumps(details, allow_nan=False))
                chosen = np.linspace(0, len(dataset) - 1, min(NUM_SAMPLES, len(dataset))).round()
                samples = [int(index) for index in chosen if index in images]
                content['samples'] = [get_file_name(dataset, index) for index in samples]
                for number, index in enumerate(samples):
                    draw_image(dataset, images[index], self.legend,
                               folder.parent / f'truth_{number}.jpg',
                               folder / f'sample_{number}.jpg')  # yapf: disable
                others = [each for each in read_evaluations(folder.parent)
                          if each['iteration'] != runner.iter]  # yapf: disable
                best = RecordedRun(folder.parent, self.about, [*others, content]).best
                if best is None or best is content:
                    for kind in ('worst', 'best'):
                        for old in folder.parent.glob(f'iter_*/{kind}_*.jpg'):
                            old.unlink()
                        for number, each in enumerate(details[kind]):
                            draw_image(dataset, images[each['index']], self.legend,
                                       folder / f'{kind}_{number}_truth.jpg',
                                       folder / f'{kind}_{number}.jpg')  # yapf: disable
        finally:
            content['seconds'] = round(time.monotonic() - self.evaluation_start, 3)
            write_json(folder / EVALUATION, content)

    @master_only
    def after_train(self, runner: Runner) -> None:
        """Record that training has ended, perhaps by an error."""
        with self.guard('the end of the run'):
            is_complete = runner.iter >= runner.max_iters
            self.about['state'] = 'finished' if is_complete else 'stopped early'
            self.write(runner)

    def write(self, runner: Runner) -> None:
        """Update ``run.json`` and the report."""
        if 'seconds' not in self.about:  # The start of the run could not be recorded.
            return
        now, work_dir = time.monotonic(), Path(runner.work_dir)
        self.about['seconds'] += now - self.updated
        self.about['seconds_of_recording'] += self.spent
        self.updated, self.spent = now, 0.
        host = get_peak_memory() / 2**30
        gpu = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.
        self.about |= dict(
            iteration=runner.iter,
            written=format_utc(),
            peak_memory=max(host, self.about['peak_memory']),
            peak_gpu_memory=max(gpu, self.about['peak_gpu_memory']))
        if self.legend is not None:
            self.about |= vars(self.legend)
        write_json(work_dir / RECORD / ABOUT, self.about)
        write_report(work_dir, is_live=self.about['state'] == 'running')


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model without its wrapper for several processes."""
    return model.module if is_model_wrapper(model) else model


def find_evaluated(metrics: Sequence[BaseMetric], outputs: Sequence[BaseDataElement]) -> list[Any]:
    """Return what a metric has just computed for each image, or None for images without it.

    COCO's metric has RLEs, whose encoding would take most of the time of recording, and
    PanopticQuality has the statistics of its classes.
    """
    for metric in metrics:
        if isinstance(metric, PanopticQuality) and outputs:
            return metric.results[-len(outputs):]
        if type(metric).__name__ in COCO_METRICS and outputs:
            results = [pair[1] for pair in metric.results[-len(outputs):]]  # truth, prediction
            if [each['img_id'] for each in results] == [each.img_id for each in outputs]:
                return [each.get('masks') for each in results]
    return [None] * len(outputs)


def get_file_name(dataset: Any, index: int) -> str:
    """Return the file name of an image."""
    return Path(dataset.get_data_info(index)['img_path']).name


def describe_start(runner: Runner, before: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``run.json`` at the start, given that of an earlier start."""
    cfg = runner.cfg
    batch = (cfg.train_dataloader or {}).get('batch_size')
    start = dict(time=format_utc(), iteration=runner.iter, processes=get_world_size(),
                 **describe_command(sys.argv))  # yapf: disable
    known = {key: before[key] for key in ('kind', 'classes', 'palette') if key in before}
    main_metric: dict[str, str] = {}
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.save_best and hook.key_indicators[0] != 'auto':
            main_metric = dict(main_metric=hook.key_indicators[0], rule=hook.rules[0])
            break
    return known | dict(
        state='running',
        starts=[*before.get('starts', ()), start],
        seconds=before.get('seconds', 0.),
        max_iters=runner.max_iters,
        seconds_of_recording=before.get('seconds_of_recording', 0.),
        batch=batch * get_world_size() if batch else None,
        seed=runner.seed,
        parameters=sum(each.numel() for each in unwrap(runner.model).parameters()),
        **main_metric,
        config_file=Path(cfg.filename or f'{runner.timestamp}.py').name,
        config=flat(plain(cfg.to_dict())),
        peak_memory=before.get('peak_memory', 0.),
        peak_gpu_memory=before.get('peak_gpu_memory', 0.))


def describe_command(words: Sequence[str]) -> dict[str, str]:
    """Return the command line of ``colonnade train`` or ``tools/train.py``, and its folder.

    Nothing is returned for other programs, such as notebooks.
    """
    program, *arguments = words
    if program == 'colonnade train':  # set by the command
        return dict(command=shlex.join(['colonnade', 'train', *arguments]), folder=os.getcwd())
    if Path(program).resolve() == Path(__file__).resolve().parents[2] / 'tools/train.py':
        return dict(command=shlex.join(['python', program, *arguments]), folder=os.getcwd())
    return {}


def describe_data(runner: Runner, known: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the number of images and the hashes of each split."""
    sets = dict(training=runner.train_dataloader.dataset)
    if runner.val_loop is not None:
        sets['validation'] = runner.val_loop.dataloader.dataset
    return {
        split:
        dict(images=len(dataset), files=compute_data_checksums(runner.cfg, SPLITS[split], known))
        for split, dataset in sets.items()
    }


def find_changed_data(before: dict[str, Any], about: dict[str, Any]) -> list[str]:
    """Return the splits whose data differ from those of an earlier start."""
    then, now = before.get('data', {}), about['data']
    return [split for split in then if split in now and then[split] != now[split]]


def format_utc() -> str:
    """Return the current time in seconds."""
    return f'{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC'
