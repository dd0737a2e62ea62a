"""One training step in each of several gloo processes, an image each; started by torchrun.

    python -m torch.distributed.run --nproc-per-node 2 tests/helpers/step_in_processes.py OUT
"""
from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from helpers.backbones import ARCHS, tiny
from mmengine.model import ExponentialMovingAverage
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from colonnade.backbones import XCiT
from colonnade.engine.distributed.sharded_tensors import (gather_model, gather_tensor,
                                                          reshard_model, shard_model)


def images() -> Tensor:
    return torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, batch: Tensor) -> nn.Module:
    """On the mean over images and processes; norm statistics are frozen, gradients are clipped.

    Returns the average of the weights before and after.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    average = ExponentialMovingAverage(model, momentum=0.5)
    average.update_parameters(model)
    sum(m.square().mean() for m in model(batch)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
    optimizer.step()
    average.update_parameters(model)
    return average.module


def backbone(cls: type) -> nn.Module:
    return tiny(cls, norm_eval=cls is XCiT).train()


def collect_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: gather_tensor(p.detach(), True) for name, p in model.named_parameters()}


def evaluate(model: nn.Module, times: int) -> None:
    """Run as often as it is this process' turn; the other does not wait."""
    gather_model(model)
    with torch.no_grad():
        for _ in range(times):
            model.eval()(images())
    reshard_model(model)


def main() -> None:
    distributed.init_process_group('gloo')
    batch = images().chunk(distributed.get_world_size())[distributed.get_rank()]
    states = {}
    mesh = init_device_mesh('cpu', (distributed.get_world_size(), ))
    for cls in ARCHS:
        sharded = backbone(cls)
        replicated = DistributedDataParallel(copy.deepcopy(sharded))
        average = step(replicated, batch).module
        shard_model(sharded, mesh)
        shards = step(sharded, batch)
        states[cls.__name__] = dict(
            ddp=collect_state(replicated.module),
            fsdp=collect_state(sharded),
            averaged=collect_state(average),
            averaged_shards=collect_state(shards))
        evaluate(sharded, distributed.get_rank())
    if distributed.get_rank() == 0:
        torch.save(states, Path(sys.argv[1]))
    distributed.barrier()  # none may leave while the others still talk
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
