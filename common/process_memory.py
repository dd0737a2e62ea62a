"""Memory of this process."""
from __future__ import annotations

import resource
import sys
from pathlib import Path

from .errors import UserError

STATUS = Path('/proc/self/status')


def read_process_memory(field: str) -> int:
    """Return a field of Linux's ``/proc/self/status``, in bytes.

    The name of the process, which that file begins with, may be cut within a character.

    Raises:
        OSError: On other systems.
        UserError: If the field is missing.
    """
    for line in STATUS.read_text(encoding='utf-8', errors='replace').splitlines():
        if line.startswith(f'{field}:'):
            return 1024 * int(line.split()[1])
    raise UserError(f'{STATUS} has no {field}')


def get_peak_memory() -> int:
    """Return the peak bytes of this process so far.

    On Linux, ``getrusage`` would also count the peak of the process that started this one.
    """
    try:
        return read_process_memory('VmHWM')
    except (OSError, UserError):
        unit = 1 if sys.platform == 'darwin' else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
