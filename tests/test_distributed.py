"""Several processes take the step that one process would."""
from __future__ import annotations

import pytest
import torch
from conftest import run_two
from helpers.backbones import every_class
from helpers.step_in_processes import backbone, images, step
from torch import Tensor

States = dict[str, dict[str, dict[str, Tensor]]]


@pytest.fixture(scope='module')
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Weights after a step of two gloo processes, by backbone and by what distributes it."""
    out = tmp_path_factory.mktemp('step')
    run_two('tests/helpers/step_in_processes.py', out / 'states.pth', out=out)
    return torch.load(out / 'states.pth', weights_only=True)


@every_class
def test_ddp_step_equals_single_process(cls: type, states: States) -> None:
    alone = backbone(cls)
    before = {name: p.detach().clone() for name, p in alone.named_parameters()}
    step(alone, images())
    after = states[cls.__name__]['ddp']
    for name, parameter in alone.named_parameters():
        expected = parameter.detach() - before[name]
        scale = max(expected.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            after[name] - before[name], expected, rtol=0, atol=1e-4 * scale, msg=name)


@every_class
def test_fsdp_step_equals_ddp(cls: type, states: States) -> None:
    found = states[cls.__name__]
    names = {name for name, _ in backbone(cls).named_parameters()}
    for shards, replicas in (('fsdp', 'ddp'), ('averaged_shards', 'averaged')):
        assert found[shards].keys() == found[replicas].keys() == names
        for name, value in found[shards].items():
            torch.testing.assert_close(value, found[replicas][name], rtol=0, atol=1e-6, msg=name)
