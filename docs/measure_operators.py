"""Show where a fused XCiT-S12/16 spends its time on a CPU, by kinds of operators.

    python docs/measure_operators.py --size 224

The speed of the linear layers is printed beside that of the same layers alone, one after another:
with one layer, whose weights stay in the processor's cache, and with all of them.
"""
from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable

os.environ.setdefault('GOMP_SPINCOUNT', '10000')  # as the commands do

import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from colonnade.backbones import XCiT  # noqa: E402
from colonnade.backbones.kernels.packed import PackedLinear  # noqa: E402

ROUNDS = 10
KINDS = {
    '_linear_pointwise': 'linear layers',
    'addmm': 'attention',
    'bmm': 'attention',
    'baddbmm': 'attention',
    'mm': 'attention',
    'native_layer_norm': 'norms',
    'gelu_': 'GELU outside of other operators',
}


def get_kind(name: str, shapes: list[list[int]]) -> str:
    """Return the kind of an operator from its name and the shapes of its tensors."""
    if 'convolution_pointwise' in name:
        weight = [shape for shape in shapes if len(shape) == 4][-1]
        return 'depthwise convolutions' if weight[1] == 1 else 'convolutions of the stem'
    return KINDS.get(name.partition('::')[2], 'other operators')


def time_runs(run: Callable[[], object]) -> float:
    """Return the median seconds of a call."""
    seconds = []
    for _ in range(2 * ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[ROUNDS // 2:])


def measure_linear_layers(layers: list[PackedLinear], num_tokens: int) -> float:
    """Return the GFLOP/s of layers that run one after another."""
    inputs = [torch.rand(1, num_tokens, layer.weight.shape[1]) for layer in layers]
    work = 2 * num_tokens * sum(layer.weight.numel() for layer in layers)
    return work / time_runs(lambda: [each(x) for each, x in zip(layers, inputs, strict=True)]) / 1e9


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--size', type=int, default=224, help='side of the image in pixels')
    size = parser.parse_args().size
    model = XCiT(arch='small_12_p16').eval().fuse()
    image = torch.rand(1, 3, size, size)
    whole = time_runs(lambda: model(image))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for _ in range(ROUNDS):
            model(image)
    seconds: Counter[str] = Counter()
    work = 0
    for event in profiled.events():
        kind = get_kind(event.name, event.input_shapes)
        seconds[kind] += event.self_cpu_time_total / ROUNDS / 1e6
        if kind == 'linear layers':
            tensors = [shape for shape in event.input_shapes if shape]
            width_out, width_in = [shape for shape in tensors if len(shape) == 2][-1]
            work += 2 * tensors[0][1] * width_in * width_out / ROUNDS
    print(f'{1e3 * whole:.1f} ms per image\n\n| operators | ms | part |\n|---|---|---|')
    for kind, value in seconds.most_common():
        print(f'| {kind} | {1e3 * value:.1f} | {value / sum(seconds.values()):.0%} |')
    layers = [each for each in model.modules() if isinstance(each, PackedLinear)]
    tokens = (size // 16)**2
    print(f'\nlinear layers: {work / seconds["linear layers"] / 1e9:.0f} GFLOP/s in the model, '
          f'{measure_linear_layers(layers, tokens):.0f} without the rest of the model, '
          f'{measure_linear_layers(layers[:1], tokens):.0f} for one of them')


if __name__ == '__main__':
    main()
