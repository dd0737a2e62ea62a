"""One training step in each of several gloo processes, an image each; started by torchrun.

    python -m torch.distributed.run --nproc-per-node 2 tests/helpers/step_in_processes.py OUT
"""
from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path

import torch
from helpers.backbones import ARCHS, tiny
from mmengine.model import ExponentialMovingAverage
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from colonnade.backbones import PlainViT, XCiT
from colonnade.engine.distributed.sharded_tensors import (gather_model, gather_tensor,
                                                          reshard_model, shard_model)
from colonnade.heads import EoMTHead, PMTHead


def images() -> Tensor:
    return torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, batch: Tensor) -> nn.Module:
    """On the mean over images and processes; norm statistics are frozen, gradients are clipped.

    Returns the average of the weights before and after.
    """
    torch.manual_seed(0)  # PMT rescales its positions at random
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    average = ExponentialMovingAverage(model, momentum=0.5)
    average.update_parameters(model)
    sum(output.square().mean() for output in tree_leaves(model(batch))).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
    optimizer.step()
    average.update_parameters(model)
    return average.module


def build_backbone(cls: type) -> nn.Module:
    return tiny(cls, norm_eval=cls is XCiT).train()


def build_eomt() -> nn.Module:
    """EoMT, all of whose queries are masked."""
    torch.manual_seed(0)
    arch = dict(embed_dim=32, depth=4, num_heads=2, init_values=0.1)
    backbone = PlainViT(arch, img_size=64, norm_features=True, num_query_blocks=2)
    return nn.Sequential(backbone, EoMTHead(32, num_queries=5)).train()


def build_pmt() -> nn.Module:
    """PMT on a backbone that is trained too; batch norms use running statistics."""
    backbone = tiny(XCiT, norm_eval=True).train()
    head = PMTHead(32, patch_size=8, num_blocks=2, num_heads=2, num_queries=5).train()
    head.decoder.bn.eval()
    return nn.Sequential(backbone, head)


#: name -> function that builds a model in training mode
MODELS = {
    cls.__name__: partial(build_backbone, cls)
    for cls in ARCHS
} | dict(
    EoMT=build_eomt, PMT=build_pmt)


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
    for name, build in MODELS.items():
        sharded = build()
        replicated = DistributedDataParallel(copy.deepcopy(sharded))
        average = step(replicated, batch).module
        shard_model(sharded, mesh)
        shards = step(sharded, batch)
        states[name] = dict(
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
