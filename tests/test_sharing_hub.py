"""Pushing and pulling packages, by huggingface_hub's own client, on a hub of this machine."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import run_python
from helpers.hub_server import READ, WRITE, Hub, running_hub
from helpers.packages import write_checkpoint, write_package
from huggingface_hub import constants

from colonnade.inference.packages import open_package


@pytest.fixture(scope='module')
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('package')
    write_package('sem_fpn', write_checkpoint('sem_fpn', folder / 'a.pth'), folder / 'shared')
    return folder / 'shared'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """As ``HF_ENDPOINT`` and ``HF_HUB_DISABLE_XET``, which are read once in a process, say."""
    with running_hub() as hub:
        monkeypatch.setattr(constants, 'ENDPOINT', hub.url)
        monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE',
                            hub.url + '/{repo_id}/resolve/{revision}/{filename}')
        monkeypatch.setattr(constants, 'HF_HUB_DISABLE_XET', True)
        monkeypatch.setattr(constants, 'HF_TOKEN_PATH', str(tmp_path / 'no_login'))
        for name in ('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'):
            monkeypatch.delenv(name, raising=False)
        yield hub


@pytest.fixture
def tool(run_tool: Callable, tmp_path: Path, hub: Hub) -> Callable[..., None]:
    """``tools/package.py`` with a token of a file."""

    def run(*arguments: str | Path, token: str = WRITE) -> None:
        (tmp_path / 'token').write_text(f'{token}\n')
        run_tool('package', *arguments, *(['--token-file', tmp_path / 'token'] if token else []))

    return run


def same(folder: Path, other: Path) -> bool:
    return {each.name: each.read_bytes() for each in folder.iterdir()} == \
        {each.name: each.read_bytes() for each in other.iterdir()}


def test_push_and_pull(tool: Callable, hub: Hub, package: Path, tmp_path: Path,
                       capsys: pytest.CaptureFixture) -> None:
    tool('push', package, 'anna/shapes')
    printed = capsys.readouterr().out
    assert f'pushed and compared: anna/shapes@{1:040x}' in printed
    assert len(hub.large) == 1, 'weights go as a large file'
    tool('pull', 'anna/shapes', '--out', tmp_path / 'main', token='')
    tool('pull', f'anna/shapes@{1:040x}', '--out', tmp_path / 'commit', token='')
    assert same(package, tmp_path / 'main') and same(package, tmp_path / 'commit')
    open_package(tmp_path / 'main')
    tool('push', package, 'anna/shapes')
    assert len(hub.repositories['anna/shapes']) == 3, 'earlier commits stay'


def test_private_repositories(tool: Callable, package: Path, tmp_path: Path) -> None:
    tool('push', package, 'anna/hidden', '--private')
    with pytest.raises(SystemExit, match='package: anna/hidden: there is no such repository, or'):
        tool('pull', 'anna/hidden', '--out', tmp_path / 'out', token='')
    tool('pull', 'anna/hidden', '--out', tmp_path / 'out', token=READ)
    assert same(package, tmp_path / 'out')


def test_what_arrives_otherwise(tool: Callable, hub: Hub, package: Path, tmp_path: Path) -> None:
    hub.damage = b'!'
    with pytest.raises(SystemExit, match='model.safetensors arrived with the SHA-256'):
        tool('push', package, 'anna/shapes')
    with pytest.raises(SystemExit, match='model.safetensors has .* bytes, and model.json says'):
        tool('pull', 'anna/shapes', '--out', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('repository, message', [
    ('anna/nothing', 'anna/nothing: there is no such repository'),
    ('anna/shapes@v9', 'anna/shapes@v9: there is no such revision'),
    (f'anna/shapes@{0:040x}', 'is no package of colonnade package'),
    ('anna/a/b', 'anna/a/b is no OWNER/NAME of a repository'),
])
def test_pulls_that_fail(repository: str, message: str, tool: Callable, hub: Hub, package: Path,
                         tmp_path: Path) -> None:
    hub.repositories['anna/shapes'] = [{}]
    with pytest.raises(SystemExit, match=f'^package: .*{message}'):
        tool('pull', repository, '--out', tmp_path / 'out', token='')
    assert {path.name for path in tmp_path.iterdir()} <= {'token'}, 'nothing is left behind'
    (tmp_path / 'out').mkdir()
    with pytest.raises(SystemExit, match='^package: .*out already exists: choose another folder'):
        tool('pull', repository, '--out', tmp_path / 'out', token='')


def test_pushes_that_fail(tool: Callable, package: Path, tmp_path: Path,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match='^package: anna/shapes: a push needs a token'):
        tool('push', package, 'anna/shapes', token='')
    with pytest.raises(SystemExit, match='^package: anna/shapes: the hub refuses: .*403'):
        tool('push', package, 'anna/shapes', token=READ)
    with pytest.raises(SystemExit, match='^package: --token-file .*token is empty'):
        tool('push', package, 'anna/shapes', token=' ')
    with pytest.raises(SystemExit, match='^package: .*model.json: this is no folder of'):
        tool('push', tmp_path, 'anna/shapes')
    monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:9')  # where nobody answers
    with pytest.raises(SystemExit, match='^package: anna/shapes cannot be reached: .*refused'):
        tool('push', package, 'anna/shapes')
    monkeypatch.setattr(constants, 'ENDPOINT', 'http://nowhere.invalid')
    with pytest.raises(SystemExit, match='^package: nowhere.invalid cannot be reached'):
        tool('push', package, 'anna/shapes')


@pytest.mark.slow
def test_as_a_user_has_it(package: Path, tmp_path: Path) -> None:
    """In processes of their own, which the environment tells of the hub and of the token."""
    with running_hub() as hub:
        environ = dict(
            HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET='1', HF_TOKEN=WRITE, HF_HOME=str(tmp_path))
        run_python('tools/package.py', 'push', package, 'anna/shapes', **environ)
        printed = run_python('tools/package.py', 'pull', 'anna/shapes', '--out', tmp_path / 'out',
                             **environ)
    assert 'load with: colonnade.load(' in printed
    assert same(package, tmp_path / 'out')
