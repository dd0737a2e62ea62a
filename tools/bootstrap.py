"""Make the virtual environment that the Makefile's targets run in. Needs the standard library only.

    python3 tools/bootstrap.py .venv

Installs uv, the pinned requirements, mmcv and this project; what is downloaded must have the hashes
of requirements.txt and requirements-setup.txt. uv and the wheel of mmcv are kept in
$XDG_CACHE_HOME/colonnade (~/.cache/colonnade). A second run returns at once; one beside another
waits for it.

mmcv has the operators of build_mmcv.py. With --compiled-mmcv it has its own: they are compiled once
for each combination of torch, Python, mmcv and kind of GPU. TORCH_CUDA_ARCH_LIST="8.0;9.0" compiles
for several kinds of GPU.
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
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / 'requirements.txt'
SETUP_LOCK = ROOT / 'requirements-setup.txt'
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'colonnade'
UV = 'uv==0.13.8'
UV_CACHE = Path(os.environ.get('UV_CACHE_DIR') or CACHE.parent / 'uv')  # where uv has it, too
MMCV = 'onedl-mmcv==2.3.6'
GIGABYTES = {'VENV': 7.0, 'UV_CACHE_DIR': 7.0, 'TMPDIR': 0.4}  # environment, downloads, compiling
MMCV_TOOLS = [ROOT / 'tools/build_mmcv.py', *sorted(ROOT.glob('tools/mmcv_ext/*.py'))]
LOG = 'bootstrap.log'
SCRATCH = 'scratch-'  # begins the names of folders in the cache that may be left over
# What the compiled operators of mmcv depend on. They have CUDA where mmcv's setup.py looks for it,
# and code for those GPUs that torch.utils.cpp_extension compiles for.
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
    with open(venv / LOG, 'a', encoding='utf-8') as log:
        log.write(f'$ {" ".join(map(str, command))}\n{output}\n')
    if done.returncode:
        tail = '\n'.join(output.splitlines()[-15:])
        raise SetupError(f'{step} failed (exit code {done.returncode}).\n{tail}\n\n{advice}\n'
                         f'Everything it printed is in {venv / LOG}.')
    if time.monotonic() - started > 1:
        say(f'{step}: {time.monotonic() - started:.0f} s')
    return done.stdout


def digest(paths: list[Path], *facts: object) -> str:
    """A number that changes with the contents of files or with other facts."""
    content = b''.join(path.read_bytes() for path in paths)
    return hashlib.sha256(content + ' '.join(map(str, facts)).encode()).hexdigest()


def fingerprint(compiled: bool) -> str:
    """What the environment is made from; when this changes, it is brought up to date."""
    package = [ROOT / name for name in ('setup.cfg', 'pyproject.toml', 'tools/build_backend.py')]
    sources = [LOCK, SETUP_LOCK, *package, Path(__file__).resolve(), *MMCV_TOOLS]
    return digest(sources, sys.version, ROOT, compiled)


def is_current(venv: Path, compiled: bool) -> bool:
    stamp = venv / 'fingerprint'
    return (stamp.exists() and stamp.read_text(encoding='utf-8') == fingerprint(compiled)
            and (venv / 'bin/python').exists())


def check_machine(venv: Path, compiled: bool) -> None:
    """Raise a SetupError for what would otherwise fail after minutes."""
    if sys.version_info < (3, 10):
        raise SetupError(f'Python 3.10 or newer is needed, this is {platform.python_version()}: '
                         'run make with PYTHON=python3.12, say.')
    if os.name != 'posix':
        raise SetupError('These targets need Linux or macOS; on Windows, use WSL.')
    compilers = os.environ.get('CXX', 'c++'), 'g++'
    if compiled and not any(map(shutil.which, compilers)):
        raise SetupError('There is no C++ compiler, and COMPILED_MMCV=1 needs one: do without it, '
                         'install g++ (Debian, Ubuntu: apt-get install g++), or set CXX.')
    for folder in (venv, CACHE, UV_CACHE):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise SetupError(f'{folder} cannot be written ({error.strerror}): free it, or name '
                             'others with VENV=... and XDG_CACHE_HOME=...') from error


def disk(folder: Path) -> int:
    """The same number for folders on one disk."""
    return folder.stat().st_dev


def disk_blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks
    except FileNotFoundError:  # others may use the environment
        return 0


def are_linked(venv: Path) -> bool:
    """Whether uv links packages from its cache, so that they take their space once."""
    if disk(venv) != disk(UV_CACHE) or os.environ.get('UV_LINK_MODE') == 'copy':
        return False
    with tempfile.NamedTemporaryFile(dir=UV_CACHE) as file:
        with tempfile.TemporaryDirectory(dir=venv) as folder:
            try:
                os.link(file.name, Path(folder, 'link'))
            except OSError:
                return False
    return True


def check_space(venv: Path, compiled: bool) -> None:
    """Raise a SetupError if a disk has no room for all that is to be written to it."""
    there = sum(disk_blocks(path) for path in venv.rglob('*')) * 512 / 1e9
    folders = {'VENV': venv, 'UV_CACHE_DIR': UV_CACHE}
    if compiled:
        folders['TMPDIR'] = Path(tempfile.gettempdir())
    sizes = {**GIGABYTES, 'VENV': 0} if are_linked(venv) else GIGABYTES
    for number in {disk(folder) for folder in folders.values()}:
        names = [name for name, folder in folders.items() if disk(folder) == number]
        # what is in the environment needs no download either
        needed = sum(max(sizes[name] - there, 0.4) for name in names)
        free = shutil.disk_usage(folders[names[0]]).free / 1e9
        if free < needed:
            places = ' and '.join(str(folders[name]) for name in names)
            raise SetupError(f'{free:.1f} GB are free on the disk of {places}, {needed:g} GB are '
                             'needed: make room, or name another place with '
                             f'{" and ".join(f"{name}=..." for name in names)}')


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other set-up uses the cache, and keep others waiting."""
    import fcntl  # which Windows lacks; check_machine says so
    with open(CACHE / 'lock', 'w', encoding='utf-8') as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f'waiting for another set-up, which holds {file.name}')
                fcntl.flock(file, fcntl.LOCK_EX)
            for left_over in CACHE.glob(f'{SCRATCH}*'):  # by a set-up that was killed
                shutil.rmtree(left_over, ignore_errors=True)
        except OSError as error:
            say(f'warning: {file.name} cannot be locked ({error.strerror}): let no other set-up '
                'run beside this one')
        yield


def scratch_folder() -> tempfile.TemporaryDirectory:
    """A folder that can be renamed to one in the cache."""
    return tempfile.TemporaryDirectory(prefix=SCRATCH, dir=CACHE)


def locked(requirement: str, folder: str) -> Path:
    """A file, written to a folder, with a requirement and the hashes that it may have."""
    lines = SETUP_LOCK.read_text(encoding='utf-8').replace('\\\n', '').splitlines()
    path = Path(folder, f'{requirement}.txt')
    line = next(line for line in lines if line.startswith(f'{requirement} '))
    path.write_text(line, encoding='utf-8')
    return path


def runs(program: Path) -> bool:
    try:
        return subprocess.run([program, '--version'], capture_output=True).returncode == 0
    except OSError:  # missing, not executable, or incomplete
        return False


def get_uv(venv: Path) -> Path:
    """The pinned uv, from the cache or from the package index."""
    home = CACHE / UV.replace('==', '-')
    if not runs(home / 'bin/uv'):
        with scratch_folder() as scratch:
            new, old = Path(scratch, 'new'), Path(scratch, 'old')
            run('installing uv', [
                sys.executable, '-m', 'pip', 'install', '--disable-pip-version-check', '--no-deps',
                '--requirement',
                locked(UV, scratch), '--target', new
            ], 'Is pip there (python3 -m pip --version), and does it reach a package index?', venv)
            if not runs(new / 'bin/uv'):
                raise SetupError(f'The uv that pip installed does not run in {CACHE}: if programs '
                                 'may not run there, name another place with XDG_CACHE_HOME=...')
            # atomically: one step takes a broken one away, one brings the new one
            if home.exists() and not runs(home / 'bin/uv'):
                os.replace(home, old)
            try:
                os.replace(new, home)
            except OSError:
                if not runs(home / 'bin/uv'):  # else it is that of another set-up
                    raise
    return home / 'bin/uv'


def get_mmcv(venv: Path, python: Path, compiled: bool) -> Path:
    """The wheel of mmcv from the cache, or built here."""
    key = compiled_key(venv, python) if compiled else f'torchvision-{digest(MMCV_TOOLS)[:16]}'
    folder = CACHE / f'{MMCV.replace("==", "-")}-{key}'
    for wheel in folder.glob('*.whl'):
        if is_intact(wheel):
            return wheel
        say(f'{wheel} is damaged and is made again')
        wheel.unlink()
    with scratch_folder() as scratch:
        if compiled:
            compile_mmcv(venv, python, key, scratch)
        else:
            run('building mmcv', [python, MMCV_TOOLS[0], scratch], ADVICE_INSTALL, venv)
        folder.mkdir(exist_ok=True)
        for wheel in Path(scratch).glob('*.whl'):
            os.replace(wheel, folder / wheel.name)
    return next(folder.glob('*.whl'))


def compiled_key(venv: Path, python: Path) -> str:
    """What compiled operators are for: torch, Python and GPU."""
    key = run('asking torch for its version', [python, '-c', WHEEL_KEY],
              'The installed torch does not work on this machine.', venv).strip()
    if '-sm-' in key:
        raise SetupError('FORCE_CUDA=1 without a GPU needs TORCH_CUDA_ARCH_LIST: the compute '
                         'capabilities to compile for, such as "8.0;9.0"')
    return f'{key}-{platform.machine()}'


def is_intact(wheel: Path) -> bool:
    """Whether a wheel was written to its end and reads back."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile, zlib and struct raise their own
        return False


def compile_mmcv(venv: Path, python: Path, key: str, folder: str) -> None:
    """Compile mmcv's operators against the torch of ``venv`` and put the wheel into ``folder``."""
    if '-sm' in key and not (shutil.which('nvcc') or os.environ.get('CUDA_HOME')):
        raise SetupError(
            'There is no CUDA compiler (nvcc), which COMPILED_MMCV=1 needs for a GPU. Do without '
            'it, install the CUDA toolkit and set CUDA_HOME, or do without the GPU: '
            'CUDA_VISIBLE_DEVICES= make ...')
    say('compiling the operators of mmcv, once: 6 to 15 minutes on two cores')
    run('compiling mmcv', [
        python, '-m', 'pip', 'wheel', '--no-build-isolation', '--no-deps', '--no-binary', ':all:',
        '--no-cache-dir', '--requirement',
        locked(MMCV, folder), '--wheel-dir', folder
    ],
        ADVICE_COMPILE,
        venv,
        MMCV_WITH_OPS='1',
        MAX_JOBS=os.environ.get('MAX_JOBS', str(os.cpu_count())))


def bootstrap(venv: Path, compiled: bool) -> None:
    """Bring ``venv`` up to date, with mmcv's own operators ``compiled`` or torchvision's.

    Raises:
        SetupError: If a step fails.
    """
    if is_current(venv, compiled):
        return
    check_machine(venv, compiled)
    with one_at_a_time():
        if not is_current(venv, compiled):  # else another set-up has just made it
            check_space(venv, compiled)
            make_environment(venv, compiled)


def make_environment(venv: Path, compiled: bool) -> None:
    """Make it, or bring it up to date.

    Raises:
        SetupError: If a step fails.
    """
    stamp, python = venv / 'fingerprint', venv / 'bin/python'
    stamp.unlink(missing_ok=True)
    say(f'making {venv}; details go to {venv / LOG}')
    uv = get_uv(venv)
    run('making the environment',
        [uv, 'venv', '--allow-existing', '--python', sys.executable, venv],
        'Is this Python complete?', venv)
    say('installing torch, mmdet, mmseg and what they need: several GB the first time')
    install: list[str | Path] = [uv, 'pip', 'install', '--python', python, '--no-deps']
    install.append('--compile-bytecode')  # or each start of a tool may parse thousands of files
    run('installing packages', [*install, '--require-hashes', '-r', LOCK], ADVICE_INSTALL, venv)
    run('installing mmcv',
        [*install, '--reinstall-package', 'onedl-mmcv',
         get_mmcv(venv, python, compiled)], ADVICE_INSTALL, venv)
    run('installing colonnade', [*install, '--no-build-isolation', '--editable', ROOT],
        ADVICE_INSTALL, venv)
    stamp.write_text(fingerprint(compiled), encoding='utf-8')


def main() -> None:
    """Make the environment; a failed step ends with what to do about it."""
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
