"""Serve a detector or segmenter on this machine: a web page and a JSON API.

    colonnade serve sem_fpn/xcit_nano_12_p16_slim_shapes iter_500.pth
"""
from __future__ import annotations

import os
import signal
import sys
from functools import partial
from importlib import import_module

from colonnade.inference.options import ServeOptions
from colonnade.tools.command_line import STOPPED, check_model_arguments, command


@command(ServeOptions)
def main(options: ServeOptions) -> None:
    """Serve until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C
    check_model_arguments(options.config, options.checkpoint)
    try:
        from colonnade.inference.serving import serve  # slow
        serve(options, partial(import_module, 'colonnade.visualization.figures'))
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None
    sys.stdout.flush()
    os._exit(0)  # everything is closed; unloading the libraries would take seconds


if __name__ == '__main__':
    main()
