"""One training step in each of several gloo processes, an image each; started by torchrun.

    python -m torch.distributed.run --nproc-per-node 2 tests/step_in_processes.py OUT
"""
from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from trunks import ARCHS, tiny

from colonnade.backbones import XCiT


def images() -> Tensor:
    return torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, batch: Tensor) -> None:
    """On the mean over images and processes; norm statistics are frozen."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    sum(m.square().mean() for m in model(batch)).backward()
    optimizer.step()


def backbone(cls: type) -> nn.Module:
    return tiny(cls, norm_eval=cls is XCiT).train()


def main() -> None:
    distributed.init_process_group('gloo')
    batch = images().chunk(distributed.get_world_size())[distributed.get_rank()]
    states = {}
    for cls in ARCHS:
        plain = backbone(cls)
        replicated = DistributedDataParallel(copy.deepcopy(plain))
        step(replicated, batch)
        sharded = FullyShardedDataParallel(
            plain, use_orig_params=True, device_id=torch.device('cpu'))
        step(sharded, batch)
        with FullyShardedDataParallel.summon_full_params(sharded):
            shards = {name: p.detach().clone() for name, p in sharded.module.named_parameters()}
        states[cls.__name__] = dict(ddp=replicated.module.state_dict(), fsdp=shards)
    if distributed.get_rank() == 0:
        torch.save(states, Path(sys.argv[1]))
    distributed.barrier()  # none may leave while the others still talk
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
