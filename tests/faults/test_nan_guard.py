"""NaN and infinity in images, targets, weights, losses and gradients."""
from __future__ import annotations

import csv
import re
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, config, latest_log, run_two
from mmcv.transforms import BaseTransform
from mmengine.dataset import pseudo_collate
from mmengine.dist import all_gather_object, get_rank
from mmengine.hooks import Hook, LoggerHook
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS, TRANSFORMS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from colonnade.engine.distributed.sharded_tensors import gather_tensor
from colonnade.engine.nan_guard import NanGuard, register_nan_guard
from colonnade.engine.nan_guard.diagnosis import find_non_finite, iter_tensors
from colonnade.engine.nan_guard.step_guard import StepGuard, merge_groups
from colonnade.engine.runner.loops import SeededEpochLoop, SeededIterationLoop
from colonnade.engine.work_dir.last_checkpoint import replace_checkpoint_hook
from colonnade.settings.reading import read_config
from colonnade.visualization.run_report.record_folder import read_run
from colonnade.visualization.run_report.report_page import describe_run
from colonnade.weights.downloads import fetch

NAN = float('nan')
TINY = dict(embed_dim=32, depth=4, num_heads=2, patch_size=16)


@TRANSFORMS.register_module(force=True)
class Spoil(BaseTransform):
    """Puts NaN into an image or its boxes, if its number is among those to spoil.

    Args:
        numbers: Indices of samples, in order of loading, from 1.
        what: ``'img'`` or ``'gt_bboxes'``.
        rank: Rank of the process that does it.
    """
    loaded = 0

    def __init__(self, numbers: list[int], what: str, rank: int) -> None:
        self.numbers, self.what, self.rank = numbers, what, rank

    def transform(self, results: dict) -> dict:
        Spoil.loaded += 1
        if Spoil.loaded in self.numbers and get_rank() == self.rank:
            value = results[self.what]
            if self.what == 'img':
                results['img'] = value.astype('float32')
                results['img'][0, 0, 0] = NAN
            else:
                value.tensor[0] = NAN
        return results


@HOOKS.register_module(force=True)
class SetParameter(Hook):
    """Sets the first value of parameters after an iteration, or before training.

    Args:
        names: Names of the parameters.
        value: Value to set.
        at: Iteration, from 1; 0 is before training.
    """

    def __init__(self, names: list[str], at: int, value: float = NAN) -> None:
        self.names, self.at, self.value = names, at, value

    def before_run(self, runner: Runner) -> None:
        if not self.at:
            self.set(runner)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if runner.iter + 1 == self.at:
            self.set(runner)

    def set(self, runner: Runner) -> None:
        for name in self.names:
            runner.model.get_parameter(name).data.view(-1)[0] = self.value


@OPTIM_WRAPPERS.register_module(force=True)
class CountingOptimWrapper(OptimWrapper):
    """One of a user's own."""
    num_updates = 0

    def update_params(self, *args: Any, **kwargs: Any) -> None:
        self.num_updates += 1
        super().update_params(*args, **kwargs)


@OPTIM_WRAPPERS.register_module(force=True)
class ClippingOptimWrapper(OptimWrapper):
    """One that clips in its own way."""
    num_clipped = 0

    def _clip_grad(self) -> None:
        self.num_clipped += 1


@OPTIM_WRAPPERS.register_module(force=True)
class ScaledOptimWrapper(AmpOptimWrapper):
    """mmengine's wrapper for float16, on a CPU and without float16."""

    def __init__(self, init_scale: float = 2.**127, **kwargs: Any) -> None:
        OptimWrapper.__init__(self, **kwargs)
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=init_scale, growth_interval=2)
        self._scale_update_param, self.cast_dtype = None, torch.bfloat16


class Model(BaseModel):
    """A convolution, a norm and a layer; its loss is that of the layer's output.

    Attributes:
        backward_is_nan: Whether the loss is finite and its gradient is not.
        raises: Whether costs are matched, as detectors do, which takes no NaN.
        factor: Factor of the loss.
    """
    backward_is_nan = raises = False
    factor = 1.

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: list[Tensor], data_samples: list, mode: str) -> dict[str, Tensor]:
        found = self.layer(self.norm(self.conv(torch.stack(inputs))).mean((2, 3)))
        if self.raises:
            linear_sum_assignment(found.detach())
        if self.backward_is_nan:
            found = found + (self.conv.weight.sum() * 0).sqrt()
        return dict(loss=found.square().mean() * self.factor, acc=found.mean())


class Images(Dataset):
    """Images of which some are NaN."""

    def __init__(self, bad: Sequence[int]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(index))
        image[0, 0, 0] = NAN if index in self.bad else 0.5
        sample = BaseDataElement(metainfo=dict(img_path=f'{index}.jpg'))
        return dict(inputs=image, data_samples=sample)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_layout: None,
          caplog: pytest.LogCaptureFixture) -> Callable[..., Runner]:
    """A runner of mmengine that trains a small model on two images per iteration, in their order.
    """
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)

    def run(iters: int, *, bad: Sequence[int] = (), max_skipped_steps: int = 5,
            hooks: Sequence[dict] = (), train: bool = True, lr: float = 0.1, fused: bool = False,
            interval: int = 1, **wrapper: Any) -> Runner:  # yapf: disable
        torch.manual_seed(0)
        loader = DataLoader(Images(bad), batch_size=2, collate_fn=pseudo_collate)
        runner = Runner(
            Model(), str(tmp_path), loader,
            train_cfg=dict(type=SeededIterationLoop, max_iters=iters),
            optim_wrapper=dict(
                optimizer=dict(type='SGD', lr=lr, momentum=0.9, fused=fused), **wrapper),
            default_hooks=dict(
                checkpoint=dict(type='CheckpointHook', interval=interval, by_epoch=False),
                logger=dict(type='LoggerHook', interval=interval)),
            custom_hooks=list(hooks), log_processor=dict(by_epoch=False),
            experiment_name=f'{time.time_ns()}')  # yapf: disable
        register_nan_guard(runner, max_skipped_steps)
        replace_checkpoint_hook(runner)
        if train:
            runner.train()
        return runner

    return run


@pytest.fixture
def train(run_tool: Callable, shapes: Path, tmp_path: Path, no_layout: None,
          writes_pages: bool) -> Callable[..., Path]:
    """Train a tiny segmenter or detector; returns its work dir, or the config alone."""

    def run(*arguments: str | Path, head: str = 'sem_fpn', iters: int = 6, spoil: list[int] | None
            = None, what: str = 'img', rank: int = 0, only_config: bool = False,
            **settings: Any) -> Path:  # yapf: disable
        Spoil.loaded = 0
        cfg = read_config(config(head))
        if head in LAYOUTS:
            cfg.model.backbone.arch = TINY
            cfg.model.neck.in_channels = TINY['embed_dim']
        cfg.train_dataloader.batch_size = 2
        cfg.default_hooks.checkpoint.interval = 1
        cfg.default_hooks.logger.interval = 1
        cfg.train_cfg.max_iters = iters
        cfg.randomness = dict(seed=0)
        if spoil is not None:
            cfg.train_dataloader.dataset.pipeline.insert(-1, dict(
                type='Spoil', numbers=spoil, what=what, rank=rank))  # yapf: disable
        cfg.merge_from_dict(settings)
        cfg.dump(tmp_path / 'own.py')
        if only_config:
            return tmp_path / 'own.py'
        data = shapes / LAYOUTS.get(head, 'coco')
        run_tool('train', tmp_path / 'own.py', '--data-root', data,
                 '--work-dir', tmp_path / 'run', '--no-report', *arguments, '--cfg-options',
                 *NO_VAL, *NO_WORKERS[:1])  # yapf: disable
        return tmp_path / 'run'

    return run


def states(work_dir: Path) -> list[dict[str, Any]]:
    """Return the contents of the checkpoints of a run, in order."""
    paths = sorted(work_dir.glob('iter_*.pth'), key=lambda path: int(path.stem[5:]))
    return [fetch(str(path)) for path in paths]


def find_non_finite_in(checkpoint: dict[str, Any]) -> list[str]:
    states = {key: value for key, value in checkpoint.items() if key != 'message_hub'}
    return find_non_finite(iter_tensors(states))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[Runner], str]:
    """Return the log of a runner."""
    return lambda runner: Path(runner.logger.log_file).read_text()


def weights(runner: Runner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in runner.model.state_dict().items()}


AVERAGED = dict(type='EMAHook', momentum=0.5, update_buffers=True)


def test_bad_image_leaves_no_trace(small: Callable, tmp_path: Path, log: Callable) -> None:
    before = weights(small(2))
    runner = small(3, bad=[5], hooks=[AVERAGED])
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for checkpoint in states(tmp_path):
        assert not find_non_finite_in(checkpoint)
    text = log(runner)
    assert 'iteration 3: step skipped because the loss is NaN or Inf; 1 skipped so far; ' \
        'images: 4.jpg, 5.jpg' in text
    assert '1 step was skipped' in text and '4.jpg (1), 5.jpg (1)' in text
    assert 'nan' not in re.sub('(is|was) nan', '', text.lower()) and 'skipped_steps: 1' in text


@pytest.mark.parametrize('clip', [None, dict(max_norm=0.01), dict(max_norm=0.01, norm_type=1),
                                  dict(type='value', clip_value=0.01)])  # yapf: disable
def test_guard_does_not_change_training(small: Callable, log: Callable, clip: dict | None) -> None:
    guarded = small(4, clip_grad=clip and dict(clip))
    plain = small(4, clip_grad=clip and dict(clip), train=False)
    for hook in [hook for hook in plain.hooks if 'nan_guard' in type(hook).__module__]:
        plain.hooks.remove(hook)
    plain.train()
    for name, value in guarded.model.state_dict().items():
        assert torch.equal(value, plain.model.state_dict()[name]), name
    assert 'skipped' not in log(guarded)


@pytest.mark.parametrize('optimizer', [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adadelta])
def test_groups_are_merged_within_a_step(optimizer: type) -> None:
    """The result, the state and the groups afterwards are those of separate groups."""
    torch.manual_seed(0)
    values = [torch.randn(3) for _ in range(5)]
    gradients = [torch.randn(3) for _ in range(5)]
    states = []
    for merge in (False, True):
        parameters = [nn.Parameter(value.clone()) for value in values]
        groups = [dict(params=[p], lr=0.1 * (1 + i % 2)) for i, p in enumerate(parameters)]
        built = optimizer(groups)
        for _ in range(3):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            with merge_groups(built) if merge else nullcontext():
                number = len(built.param_groups)
                built.step()
        assert number == (2 if merge and optimizer is not torch.optim.Adadelta else 5)
        assert len(built.param_groups) == 5
        states.append([parameters, built.state_dict()])
    torch.testing.assert_close(*states)


class FetchCounter(TorchDispatchMode):
    """Counts the numbers that are copied to the host; GPUs wait for each."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (),
                           kwargs: dict | None = None) -> Any:  # yapf: disable
        self.number += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def deferring(small: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runner]:
    """A runner whose optimizer skips steps itself, as on an accelerator."""
    monkeypatch.setattr('colonnade.engine.nan_guard.step_guard.StepGuard.can_defer',
                        lambda self: not isinstance(self, AmpOptimWrapper))
    monkeypatch.setattr('colonnade.engine.runner.scalars.is_elsewhere',
                        lambda value: isinstance(value, Tensor))
    return partial(small, fused=True, interval=8)


@pytest.mark.parametrize('options', [
    dict(), dict(clip_grad=dict(max_norm=0.01)), dict(accumulative_counts=2)])  # yapf: disable
def test_deferred_steps_leave_no_trace(options: dict, deferring: Callable, log: Callable) -> None:
    before = weights(deferring(4, **options))
    skipping = deferring(6, bad=[9] if 'accumulative_counts' in options else [8, 11], **options)
    for name, value in skipping.model.state_dict().items():
        if 'accumulative_counts' in options and 'norm.' in name:
            continue  # statistics of the good half of the step stay
        assert torch.equal(value, before[name]), name
    text = log(skipping)
    if options:
        assert ('accumulative_counts' in options) == ('1 step was skipped' in text)
    assert 'step skipped because the loss is NaN or Inf; 1 skipped so far; images: 8.jpg, 9.jpg' \
        in text
    assert 'loss: nan' not in text


def test_deferred_steps_equal_others(deferring: Callable, small: Callable, log: Callable,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    runner = deferring(5, clip_grad=dict(max_norm=0.01))
    numbers = re.findall(r'grad_norm: (\S+)  loss: (\S+)', log(runner))
    monkeypatch.undo()
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)
    other = small(5, fused=True, interval=8, clip_grad=dict(max_norm=0.01))
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
    assert numbers == re.findall(r'grad_norm: (\S+)  loss: (\S+)', log(other))


def test_deferred_steps_fetch_nothing(deferring: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the iteration that logs copies numbers to the host, and they are few."""
    runner = deferring(8, train=False, clip_grad=dict(max_norm=0.01))
    numbers: list[int] = []

    class Record(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, *_: Any, **__: Any) -> None:
            numbers.append(counter.number)

    runner.register_hook(Record())
    tolist = Tensor.tolist

    def count(tensor: Tensor) -> Any:
        counter.number += 1
        return tolist(tensor)

    monkeypatch.setattr(Tensor, 'tolist', count)
    with FetchCounter() as counter:
        start = len(numbers)
        runner.train()
    assert start == 0 and len(numbers) == 8
    assert len(set(numbers[:7])) == 1, numbers
    assert numbers[7] > numbers[6]


def test_deferred_skips_stop(deferring: Callable, tmp_path: Path) -> None:
    """The host learns of skipped steps when it logs, and then looks for the cause."""
    with pytest.raises(FloatingPointError) as error:
        deferring(20, bad=range(20, 64), max_skipped_steps=5)
    text = str(error.value)
    assert text.startswith('training stops at iteration 17 of 20: skipped 7 steps in a row')
    assert 'images of the batch: 32.jpg, 33.jpg' in text
    assert f'the last good checkpoint is {tmp_path / "iter_8.pth"}' in text
    assert not (tmp_path / 'iter_16.pth').exists()


def test_all_deferred_steps_skipped(deferring: Callable) -> None:
    with pytest.raises(FloatingPointError, match='at iteration 8 of 8: skipped 8 steps in a row'):
        deferring(8, bad=range(64))


def test_deferred_errors_are_counted(deferring: Callable, log: Callable,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, 'raises', True)
    text = log(deferring(8, bad=[5, 8, 11]))
    assert '3 steps were skipped' in text
    assert 'the forward pass raised ValueError: matrix contains invalid numeric entries' in text


def test_deferred_gradient_is_not_logged(deferring: Callable, tmp_path: Path) -> None:
    hook = dict(type='SetParameter', names=['layer.weight'], at=0, value=1e30)
    with pytest.raises(FloatingPointError):
        deferring(8, clip_grad=dict(max_norm=0.01), hooks=[hook])
    text = latest_log(tmp_path)
    assert 'step skipped because' in text and 'grad_norm: nan' not in text


def test_own_clipping_is_called(small: Callable) -> None:
    runner = small(3, type='ClippingOptimWrapper', clip_grad=dict(max_norm=1))
    assert runner.optim_wrapper.num_clipped == 3


def test_checkpoint_of_other_optimizer_does_not_fuse(small: Callable) -> None:
    wrapper = small(1, fused=True, train=False).optim_wrapper
    wrapper = Runner.build_optim_wrapper(SimpleNamespace(model=Model()), wrapper)
    for group in wrapper.optimizer.param_groups:
        group['fused'] = None
    guard = StepGuard.wrap(wrapper)
    assert not guard.optimizer._step_supports_amp_scaling and not guard.can_defer()


def test_end_of_epoch_is_logged_with_its_losses(small: Callable, log: Callable,
                                                deferring: Callable) -> None:
    runner = deferring(8, train=False)
    runner._train_loop = dict(type=SeededEpochLoop, max_epochs=2)
    hook, = (each for each in runner.hooks if isinstance(each, LoggerHook))
    hook.interval = 50
    runner.train()
    losses = re.findall(r'\(train\).* loss: (\S+)', log(runner))
    assert len(losses) == len(set(losses)) == 2


def test_deferred_scaler_overflow_is_not_counted(deferring: Callable, log: Callable) -> None:
    runner = deferring(8, type='ScaledOptimWrapper')
    assert 'skipped' not in log(runner)


def test_guard_keeps_scheduler_counts(small: Callable) -> None:
    runner = small(3, train=False)
    runner.param_schedulers = [dict(type='LinearLR', start_factor=0.1, by_epoch=False)]
    with warnings.catch_warnings():
        for text in ('Seems like `optimizer', 'Detected call of `scheduler'):
            warnings.filterwarnings('error', text)
        runner.train()
    assert runner.optim_wrapper._global_step == 2  # the third, from 0


def test_too_many_skipped_steps_stop(small: Callable, tmp_path: Path) -> None:
    bad = [*range(4, 8), *range(10, 64)]
    with pytest.raises(FloatingPointError) as error:
        small(20, bad=bad, max_skipped_steps=3)
    text = str(error.value)
    assert text.startswith('training stops at iteration 8 of 20: skipped 3 steps in a row')
    assert 'in the batch: the image of 14.jpg, the image of 15.jpg' in text
    assert 'images of the batch: 14.jpg, 15.jpg' in text
    assert 'NaN or Inf in its output: data_preprocessor (BaseDataPreprocessor)' in text
    good = tmp_path / 'iter_5.pth'
    assert f'the last good checkpoint is {good}' in text and f'--resume {good}' in text
    assert not list(tmp_path.glob('iter_[678].pth')), 'saved while steps were skipped'


def test_first_nan_module_is_named(small: Callable) -> None:
    overflow = dict(type='SetParameter', names=['norm.weight', 'norm.bias'], at=0, value=3e38)
    with pytest.raises(FloatingPointError) as error:
        small(9, hooks=[overflow])
    assert 'NaN or Inf in its output: norm (BatchNorm2d)' in str(error.value)
    assert 'weights that' not in str(error.value) and 'in the batch' not in str(error.value)
    assert 'no good checkpoint was saved' in str(error.value)


def test_nan_weights_stop(small: Callable, tmp_path: Path) -> None:
    hook = dict(type='SetParameter', names=['layer.weight'])
    with pytest.raises(
            FloatingPointError, match='NaN or Inf in 1 weight before training: '
            'layer'):
        small(3, hooks=[dict(hook, at=0)])
    with pytest.raises(FloatingPointError) as error:
        small(9, hooks=[dict(hook, at=2)])
    assert str(error.value).startswith(
        'training stops at iteration 2 of 9: no checkpoint is saved, '
        'because of NaN or Inf in state_dict.layer.weight')
    assert f'good checkpoint is {tmp_path / "iter_1.pth"}' in str(error.value)
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_1.pth']
    with pytest.raises(FloatingPointError) as error:
        small(9, hooks=[dict(hook, at=2, priority='LOWEST')])
    assert 'NaN or Inf in weights: layer.weight' in str(error.value)
    assert 'NaN or Inf in its output: layer (Linear)' in str(error.value)


def test_module_in_compiled_one_is_named(small: Callable) -> None:

    class Compiled(Hook):

        def before_run(self, runner: Runner) -> None:
            runner.model.norm = nn.Sequential(runner.model.norm)
            runner.model.norm.compile(backend='eager')

    runner = small(9, train=False)
    runner.register_hook(Compiled())
    runner.register_hook(SetParameter(['norm.0.weight', 'norm.0.bias'], at=0, value=3e38))
    with pytest.raises(FloatingPointError, match=r'in its output: norm\.0 \(BatchNorm2d\)'):
        runner.train()


def test_nan_gradient_stops(small: Callable, log: Callable,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, 'backward_is_nan', True)
    with pytest.raises(FloatingPointError) as error:
        small(9, max_skipped_steps=2)
    assert 'the forward pass is finite, but the gradient of parameters up to conv' in \
        str(error.value)


def test_error_caused_by_nan_is_skipped(small: Callable, log: Callable,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, 'raises', True)
    assert 'the forward pass raised ValueError: matrix contains invalid numeric entries' in \
        log(small(4, bad=[5]))
    runner = small(8, bad=[5, 9], accumulative_counts=2)
    assert '2 steps were skipped' in log(runner)
    assert runner.optim_wrapper.inner_count == 8
    monkeypatch.setattr('test_nan_guard.linear_sum_assignment', lambda costs: [][0])
    for bad in ([], [1]):
        with pytest.raises(IndexError):  # not caused by NaN
            small(4, bad=bad)

    def fail(costs: Any) -> None:
        raise ValueError('a bug')

    monkeypatch.setattr('test_nan_guard.linear_sum_assignment', fail)
    with pytest.raises(ValueError, match='a bug'):
        small(4, bad=[1])


def test_nan_drops_accumulated_step(small: Callable, log: Callable) -> None:
    before = weights(small(2, accumulative_counts=2))
    runner = small(4, bad=[5], accumulative_counts=2)
    for name, value in runner.model.named_parameters():
        assert torch.equal(value, before[name]), name
    assert 'iteration 4: step skipped' in log(runner)
    assert 'images: 4.jpg, 5.jpg' in log(runner)
    assert not find_non_finite(runner.model.named_buffers())


def test_custom_optim_wrapper_is_guarded(small: Callable, log: Callable) -> None:
    runner = small(4, bad=[5], type='CountingOptimWrapper')
    assert runner.optim_wrapper.num_updates == 4
    assert 'CountingOptimWrapper overrides update_params' in log(runner)
    assert 'iteration 3: step skipped' in log(runner)
    assert not find_non_finite(runner.model.named_parameters())


def test_loss_scaler_overflow_is_not_counted(small: Callable, log: Callable,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, 'factor', 1e6)
    runner = small(24, type='ScaledOptimWrapper', lr=1e-9)
    scaler = runner.optim_wrapper.loss_scaler
    assert 1 < scaler.get_scale() < 2.**120 and 'skipped' not in log(runner)
    calm = dict(type='ScaledOptimWrapper', init_scale=2.**8)
    runner = small(1, **calm, bad=[0])
    assert runner.optim_wrapper.loss_scaler.get_scale() == 2.**8
    assert 'the loss is NaN or Inf; 1 skipped' in log(runner)
    runner = small(3, **calm, bad=[2])
    assert runner.optim_wrapper.loss_scaler.get_scale() == 2.**9, 'two good steps'


def test_overflow_at_lowest_scale_stops(small: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, 'backward_is_nan', True)
    with pytest.raises(FloatingPointError, match='2 steps in a row'):
        small(20, type='ScaledOptimWrapper', init_scale=2.**4, max_skipped_steps=2)


def test_check_invalid_loss_hook_is_removed(small: Callable, log: Callable) -> None:
    from mmdet.engine.hooks import CheckInvalidLossHook
    runner = small(4, bad=[5], hooks=[dict(type=CheckInvalidLossHook, interval=1)], train=False)
    runner.train()
    assert runner.iter == 4 and 'ignoring the CheckInvalidLossHook in the config' in log(runner)


def test_nan_image_of_segmenter(train: Callable, shapes: Path, tmp_path: Path) -> None:
    run = train(spoil=[3], iters=3, custom_hooks=[AVERAGED])
    text = latest_log(run)
    assert re.search(r'iteration 2: step skipped because .* images: \S+/\d+.jpg, \S+.jpg', text)
    with open(run / 'metrics.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert [row['skipped_steps'] for row in rows] == ['', '1', '1'] and all(
        isfinite(float(row['loss'])) for row in rows)
    assert describe_run(read_run(run))['skipped steps (NaN or Inf)'] == '1'
    for checkpoint in states(run):
        assert not find_non_finite_in(checkpoint)


def test_nan_weight_of_segmenter(train: Callable, tmp_path: Path,
                                 capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as error:
        train('--max-skipped-steps', '2', iters=9, custom_hooks=[
            dict(
                type='SetParameter',
                names=['backbone.blocks.1.attn.qkv.weight'],
                at=2,
                priority='LOWEST')])  # yapf: disable
    text = str(error.value.code)
    assert text.startswith('train: training stops at iteration 4 of 9: skipped 2 steps in a row')
    assert 'NaN or Inf in weights: backbone.blocks.1.attn.qkv.weight\n' in text
    assert 'NaN or Inf in its output: backbone.blocks.1.attn.qkv (Linear)\n' in text
    assert f'the last good checkpoint is {tmp_path / "run/iter_1.pth"}' in text


def test_max_skipped_steps_error(train: Callable) -> None:
    with pytest.raises(SystemExit, match='--max-skipped-steps must be at least 1, got 0'):
        train('--max-skipped-steps', '0')


@pytest.mark.slow
def test_nan_box_of_detector(train: Callable) -> None:
    run = train(head='mask_rcnn', spoil=[3], what='gt_bboxes', iters=3)
    assert re.search(
        r'iteration 2: step skipped because the batch contains NaN or Inf: gt_instances.bboxes of '
        r'\S+.jpg; 1 skipped', latest_log(run))
    assert not any(map(find_non_finite_in, states(run)))


@pytest.mark.slow
@pytest.mark.parametrize('head', ['mask2former', 'dino'])
def test_nan_image_of_query_detector(train: Callable, head: str) -> None:
    run = train(head=head, spoil=[3], iters=3)
    assert 'iteration 2: step skipped' in latest_log(run)
    assert len(states(run)) == 2 and not any(map(find_non_finite_in, states(run)))


@HOOKS.register_module(force=True)
class SameWeights(Hook):
    """Logs whether the processes have the same weights, and how many steps each skipped."""

    priority = 'LOWEST'

    def after_train(self, runner: Runner) -> None:
        sums = [
            sum(gather_tensor(p, True).double().sum().item() for p in runner.model.parameters())
        ]
        skipped = [h.num_skipped for h in runner.hooks if isinstance(h, NanGuard)]
        found = all_gather_object((sums, skipped))
        runner.logger.info(f'same weights: {all(each == found[0] for each in found)}, {found}')


@pytest.fixture
def train_two(train: Callable, tmp_path: Path, shapes: Path) -> Callable[..., str]:
    """Train a tiny segmenter in two processes; returns their logs, also of why they ended."""

    def run(*arguments: str, **settings: Any) -> str:
        cfg = train(only_config=True, custom_hooks=[AVERAGED, dict(type='SameWeights')], **settings)
        (tmp_path / 'train.py').write_text('from colonnade.tools.train import main\n'
                                           'try:\n    main()\n'
                                           'except SystemExit as error:\n    print(error)\n')
        return run_two(tmp_path / 'train.py', cfg, '--work-dir', tmp_path / 'run', '--data-root',
                       shapes / 'ade', '--no-report', '--launcher', 'pytorch', *arguments,
                       '--cfg-options', *NO_VAL, *NO_WORKERS[:1], out=tmp_path)  # yapf: disable

    return run


@pytest.mark.slow
@pytest.mark.parametrize('options', [[], ['--grad-accum', '2'], ['--fsdp']],
                         ids=['ddp', 'accumulated', 'fsdp'])  # yapf: disable
def test_processes_skip_same_steps(train_two: Callable, options: list[str], tmp_path: Path) -> None:
    log = train_two(*options, spoil=[3], rank=1, iters=4)
    assert 'same weights: True' in log and log.count(', [1])') == 2
    assert re.search(r'iteration [24]: step skipped because the loss is NaN or Inf', log)
    assert not any(map(find_non_finite_in, states(tmp_path / 'run')))


@pytest.mark.slow
@pytest.mark.parametrize('options', [[], ['--fsdp']], ids=['ddp', 'fsdp'])
def test_processes_stop_together(train_two: Callable, options: list[str]) -> None:
    log = train_two('--max-skipped-steps', '2', *options, spoil=list(range(99)), rank=1, iters=8)
    said = log.split('\ntrain: training stops at iteration 2 of 8: skipped 2 steps in a row ')[1:]
    assert len(said) == 2
    for each in said:
        assert 'in the batch: the image of ' in each
        assert 'NaN or Inf in its output: data_preprocessor (SegDataPreProcessor)' in each


@pytest.mark.slow
def test_huge_learning_rate(train: Callable, tmp_path: Path) -> None:
    try:
        train(iters=60, **{'optim_wrapper.optimizer.lr': 1e4, 'optim_wrapper.clip_grad': None,
                           'param_scheduler': []})  # yapf: disable
    except SystemExit as error:
        text = str(error.code)
        assert 'steps in a row because' in text or 'no checkpoint is saved' in text
    assert not any(map(find_non_finite_in, states(tmp_path / 'run')))
