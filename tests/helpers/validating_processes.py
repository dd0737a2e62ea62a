"""One of two processes that validate, each at its own pace; prints how its validation ends."""
from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from torch import distributed, nn
from torch.distributed.distributed_c10d import _get_default_store

from colonnade.engine.runner.signal_handling import Interrupted, StopOnSignal


class Stopping(StopOnSignal):
    """Saves nothing."""

    def stop(self, runner: Any) -> None:
        raise Interrupted('', self.signal, None)


def main() -> None:
    distributed.init_process_group('gloo')
    rank, store, hook = int(os.environ['RANK']), _get_default_store(), Stopping()
    loop = SimpleNamespace(dataloader=range(5))
    runner = SimpleNamespace(val_loop=loop, optim_wrapper=None, model=nn.Identity(), hooks=[],
                             timestamp='now', iter=3)  # yapf: disable
    hook.before_val_epoch(runner)
    try:
        for batch in loop.dataloader:
            if rank == 0 and batch == 4:
                store.set('first', 'is at its last batch')
            if rank == 1 and batch == 0:
                store.wait(['first'])
            if rank == 1 and batch == 2 and len(sys.argv) > 1:
                hook.signal = signal.SIGTERM
            hook.after_val_iter(runner, batch)
        print('all batches')
    except Interrupted as stop:
        print(f'stopped by {stop.signal:d} in batch {batch}')
    distributed.barrier()  # none may leave while the other still talks
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
