"""Create the virtual environment of the Makefile, with the standard library only.

    python3 tools/bootstrap.py .venv

Installs uv, the pinned requirements, mmcv and this project. Downloads must have the hashes of
requirements.txt and requirements-setup.txt. uv and the mmcv wheel are cached in
$XDG_CACHE_HOME/colonnade (~/.cache/colonnade). Running it again does nothing; parallel runs wait
for each other.

mmcv has the operators of build_mmcv.py, or with --compiled-mmcv its own, which are compiled once
per torch, Python, mmcv and GPU type. TORCH_CUDA_ARCH_LIST="8.0;9.0" compiles for several types.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / 'requirements.txt'
SETUP_LOCK = ROOT / 'requirements-setup.txt'
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'colonnade'
UV = 'uv==0.13.8'
UV_CACHE = Path(os.environ.get('UV_CACHE_DIR') or CACHE.parent / 'uv')  # uv's own default
MMCV = 'onedl-mmcv==2.3.6'
GIGABYTES = {'VENV': 7.0, 'UV_CACHE_DIR': 7.0, 'TMPDIR': 0.4}  # required disk space
MMCV_TOOLS = [ROOT / 'tools/build_mmcv.py', *sorted(ROOT.glob('tools/mmcv_ext/*.py'))]
LOG = 'bootstrap.log'
SCRATCH = 'scratch-'  # prefix of temporary folders in the cache
# Program that prints what compiled operators depend on: the versions, and the GPUs for which
# mmcv's setup.py and torch.utils.cpp_extension compile.
WHEEL_KEY = """
import os, sys, torch
parts = ['torch', torch.__version__]
if torch.cuda.is_available() or os.environ.get('FORCE_CUDA') == '1':
    archs = os.environ.get('TORCH_CUDA_ARCH_LIST', '').replace(';', ' ').split()
    if archs in ([], ['native']):
        gpus = range(torch.cuda.device_count())
        archs = ['%d.%d' % torch.cuda.get_device_capability(gpu) for gpu in gpus]
    parts += [f'cuda{torch.version.cuda or torch.version.hip}', 'sm' + '_'.join(sorted({*archs}))]
else:
    parts += ['cpu']
print('-'.join([*parts, sys.implementation.cache_tag]))
"""
INSTALL_ADVICE = 'Check the network, the package index (UV_DEFAULT_INDEX) and the disk space.'
COMPILE_ADVICE = (
    'If it could not be downloaded, check the network. If the compiler was killed, memory ran out: '
    'MAX_JOBS=1 make ... needs less. If a header is missing, install the Python headers (Debian, '
    'Ubuntu: apt-get install python3-dev).')


class SetupError(Exception):
    """Failed step, with advice."""


def log_step(text: str) -> None:
    print(f'[setup] {text}', flush=True)


def run(step: str, command: list[str | Path], advice: str, venv: Path, **environ: str) -> str:
    """Run one step, write its output to the log, and return its standard output.

    Raises:
        SetupError: If it fails, with the end of the output and ``advice``.
    """
    started = time.monotonic()
    done = subprocess.run([str(part) for part in command], env=os.environ | environ,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)  # yapf: disable
    output = done.stdout + done.stderr
    with open(venv / LOG, 'a', encoding='utf-8') as log:
        log.write(f'$ {" ".join(map(str, command))}\n{output}\n')
    if done.returncode:
        tail = '\n'.join(output.splitlines()[-15:])
        raise SetupError(f'{step} failed (exit code {done.returncode}).\n{tail}\n\n{advice}\n'
                         f'See the full output in {venv / LOG}.')
    if time.monotonic() - started > 1:
        log_step(f'{step}: {time.monotonic() - started:.0f} s')
    return done.stdout


def compute_digest(paths: list[Path], *facts: object) -> str:
    """Return a hash of the contents of files and of other values."""
    content = b''.join(path.read_bytes() for path in paths)
    return hashlib.sha256(content + ' '.join(map(str, facts)).encode()).hexdigest()


def compute_fingerprint(compiled: bool) -> str:
    """Return a hash of everything that the environment depends on."""
    package = [ROOT / name for name in ('setup.cfg', 'pyproject.toml', 'tools/build_backend.py')]
    sources = [LOCK, SETUP_LOCK, *package, Path(__file__).resolve(), *MMCV_TOOLS]
    return compute_digest(sources, sys.version, ROOT, compiled)


def is_current(venv: Path, compiled: bool) -> bool:
    stamp = venv / 'fingerprint'
    return (stamp.exists() and stamp.read_text(encoding='utf-8') == compute_fingerprint(compiled)
            and (venv / 'bin/python').exists())


def check_machine(venv: Path, compiled: bool) -> None:
    """Raise a SetupError for problems that would otherwise appear after minutes."""
    if sys.version_info < (3, 10):
        raise SetupError(
            f'expected Python 3.10 or newer, got {platform.python_version()}: run make '
            'with PYTHON=python3.12, for example')
    if os.name != 'posix':
        raise SetupError('expected Linux or macOS: on Windows, use WSL')
    compilers = os.environ.get('CXX', 'c++'), 'g++'
    if compiled and not any(map(shutil.which, compilers)):
        raise SetupError('COMPILED_MMCV=1 requires a C++ compiler: omit it, install g++ (Debian, '
                         'Ubuntu: apt-get install g++), or set CXX')
    for folder in (venv, CACHE, UV_CACHE):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise SetupError(f'cannot write to {folder} ({error.strerror}): fix that, or choose '
                             'other folders with VENV=... and XDG_CACHE_HOME=...') from error


def get_disk(folder: Path) -> int:
    """Return the ID of the disk of a folder."""
    return folder.stat().st_dev


def get_num_blocks(path: Path) -> int:
    """Return the disk space of a file in blocks of 512 bytes."""
    try:
        return path.lstat().st_blocks
    except FileNotFoundError:  # the environment may be in use
        return 0


def can_link(venv: Path) -> bool:
    """Return True if uv can link packages from its cache, so that they need space only once."""
    if get_disk(venv) != get_disk(UV_CACHE) or os.environ.get('UV_LINK_MODE') == 'copy':
        return False
    with tempfile.NamedTemporaryFile(dir=UV_CACHE) as file:
        with tempfile.TemporaryDirectory(dir=venv) as folder:
            try:
                os.link(file.name, Path(folder, 'link'))
            except OSError:
                return False
    return True


def check_space(venv: Path, compiled: bool) -> None:
    """Raise a SetupError if a disk has too little free space."""
    present = sum(get_num_blocks(path) for path in venv.rglob('*')) * 512 / 1e9
    folders = {'VENV': venv, 'UV_CACHE_DIR': UV_CACHE}
    if compiled:
        folders['TMPDIR'] = Path(tempfile.gettempdir())
    sizes = {**GIGABYTES, 'VENV': 0} if can_link(venv) else GIGABYTES
    for disk in {get_disk(folder) for folder in folders.values()}:
        names = [name for name, folder in folders.items() if get_disk(folder) == disk]
        # Installed packages need no download.
        required = sum(max(sizes[name] - present, 0.4) for name in names)
        free = shutil.disk_usage(folders[names[0]]).free / 1e9
        if free < required:
            paths = ' and '.join(str(folders[name]) for name in names)
            raise SetupError(f'{free:.1f} GB is free on the disk of {paths}, but {required:g} '
                             'GB is required: free up space, or choose another folder with '
                             f'{" and ".join(f"{name}=..." for name in names)}')


@contextmanager
def lock_cache() -> Iterator[None]:
    """Context manager that waits until no other setup uses the cache, and locks it."""
    import fcntl  # missing on Windows, which check_machine reports
    with open(CACHE / 'lock', 'w', encoding='utf-8') as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log_step(f'waiting for another setup, which holds {file.name}')
                fcntl.flock(file, fcntl.LOCK_EX)
            for folder in CACHE.glob(f'{SCRATCH}*'):  # left by a killed setup
                shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            log_step(
                f'warning: {file.name} cannot be locked ({error.strerror}): do not run another '
                'setup at the same time')
        yield


def make_scratch_folder() -> tempfile.TemporaryDirectory:
    """Return a temporary folder on the disk of the cache, so that it can be moved there."""
    return tempfile.TemporaryDirectory(prefix=SCRATCH, dir=CACHE)


def write_requirement(requirement: str, folder: str) -> Path:
    """Write a requirement with its hashes to a file in a folder, and return the path."""
    lines = SETUP_LOCK.read_text(encoding='utf-8').replace('\\\n', '').splitlines()
    path = Path(folder, f'{requirement}.txt')
    line = next(line for line in lines if line.startswith(f'{requirement} '))
    path.write_text(line, encoding='utf-8')
    return path


def can_run(program: Path) -> bool:
    try:
        return subprocess.run([program, '--version'], capture_output=True).returncode == 0
    except OSError:  # missing, not executable, or incomplete
        return False


def get_uv(venv: Path) -> Path:
    """Return the pinned uv, from the cache or the package index."""
    home = CACHE / UV.replace('==', '-')
    if not can_run(home / 'bin/uv'):
        with make_scratch_folder() as scratch:
            new, old = Path(scratch, 'new'), Path(scratch, 'old')
            run('installing uv', [
                sys.executable, '-m', 'pip', 'install', '--disable-pip-version-check', '--no-deps',
                '--requirement',
                write_requirement(UV, scratch), '--target', new
            ], 'Check that pip (python3 -m pip --version) can reach a package index.', venv)
            if not can_run(new / 'bin/uv'):
                raise SetupError(f'the uv that pip installed does not run in {CACHE}: if that is '
                                 'mounted noexec, choose another folder with XDG_CACHE_HOME=...')
            # Replace uv atomically: move a broken copy away first, then move the new one in.
            if home.exists() and not can_run(home / 'bin/uv'):
                os.replace(home, old)
            try:
                os.replace(new, home)
            except OSError:
                if not can_run(home / 'bin/uv'):  # otherwise another setup was faster
                    raise
    return home / 'bin/uv'


def get_mmcv(venv: Path, python: Path, compiled: bool) -> Path:
    """Return the mmcv wheel, from the cache or newly built."""
    key = compute_compiled_key(
        venv, python) if compiled else f'torchvision-{compute_digest(MMCV_TOOLS)[:16]}'
    folder = CACHE / f'{MMCV.replace("==", "-")}-{key}'
    for wheel in folder.glob('*.whl'):
        if is_intact(wheel):
            return wheel
        log_step(f'{wheel} is damaged and will be rebuilt')
        wheel.unlink()
    with make_scratch_folder() as scratch:
        if compiled:
            compile_mmcv(venv, python, key, scratch)
        else:
            run('building mmcv', [python, MMCV_TOOLS[0], scratch], INSTALL_ADVICE, venv)
        folder.mkdir(exist_ok=True)
        for wheel in Path(scratch).glob('*.whl'):
            os.replace(wheel, folder / wheel.name)
    return next(folder.glob('*.whl'))


def compute_compiled_key(venv: Path, python: Path) -> str:
    """Return the torch, Python and GPU that compiled operators are for."""
    key = run('reading the version of torch', [python, '-c', WHEEL_KEY],
              'The installed torch does not work on this machine.', venv).strip()
    if '-sm-' in key:
        raise SetupError('FORCE_CUDA=1 without a GPU requires TORCH_CUDA_ARCH_LIST: the compute '
                         'capabilities to compile for, such as "8.0;9.0"')
    return f'{key}-{platform.machine()}'


def is_intact(wheel: Path) -> bool:
    """Return True if all files in a wheel can be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error):
        return False


def compile_mmcv(venv: Path, python: Path, key: str, folder: str) -> None:
    """Compile mmcv's operators for the torch of ``venv``, and write the wheel to ``folder``."""
    if '-sm' in key and not (shutil.which('nvcc') or os.environ.get('CUDA_HOME')):
        raise SetupError(
            'COMPILED_MMCV=1 requires a CUDA compiler (nvcc) for a GPU: omit it, install the CUDA '
            'toolkit and set CUDA_HOME, or hide the GPU with CUDA_VISIBLE_DEVICES= make ...')
    log_step('compiling the operators of mmcv, once: 6 to 15 minutes on two cores')
    run('compiling mmcv', [
        python, '-m', 'pip', 'wheel', '--no-build-isolation', '--no-deps', '--no-binary', ':all:',
        '--no-cache-dir', '--requirement',
        write_requirement(MMCV, folder), '--wheel-dir', folder
    ],
        COMPILE_ADVICE,
        venv,
        MMCV_WITH_OPS='1',
        MAX_JOBS=os.environ.get('MAX_JOBS', str(os.cpu_count())))


def bootstrap(venv: Path, compiled: bool) -> None:
    """Create or update ``venv``.

    Args:
        venv: Folder of the environment.
        compiled: Whether to compile mmcv's operators, instead of using torchvision's.

    Raises:
        SetupError: If a step fails.
    """
    if is_current(venv, compiled):
        return
    check_machine(venv, compiled)
    with lock_cache():
        if not is_current(venv, compiled):  # otherwise another setup has just created it
            check_space(venv, compiled)
            make_environment(venv, compiled)


def make_environment(venv: Path, compiled: bool) -> None:
    """Install everything."""
    stamp, python = venv / 'fingerprint', venv / 'bin/python'
    stamp.unlink(missing_ok=True)
    log_step(f'creating {venv}; the log is {venv / LOG}')
    uv = get_uv(venv)
    run('creating the environment',
        [uv, 'venv', '--allow-existing', '--python', sys.executable, venv],
        'Check that this Python has the venv module.', venv)
    log_step('installing torch, mmdet, mmseg and their dependencies: several GB the first time')
    install: list[str | Path] = [uv, 'pip', 'install', '--python', python, '--no-deps']
    install.append('--compile-bytecode')  # otherwise commands may parse thousands of files
    run('installing packages', [*install, '--require-hashes', '-r', LOCK], INSTALL_ADVICE, venv)
    run('installing mmcv',
        [*install, '--reinstall-package', 'onedl-mmcv',
         get_mmcv(venv, python, compiled)], INSTALL_ADVICE, venv)
    run('installing colonnade', [*install, '--no-build-isolation', '--editable', ROOT],
        INSTALL_ADVICE, venv)
    stamp.write_text(compute_fingerprint(compiled), encoding='utf-8')


def main() -> None:
    """Create the environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('venv', type=Path, help='folder of the virtual environment')
    parser.add_argument(
        '--compiled-mmcv', action='store_true', help="compile mmcv's own operators (minutes)")
    args = parser.parse_args()
    try:
        bootstrap(args.venv.resolve(), args.compiled_mmcv)
    except SetupError as error:
        sys.exit(f'[setup] {error}')


if __name__ == '__main__':
    main()
