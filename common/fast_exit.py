"""A faster end of commands."""
from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


class FastExit:
    """Last step of an exit: after a successful command, end without freeing every object.

    Freeing those of torch and its libraries takes one to four seconds.
    """
    is_finished = False

    def finish(self, main: Callable[[], None]) -> None:
        """Note that a function succeeded, if it is all that the process does."""
        self.is_finished = vars(sys.modules['__main__']).get('main') is main

    def __call__(self) -> None:
        """Flush the outputs and end the process, unless other processes may wait for it."""
        distributed = sys.modules.get('torch.distributed')
        if not self.is_finished or (distributed is not None and distributed.is_available()
                                    and distributed.is_initialized()):
            return
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except OSError:  # reported by Python
            return
        os._exit(0)


fast_exit = FastExit()
atexit.register(fast_exit)  # before other modules register theirs, which run first
