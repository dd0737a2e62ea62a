"""A model for many users: one thread predicts their images in batches, within limits."""
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10 has two of them.
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from threading import BoundedSemaphore, Condition, Lock, Thread
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserCodeError, convert_errors

from .. import ImageError, Model
from ..results import Instances, Result
from .metrics import Metrics
from .uploads import Limits, read_upload

CAPACITY = 32  # concurrent requests
MAX_DECODED_IMAGES = 2  # limit, because each image needs much memory
TIMEOUT = 120.  # seconds
RESULT_BYTES = 2 * 10**9  # memory limit of a result
SHUTDOWN_MESSAGE = 'the server is shutting down: try again in a minute'

logger = logging.getLogger(__name__)


class RequestError(RuntimeError):
    """A failed request; ``status`` is the HTTP status code."""
    status = 500


class ModelError(RequestError):
    """The model failed on a valid image."""


class ServerBusyError(RequestError):
    """Too many concurrent requests, or the server is shutting down."""
    status = 503


class RequestTimeoutError(RequestError):
    """The prediction took too long."""
    status = 504


@dataclass(eq=False)
class Job:
    """A computation for one item, which can share a batch with jobs of equal ``batch_key``.

    Without a key it runs alone.
    """
    run: Callable[[list[Any]], list[Any]]
    item: Any
    batch_key: Hashable | None
    future: Future[Any] = field(default_factory=Future)
    submitted: float = field(default_factory=monotonic)


class Worker:
    """A thread that runs the oldest job together with similar ones.

    Two threads must not use a model at once. Images of different prepared shapes must not share a
    batch, because backbones see the padding. A job waits up to ``patience`` seconds for others that
    fill its batch.
    """

    def __init__(self, batch_size: int, patience: float = 0.) -> None:
        self.batch_size, self.patience = batch_size, patience
        self._jobs: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, name='colonnade-model', daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[list[Any]], list[Any]], item: Any,
               batch_key: Hashable | None) -> Future[Any]:
        """Compute ``run([item, ...])`` in a batch with other jobs of equal ``batch_key``."""
        job = Job(run, item, batch_key)
        with self._changed:
            if self._closed:
                raise ServerBusyError(SHUTDOWN_MESSAGE)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in the thread."""
        return self.submit(lambda _: [function(*args)], None, None)

    def count_waiting(self) -> int:
        """Return the number of jobs that wait."""
        return len(self._find_live())

    def is_alive(self) -> bool:
        """Return True if the thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Cancel waiting and running jobs; the thread ends after the current batch."""
        with self._changed:
            self._closed = True
            for job in (*self._jobs, *self._running):
                if not job.future.cancel():  # The job is running.
                    with suppress(InvalidStateError):
                        job.future.set_exception(CancelledError())
            self._jobs.clear()
            self._changed.notify()

    def _work(self) -> None:
        while jobs := self._take_batch():
            self._running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self._run(self._running)
            self._running = []

    def _take_batch(self) -> list[Job]:
        """Wait for jobs; return the oldest one and similar ones, or none after closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._find_live() or self._closed)
            if self._closed:
                return []
            first = self._find_live()[0]
            if self.patience and first.batch_key is not None:
                self._changed.wait_for(
                    lambda: self._closed or len(self._find_similar(first)) == self.batch_size,
                    max(0., first.submitted + self.patience - monotonic()))
            batch = self._find_similar(first)
            self._jobs = deque(job for job in self._find_live() if job not in batch)
            return batch or self._take_batch()

    def _find_live(self) -> list[Job]:
        """Return the waiting jobs that are not canceled, oldest first."""
        return [job for job in self._jobs if not job.future.cancelled()]

    def _find_similar(self, first: Job) -> list[Job]:
        """Return the waiting jobs that fit into a batch with a job, itself included."""
        similar = [
            job for job in self._find_live()
            if job is first or (first.batch_key is not None and job.batch_key == first.batch_key)
        ]
        return similar[:self.batch_size]

    def _run(self, jobs: list[Job]) -> None:
        """Run a batch, or each job separately if it fails."""
        if not jobs:
            return
        try:
            with convert_errors(  # the thread must go on after any error of a user's model
                    lambda error: ModelError(f'the model failed: {type(error).__name__}: {error}'),
                    ImageError):
                results = jobs[0].run([job.item for job in jobs])
        except (ImageError, ModelError) as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._run([job])
                return
            with suppress(InvalidStateError):  # The job was canceled.
                jobs[0].future.set_exception(error)
            return
        for job, result in zip(jobs, results, strict=True):
            with suppress(InvalidStateError):
                job.future.set_result(result)


@dataclass(frozen=True)
class TimedPrediction:
    """Result for an image, with durations in seconds."""
    image: np.ndarray  # RGB values, (H, W, 3), uint8
    result: Result
    decoding: float  # including the test pipeline
    waiting: float  # in the queue, after images of other users
    computing: float  # including other images of the batch

    def draw(self, *, threshold: float, opacity: float) -> Image.Image:
        """Draw the result over the image."""
        if isinstance(self.result, Instances):
            return self.result.draw(self.image, threshold=threshold, opacity=opacity)
        return self.result.draw(self.image, opacity=opacity)


class RequestSlots:
    """A limited number of slots for concurrent requests."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.num_taken = capacity, 0
        self._lock = Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Context manager that takes a slot."""
        with self._lock:
            if self.num_taken >= self.capacity:
                raise ServerBusyError('too many requests at once: try again in a few seconds')
            self.num_taken += 1
        try:
            yield
        finally:
            with self._lock:
                self.num_taken -= 1


class Service:
    """A model with a worker thread and limits.

    Methods raise ServerBusyError if no slot is free. ``load_plain`` returns the model without fused
    layers and half precision, for figures of activations.
    """

    def __init__(self,
                 model: Model,
                 limits: Limits,
                 *,
                 batch_size: int | None = None,
                 capacity: int = CAPACITY,
                 timeout: float = TIMEOUT,
                 patience: float = 0.,
                 load_plain: Callable[[], Model] | None = None) -> None:
        self.model, self.limits, self.timeout = model, limits, timeout
        self.load_plain = cache(load_plain or (lambda: model))  # called only by the worker
        self._worker = Worker(batch_size or model.default_batch_size, patience)
        # Uploads take a slot before their file is read.
        self.uploads, self._slots = RequestSlots(capacity), RequestSlots(capacity)
        self.is_ending = False  # True if the server accepts no further requests
        self.decoding = BoundedSemaphore(MAX_DECODED_IMAGES)  # also for drawing
        self.metrics = Metrics(self.count_requests, self._worker.count_waiting)

    def predict(self, content: bytes) -> TimedPrediction:
        """Predict an image from the content of its file."""
        with self._slots.take():
            start = perf_counter()
            with self.decoding:
                image = read_upload(content, self.limits, self.model.bands)
                data = self.model.prepare(image)
                if self.model.bands:
                    image = self.model.bands.to_rgb(image)
            decoded = perf_counter()
            result, computing = self._wait_for(self._worker.submit, self._predict_batch, data,
                                               tuple(data['inputs'].shape))
            waiting = max(0., perf_counter() - decoded - computing)
            self.metrics.add_prediction(decoding=decoded - start, waiting=waiting, model=computing)
            return TimedPrediction(image, result, decoded - start, waiting, computing)

    def read(self, content: bytes) -> np.ndarray:
        """Decode an image from the content of its file: RGB values, ``(H, W, 3)``, uint8."""
        with self._slots.take(), self.decoding:
            image = read_upload(content, self.limits, self.model.bands)
            return self.model.bands.to_rgb(image) if self.model.bands else image

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that uses the model."""
        with self._slots.take():
            return self._wait_for(self._worker.call, function, *args)

    def count_requests(self) -> int:
        """Return the number of requests with images in progress."""
        return max(self.uploads.num_taken, self._slots.num_taken)

    def is_alive(self) -> bool:
        """Return True unless the thread of the model has ended unexpectedly."""
        return self._worker.is_alive() or self.is_ending

    def close(self) -> None:
        """Cancel all requests, which raise :class:`ServerBusyError`."""
        self.is_ending = True
        self._worker.close()

    def _wait_for(self, submit: Callable[..., Future[Any]], *args: Any) -> Any:
        future = submit(*args)
        try:
            return future.result(self.timeout)
        except FutureTimeoutError:
            future.cancel()
            raise RequestTimeoutError(f'no result within {self.timeout:g} seconds') from None
        except CancelledError:
            raise ServerBusyError(SHUTDOWN_MESSAGE) from None
        except (ModelError, UserCodeError):
            logger.exception('the model failed')
            raise

    def _predict_batch(self, batch: list[dict[str, Any]]) -> list[tuple[Result, float]]:
        start = perf_counter()
        results = [self.model.build_result(sample) for sample in self.model.run(batch)]
        seconds = perf_counter() - start
        self.metrics.add_batch(len(batch))
        return [(result, seconds) for result in results]


def compute_max_pixels(model: Model) -> int:
    """Return the largest image whose result fits into :data:`RESULT_BYTES`.

    A segmenter resizes the logits of all classes to the image size, in 32 bits. A fused one resizes
    them only along rows, from at most a quarter of the image height, and its labels have 64 bits.
    Instance masks take one byte per pixel. Models with query masks that are not fused resize the
    masks of all queries, in 32 bits, and copy half of them.
    """
    parts = dict(model.module.named_children())
    if 'panoptic_head' in parts:
        from colonnade.models.fusion.query_masks import ChunkedFusionHead  # imports mmdet
        if not isinstance(parts['panoptic_fusion_head'], ChunkedFusionHead):
            return RESULT_BYTES // (10 * parts['panoptic_head'].num_queries)
    if model.kind == 'labels':
        from colonnade.models.fusion.label_maps import can_skip_full_resolution  # imports mmseg
        classes = max(1, len(model.classes))
        return RESULT_BYTES // (
            classes + 8 if can_skip_full_resolution(model.module) else 4 * classes)
    return RESULT_BYTES // 100
