"""What the tools' command lines share."""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_python

from colonnade.configs import find_config
from colonnade.tools.command_line import SPINS, WAITING, add_amp, limit_spinning, user_errors

TOOLS = sorted(path.stem for path in (ROOT / 'tools').glob('*.py')
               if 'def parse_args' in path.read_text())  # yapf: disable


def test_users_errors_end_the_program() -> None:
    with pytest.raises(SystemExit, match='^train: no such class$'), user_errors('train'):
        raise ValueError('no such class')
    with pytest.raises(KeyError), user_errors('train'):
        raise KeyError('ours')
    with pytest.raises(ValueError), user_errors('train', OSError):
        raise ValueError('ours')


@pytest.mark.parametrize('options, expected', [
    ([], False),
    (['--amp'], True),
    (['--amp-dtype', 'float16'], 'float16'),
    (['--amp', '--amp-dtype', 'float16'], 'float16'),
    (['--amp-dtype', 'float16', '--amp'], 'float16'),
])
def test_half_precision_takes_no_positional(options: list[str], expected: bool | str) -> None:
    parser = argparse.ArgumentParser()
    add_amp(parser)
    parser.add_argument('config')
    assert parser.parse_args([*options, 'a.py']).amp == expected


def test_a_broken_package_is_no_users_error(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback says which package it is."""
    (tmp_path / 'broken_package.py').write_text('raise ValueError("numpy.dtype size changed")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match='size changed'), user_errors('train'):
        import broken_package  # noqa: F401


def test_a_misspelt_config(tmp_path: Path) -> None:
    with pytest.raises(
            FileNotFoundError, match='no config file .*; did you mean .*_slim_shapes.py'):
        find_config(ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_shape.py')
    with pytest.raises(FileNotFoundError, match='no config file .*nowhere/a.py$'):
        find_config(tmp_path / 'nowhere/a.py')


def test_help_imports_nothing_that_takes_time() -> None:
    """For all tools in one process: only what is imported counts, not a time."""
    assert len(TOOLS) == 23
    code = f"""
import sys
from importlib import import_module
for tool in {TOOLS}:
    sys.argv = [tool, '--help']
    try:
        import_module('colonnade.tools.' + tool).parse_args()
    except SystemExit as stopped:
        assert stopped.code == 0
print(*sorted({{'torch', 'mmengine', 'mmdet', 'numpy'}} & sys.modules.keys()), 'are imported')
"""
    assert run_python('-c', code).endswith('\nare imported\n')


@pytest.mark.parametrize('tool', TOOLS)
def test_names_of_tools_stand_in_their_errors(tool: str) -> None:
    assert f'user_errors({tool!r}' in (ROOT / f'tools/{tool}.py').read_text()


@pytest.mark.parametrize('given, expected', [
    ({}, SPINS),
    (dict(GOMP_SPINCOUNT='7'), '7'),
    (dict(OMP_WAIT_POLICY='ACTIVE'), 'None'),
])
def test_idle_threads_sleep_soon_unless_the_user_chose(given: dict[str, str], expected: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    code = 'import os; from colonnade.tools import train; print(os.getenv("GOMP_SPINCOUNT"))'
    assert run_python('-c', code, **given) == f'{expected}\n'


def test_nothing_is_set_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """libgomp has read its variables when torch is imported."""
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    assert 'torch' in sys.modules
    limit_spinning()
    assert 'GOMP_SPINCOUNT' not in os.environ
