"""The installed distribution: the namespace, the commands and the configs."""
from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import NO_WORKERS, ROOMS, ROOT
from helpers.packages import draw_patches, write_package
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.missing_libraries import report_missing_libraries

LEAF = 'sem_fpn/xcit_tiny_12_p16_80k_ade20k'


def run(code: str, folder: Path, *options: str) -> str:
    """Run code in another process and folder; return its output."""
    command = [sys.executable, *options, '-W', 'ignore', '-c', code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def link_source(folder: Path) -> Path:
    """Link the sources, so that a build writes nothing to the clone."""
    folder.mkdir()
    for name in (*ROOMS, 'setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE'):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Wheel that is built from the source distribution, as pip does without a wheel."""
    out = tmp_path_factory.mktemp('wheel')
    source = link_source(out / 'source')
    build = 'from colonnade.tools import build_backend as b; print(b.build_sdist(".."))'
    sdist = run(build, source).splitlines()[-1]
    command = ['pip', 'wheel', '--no-deps', '--no-build-isolation', '--quiet', '--wheel-dir', out]
    subprocess.run([sys.executable, '-m', *command, out / sdist], check=True)
    return zipfile.ZipFile(next(out.glob('*.whl')))


def test_wheel_is_complete(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for part in ROOMS:
        for path in (ROOT / part).rglob('*'):
            if path.is_file() and path.suffix not in ('.pyc', '.md', '.yml'):
                inside = path.relative_to(ROOT / 'api' if part == 'api' else ROOT)
                assert f'colonnade/{inside}' in names
    assert any(name.endswith('LICENSE') for name in names)
    outside = {name for name in names if not name.startswith('colonnade')}
    assert outside == set(), 'nothing is installed under a generic name'


def test_editable_install_precedes_a_folder_of_that_name(tmp_path: Path) -> None:
    """In the parent folder of a clone, Python would import it as a namespace package."""
    build = """
from colonnade.tools import build_backend
print(build_backend.build_editable('..'))
"""
    output = run(build, link_source(tmp_path / 'source'))
    with zipfile.ZipFile(tmp_path / output.splitlines()[-1]) as wheel:
        wheel.extractall(tmp_path / 'site')
    (tmp_path / 'above/colonnade/backbones').mkdir(parents=True)
    code = f"""
import site
site.addsitedir({str(tmp_path / 'site')!r})
import colonnade, colonnade.configs, colonnade.runtime.metadata
print(colonnade.__file__, colonnade.configs.__file__, colonnade.runtime.metadata.__file__)
"""
    paths = f"import sys; sys.path += [{str(Path(torch.__file__).parent.parent)!r}]"
    output = run(paths + code, tmp_path / 'above', '-S')
    files = ('api/__init__.py', 'configs/__init__.py', 'runtime/metadata.py')
    assert output.split() == [f'{ROOT}/{file}' for file in files]


def test_openmmlab_is_optional(wheel: zipfile.ZipFile) -> None:
    """An installed mmdet must not be replaced."""
    metadata = next(name for name in wheel.namelist() if name.endswith('METADATA'))
    lines = wheel.read(metadata).decode().splitlines()
    hard = [line for line in lines if line.startswith('Requires-Dist') and 'extra ==' not in line]
    assert sorted(line.split()[1].split('>')[0]
                  for line in hard) == ['av', 'pydantic', 'shapely', 'timm', 'torch']


@pytest.mark.slow
def test_installation_without_a_clone(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    write_package('sem_fpn', tmp_path / 'shared')
    Image.fromarray(draw_patches()).save(tmp_path / 'image.jpg')
    wheel.extractall(tmp_path / 'installed')
    code = f"""
import colonnade
model = colonnade.load('shared')
result = model.predict('image.jpg')
print(result)
result.draw().save('drawn.png')
print(result.size)
from colonnade.configs import find_config
from colonnade.settings.reading import read_config
from mmengine.registry import MODELS
MODELS.build(read_config(find_config({LEAF!r})).model)
import colonnade.tools.train
print(colonnade.__file__, colonnade.tools.train.__file__)
"""
    # Without site, editable installs are not found.
    paths = [str(tmp_path / 'installed'), str(Path(torch.__file__).parent.parent)]
    output = run(f'import sys; sys.path += {paths}\n{code}', tmp_path, '-I', '-S')
    inside = tmp_path / 'installed/colonnade'
    assert output.endswith(f'(96, 128)\n{inside}/__init__.py {inside}/tools/train.py\n')
    assert Image.open(tmp_path / 'drawn.png').height >= 96


@pytest.mark.parametrize('module, says', [
    ('mmengine', "mmengine is not installed: run .* extra mm, as in pip install '\\.\\[mm\\]'"),
    ('mmcv._ext', 'mmcv is installed without its operators: run python -m colonnade.tools.build'),
])
def test_missing_libraries(module: str, says: str) -> None:
    with pytest.raises(UserError, match=says), report_missing_libraries():
        raise ModuleNotFoundError(name=module)


@pytest.mark.slow
def test_mmcv_without_operators() -> None:
    code = "import sys; sys.modules['mmcv._ext'] = None; import colonnade; colonnade.train"
    with pytest.raises(AssertionError, match='UserError: mmcv is installed without its operators'):
        run(code, ROOT)


def test_other_missing_modules() -> None:
    with pytest.raises(ModuleNotFoundError), report_missing_libraries():
        raise ModuleNotFoundError(name='scipy')


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Path]:
    """Scripts of an empty environment, which is removed, since it grows to several GB."""
    venv.create(tmp_path / 'venv', with_pip=True)
    yield tmp_path / 'venv/bin'
    shutil.rmtree(tmp_path / 'venv')


@pytest.mark.slow
def test_installation_in_an_empty_environment(wheel: zipfile.ZipFile, scripts: Path,
                                              tmp_path: Path) -> None:
    """The commands of the guide with pip and its index, and then the first steps of a user."""
    train = [
        'sem_fpn/xcit_nano_12_p16_slim_shapes', '--data-root', 'data/ade', '--work-dir', 'run',
        '--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2', *NO_WORKERS
    ]
    for command in (
        [scripts / 'pip', 'install', wheel.filename],
        [scripts / 'python', '-m', 'colonnade.tools.build_mmcv', '--install'],
        [scripts / 'pip', 'install', f'{wheel.filename}[mm]'],
        [scripts / 'colonnade', 'make-shapes', 'data', '--num-train', '4', '--num-val', '2'],
        [scripts / 'colonnade', 'train', *train],
        [scripts / 'colonnade', 'test', 'run', '--data-root', 'data/ade'],
        [scripts / 'colonnade', 'predict', 'run', 'data/ade/images/validation', '--out', 'out'],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert not done.returncode, done.stdout[-6000:]
    assert len(list(tmp_path.glob('out/labels/*.png'))) == 2
