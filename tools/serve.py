"""Serve a detector or segmenter on this machine: a web page and a JSON API.

    colonnade serve sem_fpn/xcit_nano_12_p16_slim_shapes iter_500.pth
"""
from __future__ import annotations

import argparse
import os
import signal
import sys
from functools import partial
from importlib import import_module

from colonnade.tools.command_line import (CHECKPOINT, add_amp, add_model_arguments,
                                          check_model_arguments, user_errors)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    add_model_arguments(parser)
    parser.add_argument('checkpoint', nargs='?', help=CHECKPOINT)
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='address to listen on; 0.0.0.0 lets everybody in who can reach this machine '
        '(%(default)s)')
    parser.add_argument(
        '--port', type=int, default=7860, help='0 for any that is free (%(default)s)')
    parser.add_argument(
        '--allowed-host',
        action='append',
        default=[],
        metavar='NAME',
        help='name of the server behind a proxy, as in models.example.org; may be repeated')
    parser.add_argument(
        '--batch-size',
        type=int,
        metavar='N',
        help='images that are computed at a time (1 on a CPU, else 8)')
    parser.add_argument(
        '--max-megabytes',
        type=float,
        default=20,
        metavar='N',
        help='largest file to accept (%(default)s)')
    parser.add_argument(
        '--max-pixels',
        type=int,
        metavar='N',
        help='largest image to accept (25 million, fewer with many classes)')
    parser.add_argument(
        '--timeout',
        type=float,
        default=120,
        metavar='SECONDS',
        help='until a request is given up (%(default)s)')
    add_amp(parser)
    parser.add_argument(
        '--fuse',
        action=argparse.BooleanOptionalAction,
        help='fold and merge layers, the same to rounding (where it can be)')
    return parser.parse_args()


def main() -> None:
    """Serve until Ctrl-C."""
    args = parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    with user_errors('serve'):
        check_model_arguments(args.config, args.checkpoint)
        try:
            from colonnade.inference.serving import ServeOptions, serve  # takes seconds
            serve(
                ServeOptions(**vars(args)), partial(import_module,
                                                    'colonnade.visualization.figures'))
        except KeyboardInterrupt:
            raise SystemExit(130) from None
    sys.stdout.flush()
    os._exit(0)  # all is closed and removed; taking the libraries apart would last seconds


if __name__ == '__main__':
    main()
