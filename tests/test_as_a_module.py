"""Backbones and pyramids as torch modules: copied, averaged, replaced, exported."""
from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest
import torch
from helpers.backbones import MAKERS, OURS, tiny
from helpers.rounding import check_all_rounding, doubled
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.optim.swa_utils import AveragedModel

from colonnade.necks import ColumnarPyramid

SIZES = [(64, 64), (72, 104)]  # The first one is the grid of CaiT and ResMLP.

CLASSES = [cls.__name__ for cls in OURS]
ALWAYS = (*CLASSES, 'PlainViT of DINOv3 by windows', 'pyramid')
every_model = pytest.mark.parametrize('kind', [
    pytest.param(kind, marks=[] if kind in ALWAYS else pytest.mark.slow)
    for kind in (*MAKERS, 'pyramid')
])


def build(kind: str, seed: int = 0) -> nn.Module:
    """Build a model with random weights, in evaluation mode."""
    if kind == 'pyramid':
        model = nn.Sequential(tiny(MAKERS['XCiT of patch 16']), ColumnarPyramid(32, 16))
    else:
        model = tiny(MAKERS[kind])
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.rand(value.shape, generator=generator) * 0.2)
    return model.eval()


def draw_images(batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 3, *size, generator=generator) for size in SIZES]


@torch.no_grad()
def run(model: nn.Module, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [level for image in draw_images() for level in model(image.to(dtype))]


def check_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(type(level) is Tensor for level in found)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@every_model
@torch.no_grad()
def test_replaced_weights(kind: str) -> None:
    """By a functional call, by ``data``, and by ``load_state_dict`` with ``assign`` twice."""
    model, other = build(kind, 1), build(kind, 2)
    own, expected = run(model), run(other)
    called = [functional_call(model, other.state_dict(), (image, )) for image in draw_images()]
    check_equal([level for levels in called for level in levels], expected)
    check_equal(run(model), own)
    for old, new in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        old.data.copy_(new.data)
    check_equal(run(model), expected)
    for seed, maps in ((1, own), (2, expected)):
        model.load_state_dict(build(kind, seed).state_dict(), assign=True)
        check_equal(run(model), maps)


@every_model
def test_averaged_model(kind: str) -> None:
    model, other = build(kind, 1).double(), build(kind, 2).double()
    averaged = AveragedModel(model, use_buffers=True)
    run(averaged, torch.float64)
    for source in (model, other):
        averaged.update_parameters(source)
    mean = copy.deepcopy(model)
    for a, b in zip(mean.parameters(), other.parameters(), strict=True):
        a.data.add_(b.data).div_(2)
    for a, b in zip(mean.buffers(), other.buffers(), strict=True):
        a.copy_(b) if not a.is_floating_point() else a.add_(b).div_(2)
    for a, b in zip(run(averaged, torch.float64), run(mean, torch.float64), strict=True):
        torch.testing.assert_close(a, b)


@every_model
def test_copies_are_independent(kind: str) -> None:
    model = build(kind)
    expected = run(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                   torch.load(file, weights_only=False)):
        check_equal(run(copied), expected)
        for parameter in copied.parameters():
            parameter.data.mul_(1.1)
        assert not torch.equal(run(copied)[-1], expected[-1])
    check_equal(run(model), expected)


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@every_model
@pytest.mark.usefixtures('busy_threads')
def test_threads_and_sizes(kind: str) -> None:
    model = build(kind).double()
    sizes = [(16 + 8 * i, 48 - 8 * j) for i in range(2) for j in range(3)]
    batch = [torch.randn(1, 3, *size, dtype=torch.float64) for size in sizes]

    @torch.no_grad()
    def serve(offset: int) -> list[list[Tensor]]:
        order = range(offset, offset + len(batch))
        found = {i % len(batch): model(batch[i % len(batch)]) for i in order}
        return [list(found[i]) for i in range(len(batch))]

    expected = serve(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(serve, range(4)):
            torch.testing.assert_close(found, expected)


@pytest.fixture
def on_one_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make torch.nn.parallel.replicate copy on a CPU instead of between GPUs."""
    module = import_module('torch.nn.parallel.replicate')
    monkeypatch.setattr(module, '_get_device_index', lambda *_: 0)
    monkeypatch.setattr(
        module,
        '_broadcast_coalesced_reshape',
        lambda tensors, devices, detach=False: [[(x.detach() if detach else x).clone()
                                                 for x in tensors] for _ in devices])


@every_model
@pytest.mark.usefixtures('on_one_cpu')
def test_replicas(kind: str) -> None:
    """In nn.DataParallel, parameters are not leaves, and gradients are summed."""
    model = build(kind).double()
    expected = run(model, torch.float64)
    replicas = torch.nn.parallel.replicate(model, [0, 1])
    for replica in replicas:
        check_equal(run(replica, torch.float64), expected)
    image, gradients = draw_images()[1].double(), []
    for parts in ((model, model), replicas):
        model.zero_grad()
        for part in parts:
            sum(level.sin().sum() for level in part(image)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)


@every_model
def test_built_in_inference_mode_and_on_meta(kind: str) -> None:
    source = build(kind)
    expected = run(source)
    with torch.inference_mode():
        model = build(kind)
        check_equal([level for image in draw_images() for level in model(image)], expected)
    check_equal(run(model), expected)
    with torch.device('meta'):
        model = build(kind)
    model.to_empty(device='cpu').load_state_dict(source.state_dict())
    check_equal(run(model), expected)


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*MAKERS, 'pyramid'])
def test_export_does_not_affect_eager_runs(kind: str) -> None:
    """At sizes that no other test uses."""
    model = build(kind)
    for size in ((88, 120), (120, 88)):
        image = torch.randn(1, 3, *size)
        with torch.no_grad():
            exported = torch.export.export(model, (image, )).module()
            maps = model(image)
            assert all(type(level) is Tensor for level in maps)
            check_all_rounding(exported(image), maps, doubled(model)(image.double()))


@every_model
def test_vmap_over_models(kind: str) -> None:
    models = [build(kind, seed) for seed in (1, 2)]
    state = stack_module_state(models)
    image = draw_images()[1]
    with torch.no_grad():
        found = vmap(lambda parameters, buffers: functional_call(models[0], (parameters, buffers),
                                                                 (image, )))(*state)
        for index, model in enumerate(models):
            check_all_rounding([level[index] for level in found], model(image),
                               doubled(model)(image.double()))


@every_model
def test_functional_gradients_equal_those_of_backward(kind: str) -> None:
    model = build(kind).double()
    image = draw_images()[1].double()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return sum(level.sin().sum() for level in functional_call(model, parameters, (image, )))

    found = torch.func.grad(loss)(dict(model.named_parameters()))
    loss({}).backward()
    for name, parameter in model.named_parameters():
        difference, scale = (found[name] - parameter.grad).norm(), parameter.grad.norm()
        assert difference <= 1e-9 * max(scale, 1.), name
