"""Setup: a failed step is reported with advice, and a finished setup is not repeated."""
from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from helpers.fake_installers import write_fakes, write_program

from colonnade.tools import bootstrap as tool
from colonnade.tools import build_mmcv

WHEEL = (f'onedl-mmcv-2.3.6-torchvision-{tool.compute_digest(tool.MMCV_TOOLS)[:16]}/'
         'onedl_mmcv-2.3.6+torchvision-py3-none-any.whl')
CPU_WHEEL = (f'onedl-mmcv-2.3.6-torch-2.12.1+cu130-cpu-{sys.implementation.cache_tag}-'
             f'{platform.machine()}/onedl_mmcv-2.3.6-any.whl')
COMPILED = '--compiled-mmcv'


def start(venv: Path, cache: Path, *options: str, **environ: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, ROOT / 'tools/bootstrap.py', venv, *options],
                            env={
                                **os.environ, 'XDG_CACHE_HOME': str(cache),
                                **environ
                            },
                            stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE,
                            text=True,
                            start_new_session=True)


def bootstrap(venv: Path, cache: Path, *options: str,
              **environ: str) -> subprocess.CompletedProcess:
    process = start(venv, cache, *options, **environ)
    output = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, *output)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f'{path} was not created'
        time.sleep(0.02)


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    """Environment variables with fake installers."""
    return write_fakes(tmp_path / 'fakes')


def get_builds(tmp_path: Path) -> list[str]:
    return (tmp_path / 'fakes/log').read_text().split()


def test_missing_compiler(tmp_path: Path) -> None:
    done = bootstrap(tmp_path / 'venv', tmp_path, COMPILED, PATH=str(tmp_path), CXX='none')
    assert done.returncode == 1
    assert 'COMPILED_MMCV=1 requires a C++ compiler' in done.stderr
    assert 'apt-get install g++' in done.stderr


def test_setup_without_compiler(tmp_path: Path, fakes: dict[str, str]) -> None:
    (tmp_path / 'bin').mkdir()
    for program in ('basename', 'dirname', 'ln', 'mkdir'):
        (tmp_path / 'bin' / program).symlink_to(shutil.which(program))
    fakes = dict(fakes, FAKE_GPUS='9.0', CXX='none', PATH=str(tmp_path / 'bin'))
    done = bootstrap(tmp_path / 'venv', tmp_path, **fakes)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'colonnade' / WHEEL).is_file()
    done = bootstrap(tmp_path / 'venv', tmp_path, COMPILED, **dict(fakes, CXX=sys.executable))
    assert done.returncode == 1
    assert 'COMPILED_MMCV=1 requires a CUDA compiler (nvcc) for a GPU' in done.stderr


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    done = bootstrap(tmp_path / 'file/venv', tmp_path)
    assert done.returncode == 1
    assert f'cannot write to {tmp_path}/file/venv' in done.stderr
    assert 'VENV=...' in done.stderr


def test_no_network(tmp_path: Path) -> None:
    """The package index is unreachable, so uv cannot be installed."""
    done = bootstrap(
        tmp_path / 'venv',
        tmp_path / 'cache',
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS='',
        PIP_INDEX_URL='http://127.0.0.1:9/simple',
        PIP_RETRIES='0')
    assert done.returncode == 1
    assert 'installing uv failed' in done.stderr
    assert 'can reach a package index' in done.stderr
    assert 'bootstrap.log' in done.stderr
    assert 'Traceback' not in done.stderr
    assert [path.name for path in (tmp_path / 'cache/colonnade').iterdir()] == ['lock']


def test_failed_step_is_repeated(tmp_path: Path) -> None:
    write_program(
        tmp_path / 'colonnade/uv-0.13.8/bin/uv',
        '#!/bin/sh\ntest "$1" = --version || { echo no space left on device >&2; exit 2; }\n')
    for _ in range(2):
        done = bootstrap(tmp_path / 'venv', tmp_path)
        assert done.returncode == 1
        assert 'creating the environment failed (exit code 2)' in done.stderr
        assert 'no space left on device' in done.stderr


def test_everything_is_built_once(tmp_path: Path, fakes: dict[str, str]) -> None:
    """Environments share wheels, and either mmcv replaces the other."""
    with_gpu = dict(fakes, FAKE_GPUS='9.0', CUDA_HOME='/')
    gpu_wheel = CPU_WHEEL.replace('-cpu-', '-cuda13.0-sm9.0-')
    for venv, options, environ, wheel, is_repeated in (
        ('one', [], fakes, WHEEL, False),
        ('two', [], fakes, WHEEL, False),
        ('two', [], fakes, WHEEL, True),
        ('two', [COMPILED], fakes, CPU_WHEEL, False),
        ('two', [], fakes, WHEEL, False),
        ('two', [COMPILED], with_gpu, gpu_wheel, False),
    ):
        done = bootstrap(tmp_path / venv, tmp_path / 'cache', *options, **environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout == '' or not is_repeated
        assert (tmp_path / venv / 'mmcv').read_text().strip() == Path(wheel).name
        assert (tmp_path / 'cache/colonnade' / wheel).is_file()
    assert get_builds(tmp_path) == ['uv', 'wheel', 'wheel', 'wheel']


def test_kill_during_installation_of_uv(tmp_path: Path, fakes: dict[str, str]) -> None:
    process = start(tmp_path / 'venv', tmp_path / 'cache', **fakes, PIP_SECONDS='60')
    wait_for(tmp_path / 'fakes/busy')
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = bootstrap(tmp_path / 'venv', tmp_path / 'cache', **fakes)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / 'cache/colonnade').iterdir()}
    assert names == {'lock', 'uv-0.13.8', Path(WHEEL).parent.name}


@pytest.mark.parametrize('mode', [0o644, 0o755], ids=['not executable', 'cut off'])
def test_broken_uv_is_replaced(tmp_path: Path, fakes: dict[str, str], mode: int) -> None:
    uv = tmp_path / 'cache/colonnade/uv-0.13.8/bin/uv'
    write_program(uv, '\x7fELF')
    uv.chmod(mode)
    done = bootstrap(tmp_path / 'venv', tmp_path / 'cache', **fakes)
    assert done.returncode == 0, done.stderr
    assert get_builds(tmp_path) == ['uv', 'wheel']


def test_damaged_wheel_is_rebuilt(tmp_path: Path, fakes: dict[str, str]) -> None:
    bootstrap(tmp_path / 'one', tmp_path / 'cache', **fakes)
    wheel = tmp_path / 'cache/colonnade' / WHEEL
    intact = wheel.read_bytes()
    flipped = bytes([intact[80] ^ 1])  # in the content of the first file
    for damaged in (intact[:-20], intact[:80] + flipped + intact[81:], b''):
        wheel.write_bytes(damaged)
        (tmp_path / 'one/fingerprint').unlink()
        done = bootstrap(tmp_path / 'one', tmp_path / 'cache', **fakes)
        assert done.returncode == 0, done.stderr
        assert f'{wheel} is damaged and will be rebuilt' in done.stdout
        assert len(wheel.read_bytes()) == len(intact)


@pytest.mark.parametrize('other', ['venv', 'venv2'])
def test_parallel_setups(tmp_path: Path, fakes: dict[str, str], other: str) -> None:
    processes = [
        start(tmp_path / venv, tmp_path / 'cache', **fakes, PIP_SECONDS='1')
        for venv in ('venv', other)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    output = ''.join(out for out, _ in outputs)
    assert output.count('waiting for another setup, which holds') == 1
    assert get_builds(tmp_path) == ['uv', 'wheel']
    assert (tmp_path / other / 'fingerprint').is_file()


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture) -> None:

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(tool, 'CACHE', tmp_path)
    monkeypatch.setattr(fcntl, 'flock', flock)
    with tool.lock_cache():
        printed = capsys.readouterr().out
    assert f'warning: {tmp_path}/lock cannot be locked (No locks available)' in printed


def test_uv_of_parallel_setup_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks."""
    home = tmp_path / 'uv-0.13.8'

    def run(step: str, command: list[str | Path], *_: object) -> None:
        write_program(Path(command[-1], 'bin/uv'), '#!/bin/sh\n# mine\n')
        write_program(home / 'bin/uv', '#!/bin/sh\n# theirs\n')

    monkeypatch.setattr(tool, 'CACHE', tmp_path)
    monkeypatch.setattr(tool, 'run', run)
    assert 'theirs' in tool.get_uv(tmp_path / 'venv').read_text()
    assert list(tmp_path.iterdir()) == [home]


@pytest.mark.parametrize(('full', 'hint'), [('venv', 'VENV=...'), ('cache', 'UV_CACHE_DIR=...'),
                                            ('tmp', 'TMPDIR=...')])
def test_space_on_each_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str,
                            hint: str) -> None:
    folders = {name: tmp_path / name for name in ('venv', 'cache', 'tmp')}
    for folder in folders.values():
        folder.mkdir()
    free = {str(folder): 100e9 for folder in folders.values()}
    monkeypatch.setattr(tool, 'UV_CACHE', folders['cache'])
    monkeypatch.setattr(tool.tempfile, 'gettempdir', lambda: str(folders['tmp']))
    monkeypatch.setattr(tool, 'get_disk', lambda folder: list(free).index(str(folder)))
    monkeypatch.setattr(shutil, 'disk_usage',
                        lambda folder: SimpleNamespace(free=free[str(folder)]))
    tool.check_space(folders['venv'], compiled=True)
    free[str(folders[full])] = 0.2e9
    with pytest.raises(tool.SetupError) as error:
        tool.check_space(folders['venv'], compiled=True)
    assert f'0.2 GB is free on the disk of {tmp_path / full}, ' in str(error.value)
    assert str(error.value).endswith(f'choose another folder with {hint}')


def raise_os_error(*_: object) -> None:
    raise OSError(errno.EXDEV, 'Invalid cross-device link')


def test_space_on_one_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, 'UV_CACHE', tmp_path)
    monkeypatch.setattr(tool, 'get_disk', lambda folder: 0)
    monkeypatch.setattr(shutil, 'disk_usage', lambda folder: SimpleNamespace(free=6.1e9))
    monkeypatch.delenv('UV_LINK_MODE', raising=False)
    with pytest.raises(tool.SetupError, match='6.1 GB is free .* 7.4 GB is required'):
        tool.check_space(tmp_path, compiled=False)
    with pytest.raises(tool.SetupError, match='7.8 GB is required'):
        tool.check_space(tmp_path, compiled=True)
    monkeypatch.setenv('UV_LINK_MODE', 'copy')
    with pytest.raises(tool.SetupError, match='14 GB is required'):
        tool.check_space(tmp_path, compiled=False)
    monkeypatch.delenv('UV_LINK_MODE')
    monkeypatch.setattr(tool.os, 'link', raise_os_error)
    with pytest.raises(tool.SetupError, match='14.4 GB is required'):
        tool.check_space(tmp_path, compiled=True)
    (tmp_path / 'torch').touch()
    monkeypatch.setattr(tool, 'get_num_blocks', lambda path: 6e9 / 512)
    tool.check_space(tmp_path, compiled=True)


@pytest.mark.parametrize(('environ', 'kind'), [
    ({}, 'cpu'),
    (dict(FAKE_GPUS='9.0 8.0 9.0'), 'cuda13.0-sm8.0_9.0'),
    (dict(FAKE_GPUS='10.0'), 'cuda13.0-sm10.0'),
    (dict(FAKE_GPUS='9.0', TORCH_CUDA_ARCH_LIST='8.6+PTX;8.0'), 'cuda13.0-sm8.0_8.6+PTX'),
    (dict(FORCE_CUDA='1', TORCH_CUDA_ARCH_LIST='8.0 7.5'), 'cuda13.0-sm7.5_8.0'),
    (dict(TORCH_CUDA_ARCH_LIST='8.0'), 'cpu'),
    (dict(FORCE_CUDA='1'), ''),
])
def test_wheel_key_names_gpus(tmp_path: Path, fakes: dict[str, str], environ: dict[str, str],
                              kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**fakes, **environ}.items():
        monkeypatch.setenv(name, value)
    if not kind:
        with pytest.raises(tool.SetupError, match='without a GPU requires TORCH_CUDA_ARCH_LIST'):
            tool.compute_compiled_key(tmp_path, tmp_path / 'fakes/python')
        return
    key = tool.compute_compiled_key(tmp_path, tmp_path / 'fakes/python')
    folder = CPU_WHEEL.replace('-cpu-', f'-{kind}-').partition('/')[0]
    assert folder == f'onedl-mmcv-2.3.6-{key}'


@pytest.mark.skipif(
    not (Path(sys.prefix) / 'fingerprint').exists(),
    reason='this environment was not made by tools/bootstrap.py')
def test_finished_setup_is_not_repeated(tmp_path: Path) -> None:
    # The fingerprint contains the Python that created the environment, not the one in it.
    maker = Path(sys.base_prefix, 'bin', f'python3.{sys.version_info.minor}')
    options = [COMPILED] if build_mmcv.find_compiled_operators() else []
    done = subprocess.run([maker, ROOT / 'tools/bootstrap.py', sys.prefix, *options],
                          env={
                              **os.environ, 'XDG_CACHE_HOME': str(tmp_path),
                              'PATH': ''
                          },
                          capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
