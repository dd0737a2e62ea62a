"""A model that answers many users at once: from uploaded bytes to results."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # not TimeoutError in Python 3.10
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import BoundedSemaphore, Lock
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserCodeError

from .. import ImageError, Model
from ..results import Instances, Result
from .uploads import Limits, read_upload
from .worker import Worker, WorkerClosed

CAPACITY = 32  # requests at a time
IMAGES = 2  # that are decoded or drawn at a time: each takes memory
TIMEOUT = 120.  # seconds
RESULT_BYTES = 2 * 10**9  # that an answer may take while it is made

logger = logging.getLogger(__name__)

SHUTDOWN_MESSAGE = 'the server ends: try again in a minute'


class ServerBusyError(RuntimeError):
    """As many requests are being answered as can be."""


class ModelError(RuntimeError):
    """The model failed on an image that it was expected to take."""


class RequestTimeoutError(RuntimeError):
    """The answer took too long."""


@dataclass(frozen=True)
class Prediction:
    """What a model found in an image, and how long it took in seconds.

    Attributes:
        image: RGB values, ``(H, W, 3)``, uint8.
        result: What the model found in it.
        decoding: Time until the image was prepared.
        waiting: Time in the queue, behind images of other users.
        computing: Time of the model, including the other images of the batch.
    """
    image: np.ndarray
    result: Result
    decoding: float
    waiting: float
    computing: float

    def draw(self, *, threshold: float, opacity: float) -> Image.Image:
        """Return the image with what was found in it."""
        if isinstance(self.result, Instances):
            return self.result.draw(self.image, threshold=threshold, opacity=opacity)
        return self.result.draw(self.image, opacity=opacity)


class Places:
    """Places for so many requests at a time.

    Attributes:
        num_taken: Number of places that are taken.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.num_taken = capacity, 0
        self._lock = Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Context manager that takes a place.

        Raises:
            ServerBusyError: If there is none.
        """
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
    """A model, a thread that computes, and limits.

    Attributes:
        model: Used by the thread alone, but for its attributes.
        limits: Of uploads.
        timeout: Seconds until a request is given up.
        uploads: Places for requests that send a file, taken before the file is read.
        ending: Whether the server takes no further requests; those in work go on.
        images: Held while an image is decoded or drawn.
        load_plain: Returns the model neither fused nor in half precision, for figures of what it
            looks at. Loaded at the first call, if it is not ``model``. Used by the thread alone.
    """

    def __init__(self,
                 model: Model,
                 limits: Limits,
                 *,
                 batch_size: int | None = None,
                 capacity: int = CAPACITY,
                 timeout: float = TIMEOUT,
                 load_plain: Callable[[], Model] | None = None) -> None:
        self.model, self.limits, self.timeout = model, limits, timeout
        self.load_plain = cache(load_plain or (lambda: model))
        self._worker = Worker(batch_size or model.default_batch_size)
        self.uploads, self._places = Places(capacity), Places(capacity)
        self.ending = False
        self.images = BoundedSemaphore(IMAGES)

    def predict(self, content: bytes) -> Prediction:
        """What the model finds in an image.

        Args:
            content: Of an image file.

        Raises:
            ServerBusyError: If too many requests wait.
            ImageError: If it is no image that can be used.
            ModelError: If the model fails.
            RequestTimeoutError: If it takes too long.
        """
        with self._places.take():
            start = perf_counter()
            with self.images:
                image = read_upload(content, self.limits)
                data = self.model.prepare(image)
            decoded = perf_counter()
            result, computing = self._answer_of(self._worker.submit, self._compute, data,
                                                tuple(data['inputs'].shape))
            waiting = perf_counter() - decoded - computing
            return Prediction(image, result, decoded - start, max(0., waiting), computing)

    def read(self, content: bytes) -> np.ndarray:
        """Return the RGB values of an image file, ``(H, W, 3)``, uint8.

        Raises:
            ImageError: If it is no image that can be used.
            ServerBusyError: If too many requests wait.
        """
        with self._places.take(), self.images:
            return read_upload(content, self.limits)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function that uses the model returns.

        Raises:
            ServerBusyError: If too many requests wait.
            ModelError: If the function fails.
            RequestTimeoutError: If it takes too long.
        """
        with self._places.take():
            return self._answer_of(self._worker.call, function, *arguments)

    def is_working(self) -> bool:
        """Return True if requests are in work."""
        return self.uploads.num_taken + self._places.num_taken > 0

    def close(self) -> None:
        """Give up all requests: those in work raise :class:`ServerBusyError`."""
        self.ending = True
        self._worker.close()

    def _answer_of(self, submit: Callable[..., Future[Any]], *arguments: Any) -> Any:
        try:
            future = submit(*arguments)
        except WorkerClosed:
            raise ServerBusyError(SHUTDOWN_MESSAGE) from None
        try:
            return future.result(self.timeout)
        except FutureTimeoutError:
            future.cancel()
            raise RequestTimeoutError(f'no answer within {self.timeout:g} seconds') from None
        except CancelledError:
            raise ServerBusyError(SHUTDOWN_MESSAGE) from None
        except ImageError as error:
            if isinstance(error, UserCodeError):
                logger.exception('the model failed')
            raise
        except Exception as error:  # of somebody's model
            logger.exception('the model failed')
            raise ModelError(f'the model failed: {type(error).__name__}: {error}') from error

    def _compute(self, batch: list[dict[str, Any]]) -> list[tuple[Result, float]]:
        start = perf_counter()
        results = [self.model.result(sample) for sample in self.model.run(batch)]
        seconds = perf_counter() - start
        return [(result, seconds) for result in results]


def affordable_pixels(model: Model) -> int:
    """How large an image may be so that ``RESULT_BYTES`` hold what the model makes of it.

    A segmenter resizes the logits of all classes to the image's size, in 32 bits. If it is fused,
    it resizes them along rows alone, from at most a quarter of the image's height, and labels have
    64 bits. Masks of instances take a byte for each pixel.
    """
    if model.kind == 'labels':
        from colonnade.models.fusion.label_maps import can_skip_full_resolution  # brings mmseg
        classes = max(1, len(model.classes))
        return RESULT_BYTES // (
            classes + 8 if can_skip_full_resolution(model.module) else 4 * classes)
    return RESULT_BYTES // 100
