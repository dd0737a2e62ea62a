"""Metrics of the server for Prometheus: requests, durations, queue, batches, memory."""
from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector,
                               generate_latest)

ROUTES = ('/api/predict', '/api/image', '/api/figures', '/api/model', '/metrics', '/healthz',
          '/readyz')  # yapf: disable
SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1., 2.5, 5., 10., 30., 60., 120.)
BATCHES = (1, 2, 4, 8, 16, 32)


class Metrics:
    """Metrics of one server, in a registry of their own.

    Args:
        count_requests: Returns the number of requests with images in progress.
        count_waiting: Returns the number of images in the queue.
    """

    def __init__(self, count_requests: Callable[[], int], count_waiting: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            'colonnade_requests', 'Finished requests.', ('route', 'status'), registry=registry)
        self._seconds = Histogram(
            'colonnade_request_seconds',
            'Duration of requests.', ('route', ),
            buckets=SECONDS,
            registry=registry)
        self._stages = Histogram(
            'colonnade_stage_seconds',
            'Duration of the stages of a prediction: decoding, waiting, model.', ('stage', ),
            buckets=SECONDS,
            registry=registry)
        self._batches = Histogram(
            'colonnade_batch_images', 'Images per batch.', buckets=BATCHES, registry=registry)
        for name, text, function in (
            ('requests_in_progress', 'Requests with images in progress.', count_requests),
            ('waiting_images', 'Images that wait for the model.', count_waiting),
        ):
            gauge = Gauge(f'colonnade_{name}', text, registry=registry)
            gauge.set_function(function)
        ProcessCollector(registry=registry)  # memory, processor time, open files

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request; ``path`` is without the root path."""
        route = next((each for each in ROUTES if f'{path}/'.startswith(f'{each}/')), 'other')
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def add_prediction(self, **seconds: float) -> None:
        """Record the durations of the stages of a prediction."""
        for stage, value in seconds.items():
            self._stages.labels(stage).observe(value)

    def add_batch(self, num_images: int) -> None:
        """Record the size of a batch."""
        self._batches.observe(num_images)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
