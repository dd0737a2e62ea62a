"""What pip installs: the namespace, the tools and the configs."""
from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from packages import some_image, write_checkpoint, write_package
from PIL import Image

LEAF = 'sem_fpn/xcit_tiny_12_p16_80k_ade20k'
PARTS = ('api', 'backbones', 'configs', 'engine', 'heads', 'necks', 'runtime', 'tools', 'weights')


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp('wheel')
    source = out / 'source'
    source.mkdir()
    for name in (*PARTS, 'setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE'):
        (source / name).symlink_to(ROOT / name)
    subprocess.run([
        sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation', '--quiet',
        '--wheel-dir', out, source
    ],
                   check=True)
    return zipfile.ZipFile(next(out.glob('*.whl')))


def test_wheel_carries_everything(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for part in PARTS:
        for path in (ROOT / part).rglob('*.py'):
            inside = path.relative_to(ROOT / 'api' if part == 'api' else ROOT)
            assert f'colonnade/{inside}' in names
    assert any(name.endswith('LICENSE') for name in names)
    outside = {name for name in names if not name.startswith('colonnade')}
    assert outside == set(), 'nothing is installed under a generic name'


def test_nothing_of_openmmlab_is_a_hard_requirement(wheel: zipfile.ZipFile) -> None:
    """Who has mmdet already, must not get a second one over it."""
    metadata = next(name for name in wheel.namelist() if name.endswith('METADATA'))
    lines = wheel.read(metadata).decode().splitlines()
    hard = [line for line in lines if line.startswith('Requires-Dist') and 'extra ==' not in line]
    assert sorted(line.split()[1].split('>')[0] for line in hard) == ['timm', 'torch']


def test_what_is_installed_needs_no_clone(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """A shared model, configs and tools, with nothing else of ours on the path."""
    write_package('sem_fpn', write_checkpoint('sem_fpn', tmp_path / 'a.pth'), tmp_path / 'shared')
    Image.fromarray(some_image()).save(tmp_path / 'image.jpg')
    wheel.extractall(tmp_path / 'installed')
    code = f"""
import colonnade
model = colonnade.load('shared')
result = model.predict('image.jpg')
print(result)
result.draw('image.jpg').save('drawn.png')
print(result.size)
from colonnade.configs import find_config
from colonnade.engine.launch import read_config
from mmengine.registry import MODELS
MODELS.build(read_config(find_config({LEAF!r})).model)
import colonnade.tools.train
print(colonnade.__file__, colonnade.tools.train.__file__)
"""
    # without site, nothing that a .pth file installs is found: no editable install of ours
    paths = [str(tmp_path / 'installed'), str(Path(torch.__file__).parent.parent)]
    done = subprocess.run([
        sys.executable, '-I', '-S', '-W', 'ignore', '-c', f'import sys; sys.path += {paths}\n{code}'
    ],
                          cwd=tmp_path,
                          env={
                              **os.environ, 'PYTHONPATH': ''
                          },
                          capture_output=True,
                          text=True)
    assert not done.returncode, done.stderr
    inside = tmp_path / 'installed/colonnade'
    assert done.stdout.endswith(f'(96, 128)\n{inside}/__init__.py {inside}/tools/train.py\n')
    assert Image.open(tmp_path / 'drawn.png').height >= 96
