"""Make the virtual environment that the Makefile's targets run in. Needs the standard library only.

    python3 tools/bootstrap.py .venv

Installs uv, the pinned requirements, mmcv with its compiled operators and this project. The mmcv
wheel is compiled once for each combination of torch, Python and mmcv and kept in
$XDG_CACHE_HOME/colonnade (~/.cache/colonnade); so is uv. A second run returns at once.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / 'requirements.txt'
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'colonnade'
UV = 'uv==0.13.8'
MMCV = 'onedl-mmcv==2.3.6'
GIGABYTES_NEEDED = 12  # the environment, and the downloads it is linked from
LOG = 'bootstrap.log'
ADVICE_INSTALL = ('Is the network there, and a package index that uv reaches (see '
                  'UV_DEFAULT_INDEX)? Is there room on the disk?')
ADVICE_COMPILE = (
    'If it could not be downloaded: is the network there? If the compiler was killed, '
    'memory ran out: MAX_JOBS=1 make ... needs less. If a header is missing, install '
    'the headers of Python (Debian, Ubuntu: apt-get install python3-dev).')


class SetupError(Exception):
    """A step that failed, with what to do about it."""


def say(text: str) -> None:
    print(f'[setup] {text}', flush=True)


def run(step: str, command: list[str | Path], advice: str, venv: Path, **environ: str) -> str:
    """Run one step, its output going to the log; returns what it wrote to standard output.

    Raises:
        SetupError: If it fails, with the end of its output and ``advice``.
    """
    started = time.monotonic()
    done = subprocess.run([str(part) for part in command],
                          env={
                              **os.environ,
                              **environ
                          },
                          stdin=subprocess.DEVNULL,
                          capture_output=True,
                          text=True)
    output = done.stdout + done.stderr
    with open(venv / LOG, 'a') as log:
        log.write(f'$ {" ".join(map(str, command))}\n{output}\n')
    if done.returncode:
        tail = '\n'.join(output.splitlines()[-15:])
        raise SetupError(f'{step} failed (exit code {done.returncode}).\n{tail}\n\n{advice}\n'
                         f'Everything it printed is in {venv / LOG}.')
    if time.monotonic() - started > 1:
        say(f'{step}: {time.monotonic() - started:.0f} s')
    return done.stdout


def fingerprint() -> str:
    """What the environment is made from; when this changes, it is brought up to date."""
    content = b''.join(path.read_bytes()
                       for path in (LOCK, ROOT / 'setup.cfg', Path(__file__).resolve()))
    return hashlib.sha256(content + f'{sys.version} {ROOT}'.encode()).hexdigest()


def check_machine(venv: Path) -> None:
    """Raise a SetupError for what would otherwise fail after minutes."""
    if sys.version_info < (3, 10):
        raise SetupError(f'Python 3.10 or newer is needed, this is {platform.python_version()}: '
                         'run make with PYTHON=python3.12, say.')
    if os.name != 'posix':
        raise SetupError('These targets need Linux or macOS; on Windows, use WSL.')
    if shutil.which(os.environ.get('CXX', 'c++')) is None and shutil.which('g++') is None:
        raise SetupError('There is no C++ compiler, and the operators of mmcv need one: install '
                         'g++ (Debian, Ubuntu: apt-get install g++), or set CXX.')
    for folder in (venv, CACHE):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise SetupError(f'{folder} cannot be written ({error.strerror}): free it, or name '
                             'others with VENV=... and XDG_CACHE_HOME=...') from error
    free = shutil.disk_usage(venv).free / 1e9
    if free < GIGABYTES_NEEDED:
        raise SetupError(f'{free:.1f} GB are free on the disk of {venv}, {GIGABYTES_NEEDED} GB are '
                         'needed: make room, or name another place with VENV=...')


def get_uv(venv: Path) -> Path:
    """The pinned uv, from the cache or from the package index."""
    home = CACHE / UV.replace('==', '-')
    uv = home / 'bin/uv'
    if not uv.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            run('installing uv', [
                sys.executable, '-m', 'pip', 'install', '--disable-pip-version-check', '--target',
                scratch, UV
            ], 'Is pip there (python3 -m pip --version), and does it reach a package index?', venv)
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(scratch, home)
    return uv


def get_mmcv(venv: Path, python: Path) -> Path:
    """The wheel of mmcv for this torch and Python, from the cache or compiled here."""
    key = run('asking torch for its version', [
        python, '-c', 'import sys, torch; cuda = torch.cuda.is_available(); print("-".join(['
        '"torch", torch.__version__, "cuda" if cuda else "cpu", sys.implementation.cache_tag]))'
    ], 'The installed torch does not work on this machine.', venv).strip()
    folder = CACHE / f'{MMCV.replace("==", "-")}-{key}-{platform.machine()}'
    if not list(folder.glob('*.whl')):
        if '-cuda-' in key and not (shutil.which('nvcc') or os.environ.get('CUDA_HOME')):
            raise SetupError(
                'There is a GPU but no CUDA compiler (nvcc), which the operators of mmcv need. '
                'Install the CUDA toolkit and set CUDA_HOME, or do without the GPU: '
                'CUDA_VISIBLE_DEVICES= make ...')
        compile_mmcv(venv, python, folder)
    return next(folder.glob('*.whl'))


def compile_mmcv(venv: Path, python: Path, folder: Path) -> None:
    """Compile mmcv's operators against the torch of ``venv`` and put the wheel into ``folder``."""
    say('compiling the operators of mmcv, once: 6 to 15 minutes on two cores')
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        run('compiling mmcv', [
            python, '-m', 'pip', 'wheel', '--no-build-isolation', '--no-deps', '--no-binary',
            ':all:', '--no-cache-dir', '--wheel-dir', scratch, MMCV
        ],
            ADVICE_COMPILE,
            venv,
            MMCV_WITH_OPS='1',
            MAX_JOBS=os.environ.get('MAX_JOBS', str(os.cpu_count())))
        folder.mkdir(exist_ok=True)
        for wheel in Path(scratch).glob('*.whl'):
            os.replace(wheel, folder / wheel.name)


def bootstrap(venv: Path) -> None:
    """Bring ``venv`` up to date.

    Raises:
        SetupError: If a step fails.
    """
    stamp, python = venv / 'fingerprint', venv / 'bin/python'
    if stamp.exists() and stamp.read_text() == fingerprint() and python.exists():
        return
    check_machine(venv)
    stamp.unlink(missing_ok=True)
    say(f'making {venv}; details go to {venv / LOG}')
    uv = get_uv(venv)
    run('making the environment',
        [uv, 'venv', '--allow-existing', '--python', sys.executable, venv],
        'Is this Python complete?', venv)
    say('installing torch, mmdet, mmseg and what they need: several GB the first time')
    install = [uv, 'pip', 'install', '--python', python, '--no-deps']
    run('installing packages', [*install, '-r', LOCK], ADVICE_INSTALL, venv)
    run('installing mmcv', [*install, get_mmcv(venv, python)], ADVICE_INSTALL, venv)
    run('installing colonnade', [*install, '--no-build-isolation', '--editable', ROOT],
        ADVICE_INSTALL, venv)
    stamp.write_text(fingerprint())


def main() -> None:
    """Make the environment; a failed step ends with what to do about it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('venv', type=Path, help='folder of the virtual environment')
    try:
        bootstrap(parser.parse_args().venv.resolve())
    except SetupError as error:
        sys.exit(f'[setup] {error}')


if __name__ == '__main__':
    main()
