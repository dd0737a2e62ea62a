"""Build mmcv without a compiler, its operators by torchvision's. Needs the standard library only.

    python -m colonnade.tools.build_mmcv --install    # into this Python's environment, with pip
    python tools/build_mmcv.py wheels                 # the wheel only, into a folder

The wheel is mmcv's own code with the folder mmcv_ext in it as mmcv/_ext. It is for every version of
Python, torch and CUDA. Its version, 2.3.6+torchvision, satisfies onedl-mmcv==2.3.6. Compiled
operators that are installed stay, unless --replace is given.
"""
from __future__ import annotations

import argparse
import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata, util
from pathlib import Path

NAME, VERSION, LABEL = 'onedl_mmcv', '2.3.6', '+torchvision'
#: of the source distribution, as requirements-setup.txt has it
SHA256 = '8704978a3d492b15cc058742ac3165bd1bcc2dd20678da9ed39e0da3048e3045'
RIVALS = ('mmcv', 'mmcv-lite', 'mmcv-full')  # other distributions of the package mmcv
EXTENSION = Path(__file__).resolve().with_name('mmcv_ext')


class BuildError(Exception):
    """What went wrong, with what to do about it."""


def pip(*arguments: str | Path) -> None:
    """Run pip.

    Raises:
        BuildError: If it fails, with the end of its output.
    """
    command = [sys.executable, '-m', 'pip', '--disable-pip-version-check', *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = '\n'.join((done.stdout + done.stderr).splitlines()[-15:])
        raise BuildError(f'{tail}\n\nThis failed: {" ".join(command)}\nIs pip there (uv pip '
                         'install pip), and does it reach a package index?')


def build_without_operators(folder: Path) -> Path:
    """Build mmcv from its source distribution; where it finds no torch, it leaves operators out.

    Raises:
        BuildError: If it cannot be fetched or built.
    """
    locked = folder / 'requirements.txt'
    locked.write_text(f'{NAME}=={VERSION} --hash=sha256:{SHA256}', encoding='utf-8')
    # isolated and uncached: what it finds and what others find must not depend on each other
    pip('wheel', '--use-pep517', '--no-deps', '--no-binary', NAME, '--no-cache-dir', '--wheel-dir',
        folder, '--requirement', locked)
    wheel = next(folder.glob('*.whl'))
    if not wheel.name.endswith('-py3-none-any.whl'):
        raise BuildError(f'{wheel.name} has compiled operators, for its build found torch: allow '
                         'pip to isolate it (see "pip config list", PIP_NO_BUILD_ISOLATION)')
    return wheel


def hashed(name: str, content: bytes) -> str:
    """A line of a wheel's list of files."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=')
    return f'{name},sha256={digest.decode()},{len(content)}\n'


def with_extension(files: dict[str, bytes]) -> dict[str, bytes]:
    """A wheel's files with ``mmcv/_ext``, the label in its version and a list that fits."""
    old, new = (f'{NAME}-{VERSION}{label}.dist-info/' for label in ('', LABEL))
    version = f'\nVersion: {VERSION}'.encode()
    described = files[f'{old}METADATA'].replace(version + b'\n', version + LABEL.encode() + b'\n',
                                                1)
    extension = {
        f'mmcv/_ext/{path.name}': path.read_bytes()
        for path in sorted(EXTENSION.glob('*.py'))
    }
    changed = {**files, f'{old}METADATA': described, **extension}
    del changed[f'{old}RECORD']
    changed = {name.replace(old, new): content for name, content in changed.items()}
    record = ''.join(hashed(*item) for item in changed.items()) + f'{new}RECORD,,\n'
    return {**changed, f'{new}RECORD': record.encode()}


def build(folder: Path) -> Path:
    """Build the wheel into ``folder``; returns its path.

    Raises:
        BuildError: If mmcv cannot be fetched or built.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f'{NAME}-{VERSION}{LABEL}-py3-none-any.whl'
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(build_without_operators(Path(scratch))) as archive:
            files = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in with_extension(files).items():
            archive.writestr(name, content)
    return wheel


def compiled_operators() -> Path | None:
    """The compiled extension of the mmcv that is installed, if it has one."""
    spec = util.find_spec('mmcv')
    folders = spec.submodule_search_locations if spec else None
    found = (path for folder in folders or [] for path in Path(folder).glob('_ext.*'))
    return next((path for path in found if path.suffix in ('.so', '.pyd')), None)


def other_distribution() -> str | None:
    """The name of another distribution of mmcv that is installed."""
    for name in RIVALS:
        try:
            return f'{name} {metadata.version(name)}'
        except metadata.PackageNotFoundError:
            continue
    return None


def install(replace: bool) -> str:
    """Build and install the wheel, unless there are compiled operators; returns what was done.

    Raises:
        BuildError: If it cannot be built or installed.
    """
    compiled, other = compiled_operators(), other_distribution()
    if compiled and not replace:
        return f'{compiled} has the compiled operators: nothing is replaced (--replace does)'
    if other:
        raise BuildError(f'{other} is installed, which has the same files: remove it first '
                         f'({sys.executable} -m pip uninstall {other.split()[0]})')
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        pip('install', '--no-deps', '--force-reinstall', wheel)
    return f'installed {wheel.name} in {sys.prefix}'


def main() -> None:
    """Build or install; a failed step ends with what to do about it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', nargs='?', type=Path, help='where the wheel is written to')
    parser.add_argument('--install', action='store_true', help='install the wheel with pip')
    parser.add_argument(
        '--replace', action='store_true', help='with --install: compiled operators, too')
    args = parser.parse_args()
    if args.install == bool(args.folder):
        parser.error('name a folder for the wheel, or give --install')
    if args.replace and not args.install:
        parser.error('--replace needs --install')
    try:
        print(install(args.replace) if args.install else build(args.folder))
    except (BuildError, OSError) as error:
        sys.exit(f'build_mmcv: {error}')


if __name__ == '__main__':
    main()
