"""Run the libraries' own tools: every list of commands in a fork that has not seen colonnade.

    python tests/library_tools.py '[[["mmdet/.mim/tools/train.py", "config.py"], ...], ...]'
"""
from __future__ import annotations

import json
import os
import runpy
import sys
import time

import mmdet.apis  # noqa: F401, what the tools import anyway
import mmseg.apis  # noqa: F401
from yapf.yapflib import yapf_api


def run(commands: list[list[str]]) -> None:
    for sys.argv in commands:
        time.sleep(1)  # mmengine tells runs apart by the second
        runpy.run_path(sys.argv[0], run_name='__main__')


def main() -> None:
    yapf_api.FormatCode = lambda text, **_: (text, True)  # half of a short run's time
    for commands in json.loads(sys.argv[1]):
        child = os.fork()
        if not child:
            run(commands)
            return
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f'{commands} failed')


if __name__ == '__main__':
    main()
