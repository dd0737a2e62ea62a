"""The build backend: setuptools', with editable installs that no folder can hide.

Python takes any folder called ``colonnade`` for a namespace package, such as a clone seen from the
folder above it. setuptools registers the finder of an editable install behind the one that looks
into folders, so the folder would win; here it is asked first.
"""
from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F401,F403 - the other hooks of PEP 517 and PEP 660

#: appended to the line of the .pth file, which Python runs as it starts
ASK_FIRST = ("; import sys; sys.meta_path.sort(key=lambda finder: "
             "getattr(finder, '__module__', '') != {module!r})")


def build_editable(wheel_directory: str, *args: Any, **kwargs: Any) -> str:
    """Build setuptools' editable wheel, and make its finder the first that Python asks.

    Args:
        wheel_directory: Folder that the wheel is written to.
        *args: The further arguments of PEP 660's hook.
        **kwargs: The same by name.

    Returns:
        The file name of the wheel.

    Raises:
        RuntimeError: If setuptools has built a wheel without a finder.
    """
    name = build_meta.build_editable(wheel_directory, *args, **kwargs)
    wheel = Path(wheel_directory, name)
    with zipfile.ZipFile(wheel) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    pth = next((entry for entry in files if entry.endswith('.pth')), None)
    if pth is None or not files[pth].startswith(b'import __editable__'):
        raise RuntimeError(f'{name} has no finder: expected a .pth file that imports one')
    module = files[pth].split(b';')[0].removeprefix(b'import ').decode().strip()
    files[pth] = files[pth].rstrip() + ASK_FIRST.format(module=module).encode() + b'\n'
    record = next(entry for entry in files if entry.endswith('.dist-info/RECORD'))
    rows = [row for row in files[record].decode().splitlines() if not row.startswith(f'{pth},')]
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[pth]).digest()).rstrip(b'=').decode()
    rows.insert(0, f'{pth},sha256={digest},{len(files[pth])}')
    files[record] = '\n'.join(rows).encode() + b'\n'
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for entry, content in files.items():
            archive.writestr(entry, content)
    return name
