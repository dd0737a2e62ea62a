"""What a process of two compares with the other one; prints whether it is the same."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import distributed

from colonnade.engine.agreement import check_same_data, check_same_weights


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
    distributed.barrier()  # none may leave while the other still talks
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
