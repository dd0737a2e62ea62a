"""One of two processes that train a small model; prints what it starts from and draws, as JSON."""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATA_SAMPLERS, DATASETS, MODELS
from torch import distributed, nn
from torch.utils.data import Dataset, Sampler

from colonnade.engine.runner.hooks import BroadcastBuffers
from colonnade.engine.runner.strict_runner import StrictRunner

found: dict[str, Any] = dict(images=[], dropped=[])


@DATASETS.register_module()
class Numbers(Dataset):
    """Twelve images that are their numbers."""

    metainfo: dict = {}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, int]:
        return dict(inputs=index)


@DATA_SAMPLERS.register_module()
class GlobalOrder(Sampler):
    """An order drawn from a global generator, split between the processes."""

    def __init__(self, dataset: Dataset, **_: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(12).tolist()[int(os.environ['RANK'])::2])

    def __len__(self) -> int:
        return 6


@MODELS.register_module()
class Drawing(BaseModel):
    """Values that are drawn when it is built, one of them in no checkpoint, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(1, 1), nn.Dropout()
        self.register_buffer('saved', torch.rand(1))
        self.register_buffer('unsaved', torch.rand(1), persistent=False)

    def forward(self, inputs: torch.Tensor, mode: str = 'loss') -> dict[str, torch.Tensor]:
        found['images'] += inputs.tolist()
        kept = self.dropout(torch.ones(32))
        found['dropped'] += (kept == 0).int().tolist()
        return dict(loss=self.linear(inputs[:, None].float()).sum())


class Start(Hook):
    """Notes the values that training starts from."""

    priority = 'LOWEST'

    def before_train(self, runner: StrictRunner) -> None:
        for name, value in [*runner.model.named_parameters(), *runner.model.named_buffers()]:
            found[name] = value.tolist()


def main() -> None:
    distributed.init_process_group('gloo')
    loader = dict(dataset=dict(type='Numbers'), sampler=dict(type='GlobalOrder'), batch_size=2,
                  num_workers=0, collate_fn=dict(type='default_collate'))  # yapf: disable
    runner = StrictRunner(
        model=dict(type='Drawing'),
        work_dir=sys.argv[1],
        train_dataloader=loader,
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=None, logger=None),
        custom_hooks=[BroadcastBuffers(), Start()],
        randomness=dict(seed=3, diff_rank_seed=sys.argv[2] == 'True'))
    runner.train()
    print(f'FOUND {json.dumps(found)}')
    distributed.barrier()  # none may leave while the other still talks
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
