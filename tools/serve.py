"""Serve a detector or segmenter on this machine: a web page and a JSON API.

    colonnade serve sem_fpn/xcit_nano_12_p16_slim_shapes iter_500.pth
"""
from __future__ import annotations

import os
import signal
import sys
from types import ModuleType

from colonnade.inference.options import ServeOptions
from colonnade.tools.command_line import STOPPED, command


@command(ServeOptions, 'colonnade.inference.serving.server', 'colonnade.visualization.figures')
def main(options: ServeOptions, server: ModuleType, figures: ModuleType) -> None:
    """Serve until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C
    try:
        server.serve(options, figures)
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None
    sys.stdout.flush()
    os._exit(0)  # everything is closed; unloading the libraries would take seconds


if __name__ == '__main__':
    main()
