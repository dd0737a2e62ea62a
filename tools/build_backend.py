"""Build backend: setuptools with editable installs that no folder can shadow.

Python treats any folder called ``colonnade`` as a namespace package, such as a clone in the current
directory. setuptools registers the finder of an editable install after the one for folders, so the
folder would win. Here the finder of the editable install comes first.
"""
from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F401,F403 - the other hooks of PEP 517 and PEP 660

#: code that is appended to the .pth file, which Python runs at startup
MOVE_FINDER_FIRST = ("; import sys; sys.meta_path.sort(key=lambda finder: "
                     "getattr(finder, '__module__', '') != {module!r})")


def build_editable(wheel_directory: str, *args: Any, **kwargs: Any) -> str:
    """Build an editable wheel whose finder comes first, and return its file name (PEP 660).

    Raises:
        RuntimeError: If the wheel of setuptools has no finder.
    """
    name = build_meta.build_editable(wheel_directory, *args, **kwargs)
    wheel = Path(wheel_directory, name)
    with zipfile.ZipFile(wheel) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    pth = next((entry for entry in files if entry.endswith('.pth')), None)
    if pth is None or not files[pth].startswith(b'import __editable__'):
        raise RuntimeError(f'{name} has no finder: expected a .pth file that imports one')
    module = files[pth].split(b';')[0].removeprefix(b'import ').decode().strip()
    files[pth] = files[pth].rstrip() + MOVE_FINDER_FIRST.format(module=module).encode() + b'\n'
    record = next(entry for entry in files if entry.endswith('.dist-info/RECORD'))
    rows = [row for row in files[record].decode().splitlines() if not row.startswith(f'{pth},')]
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[pth]).digest()).rstrip(b'=').decode()
    rows.insert(0, f'{pth},sha256={digest},{len(files[pth])}')
    files[record] = '\n'.join(rows).encode() + b'\n'
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for entry, content in files.items():
            archive.writestr(entry, content)
    return name
