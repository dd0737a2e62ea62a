"""Packages downloaded by the setup must match the lock files."""
from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

from colonnade.tools import bootstrap, build_mmcv

LOCKS = ('requirements.txt', 'requirements-setup.txt', 'requirements-audit.txt',
         'docs/requirements.txt')  # yapf: disable


@pytest.mark.parametrize('name', LOCKS)
def test_lock_files_have_hashes(name: str) -> None:
    lines = (ROOT / name).read_text().replace('\\\n', '').splitlines()
    packages = [line for line in lines if '==' in line]
    assert packages and all(re.search(r'--hash=sha256:[0-9a-f]{64}', each) for each in packages)


def test_setup_uses_locked_versions(tmp_path: Path) -> None:
    for requirement in (bootstrap.UV, bootstrap.MMCV):
        path = bootstrap.write_requirement(requirement, str(tmp_path))
        assert path.read_text().startswith(requirement)
    assert build_mmcv.SHA256 in path.read_text()


@pytest.mark.slow
def test_forged_packages_are_rejected(tmp_path: Path) -> None:
    name, version = bootstrap.UV.split('==')
    folder = f'{name}-{version}.dist-info/'
    with zipfile.ZipFile(tmp_path / f'{name}-{version}-py3-none-any.whl', 'w') as wheel:
        wheel.writestr(f'{folder}METADATA', f'Metadata-Version: 2.1\nName: {name}\n'
                                            f'Version: {version}\n')  # yapf: disable
        wheel.writestr(f'{folder}WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\n'
                                         'Tag: py3-none-any\n')  # yapf: disable
        wheel.writestr(f'{folder}RECORD', '')
    command = [sys.executable, '-m', 'pip', 'install', '--no-index', '--find-links', tmp_path,
               '--no-deps', '--target', tmp_path / 'new']  # yapf: disable
    locked = bootstrap.write_requirement(bootstrap.UV, str(tmp_path))
    done = subprocess.run([*command, '--requirement', locked], capture_output=True, text=True)
    assert done.returncode and 'DO NOT MATCH THE HASHES' in done.stderr
    assert subprocess.run([*command, bootstrap.UV], capture_output=True).returncode == 0
