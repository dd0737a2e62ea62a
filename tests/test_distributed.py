"""Several processes take the step that one process would."""
from __future__ import annotations

import pytest
import torch
from conftest import run_two
from helpers.step_in_processes import MODELS, images, step
from torch import Tensor

States = dict[str, dict[str, dict[str, Tensor]]]


@pytest.fixture(scope='module')
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Weights after a step of two gloo processes, by backbone and by what distributes it."""
    out = tmp_path_factory.mktemp('step')
    run_two('tests/helpers/step_in_processes.py', out / 'states.pth', out=out)
    return torch.load(out / 'states.pth', weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_ddp_step_equals_single_process(name: str, states: States) -> None:
    alone = MODELS[name]()
    before = {key: p.detach().clone() for key, p in alone.named_parameters()}
    step(alone, images())
    after = states[name]['ddp']
    for key, parameter in alone.named_parameters():
        expected = parameter.detach() - before[key]
        scale = max(expected.abs().max().item(), 1e-3)
        rounding = torch.finfo(parameter.dtype).eps * parameter.abs().max().item()
        torch.testing.assert_close(
            after[key] - before[key], expected, rtol=0, atol=1e-4 * scale + rounding, msg=key)


@pytest.mark.parametrize('name', MODELS)
def test_fsdp_step_equals_ddp(name: str, states: States) -> None:
    found = states[name]
    names = {key for key, _ in MODELS[name]().named_parameters()}
    for shards, replicas in (('fsdp', 'ddp'), ('averaged_shards', 'averaged')):
        assert found[shards].keys() == found[replicas].keys() == names
        for key, value in found[shards].items():
            torch.testing.assert_close(value, found[replicas][key], rtol=0, atol=1e-6, msg=key)
