"""Pushing and pulling packages with huggingface_hub and a local hub."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import run_python
from helpers.hub_server import READ, WRITE, Hub, run_hub
from helpers.packages import write_package
from huggingface_hub import constants

from colonnade.inference.packages.package import open_package


@pytest.fixture(scope='module')
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package('sem_fpn', tmp_path_factory.mktemp('package') / 'shared')


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, as if set by the environment, which huggingface_hub reads only once."""
    with run_hub() as hub:
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
    """Run ``colonnade package`` with a token file, or match its error."""

    def run(*arguments: str | Path, token: str = WRITE, error: str = '') -> None:
        (tmp_path / 'token').write_text(f'{token}\n')
        command = ['package', *arguments, *(['--token-file', tmp_path / 'token'] if token else [])]
        if error:
            with pytest.raises(SystemExit, match=f'^package: .*{error}'):
                run_tool(*command)
        else:
            run_tool(*command)

    return run


def are_equal(folder: Path, other: Path) -> bool:
    one, two = ({path.name: path.read_bytes() for path in each.iterdir()}
                for each in (folder, other))  # yapf: disable
    return one == two


def test_push_and_pull(tool: Callable, hub: Hub, package: Path, tmp_path: Path,
                       capsys: pytest.CaptureFixture) -> None:
    tool('push', package, 'anna/shapes')
    assert f'pushed and verified: anna/shapes@{1:040x}' in capsys.readouterr().out
    assert len(hub.large) == 1, 'weights are a large file'
    tool('pull', 'anna/shapes', '--out', tmp_path / 'main', token='')
    tool('pull', f'anna/shapes@{1:040x}', '--out', tmp_path / 'commit', token='')
    assert are_equal(package, tmp_path / 'main') and are_equal(package, tmp_path / 'commit')
    open_package(tmp_path / 'main')
    tool('push', package, 'anna/shapes')
    assert len(hub.repositories['anna/shapes']) == 3, 'earlier commits remain'


def test_private_repositories(tool: Callable, package: Path, tmp_path: Path) -> None:
    tool('push', package, 'anna/hidden', '--private')
    pull = ('pull', 'anna/hidden', '--out', tmp_path / 'out')
    tool(*pull, token='', error='anna/hidden: no such repository, or')
    tool(*pull, token=READ)
    assert are_equal(package, tmp_path / 'out')


def test_damaged_transfers(tool: Callable, hub: Hub, package: Path, tmp_path: Path) -> None:
    hub.damage = b'!'
    tool('push', package, 'anna/shapes', error='model.safetensors was stored with SHA-256')
    tool('pull', 'anna/shapes', '--out', tmp_path / 'out',
         error='model.safetensors has .* bytes, but model.json says')  # yapf: disable
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('repository, message', [
    ('anna/nothing', 'anna/nothing: no such repository'),
    ('anna/shapes@v9', 'anna/shapes@v9: no such revision'),
    (f'anna/shapes@{0:040x}', 'is not a package'),
    ('anna/a/b', 'anna/a/b is not a valid OWNER/NAME'),
])
def test_failed_pulls(repository: str, message: str, tool: Callable, hub: Hub,
                      tmp_path: Path) -> None:
    hub.repositories['anna/shapes'] = [{}]
    pull = ('pull', repository, '--out', tmp_path / 'out')
    tool(*pull, token='', error=message)
    assert {path.name for path in tmp_path.iterdir()} <= {'token'}, 'temporary files remain'
    (tmp_path / 'out').mkdir()
    tool(*pull, token='', error='out ')


@pytest.mark.parametrize('token, endpoint, message', [
    ('', None, 'anna/shapes: push needs a token'),
    (READ, None, 'anna/shapes: the hub rejected the request: .*403'),
    (' ', None, '--token-file .*token is empty'),
    (WRITE, 'http://127.0.0.1:9', 'anna/shapes cannot be reached: .*refused'),
    (WRITE, 'http://nowhere.invalid', 'nowhere.invalid cannot be reached'),
])
def test_failed_pushes(token: str, endpoint: str | None, message: str, tool: Callable,
                       package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if endpoint:
        monkeypatch.setattr(constants, 'ENDPOINT', endpoint)
    tool('push', package, 'anna/shapes', token=token, error=message)
    tool('push', tmp_path, 'anna/shapes', error='model.json: the folder is not a package')


@pytest.mark.slow
def test_in_separate_processes(package: Path, tmp_path: Path) -> None:
    """The environment specifies the hub and the token."""
    with run_hub() as hub:
        environ = dict(
            HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET='1', HF_TOKEN=WRITE, HF_HOME=str(tmp_path))
        run_python('tools/package.py', 'push', package, 'anna/shapes', **environ)
        printed = run_python('tools/package.py', 'pull', 'anna/shapes', '--out', tmp_path / 'out',
                             **environ)
    assert 'load with: colonnade.load(' in printed
    assert are_equal(package, tmp_path / 'out')
