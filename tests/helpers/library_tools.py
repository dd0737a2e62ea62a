"""Run a library's own tools in a process that has not seen colonnade.

    python tests/helpers/library_tools.py mmdet '[["mmdet/.mim/tools/train.py", "config.py"], ...]'
"""
from __future__ import annotations

import json
import runpy
import sys
import time
from importlib import import_module

from yapf.yapflib import yapf_api


def main() -> None:
    yapf_api.FormatCode = lambda text, **_: (text, True)  # half of a short run's time
    import_module(f'{sys.argv[1]}.apis')
    commands = json.loads(sys.argv[2])
    for command in commands:
        sys.argv = command
        time.sleep(1)  # mmengine tells runs apart by the second
        runpy.run_path(sys.argv[0], run_name='__main__')


if __name__ == '__main__':
    main()
