"""Check the consistency of two processes, and print the results."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from torch import distributed

from colonnade.datasets.training_checks import check_loaded_data
from colonnade.engine.distributed.process_consistency import check_same_data, check_same_weights


class Elsewhere(BaseDataset):
    """A dataset whose image is outside of its folder; it counts how often it is looked at."""

    looks = 0

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_path='/elsewhere/1.jpg')]

    def get_data_info(self, idx: int) -> dict:
        self.looks += 1
        return super().get_data_info(idx)


def say(name: str, check: Callable[..., None], *arguments: Any) -> None:
    """Print what a comparison finds."""
    try:
        check(*arguments)
    except ValueError as error:
        print(f'{name}: {error}')
    else:
        print(f'{name}: the same')


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ['RANK'])
    distributed.init_process_group('gloo')
    for name, files in {
            'the same file': ('one/rest.pth', 'one/rest.pth'),
            'equal shards': ('one', 'copy'),
            'other shards': ('one', 'other'),
    }.items():
        say(name, check_same_weights, str(folder / files[rank]))
    say('the same URL', check_same_weights, 'https://a/x.pth')
    say('another URL', check_same_weights, ('https://a/x.pth', 'https://b/x.pth')[rank])
    mapped = dict(data_root='nowhere', ann_file='a.json', backend_args=dict(backend='mapped'))
    cfg = Config(dict(test_dataloader=dict(dataset=mapped)))
    say('data of a backend', check_same_data, cfg, dict(test_dataloader=[0]))
    say('another number', check_same_data, cfg, dict(test_dataloader=[0] * (rank + 1)))
    dataset = Elsewhere(data_root='/data')
    runner = SimpleNamespace(cfg=Config({}), train_dataloader=SimpleNamespace(dataset=dataset))
    say('files elsewhere', check_loaded_data, runner)
    print(f'process {rank} has looked {dataset.looks} times')
    distributed.barrier()  # none may leave while the other still talks
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
