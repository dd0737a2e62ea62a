"""Set-up: a failed step says what failed and what to do; a finished one is not repeated."""
from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


def bootstrap(venv: Path, cache: Path, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / 'tools/bootstrap.py', venv],
                          env={
                              **os.environ, 'XDG_CACHE_HOME': str(cache),
                              **environ
                          },
                          capture_output=True,
                          text=True)


def executable(path: Path, script: str) -> None:
    path.write_text(f'#!/bin/sh\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_no_compiler(tmp_path: Path) -> None:
    done = bootstrap(tmp_path / 'venv', tmp_path, PATH=str(tmp_path), CXX='none')
    assert done.returncode == 1
    assert 'There is no C++ compiler' in done.stderr
    assert 'apt-get install g++' in done.stderr


def test_no_room_to_write(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    done = bootstrap(tmp_path / 'file/venv', tmp_path)
    assert done.returncode == 1
    assert f'{tmp_path}/file/venv cannot be written' in done.stderr
    assert 'VENV=...' in done.stderr


def test_no_network(tmp_path: Path) -> None:
    """pip's own settings lead nowhere, so that uv itself cannot be had."""
    done = bootstrap(
        tmp_path / 'venv',
        tmp_path / 'cache',
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS='',
        PIP_INDEX_URL='http://127.0.0.1:9/simple',
        PIP_RETRIES='0')
    assert done.returncode == 1
    assert 'installing uv failed' in done.stderr
    assert 'does it reach a package index?' in done.stderr
    assert 'bootstrap.log' in done.stderr
    assert 'Traceback' not in done.stderr
    assert not list((tmp_path / 'cache/colonnade').iterdir())


def test_a_failed_step_is_repeated(tmp_path: Path) -> None:
    uv = tmp_path / 'colonnade/uv-0.13.8/bin/uv'
    uv.parent.mkdir(parents=True)
    executable(uv, 'echo no space left on device >&2; exit 2')
    for _ in range(2):
        done = bootstrap(tmp_path / 'venv', tmp_path)
        assert done.returncode == 1
        assert 'making the environment failed (exit code 2)' in done.stderr
        assert 'no space left on device' in done.stderr


@pytest.mark.skipif(
    not (Path(sys.prefix) / 'fingerprint').exists(),
    reason='this environment was not made by tools/bootstrap.py')
def test_a_finished_one_is_not_repeated(tmp_path: Path) -> None:
    # the stamp names the Python that made the environment, not the one inside
    maker = Path(sys.base_prefix, 'bin', f'python3.{sys.version_info.minor}')
    done = subprocess.run([maker, ROOT / 'tools/bootstrap.py', sys.prefix],
                          env={
                              **os.environ, 'XDG_CACHE_HOME': str(tmp_path),
                              'PATH': ''
                          },
                          capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
