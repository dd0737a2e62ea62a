"""Hook that records the resources of a training run: memory, files, processes."""
from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from colonnade.common.process_memory import read_process_memory


def held() -> float:
    """Return the MiB of this process, without what glibc keeps of freed memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return read_process_memory('VmRSS') / 2**20


def resident(process: multiprocessing.Process) -> float:
    """Return the resident MiB of a process."""
    pages = int(Path(f'/proc/{process.pid}/statm').read_text().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE') / 2**20


@HOOKS.register_module()
class MeasuredRun(Hook):
    """Hook that appends a line of JSON to a file every ``interval`` iterations."""
    priority = 'LOWEST'

    def __init__(self, path: str, interval: int) -> None:
        self.path, self.interval = Path(path), interval

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if self.every_n_train_iters(runner, self.interval):
            children = multiprocessing.active_children()
            line = dict(
                iteration=runner.iter + 1,
                held=held(),
                held_by_workers=sum(map(resident, children)),
                files=len(os.listdir('/proc/self/fd')),
                threads=len(os.listdir('/proc/self/task')),
                children=len(children))
            with self.path.open('a') as file:
                file.write(f'{json.dumps(line)}\n')
