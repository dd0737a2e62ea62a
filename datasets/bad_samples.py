"""Samples that break while they are loaded: each names itself, or another one takes its place."""
from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable
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

from .training_checks import iter_datasets

SKIPPED = 'skipped_samples'  # .jsonl in the work dir: a line for each time a sample was skipped
IN_A_ROW = 100  # samples that may break one after the other
SHOWN = 10  # skipped samples that the log names
ADVICE = 'colonnade check_dataset CONFIG lists all that break'
KEYS = ('img_path', 'seg_map_path')  # what data sets call files
#: what Python prints between the traceback of a cause and that of the error raised from it
CAUSE = '\nThe above exception was the direct cause of the following exception:'
#: modules whose steps read files, so that an error is the file's
LOADERS = ('mmcv.transforms.loading', 'mmdet.datasets.transforms.loading',
           'mmseg.datasets.transforms.loading')


class SampleError(UserCodeError):
    """A sample that cannot be loaded.

    torch makes an error of a worker anew in the main process, from the text of its traceback. That
    has the traceback of the cause, if there is one, and ends in the message.
    """

    def __init__(self, text: str) -> None:
        details, _, message = text.rpartition(f'{type(self).__name__}: ')
        super().__init__(message.strip())
        self.details = details.rpartition(CAUSE)[0].partition('Original ')[2]

    def format_traceback(self) -> str:
        """Return the traceback of the cause, also of a worker's, or an empty string."""
        return self.details or super().format_traceback()


class NamedSamples:
    """Prepares the samples of a data set, in place of the data set's own ``prepare_data``.

    Args:
        dataset: Of mmengine.
        skipped: File that notes the samples that are skipped; None stops at the first that breaks.
        advice: What to do if it stops.
    """

    def __init__(self, dataset: BaseDataset, skipped: Path | None, advice: str) -> None:
        self.dataset, self.skipped, self.has_warned = dataset, skipped, False
        self.advice = advice
        files = dataset.ann_file if isinstance(dataset.ann_file,
                                               (list, tuple)) else [dataset.ann_file]
        self.name = ' '.join([type(dataset).__name__, *map(str, filter(None, files))])
        self.prepare: Callable[[int], Any] = dataset.prepare_data

    def __call__(self, index: int) -> Any:
        """The sample, or the next one that does not break.

        Raises:
            SampleError: If it breaks and must not be skipped, or too many in a row do.
        """
        number, first, cause = len(self.dataset), '', None
        for step in range(min(number, IN_A_ROW) if self.skipped else 1):
            at = (index + step) % number
            try:
                return self.prepare(at)
            except MemoryError:
                raise
            except Exception as error:  # decoders and steps raise of all kinds
                info, is_of_storage = self.info(at), of_storage(error)
                text = self.describe(at, info, error)
                if not first:
                    first, cause = text, None if is_of_file(error) else error
            if is_of_storage:
                raise SampleError(text) from cause
            if not self.skipped:
                raise SampleError(f'{text}. {self.advice}') from cause
            self.note(at, info, text)
        raise SampleError(f'{min(number, IN_A_ROW)} samples in a row break; the first: {first}. '
                          f'{self.advice}') from cause

    def info(self, index: int) -> dict[str, Any]:
        """What the data set knows of a sample; nothing if it is this that breaks."""
        try:
            info = self.dataset.get_data_info(index)
        except Exception:
            return {}
        return info if isinstance(info, dict) else {}

    def describe(self, index: int, info: dict[str, Any], error: Exception) -> str:
        """File, id, index and data set of a sample, and the error in one line."""
        files = [str(info[key]) for key in KEYS if info.get(key)]
        about = [f'index {index}', self.name]
        if 'img_id' in info:
            about.insert(0, f'id {info["img_id"]}')
        empty = next(filter(is_empty, files), '')
        reason = f'{empty} is empty: 0 bytes' if empty else \
            " ".join(str(error).split()) or "no reason given"
        if not empty and not isinstance(error, UserError):
            reason = f'{type(error).__name__}: {reason}'
        return one_line(f'sample {" with ".join(files) or index} ({", ".join(about)}) cannot be '
                        f'loaded: {reason}')

    def note(self, index: int, info: dict[str, Any], text: str) -> None:
        """Add a line to the file of skipped samples; warn once if it cannot be written."""
        assert self.skipped is not None
        named = dict(file=next((info[key] for key in KEYS if info.get(key)), None),
                     id=info.get('img_id'))  # yapf: disable
        line = json.dumps(dict(data=self.name, index=index, **named, error=text), default=str)
        try:
            # one write: lines of workers stay whole
            with self.skipped.open('ab', buffering=0) as file:
                file.write(f'{line}\n'.encode())
        except OSError as error:
            if not self.has_warned:
                print_log(
                    f'{self.skipped} cannot be written ({error.strerror}), and will lack skipped '
                    f'samples: {text}',
                    logger='current',
                    level=logging.WARNING)
            self.has_warned = True


def of_storage(error: Exception) -> bool:
    """Whether an error is a disk's, a network's or a server's, and says nothing of the sample."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    return isinstance(error, OSError) and error.errno in PASSING


def is_of_file(error: Exception) -> bool:
    """Return True if an error says what is wrong with a file, so that nobody needs its traceback.

    One of our checks raised it, or a step of mmcv, mmdet or mmseg that reads files.
    """
    steps = (frame.f_locals.get('self') for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, UserError) or any(type(step).__module__ in LOADERS for step in steps)


def is_empty(path: str) -> bool:
    """Whether a file of this machine is there, and has no content."""
    try:
        return not os.stat(path).st_size
    except (OSError, ValueError):
        return False


class CheckedPipeline(Compose):
    """Pipeline of a dataset that also compares each label map with its image.

    Steps behind the loading one would crop or pad a label map of another size with its image, or
    stop at a batch of several. The steps and their indices are those of the config.
    """

    def __call__(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of all steps, or None if one returns None.

        Raises:
            ValueError: If a label map is not of its image's size.
        """
        result: dict[str, Any] | None = data
        for step in self.transforms:
            result = step(result)
            if result is None:
                return None
            if is_loader_of_libraries(step):
                check_label_map(result)
        return result


def check_label_map(data: dict[str, Any]) -> None:
    """Raise a ValueError if a label map ``(H, W)`` is not of its image's size."""
    found, size = data.get('gt_seg_map'), data.get('ori_shape')
    if isinstance(found, np.ndarray) and size is not None:
        if found.ndim != 2:
            raise UserError(f'a label map has one channel, this has {found.shape[-1]}')
        if found.shape != tuple(size[:2]):
            raise UserError('the label map has {1} x {0} pixels, the image {3} x {2}'.format(
                *found.shape, *size))


def name_samples(dataset: Any, skipped: Path | None, advice: str = '') -> None:
    """Let samples that break name themselves, in all data sets of mmengine that one holds.

    Args:
        dataset: Changed in place, before workers get it.
        skipped, advice: See :class:`NamedSamples`.
    """
    for part in iter_datasets(dataset):
        if isinstance(part, BaseDataset) and not isinstance(part.prepare_data, NamedSamples):
            vars(part)['prepare_data'] = NamedSamples(part, skipped, advice)
            if type(part.pipeline) is Compose:  # or it is a callable of the user's
                part.pipeline = CheckedPipeline(part.pipeline.transforms)


def is_loader_of_libraries(step: Any) -> bool:
    """Whether a step is mmdet's or mmseg's own that loads label maps as they are."""
    return isinstance(step, LoadAnnotations) and type(step).__module__.startswith(
        ('mmdet.', 'mmseg.'))


class SkippedSamples(Hook):
    """Says which samples were skipped: the first when it happens, all at the end.

    Args:
        work_dir: Each process has a file of its own there.
    """

    priority = 'VERY_LOW'

    def __init__(self, work_dir: Path) -> None:
        rank = get_rank()
        self.file = work_dir / f'{SKIPPED}{f"_{rank}" if rank else ""}.jsonl'
        self.read_to = self.file.stat().st_size if self.file.exists() else 0
        self.counts: Counter[str] = Counter()
        self.is_said = False

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: Any = None) -> None:
        """Warn of samples that were skipped since."""
        known = len(self.counts)
        self.read()
        for text in list(self.counts)[known:SHOWN]:
            runner.logger.warning(f'skipped: {text}')

    def read(self) -> None:
        """Count the lines that were added."""
        try:
            size = os.stat(self.file).st_size
        except FileNotFoundError:
            return
        if size > self.read_to:
            with self.file.open('rb') as file:
                file.seek(self.read_to)
                new = file.read(size - self.read_to)
            whole = new[:new.rfind(b'\n') + 1]
            self.read_to += len(whole)
            for line in whole.splitlines():
                with suppress(ValueError):  # of a full disk, which cut it off
                    self.counts[json.loads(line)['error']] += 1

    def after_train(self, runner: Runner) -> None:
        """List what all processes skipped."""
        self.read()
        total: Counter[str] = Counter()
        for part in all_gather_object(self.counts):
            total.update(part)
        self.list(total)

    def say(self, runner: Runner) -> None:
        """List what this process skipped, unless all was listed: training was stopped."""
        if not self.is_said:
            self.read()
            self.list(self.counts)

    def list(self, total: Counter[str]) -> None:
        """Write a list to the log of the first process."""
        self.is_said = True
        if not total or not is_main_process():
            return
        lines = [
            f'  {number} {"time" if number == 1 else "times"}: {text}'
            for text, number in total.most_common(SHOWN)
        ]
        if len(total) > SHOWN:
            lines.append(f'  and {len(total) - SHOWN} more')
        print_log(
            '\n'.join([f'{len(total)} samples were skipped, {total.total()} times in all; '
                       f'{self.file} has them:', *lines]),
            logger='current',
            level=logging.WARNING)  # yapf: disable
