"""Build mmcv without a compiler, with operators of torchvision.

    python -m colonnade.tools.build_mmcv --install    # install with pip in this environment
    python tools/build_mmcv.py wheels                 # only write the wheel to a folder

The wheel contains mmcv's code and the folder mmcv_ext as mmcv/_ext. It works with every version of
Python, torch and CUDA. Its version, 2.3.6+torchvision, satisfies onedl-mmcv==2.3.6. Installed
compiled operators are kept, unless --replace is passed. Needs only the standard library.
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
#: hash of the source distribution, as in requirements-setup.txt
SHA256 = '8704978a3d492b15cc058742ac3165bd1bcc2dd20678da9ed39e0da3048e3045'
OTHER_DISTRIBUTIONS = ('mmcv', 'mmcv-lite', 'mmcv-full')  # conflicting distributions
EXTENSION = Path(__file__).resolve().with_name('mmcv_ext')


class BuildError(Exception):
    """Failed build, with advice."""


def run_pip(*arguments: str | Path) -> None:
    """Run pip, or raise a BuildError with the end of its output."""
    command = [sys.executable, '-m', 'pip', '--disable-pip-version-check', *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = '\n'.join((done.stdout + done.stderr).splitlines()[-15:])
        raise BuildError(f'{tail}\n\n{" ".join(command)} failed. Check that pip is installed (uv '
                         'pip install pip) and can reach a package index.')


def build_without_operators(folder: Path) -> Path:
    """Build mmcv from its source distribution, which omits operators if it does not find torch."""
    locked = folder / 'requirements.txt'
    locked.write_text(f'{NAME}=={VERSION} --hash=sha256:{SHA256}', encoding='utf-8')
    # Isolated, so that the build does not find torch; not cached, so that others do not get it.
    run_pip('wheel', '--use-pep517', '--no-deps', '--no-binary', NAME, '--no-cache-dir',
            '--wheel-dir', folder, '--requirement', locked)
    wheel = next(folder.glob('*.whl'))
    if not wheel.name.endswith('-py3-none-any.whl'):
        raise BuildError(
            f'{wheel.name} has compiled operators, because its build found torch: allow '
            'build isolation (see "pip config list", PIP_NO_BUILD_ISOLATION)')
    return wheel


def add_extension(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a wheel with ``mmcv/_ext``, the version label and a new RECORD."""
    old, new = (f'{NAME}-{VERSION}{label}.dist-info/' for label in ('', LABEL))
    version = f'\nVersion: {VERSION}'.encode()
    metadata_text = files[f'{old}METADATA'].replace(version + b'\n',
                                                    version + LABEL.encode() + b'\n', 1)
    extension = {
        f'mmcv/_ext/{path.name}': path.read_bytes()
        for path in sorted(EXTENSION.glob('*.py'))
    }
    changed = {**files, f'{old}METADATA': metadata_text, **extension}
    del changed[f'{old}RECORD']
    changed = {name.replace(old, new): content for name, content in changed.items()}
    record = ''
    for name, content in changed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=')
        record += f'{name},sha256={digest.decode()},{len(content)}\n'
    return {**changed, f'{new}RECORD': f'{record}{new}RECORD,,\n'.encode()}


def build(folder: Path) -> Path:
    """Build the wheel in ``folder``, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f'{NAME}-{VERSION}{LABEL}-py3-none-any.whl'
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(build_without_operators(Path(scratch))) as archive:
            files = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in add_extension(files).items():
            archive.writestr(name, content)
    return wheel


def find_compiled_operators() -> Path | None:
    """Return the compiled extension of the installed mmcv, or None."""
    spec = util.find_spec('mmcv')
    folders = spec.submodule_search_locations if spec else None
    paths = (path for folder in folders or [] for path in Path(folder).glob('_ext.*'))
    return next((path for path in paths if path.suffix in ('.so', '.pyd')), None)


def find_other_distribution() -> str | None:
    """Return name and version of another installed distribution of mmcv, or None."""
    for distribution in metadata.distributions():
        if (name := distribution.metadata['Name']) in OTHER_DISTRIBUTIONS:
            return f'{name} {distribution.version}'
    return None


def install(replace: bool) -> str:
    """Build and install the wheel, unless there are compiled operators, and return a message."""
    compiled, other = find_compiled_operators(), find_other_distribution()
    if compiled and not replace:
        return f'{compiled} has compiled operators: pass --replace to replace them'
    if other:
        raise BuildError(f'{other} is installed and contains the same files: remove it first '
                         f'({sys.executable} -m pip uninstall {other.split()[0]})')
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        run_pip('install', '--no-deps', '--force-reinstall', wheel)
    return f'installed {wheel.name} in {sys.prefix}'


def main() -> None:
    """Build or install the wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', nargs='?', type=Path, help='folder for the wheel')
    parser.add_argument('--install', action='store_true', help='install the wheel with pip')
    parser.add_argument(
        '--replace', action='store_true', help='with --install: replace compiled operators too')
    args = parser.parse_args()
    if args.install == bool(args.folder):
        parser.error('pass either FOLDER or --install')
    if args.replace and not args.install:
        parser.error('--replace requires --install')
    try:
        print(install(args.replace) if args.install else build(args.folder))
    except (BuildError, OSError) as error:
        sys.exit(f'build_mmcv: {error}')


if __name__ == '__main__':
    main()
