"""Common parts of all command lines."""
from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, config, run_python

from colonnade.__main__ import TOOLS
from colonnade.common.errors import MissingFileError, UserCodeError, UserError, file_errors
from colonnade.common.options import amp_option, argument, format_words, option
from colonnade.configs import find_config
from colonnade.datasets.bad_samples import SampleError
from colonnade.recipes.options import NewConfigOptions
from colonnade.runtime import ImageError, ModelError
from colonnade.tools.command_line import (SPINS, WAITING, limit_spinning, parse_options,
                                          report_user_errors)

COMMANDS = (*TOOLS, 'demo')


@dataclass
class Convert:
    """Command with a positional argument after flags."""
    amp: bool | str = amp_option()
    config: str = argument('a config')


@pytest.mark.parametrize('error', [
    UserError('no such class'),
    MissingFileError('no such class'),
    SampleError('no such class'),
    ImageError('no such class'),
    ModelError('no such class'),
])
def test_user_errors(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='^train: no such class$'), report_user_errors('train'):
        raise error
    assert not capsys.readouterr().err


@pytest.mark.parametrize('kind', [ValueError, OSError, KeyError, FloatingPointError])
def test_other_errors_are_raised(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, report_user_errors('train'):
        raise kind('theirs')
    assert type(caught.value) is kind


def test_traceback_of_user_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='^train: the head fails$'), report_user_errors('train'):
        try:
            int('theirs')
        except ValueError as error:
            raise UserCodeError('the head fails') from error
    output = capsys.readouterr().err
    assert output.startswith('Traceback') and __file__ in output
    assert output.endswith("'theirs'\n")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=rf"^train: \[Errno 2\] .*: '{tmp_path}/a'$"), \
            report_user_errors('train'), file_errors():
        open(tmp_path / 'a')


@pytest.mark.parametrize('options, expected', [
    ([], False),
    (['--amp'], True),
    (['--amp-dtype', 'float16'], 'float16'),
    (['--amp', '--amp-dtype', 'float16'], 'float16'),
    (['--amp-dtype', 'float16', '--amp'], 'float16'),
])
def test_amp_options(options: list[str], expected: bool | str) -> None:
    args = parse_options(argparse.ArgumentParser(), Convert, words=[*options, 'a.py'])
    assert args.amp == expected


@pytest.mark.parametrize('options', [
    ['base.py', '--data', 'a set', '--group-regex=-(\\d+)', '--val-fraction', '0.2'],
    ['base.py', '--masks', 'a', 'b', '--classes', 'sky', 'tree top', '--suffixes', '.jpg', '.png'],
    ['base.py', '--coco', 'a.json', 'b.json', '--boxes-only', '--rgb-channels', '2', '1', '0'],
])
def test_options_are_formatted_as_they_are_read(options: list[str]) -> None:
    parsed = parse_options(argparse.ArgumentParser(), NewConfigOptions, words=options)
    words = format_words(parsed)
    assert words[0] == 'base.py' and sorted(words) == sorted(options)
    assert parse_options(argparse.ArgumentParser(), NewConfigOptions, words=words) == parsed


def test_broken_package_is_not_a_user_error(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'broken_package.py').write_text('raise ValueError("numpy.dtype size changed")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match='size changed'), report_user_errors('train'):
        import broken_package  # noqa: F401


def test_a_misspelt_config(tmp_path: Path) -> None:
    with pytest.raises(
            FileNotFoundError, match='no such config file: .*; did you mean .*_slim_shapes.py'):
        find_config(ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_shape.py')
    with pytest.raises(FileNotFoundError, match='no such config file: .*nowhere/a.py$'):
        find_config(tmp_path / 'nowhere/a.py')
    (tmp_path / 'own.py').touch()
    with pytest.raises(FileNotFoundError, match='own; did you mean .*/own.py'):
        find_config(tmp_path / 'own')


@pytest.mark.parametrize('words, meant', [
    ('--val-fractoin=0.2', '; did you mean --val-fraction?'),
    ('b.py --wrok-dir c', '; did you mean --work-dir?'),
    ('--no-fues', '; did you mean --no-fuse?'),
    ('--amp-dtpye float16', '; did you mean --amp-dtype?'),
    ('--base-confg b.py', ''),
    ('b.py', ''),
])
def test_a_misspelt_option(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:

    @dataclass
    class Options:
        base_config: str = argument('a config')
        val_fraction: float | None = option('a fraction')
        work_dir: str | None = option('a folder')
        fuse: bool | None = option('fuse the model')
        amp: bool | str = amp_option()

    for options, start in ((Options, []), (dict(act=Options), ['act'])):
        with pytest.raises(SystemExit):
            parse_options(
                argparse.ArgumentParser(), options, words=[*start, 'a.py', *words.split()])
        assert capsys.readouterr().err.endswith(f'unrecognized arguments: {words}{meant}\n')


def test_help_without_slow_imports() -> None:
    code = f"""
import sys
from importlib import import_module
for tool in {COMMANDS}:
    sys.argv = [tool, '--help']
    try:
        import_module('colonnade.tools.' + tool).main()
    except SystemExit as stopped:
        assert stopped.code == 0
print(*sorted({{'torch', 'mmengine', 'mmdet', 'numpy'}} & sys.modules.keys()), 'are imported')
"""
    assert run_python('-c', code).endswith('\nare imported\n')


@pytest.mark.parametrize('variables, expected', [
    ({}, SPINS),
    (dict(GOMP_SPINCOUNT='7'), '7'),
    (dict(OMP_WAIT_POLICY='ACTIVE'), 'None'),
])
def test_spin_count(variables: dict[str, str], expected: str,
                    monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    code = 'import os; from colonnade.tools import train; print(os.getenv("GOMP_SPINCOUNT"))'
    assert run_python('-c', code, **variables) == f'{expected}\n'


def test_spin_count_is_not_set_after_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """libgomp reads the variable when torch is imported."""
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    assert 'torch' in sys.modules
    limit_spinning()
    assert 'GOMP_SPINCOUNT' not in os.environ


@pytest.mark.parametrize('tool, arguments', [
    ('predict', ['no.pth', 'a.jpg', '--out', 'new']),
    ('test', ['no.pth']),
    ('train', ['--load-from', 'no.pth']),
    ('export', ['no.pth', '--out', 'new']),
    ('visualize', ['no.pth', 'a.jpg', '--out', 'new']),
    ('serve', ['no.pth']),
    ('package', ['no.pth', '--out', 'new']),
])
def test_missing_weights_are_reported_without_torch(tool: str, arguments: list[str]) -> None:
    words = [tool, str(config('sem_fpn')), *arguments]
    printed = run_python(
        '-c', f"""
import sys
from importlib import import_module
sys.argv = {words}
try:
    import_module('colonnade.tools.{tool}').main()
except SystemExit as stopped:
    print(stopped, 'torch' in sys.modules)
""")
    assert printed == f'{tool}: no such weights file: no.pth False\n'
