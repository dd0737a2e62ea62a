"""A model behind the real server, in threads of this process, and what it did."""
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
PATIENCE = 60  # seconds that a busy machine may take for anything
HOSTS = ('models.example', 'other.example:8443')
LOOPBACK = ('127.0.0.1', '::1', 'localhost')


class CountingModel(Model):
    """Counts the images of each batch."""

    batches: list[int]

    def run(self, batch: Any) -> Any:
        """As the model does."""
        self.batches.append(len(batch))
        return super().run(batch)


def random_model(head: str, **options: Any) -> CountingModel:
    """A slim model with random weights, whose scores differ."""
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
    colours = ((120, 120, 120), (220, 60, 60), (60, 180, 75), (60, 90, 220))[-len(names):]
    model = CountingModel(module, cfg, names, colours, 'folder/weights.pth')
    model.batches = []
    return model


@dataclass
class Live:
    """A running server.

    Attributes:
        url: Where it is, without a slash at the end.
        model: That it serves.
        reached: Addresses that this process connected to meanwhile.
        service: Behind it.
        server: uvicorn's.
    """
    url: str
    model: CountingModel
    reached: list[Any]
    service: Service
    server: Any


@contextmanager
def live_server(model: CountingModel, **settings: Any) -> Iterator[Live]:
    """Serve while the block runs."""
    watching, reached = True, []

    def watch(event: str, arguments: tuple) -> None:
        if watching and event == 'socket.connect':
            reached.append(arguments[1])

    sys.addaudithook(watch)  # stays for good
    service = Service(model, LIMITS, **settings)
    with closing(service), closing(listen('127.0.0.1', 0)) as socket:
        server = Server(build_app(service, figures, loopback=True, allowed_hosts=HOSTS), service)
        thread = Thread(target=server.run, kwargs=dict(sockets=[socket]), daemon=True)
        thread.start()
        try:
            yield Live(f'http://127.0.0.1:{socket.getsockname()[1]}', model, reached, service,
                       server)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            watching = False
            assert not thread.is_alive(), 'the server does not end'


def shapes_image(seed: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Rectangles of random colours; width and height."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), rng.integers(0, 256, 3), dtype=np.uint8)
    for _ in range(4):
        left, top = rng.integers(0, size[0] - 20), rng.integers(0, size[1] - 20)
        pixels[top:top + rng.integers(8, 20),
               left:left + rng.integers(8, 20)] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels)


def file_of(image: Image.Image, kind: str = 'PNG', **options: Any) -> bytes:
    """An image as the content of a file."""
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
