"""Run the tools of a library in a process that does not import colonnade.

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
    yapf_api.FormatCode = lambda text, **_: (text, True)  # saves half of the time of a short run
    import_module(f'{sys.argv[1]}.apis')
    commands = json.loads(sys.argv[2])
    for command in commands:
        sys.argv = command
        time.sleep(1)  # mmengine names runs by the second
        runpy.run_path(sys.argv[0], run_name='__main__')


if __name__ == '__main__':
    main()
