"""The wheel of mmcv without compiled operators, and when it is installed."""
from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from conftest import ROOT, run_python
from packaging.requirements import Requirement

from colonnade.tools import bootstrap, build_mmcv

PLAIN = {
    'mmcv/__init__.py': b'',
    'onedl_mmcv-2.3.6.dist-info/METADATA': b'Name: onedl-mmcv\nVersion: 2.3.6\n\nVersion: 2.3.6\n',
    'onedl_mmcv-2.3.6.dist-info/WHEEL': b'Tag: py3-none-any\n',
    'onedl_mmcv-2.3.6.dist-info/RECORD': b'mmcv/__init__.py,,\n',
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record calls of pip, and build a small wheel."""
    recorded = []

    def run_pip(*arguments: str | Path) -> None:
        recorded.append(tuple(map(str, arguments)))
        if arguments[0] == 'wheel':
            folder = arguments[arguments.index('--wheel-dir') + 1]
            with zipfile.ZipFile(folder / 'onedl_mmcv-2.3.6-py3-none-any.whl', 'w') as archive:
                for name, content in PLAIN.items():
                    archive.writestr(name, content)

    monkeypatch.setattr(build_mmcv, 'run_pip', run_pip)
    return recorded


@pytest.fixture
def no_mmcv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that no mmcv is installed."""
    monkeypatch.setattr(build_mmcv, 'find_compiled_operators', lambda: None)
    monkeypatch.setattr(build_mmcv, 'find_other_distribution', lambda: None)


@pytest.mark.usefixtures('calls')
def test_wheel(tmp_path: Path) -> None:
    wheel = build_mmcv.build(tmp_path / 'new/wheels')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / 'site')
        names = archive.namelist()
    sources = list((ROOT / 'tools/mmcv_ext').glob('*.py'))
    assert len(names) == len(set(names)) == len(PLAIN) + len(sources)
    for source in sources:
        assert (tmp_path / 'site/mmcv/_ext' / source.name).read_bytes() == source.read_bytes()
    installed = PathDistribution(tmp_path / 'site/onedl_mmcv-2.3.6+torchvision.dist-info')
    assert installed.version == wheel.name.split('-')[1] == '2.3.6+torchvision'
    assert installed.read_text('METADATA').endswith('\n\nVersion: 2.3.6\n')  # in its description
    assert sorted(map(str, installed.files)) == sorted(names)
    for file in installed.files:
        if file.name != 'RECORD':
            digest = hashlib.sha256(file.locate().read_bytes()).digest()
            assert base64.urlsafe_b64decode(f'{file.hash.value}=') == digest
            assert file.size == file.locate().stat().st_size


def test_version_everywhere() -> None:
    assert bootstrap.MMCV == f'onedl-mmcv=={build_mmcv.VERSION}'
    assert f'    {bootstrap.MMCV}\n' in (ROOT / 'setup.cfg').read_text()
    assert Requirement(bootstrap.MMCV).specifier.contains(build_mmcv.VERSION + build_mmcv.LABEL)


def test_compiled_extension_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                    calls: list[tuple[str, ...]]) -> None:
    (tmp_path / 'mmcv').mkdir()
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    monkeypatch.setattr(sys, 'modules', {**sys.modules})
    sys.modules.pop('mmcv', None)
    (tmp_path / 'mmcv/__init__.py').touch()
    (tmp_path / 'mmcv/_ext').mkdir()
    assert build_mmcv.find_compiled_operators() is None
    compiled = tmp_path / 'mmcv/_ext.cpython-311-x86_64-linux-gnu.so'
    compiled.touch()
    assert build_mmcv.install(
        replace=False) == (f'{compiled} has compiled operators: pass --replace to replace them')
    assert calls == []
    build_mmcv.install(replace=True)
    assert [call[0] for call in calls] == ['wheel', 'install']


@pytest.mark.usefixtures('no_mmcv')
def test_install(calls: list[tuple[str, ...]]) -> None:
    done = build_mmcv.install(replace=False)
    assert done == f'installed onedl_mmcv-2.3.6+torchvision-py3-none-any.whl in {sys.prefix}'
    assert {'--no-deps', '--force-reinstall'} < set(calls[1])


@pytest.mark.usefixtures('no_mmcv')
def test_other_distribution_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_mmcv, 'find_other_distribution', lambda: 'mmcv-lite 2.1.0')
    with pytest.raises(build_mmcv.BuildError, match='mmcv-lite 2.1.0 .* pip uninstall mmcv-lite'):
        build_mmcv.install(replace=False)


def test_build_with_torch_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = 'onedl_mmcv-2.3.6-cp311-cp311-linux_x86_64.whl'
    monkeypatch.setattr(build_mmcv, 'run_pip', lambda *_: (tmp_path / name).touch())
    with pytest.raises(build_mmcv.BuildError, match=f'{name} has compiled operators'):
        build_mmcv.build_without_operators(tmp_path)


def test_no_network(tmp_path: Path) -> None:
    output = run_python(
        'tools/build_mmcv.py',
        tmp_path,
        fail=True,
        PIP_CONFIG_FILE='/dev/null',
        PIP_FIND_LINKS='',
        PIP_INDEX_URL='http://127.0.0.1:9/simple',
        PIP_RETRIES='0')
    assert 'can reach a package index' in output
    assert 'Traceback' not in output


@pytest.mark.parametrize('arguments', [(), ('wheels', '--install'), ('wheels', '--replace')])
def test_arguments(arguments: tuple[str, ...]) -> None:
    assert 'error: ' in run_python('tools/build_mmcv.py', *arguments, fail=True)
