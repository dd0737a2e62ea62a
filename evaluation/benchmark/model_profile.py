"""Time, memory and operations of full detectors and segmenters, in total and by part."""
from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from colonnade.common.errors import UserError
from colonnade.models.building import build_random_model
from colonnade.models.complexity import (build_blank_sample, build_from_file, count_input_channels,
                                         count_multiply_adds, get_default_size)
from colonnade.models.fusion import maybe_fuse
from colonnade.models.half_precision import Amp, compute_in, get_half_type
from colonnade.settings.reading import read_config

from .machine import measure_matmul_speed
from .measurement import MIB, compute_median_and_spread, measure_peak, run_in_new_process

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
LOGIT = 5.  # added to a class, so that each proposal becomes an object


@dataclass(frozen=True)
class Cost:
    """Cost of testing one image."""
    seconds: float  # median
    spread: float  # half the range
    memory: float  # peak MiB above the weights

    def __str__(self) -> str:
        return f'{self.seconds:8.3f} ±{self.spread:6.3f} s {self.memory:6.0f} MiB'


def measure_cost(config: Path,
                 size: tuple[int, int] | None = None,
                 *,
                 device: str = 'cpu',
                 amp: Amp = False,
                 rounds: int = 3,
                 threads: int = 0) -> Cost:
    """Return the cost of a config's model with random weights; on a CPU, in a new process.

    Such a detector finds nothing, or the maximum number of objects: the mask head of Mask R-CNN has
    nothing to do, and heads with queries draw a mask for each.

    Args:
        config: Config of a detector or segmenter.
        size: Height and width of the image. Defaults to 800 x 1280 for detectors, 512 x 512 for
            segmenters.
        device: ``'cpu'``, ``'cuda:0'``, …
        amp: Type to compute in, see :func:`get_half_type`.
        rounds: Timed runs, after one that warms up and whose memory is measured.
        threads: Number of CPU threads. Defaults to torch's choice.
    """
    if rounds < 1:
        raise UserError(f'rounds must be at least 1, got {rounds}')
    size = size or get_default_size(read_config(config))
    measure = partial(run_in_new_process, _measure_cost) if device == 'cpu' else _measure_cost
    return measure(config, size, device, amp, rounds, threads)


def _measure_cost(config: Path, size: tuple[int, int], device: str, amp: Amp, rounds: int,
                  threads: int) -> Cost:
    if threads:
        torch.set_num_threads(threads)
    model = build_random(config).to(device)
    if dtype := get_half_type(amp, torch.device(device).type):
        compute_in(model, dtype)
    image = torch.randn(1, count_input_channels(model), *size, device=device)
    seconds: list[float] = []

    def predict() -> None:
        started = read_clock(device)
        with torch.no_grad():
            model(image, [build_blank_sample(*size)], mode='predict')
        seconds.append(read_clock(device) - started)

    memory = measure_peak(predict, device)
    for _ in range(rounds):
        predict()
    return Cost(*compute_median_and_spread(seconds[1:]), memory / MIB)


def read_clock(device: str) -> float:
    """Return the time in seconds at which the device has finished its work."""
    if device.startswith('cuda'):
        torch.cuda.synchronize()
    return time.perf_counter()


def build_random(config: Path) -> nn.Module:
    """Return the model of a config with the same random weights each time, for evaluation."""
    torch.manual_seed(0)
    return build_random_model(read_config(config).model).eval()


class Stopwatch:
    """Time, or another growing quantity, of each part; without the parts inside of it.

    Args:
        model: Model of mmdet or mmseg, whose methods are wrapped.
        read: Returns the quantity.
    """

    def __init__(self, model: nn.Module, read: Callable[[], float]) -> None:
        self.read, self.latest = read, read()
        self.stack = [REST]
        self.spent: dict[str, float] = defaultdict(float)
        for path, method, name in PARTS:
            for module in find_modules(model, path):
                object.__setattr__(module, method, self.wrap(getattr(module, method), name))

    def wrap(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a method that counts as a part."""

        @wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.assign()
            self.stack.append(name)
            try:
                return method(*args, **kwargs)
            finally:
                self.assign()
                self.stack.pop()

        return wrapper

    def assign(self) -> None:
        """Assign the quantity since the last call to the running part."""
        now = self.read()
        self.spent[self.stack[-1]] += now - self.latest
        self.latest = now

    def measure(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the quantity of each part during a call."""
        self.spent, self.latest = defaultdict(float), self.read()
        run()
        self.assign()
        return self.spent


def find_modules(model: nn.Module, path: str) -> Iterator[nn.Module]:
    """Yield the module of a name, or those of a list of this name, if it exists."""
    try:
        module = model.get_submodule(path)
    except AttributeError:
        return
    yield from module if isinstance(module, nn.ModuleList) else (module, )


def raise_class_logits(model: nn.Module) -> None:
    """Make RoI heads find the maximum number of objects; random weights would find none."""
    with torch.no_grad():
        for name, layer in model.named_modules():
            if name.startswith('roi_head.') and name.endswith('fc_cls'):
                layer.bias[0] += LOGIT


def count_part_operations(config: Path, model: nn.Module, image: torch.Tensor) -> dict[str, float]:
    """Return the operations of each part, two per multiply-add; of backbones as in papers."""
    model, sample = copy.deepcopy(model), build_blank_sample(*image.shape[-2:])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        operations = Stopwatch(model, counter.get_total_flops).measure(
            partial(model, image, [sample], mode='predict'))
    backbone = build_from_file(config)[0].backbone
    operations['backbone'] = 2 * count_multiply_adds(backbone, image.to('meta'))[0]
    return operations


def format_parts(config: Path,
                 size: tuple[int, int] | None,
                 *,
                 device: str = 'cpu',
                 amp: Amp = False,
                 rounds: int = 5) -> Iterator[str]:
    """Yield a table of the time of each part, built and fused, and its share of the matmul speed.

    Weights are random, and RoI heads find the maximum number of objects. A model that cannot be
    fused is only measured as built, and the log says why.
    """
    cfg = read_config(config)
    model = build_random(config)
    image = torch.randn(1, count_input_channels(model), *size or get_default_size(cfg))
    raise_class_logits(model)
    operations = count_part_operations(config, model, image)
    dtype = get_half_type(amp, torch.device(device).type)
    model, image = model.to(device), image.to(device)
    models = {'as built': model}
    fused = copy.deepcopy(model)
    if maybe_fuse(fused, dtype):
        models['fused'] = fused
        if cfg.default_scope == 'mmseg':
            from colonnade.models.fusion.label_maps import fuse_label_maps  # needs mmseg
            fuse_label_maps(fused)
    if dtype:
        for module in models.values():
            compute_in(module, dtype)
    sample = build_blank_sample(*image.shape[-2:])
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    read = partial(read_clock, device)
    watches = {name: Stopwatch(module, read) for name, module in models.items()}
    with torch.no_grad():
        for _ in range(rounds + 1):
            for name, module in models.items():
                run = partial(module, image, [sample], mode='predict')
                runs[name].append(watches[name].measure(run))
    limit = measure_matmul_speed(device, dtype or torch.float32, torch.get_num_threads())

    def format_row(name: str, operations: float, seconds: list[list[float]]) -> str:
        text = f'{name:20} {operations / 1e9:8.1f}'
        for values in seconds:
            median = statistics.median(values)
            text += f' {median:8.3f} s {operations / 1e9 / limit / median:6.0%}'
        return text

    titles = ''.join(f' {name:>10} {"share":>6}' for name in runs)
    yield f'{"part":20} {"GFLOP":>8}{titles}'
    names = dict.fromkeys(name for *_, name in PARTS if name in runs['as built'][0])
    for name in (*names, REST):
        yield format_row(name, operations.get(name, 0.),
                         [[run.get(name, 0.) for run in each[1:]] for each in runs.values()])
    yield format_row('full model', sum(operations.values()),
                     [[sum(run.values()) for run in each[1:]] for each in runs.values()])
    yield f'share is of the {limit:.0f} GFLOP/s of the fastest matmul'
