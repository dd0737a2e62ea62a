"""The command ``colonnade visualize``: output files and error messages."""
from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import config
from helpers.query_models import build_query_model
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from colonnade.configs import find_config
from colonnade.inference import Model
from colonnade.settings.reading import read_config
from colonnade.visualization.figures.methods import METHODS as FIGURE_METHODS
from colonnade.visualization.figures.methods import available_methods, visualize
from colonnade.visualization.options import METHODS

SLIM = config('sem_fpn')


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a segmenter with random weights."""
    cfg = read_config(SLIM)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(deepcopy(cfg.model))
    path = tmp_path_factory.mktemp('weights') / 'random.pth'
    torch.save(dict(state_dict=model.state_dict(), meta={}), path)
    return path


def write_noise(path: Path, *shape: int) -> Path:
    """Write an image of random values, gray if the shape is ``(H, W)``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


def fail(run_tool: Callable, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        run_tool('visualize', *arguments)
    return str(stopped.value.code)


@pytest.mark.slow
def test_figures_of_unusual_images(run_tool: Callable, checkpoint: Path, real_data: dict[str, Path],
                                   tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / 'a.jpg'
    real.symlink_to(min(real_data['ade'].glob('images/validation/*.jpg')))
    images = [
        real,
        write_noise(tmp_path / 'dot.png', 1, 1, 3),
        write_noise(tmp_path / 'gray.png', 30, 40)
    ]
    run_tool('visualize', SLIM, checkpoint, *images, '--out', tmp_path / 'out', '--dpi', 40)
    names = ('query-key', 'channel-attention', 'features', 'grad-cam')
    expected = [tmp_path / f'out/{image.stem}.{name}.png' for name in names for image in images]
    assert capsys.readouterr().out.split() == [str(path) for path in expected]
    assert sorted(tmp_path.glob('out/*')) == sorted(expected)
    for path in expected:
        with Image.open(path) as figure:
            assert min(figure.size) > 40 and np.asarray(figure).std() > 1


@pytest.mark.slow
def test_figures_of_long_image(run_tool: Callable, checkpoint: Path, tmp_path: Path) -> None:
    image = write_noise(tmp_path / 'long.png', 300, 5000, 3)
    run_tool('visualize', SLIM, checkpoint, image, '--out', tmp_path, '--methods', 'features',
             'grad-cam', '--target', 'disc', '--format', 'pdf', '--size', 32, 480,
             '--no-interpolation')
    assert {path.name for path in tmp_path.glob('long.*')} == \
        {'long.png', 'long.features.pdf', 'long.grad-cam.pdf'}


def test_never_overwrite_files(run_tool: Callable, checkpoint: Path, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    image = write_noise(tmp_path / 'a.png', 20, 20, 3)
    taken = tmp_path / 'a.grad-cam.png'
    taken.write_text('mine')
    command = [SLIM, checkpoint, image, '--out', tmp_path]
    monkeypatch.setattr('colonnade.visualization.figures.methods.visualize_batch', None)
    assert fail(run_tool, *command) == \
        f'visualize: {taken} already exists: choose another --out, or remove it'
    assert taken.read_text() == 'mine' and len(list(tmp_path.iterdir())) == 2
    assert fail(run_tool, *command[:-1], image) == \
        f'visualize: {image} is a file: choose a folder for --out'


@pytest.mark.slow
def test_errors_before_computing(run_tool: Callable, checkpoint: Path, tmp_path: Path) -> None:
    image, out = write_noise(tmp_path / 'a.png', 20, 20, 3), tmp_path / 'out'
    text = tmp_path / 'text.png'
    text.write_text('no image')
    command = [SLIM, checkpoint, image, '--out', out]
    assert 'text.png' in fail(run_tool, *command[:3], text, *command[3:])
    film = write_noise(tmp_path / 'b.png', 20, 20, 3).rename(tmp_path / 'film.mp4')
    assert 'film.mp4 is a video' in fail(run_tool, *command[:2], film, *command[3:])
    assert 'b.png: no such file or folder' in \
        fail(run_tool, *command[:2], tmp_path / 'b.png', *command[3:])
    assert 'random.pth: pass image files' in fail(run_tool, *command[:2], *command[3:])
    for dpi in (0, 100000):
        said = fail(run_tool, *command, '--dpi', dpi)
        assert f'--dpi must be between 10 and 1200, got {dpi}' in said
    for not_weights in (image, tmp_path):
        assert str(not_weights) in fail(run_tool, SLIM, not_weights, '--out', out)
    for options, message in (
        (['--methods', 'mixing'], "XCiT does not support the method 'mixing': expected one of cl"),
        (['--methods', 'class-attention'], 'pass its weights with --classifier'),
        (['--methods', 'grad-cam', '--target', 'cat'], "target 'cat' is not a class of the model"),
        (['--blocks', 12], 'block must be between -12 and 11, got 12'),
        (['--methods', 'features', 'query-key', '--heads', 4], 'head must be between -4 and 3, '
                                                               'got 4'),
        (['--point', 1, 1], 'point would have no effect on '),
    ):  # yapf: disable
        assert message in fail(run_tool, *command, *options)
    assert not out.exists()


def test_warn_about_other_frames(run_tool: Callable, checkpoint: Path, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    frames = [Image.new('L', (20, 20), value) for value in (0, 100, 200)]
    frames[0].save(tmp_path / 'a.gif', save_all=True, append_images=frames[1:])
    assert 'got 12' in fail(run_tool, SLIM, checkpoint, tmp_path / 'a.gif', '--out',
                            tmp_path / 'out', '--block', 12)  # yapf: disable
    assert capsys.readouterr().err == f'{tmp_path}/a.gif: using the first of 3 frames\n'


def test_options_list_all_methods() -> None:
    assert METHODS == tuple(FIGURE_METHODS)


def test_images_with_equal_names(run_tool: Callable, checkpoint: Path, tmp_path: Path) -> None:
    images = [write_noise(tmp_path / name, 20, 20, 3) for name in ('x/a.png', 'y/a.png', 'y/a.bmp')]
    run_tool('visualize', SLIM, checkpoint, tmp_path, '--out', tmp_path / 'out', '--methods',
             'query-key', '--heads', 0, '--dpi', 30)
    found = {path.relative_to(tmp_path / 'out').as_posix() for path in tmp_path.glob('out/*/*')}
    assert found == {f'{name}.query-key.png' for name in ('x/a', 'y/a.png', 'y/a.bmp')}
    assert len(images) == len(found)


def test_models_whose_blocks_run_elsewhere() -> None:
    """A head has no maps to draw; a neck only its own."""
    model = build_query_model('eomt')
    assert available_methods(model) == ()
    image = np.zeros((40, 60, 3), np.uint8)
    with pytest.raises(ValueError, match='PlainViT supports no method'):
        visualize(model, image, 'features')
    cfg = read_config(find_config('mask_rcnn/xcit_nano_12_p16_slim_shapes_adapter'))
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(cfg.model).eval()
    model = Model(module, cfg, tuple('abc'), ((0, 0, 0), ) * 3, '')
    assert available_methods(model, classifier='any') == ('features', )
    titles = [axes.get_title() for axes in visualize(model, image, 'features').axes]
    assert len(titles) == 6 and not any('block' in title for title in titles)
