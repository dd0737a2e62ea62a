"""The tool that draws what a model looks at: its files, and what it says of errors."""
from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from colonnade.settings.reading import read_config
from colonnade.visualization.figures.methods import KINDS
from colonnade.visualization.options import METHODS

SLIM = config('sem_fpn')


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segmenter with random weights."""
    cfg = read_config(SLIM)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(deepcopy(cfg.model))
    path = tmp_path_factory.mktemp('weights') / 'random.pth'
    torch.save(dict(state_dict=model.state_dict(), meta={}), path)
    return path


def noise(path: Path, *shape: int) -> Path:
    """An image file of random values: ``(H, W)`` is gray."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


def fails(run_tool: Callable, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        run_tool('visualize', *arguments)
    return str(stopped.value.code)


def test_all_pictures_of_real_and_awkward_images(run_tool: Callable, checkpoint: Path,
                                                 real_data: dict[str, Path], tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / 'a.jpg'
    real.symlink_to(min(real_data['ade'].glob('images/validation/*.jpg')))
    images = [real, noise(tmp_path / 'dot.png', 1, 1, 3), noise(tmp_path / 'gray.png', 30, 40)]
    run_tool('visualize', SLIM, checkpoint, *images, '--out', tmp_path / 'out', '--dpi', 40)
    names = ('query-key', 'channel-attention', 'features', 'grad-cam')
    expected = [tmp_path / f'out/{image.stem}.{name}.png' for name in names for image in images]
    assert capsys.readouterr().out.split() == [str(path) for path in expected]
    assert sorted(tmp_path.glob('out/*')) == sorted(expected)
    for path in expected:
        with Image.open(path) as picture:
            assert min(picture.size) > 40 and np.asarray(picture).std() > 1


def test_a_long_image(run_tool: Callable, checkpoint: Path, tmp_path: Path) -> None:
    image = noise(tmp_path / 'long.png', 300, 5000, 3)
    run_tool('visualize', SLIM, checkpoint, image, '--out', tmp_path, '--what', 'features',
             'grad-cam', '--target', 'disc', '--format', 'pdf', '--size', 32, 480, '--nearest')
    assert {path.name for path in tmp_path.glob('long.*')} == \
        {'long.png', 'long.features.pdf', 'long.grad-cam.pdf'}


def test_nothing_is_overwritten(run_tool: Callable, checkpoint: Path, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise(tmp_path / 'a.png', 20, 20, 3)
    taken = tmp_path / 'a.grad-cam.png'
    taken.write_text('mine')
    command = [SLIM, checkpoint, image, '--out', tmp_path]
    monkeypatch.setattr('colonnade.visualization.figures.methods.pictures', None)
    assert fails(run_tool, *command) == \
        f'visualize: {taken} exists: name another --out, or remove it'
    assert taken.read_text() == 'mine' and len(list(tmp_path.iterdir())) == 2
    assert fails(run_tool, *command[:-1], image) == \
        f'visualize: {image} is a file: --out must be a folder'


def test_errors_come_before_pictures(run_tool: Callable, checkpoint: Path, tmp_path: Path) -> None:
    image, out = noise(tmp_path / 'a.png', 20, 20, 3), tmp_path / 'out'
    text = tmp_path / 'text.png'
    text.write_text('no image')
    command = [SLIM, checkpoint, image, '--out', out]
    assert 'text.png' in fails(run_tool, *command[:3], text, *command[3:])
    film = noise(tmp_path / 'b.png', 20, 20, 3).rename(tmp_path / 'film.mp4')
    assert 'film.mp4 is a video' in fails(run_tool, *command[:2], film, *command[3:])
    assert 'b.png: no such file or folder' in \
        fails(run_tool, *command[:2], tmp_path / 'b.png', *command[3:])
    assert 'random.pth: name images' in fails(run_tool, *command[:2], *command[3:])
    for dpi in (0, 100000):
        assert f'--dpi is from 10 to 1200, got {dpi}' in fails(run_tool, *command, '--dpi', dpi)
    for forgotten in (image, tmp_path):
        assert fails(run_tool, SLIM, forgotten, '--out', out) == \
            f'visualize: no weights behind {SLIM}: {forgotten} is no file of weights'
    assert 'XCiT has no picture mixing; it has class-attention, query-key, ' in \
        fails(run_tool, *command, '--what', 'mixing')
    assert 'needs the weights of a classifier (--classifier)' in \
        fails(run_tool, *command, '--what', 'class-attention')
    assert 'cat is no class of the model; it has background, disc' in \
        fails(run_tool, *command, '--what', 'grad-cam', '--target', 'cat')
    assert 'there is no block 12: there are 0 ... 11' in fails(run_tool, *command, '--block', 12)
    assert 'there is no head 4: there are 0 ... 3' in \
        fails(run_tool, *command, '--what', 'features', 'query-key', '--heads', 4)
    assert 'grad-cam: leave out the option point' in fails(run_tool, *command, '--point', 1, 1)
    assert not out.exists()


def test_frames_that_are_not_shown(run_tool: Callable, checkpoint: Path, tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    frames = [Image.new('L', (20, 20), value) for value in (0, 100, 200)]
    frames[0].save(tmp_path / 'a.gif', save_all=True, append_images=frames[1:])
    assert 'no block 12' in fails(run_tool, SLIM, checkpoint, tmp_path / 'a.gif', '--out',
                                  tmp_path / 'out', '--block', 12)  # yapf: disable
    assert capsys.readouterr().err == f'{tmp_path}/a.gif: the first of 3 frames\n'


def test_the_tool_names_all_pictures() -> None:
    assert METHODS == tuple(KINDS)


def test_equal_names_do_not_collide(run_tool: Callable, checkpoint: Path, tmp_path: Path) -> None:
    images = [noise(tmp_path / name, 20, 20, 3) for name in ('x/a.png', 'y/a.png', 'y/a.bmp')]
    run_tool('visualize', SLIM, checkpoint, tmp_path, '--out', tmp_path / 'out', '--what',
             'query-key', '--heads', 0, '--dpi', 30)
    found = {path.relative_to(tmp_path / 'out').as_posix() for path in tmp_path.glob('out/*/*')}
    assert found == {f'{name}.query-key.png' for name in ('x/a', 'y/a.png', 'y/a.bmp')}
    assert len(images) == len(found)
