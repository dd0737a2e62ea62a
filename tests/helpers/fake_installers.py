"""Fake pip, uv and torch, with which a setup takes a second and needs no network."""
from __future__ import annotations

import sys
from pathlib import Path

TORCH = """
import os
gpus = os.environ.get('FAKE_GPUS', '').split()
__version__ = '2.12.1+cu130'

class version:
    cuda = '13.0'

class cuda:
    is_available = staticmethod(lambda: bool(gpus))
    device_count = staticmethod(lambda: len(gpus))
    get_device_capability = staticmethod(lambda i: tuple(map(int, gpus[i].split('.'))))
"""
PIP = """
import os, sys, time, zipfile
from pathlib import Path
fakes = Path(__file__).parent.parent
if 'wheel' in sys.argv:
    made = 'wheel'
    folder = Path(sys.argv[sys.argv.index('--wheel-dir') + 1])
    isolated = '--no-build-isolation' not in sys.argv
    info = 'onedl_mmcv-2.3.6.dist-info/'
    name = 'onedl_mmcv-2.3.6-' + ('py3-none-any.whl' if isolated else 'any.whl')
    with zipfile.ZipFile(folder / name, 'w') as wheel:
        wheel.writestr(info + 'METADATA', 'Name: onedl-mmcv\\nVersion: 2.3.6\\n')
        wheel.writestr(info + 'RECORD', '')
        wheel.writestr('mmcv/ops.py', 'operators')
else:
    made = 'uv'
    uv = Path(sys.argv[sys.argv.index('--target') + 1], 'bin/uv')
    uv.parent.mkdir(parents=True)
    uv.write_text((fakes / 'uv').read_text()[:20])
    (fakes / 'busy').touch()
    time.sleep(float(os.environ.get('PIP_SECONDS', 0)))
    uv.write_text((fakes / 'uv').read_text())
    uv.chmod(0o755)
with open(fakes / 'log', 'a') as log:
    log.write(made + ' ')
"""
UV = """#!/bin/sh
for last; do :; done
case "$1" in
venv)
    mkdir -p "$last/bin"
    ln -sf "{folder}/python" "$last/bin/python" ;;
pip)
    case "$last" in *.whl) basename "$last" > "$(dirname "$4")/../mmcv" ;; esac
esac
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def write_fakes(folder: Path) -> dict[str, str]:
    """Write the fakes, and return their environment variables; ``folder / 'log'`` lists builds."""
    (folder / 'pip').mkdir(parents=True)
    (folder / 'pip/__init__.py').touch()  # otherwise the real pip is found first
    (folder / 'pip/__main__.py').write_text(PIP)
    (folder / 'torch.py').write_text(TORCH)
    write_program(folder / 'uv', UV.format(folder=folder))
    write_program(folder / 'python', f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / 'log').touch()
    return dict(
        PYTHONPATH=str(folder),
        PIP_NO_INDEX='1',
        UV_OFFLINE='1',
        FORCE_CUDA='',
        TORCH_CUDA_ARCH_LIST='')
