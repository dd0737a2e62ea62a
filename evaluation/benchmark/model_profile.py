"""Where the time of a whole model goes: seconds and products of each part."""
from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from colonnade.models.complexity import (build_blank_sample, build_from_file, count_multiply_adds,
                                         get_default_size)
from colonnade.models.fusion import maybe_fuse
from colonnade.settings.reading import read_config

from .full_models import model_of
from .machine import product_limit

PARTS = (  # module of a detector or segmenter, its method, name of the part
    ('backbone', 'forward', 'backbone'),
    ('neck', 'forward', 'pyramid'),
    ('encoder', 'forward', 'encoder'),
    ('decoder', 'forward', 'decoder'),
    ('rpn_head', 'forward', 'RPN'),
    ('rpn_head', 'predict', 'proposals'),
    ('roi_head.bbox_roi_extractor', 'forward', 'RoIAlign of boxes'),
    ('roi_head.bbox_head', 'forward', 'box head'),
    ('roi_head.mask_roi_extractor', 'forward', 'RoIAlign of masks'),
    ('roi_head.mask_head', 'forward', 'mask head'),
    ('bbox_head', 'forward', 'head'),
    ('panoptic_head', 'forward', 'head'),
    ('decode_head', 'forward', 'head'),
)
REST = 'post-processing'
LIKELY = 5.  # added to the logits of a class: each proposal becomes an object


class Stopwatch:
    """Seconds, or something else that grows, by part; a part within another counts for itself.

    Args:
        model: Of mmdet or mmseg; its methods are wrapped.
        reading: What is measured.
    """

    def __init__(self, model: nn.Module, reading: Callable[[], float]) -> None:
        self.reading, self.latest = reading, reading()
        self.stack = [REST]
        self.spent: dict[str, float] = defaultdict(float)
        for path, method, name in PARTS:
            for module in modules_at(model, path):
                object.__setattr__(module, method, self.timed(getattr(module, method), name))

    def timed(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A method that is counted as a part."""

        @wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.turn()
            self.stack.append(name)
            try:
                return method(*args, **kwargs)
            finally:
                self.turn()
                self.stack.pop()

        return wrapper

    def turn(self) -> None:
        """Give what has passed since the last turn to the part that runs."""
        now = self.reading()
        self.spent[self.stack[-1]] += now - self.latest
        self.latest = now

    def measure(self, run: Callable[[], object]) -> dict[str, float]:
        """What a call takes, by part."""
        self.spent, self.latest = defaultdict(float), self.reading()
        run()
        self.turn()
        return self.spent


def modules_at(model: nn.Module, path: str) -> Iterator[nn.Module]:
    """The module of a name, or those of a list of this name; nothing if there is none."""
    module: Any = model
    for name in path.split('.'):
        module = getattr(module, name, None)
    if isinstance(module, nn.ModuleList):
        yield from module
    elif isinstance(module, nn.Module):
        yield module


def find_objects(model: nn.Module) -> None:
    """Let RoI heads find as many objects as they may: random weights would find nothing."""
    with torch.no_grad():
        for name, layer in model.named_modules():
            if name.startswith('roi_head.') and name.endswith('fc_cls'):
                layer.bias[0] += LIKELY


def operations_of(config: Path, model: nn.Module, image: torch.Tensor) -> dict[str, float]:
    """Operations of each part in one run, two for a multiply-add; the backbone's as papers count."""
    model, sample = copy.deepcopy(model), build_blank_sample(*image.shape[-2:])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        found = Stopwatch(model, counter.get_total_flops).measure(
            partial(model, image, [sample], mode='predict'))
    backbone = build_from_file(config)[0].backbone
    found['backbone'] = 2 * count_multiply_adds(backbone, image.to('meta'))[0]
    return found


def part_table(config: Path, size: tuple[int, int] | None, *, rounds: int = 5) -> Iterator[str]:
    """Lines: seconds and share of the product limit of each part, as built and fused, in turns.

    Weights are random, and RoI heads find as many objects as they may. A model that cannot be fused
    is measured as it is built alone, and the log says why.

    Args:
        config: Of a detector or segmenter.
        size: Height and width of the image; ``None`` is 800 x 1280 for detectors, else 512².
        rounds: Of which seconds are the median, behind one that warms up.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no config of a detector or segmenter.
    """
    model, image = model_of(config), torch.randn(1, 3, *size
                                                 or get_default_size(read_config(config)))
    find_objects(model)
    operations = operations_of(config, model, image)
    models = {'as built': model}
    fused = copy.deepcopy(model)
    if maybe_fuse(fused, None):
        models['fused'] = fused
        if read_config(config).default_scope == 'mmseg':
            from colonnade.models.fusion.label_maps import fuse_label_maps
            fuse_label_maps(fused)
    sample = build_blank_sample(*image.shape[-2:])
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    watches = {
        name: (Stopwatch(module, time.perf_counter), module)
        for name, module in models.items()
    }
    with torch.no_grad():
        for _ in range(rounds + 1):
            for name, (watch, module) in watches.items():
                runs[name].append(watch.measure(partial(module, image, [sample], mode='predict')))
    limit = product_limit('cpu', torch.float32, torch.get_num_threads())
    titles = ''.join(f' {name:>10} {"share":>6}' for name in runs)
    yield f'{"part":20} {"GFLOP":>8}{titles}'
    names = dict.fromkeys(name for *_, name in PARTS if name in runs['as built'][0])
    for name in (*names, REST):
        yield row(name, operations.get(name, 0.), limit,
                  [[run.get(name, 0.) for run in found[1:]] for found in runs.values()])
    yield row('whole model', sum(operations.values()), limit,
              [[sum(run.values()) for run in found[1:]] for found in runs.values()])
    yield f'share is of the {limit:.0f} GFLOP/s that a product of matrices reaches'


def row(name: str, operations: float, limit: float, seconds: list[list[float]]) -> str:
    """A part's operations, and medians of its seconds with their shares of the limit."""
    text = f'{name:20} {operations / 1e9:8.1f}'
    for values in seconds:
        middle = statistics.median(values)
        text += f' {middle:8.3f} s {operations / 1e9 / limit / middle:6.0%}'
    return text
