"""Samples that fail to load: errors that name the sample, or another sample in its place."""
from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
from mmcv.transforms import LoadAnnotations
from mmengine.dataset import BaseDataset, Compose
from mmengine.dist import all_gather_object, get_rank, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.errors import UserCodeError, UserError
from colonnade.common.storage.retrying_backend import PASSING
from colonnade.runtime.sanitize import one_line
from colonnade.settings.reading import report_third_party_errors

from .training_checks import iter_datasets

SKIPPED = 'skipped_samples'  # .jsonl in the work dir, with one line per skip
MAX_IN_A_ROW = 100  # consecutive samples that may fail
MAX_SHOWN = 10  # skipped samples in the log
ADVICE = 'run colonnade check-dataset CONFIG to list all samples that fail'
KEYS = ('img_path', 'seg_map_path')  # keys of files in data infos
#: text between the traceback of a cause and that of the error raised from it
CAUSE = '\nThe above exception was the direct cause of the following exception:'
#: modules of steps that read files, whose errors are about a file
LOADERS = ('mmcv.transforms.loading', 'mmdet.datasets.transforms.loading',
           'mmseg.datasets.transforms.loading')


class SampleError(UserCodeError):
    """A sample that cannot be loaded.

    torch recreates the error of a worker in the main process from the text of its traceback. This
    text has the traceback of the cause, if there is one, and ends in the message.
    """

    def __init__(self, text: str) -> None:
        details, _, message = text.rpartition(f'{type(self).__name__}: ')
        super().__init__(message.strip())
        self.details = details.rpartition(CAUSE)[0].partition('Original ')[2]

    def format_traceback(self) -> str:
        """Return the traceback of the cause, also from a worker, or an empty string."""
        return self.details or super().format_traceback()


class SampleLoader:
    """Replacement for the ``prepare_data`` of a dataset that names or skips bad samples.

    Args:
        dataset: Dataset of mmengine.
        skipped: File that records skipped samples; None raises an error for the first bad sample.
        advice: Advice in that error.
    """

    def __init__(self, dataset: BaseDataset, skipped: Path | None, advice: str) -> None:
        self.dataset, self.skipped, self.has_warned = dataset, skipped, False
        self.advice = advice
        files = dataset.ann_file if isinstance(dataset.ann_file,
                                               (list, tuple)) else [dataset.ann_file]
        self.name = ' '.join([type(dataset).__name__, *map(str, filter(None, files))])
        self.prepare: Callable[[int], Any] = dataset.prepare_data

    def __call__(self, index: int) -> Any:
        """Return the sample, or the next one that can be loaded.

        Raises:
            SampleError: If it fails and must not be skipped, or too many fail in a row.
        """
        num_samples, first, cause = len(self.dataset), '', None
        max_attempts = min(num_samples, MAX_IN_A_ROW) if self.skipped else 1
        for attempt in range(max_attempts):
            current = (index + attempt) % num_samples
            try:
                return self.prepare(current)
            except MemoryError:
                raise
            except Exception as error:  # decoders and custom steps raise errors of any type
                info, from_storage = self._get_info(current), is_storage_error(error)
                text = self._describe(current, info, error)
                if not first:
                    first, cause = text, None if _is_about_file(error) else error
            if from_storage:
                raise SampleError(text) from cause
            if not self.skipped:
                raise SampleError(f'{text}. {self.advice}') from cause
            self._record(current, info, text)
        raise SampleError(f'{max_attempts} samples in a row cannot be loaded; the first: {first}. '
                          f'{self.advice}') from cause

    def _get_info(self, index: int) -> dict[str, Any]:
        info: Any = None
        # A custom dataset may fail here as it did in loading the sample.
        with suppress(UserCodeError), report_third_party_errors(''):
            info = self.dataset.get_data_info(index)
        return info if isinstance(info, dict) else {}

    def _describe(self, index: int, info: dict[str, Any], error: Exception) -> str:
        """Return files, ID, index and dataset of a sample, and the error in one line."""
        files = [str(info[key]) for key in KEYS if info.get(key)]
        details = [f'index {index}', self.name]
        if 'img_id' in info:
            details.insert(0, f'id {info["img_id"]}')
        reason = ' '.join(str(error).split()) or 'no reason given'
        if empty := next(filter(_is_empty, files), ''):
            reason = f'{empty} is empty: 0 bytes'
        elif not isinstance(error, UserError):
            reason = f'{type(error).__name__}: {reason}'
        return one_line(f'sample {" with ".join(files) or index} ({", ".join(details)}) cannot be '
                        f'loaded: {reason}')

    def _record(self, index: int, info: dict[str, Any], text: str) -> None:
        assert self.skipped is not None
        named = dict(file=next((info[key] for key in KEYS if info.get(key)), None),
                     id=info.get('img_id'))  # yapf: disable
        line = json.dumps(dict(data=self.name, index=index, **named, error=text), default=str)
        try:
            # A single write keeps the lines of several workers intact.
            with self.skipped.open('ab', buffering=0) as file:
                file.write(f'{line}\n'.encode())
        except OSError as error:
            if not self.has_warned:
                print_log(
                    f'{self.skipped} cannot be written ({error.strerror}), and will not list all '
                    f'skipped samples: {text}',
                    logger='current',
                    level=logging.WARNING)
            self.has_warned = True


def is_storage_error(error: Exception) -> bool:
    """Return True for errors of a disk, network or server, which are not the sample's."""
    return isinstance(error, (ConnectionError, TimeoutError)) or \
        isinstance(error, OSError) and error.errno in PASSING


def _is_about_file(error: Exception) -> bool:
    """Return True if an error explains what is wrong with a file, so its traceback is useless.

    This holds for Colonnade's own checks, and for steps of mmcv, mmdet and mmseg that read files.
    """
    steps = (frame.f_locals.get('self') for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, UserError) or any(type(step).__module__ in LOADERS for step in steps)


def _is_empty(path: str) -> bool:
    try:
        return not os.stat(path).st_size
    except (OSError, ValueError):
        return False


class CheckedPipeline(Compose):
    """Pipeline that also compares the size of each label map with its image.

    Later steps would crop or pad both differently, or fail with a batch of several samples. Steps
    and their indices are those of the config.
    """

    def __call__(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of all steps, or None if one returns None.

        Raises:
            ValueError: If the size of a label map differs from its image.
        """
        result: dict[str, Any] | None = data
        for step in self.transforms:
            result = step(result)
            if result is None:
                return None
            module = type(step).__module__
            if isinstance(step, LoadAnnotations) and module.startswith(('mmdet.', 'mmseg.')):
                _check_label_map(result)
        return result


def _check_label_map(data: dict[str, Any]) -> None:
    labels, size = data.get('gt_seg_map'), data.get('ori_shape')
    if isinstance(labels, np.ndarray) and size is not None:
        if labels.ndim != 2:
            raise UserError(f'a label map must have one channel, got {labels.shape[-1]}')
        if labels.shape != tuple(size[:2]):
            raise UserError(
                'the label map has {1} x {0} pixels, but the image has {3} x {2}'.format(
                    *labels.shape, *size))


def handle_bad_samples(dataset: Any, skipped: Path | None, advice: str = '') -> None:
    """Make a dataset and those that it wraps name or skip samples that fail to load.

    Args:
        dataset: The dataset, changed in place before workers start.
        skipped, advice: See :class:`SampleLoader`.
    """
    for part in iter_datasets(dataset):
        if isinstance(part, BaseDataset) and not isinstance(part.prepare_data, SampleLoader):
            vars(part)['prepare_data'] = SampleLoader(part, skipped, advice)
            if type(part.pipeline) is Compose:  # otherwise it is a custom callable
                part.pipeline = CheckedPipeline(part.pipeline.transforms)


def read_skipped(work_dir: Path) -> Counter[str]:
    """Return the errors of the samples that a run has skipped, and how often."""
    counts: Counter[str] = Counter()
    for path in sorted(work_dir.glob(f'{SKIPPED}*.jsonl')):
        counts.update(parse_errors(path.read_bytes()))
    return counts


def parse_errors(content: bytes) -> Iterator[str]:
    """Yield the errors in whole lines of a file of skipped samples."""
    for line in content[:content.rfind(b'\n') + 1].splitlines():
        with suppress(ValueError, TypeError, KeyError):  # a full disk has truncated the line
            yield json.loads(line)['error']


class SkippedSamplesHook(Hook):
    """Hook that logs skipped samples: the first ones immediately, and all at the end.

    Args:
        work_dir: Folder in which each process has a file of its own.
    """

    priority = 'VERY_LOW'

    def __init__(self, work_dir: Path) -> None:
        rank = get_rank()
        self.file = work_dir / f'{SKIPPED}{f"_{rank}" if rank else ""}.jsonl'
        self.offset = self.file.stat().st_size if self.file.exists() else 0
        self.counts: Counter[str] = Counter()
        self.has_listed = False

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: Any = None) -> None:
        """Warn of newly skipped samples."""
        num_known = len(self.counts)
        self._read()
        for text in list(self.counts)[num_known:MAX_SHOWN]:
            runner.logger.warning(f'skipped: {text}')

    def _read(self) -> None:
        """Count the lines that were added to the file."""
        try:
            size = os.stat(self.file).st_size
        except FileNotFoundError:
            return
        if size > self.offset:
            with self.file.open('rb') as file:
                file.seek(self.offset)
                content = file.read(size - self.offset)
            self.offset += content.rfind(b'\n') + 1
            self.counts.update(parse_errors(content))

    def after_train(self, runner: Runner) -> None:
        """List the samples that all processes skipped."""
        self._read()
        total: Counter[str] = Counter()
        for counts in all_gather_object(self.counts):
            total.update(counts)
        self._list(total)

    def say(self, runner: Runner) -> None:
        """List the samples that this process skipped, if training was stopped before the end."""
        if not self.has_listed:
            self._read()
            self._list(self.counts)

    def _list(self, total: Counter[str]) -> None:
        self.has_listed = True
        if not total or not is_main_process():
            return
        lines = [
            f'  {number} {"time" if number == 1 else "times"}: {text}'
            for text, number in total.most_common(MAX_SHOWN)
        ]
        if len(total) > MAX_SHOWN:
            lines.append(f'  and {len(total) - MAX_SHOWN} more')
        print_log(
            '\n'.join([f'skipped {len(total)} samples {total.total()} times, listed in '
                       f'{self.file}:', *lines]),
            logger='current',
            level=logging.WARNING)  # yapf: disable
