"""A model behind the real server, in threads of this process."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from threading import Thread
from typing import Any

import numpy as np
import torch
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from colonnade.configs import find_config
from colonnade.inference import Model
from colonnade.inference.serving.server import Server, build_app, listen
from colonnade.inference.serving.service import Service
from colonnade.inference.serving.uploads import Limits
from colonnade.settings.reading import read_config
from colonnade.visualization import figures

LIMITS = Limits(max_bytes=10**6, max_pixels=10**6)
PATIENCE = 60  # seconds, for slow hosts
HOSTS = ('models.example', 'other.example:8443')
LOOPBACK = ('127.0.0.1', '::1', 'localhost')


class CountingModel(Model):
    """A model that records the size of each batch."""

    batches: list[int]

    def run(self, batch: Any) -> Any:
        """Record the batch size."""
        self.batches.append(len(batch))
        return super().run(batch)


def build_random_model(head: str, **options: Any) -> CountingModel:
    """Return a slim model with random weights and different scores."""
    cfg = read_config(find_config(f'{head}/xcit_nano_12_p16_slim_shapes'))
    cfg.merge_from_dict(options)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(deepcopy(cfg.model)).eval()
    for name, value in module.state_dict().items():
        if name.endswith('fc_cls.weight'):
            value.normal_(std=0.2)
    names = ('disc', 'square', 'triangle')
    names = ('background', *names) if cfg.default_scope == 'mmseg' else names
    palette = ((120, 120, 120), (220, 60, 60), (60, 180, 75), (60, 90, 220))[-len(names):]
    model = CountingModel(module, cfg, names, palette, 'folder/weights.pth')
    model.batches = []
    return model


@dataclass
class LiveServer:
    """A running server.

    Attributes:
        url: URL without a slash at the end.
        model: Model of the server.
        reached: Addresses to which this process has connected.
        service: Service of the server.
        server: uvicorn's server.
    """
    url: str
    model: CountingModel
    reached: list[Any]
    service: Service
    server: Any


@contextmanager
def live_server(model: CountingModel, root_path: str = '', **settings: Any) -> Iterator[LiveServer]:
    """Context manager that serves a model."""
    is_watching, reached = True, []

    def watch(event: str, arguments: tuple) -> None:
        if is_watching and event == 'socket.connect':
            reached.append(arguments[1])

    sys.addaudithook(watch)  # cannot be removed
    service = Service(model, LIMITS, **settings)
    with closing(service), closing(listen('127.0.0.1', 0)) as socket:
        app = build_app(service, figures, loopback=True, allowed_hosts=HOSTS)
        server = Server(app, service, root_path)
        thread = Thread(target=server.run, kwargs=dict(sockets=[socket]), daemon=True)
        thread.start()
        try:
            url = f'http://127.0.0.1:{socket.getsockname()[1]}'
            yield LiveServer(url, model, reached, service, server)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            is_watching = False
            assert not thread.is_alive(), 'the server does not shut down'


def draw_rectangles(seed: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Draw rectangles of random colors in an image of this width and height."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), rng.integers(0, 256, 3), dtype=np.uint8)
    for _ in range(4):
        left, top = rng.integers(0, size[0] - 20), rng.integers(0, size[1] - 20)
        pixels[top:top + rng.integers(8, 20),
               left:left + rng.integers(8, 20)] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels)


def encode_image(image: Image.Image, format: str = 'PNG', **options: Any) -> bytes:
    """Return the content of an image file."""
    buffer = BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()
