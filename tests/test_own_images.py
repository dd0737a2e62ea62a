"""Images and label maps of any format and size, and damaged ones."""
from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.drawn_data import (HEIGHT, WIDTH, assert_said, change, draw_instances, draw_label_maps,
                                faults_of, leaf)
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from PIL import Image

from colonnade.datasets.validation.image_files import image_size, labels_of

FORMATS = ('JPEG', 'PNG', 'WEBP', 'TIFF', 'BMP', 'JPEG2000', 'MPO')
NOISE = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)


def saved(kind: str, orientation: int = 1) -> bytes:
    image, exif, file = Image.new('RGB', (30, 20)), Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(file, kind, exif=exif)
    return file.getvalue()


def png_chunk(name: bytes, content: bytes = b'') -> bytes:
    return struct.pack('>I', len(content)) + name + content + struct.pack(
        '>I', zlib.crc32(name + content))


def png_of_zeros(width: int, height: int) -> bytes:
    """A PNG of one bit a pixel, which packs well."""
    row = bytes(1 + (width + 7) // 8)
    packer = zlib.compressobj(9)
    content = b''.join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + png_chunk(b'IHDR', header) + png_chunk(
        b'IDAT', content) + png_chunk(b'IEND')


@pytest.mark.parametrize('kind', FORMATS)
@pytest.mark.parametrize('orientation', [1, 3, 5, 6, 8])
def test_sizes_are_those_that_opencv_decodes(kind: str, orientation: int, tmp_path: Path) -> None:
    """It turns images of some formats as their EXIF data say, and not those of others."""
    file = tmp_path / 'image'
    file.write_bytes(saved(kind, orientation))
    height, width, _ = cv2.imdecode(np.frombuffer(file.read_bytes(), np.uint8), 1).shape
    assert image_size(file) == (width, height)


@pytest.mark.filterwarnings('ignore:Corrupt EXIF')
def test_exif_data_behind_the_pixels_and_damaged_ones(tmp_path: Path) -> None:
    file, exif = tmp_path / 'image', Image.Exif()
    exif[0x0112] = 6
    png = saved('PNG')
    png = png[:-12] + png_chunk(b'eXIf', exif.tobytes()[6:]) + png[-12:]
    jpeg = io.BytesIO()
    Image.new('RGB', (30, 20)).save(jpeg, 'JPEG', exif=b'Exif\0\0MM\0\x2a\0\0\xff\xff\xff')
    for content in (png, jpeg.getvalue()):
        file.write_bytes(content)
        height, width, _ = cv2.imdecode(np.frombuffer(content, np.uint8), 1).shape
        assert image_size(file) == (width, height)


@pytest.mark.parametrize('kind', ['GIF', 'AVIF'])
def test_formats_that_opencv_does_not_decode(kind: str, tmp_path: Path) -> None:
    file = tmp_path / 'image'
    file.write_bytes(saved(kind))
    if cv2.imread(str(file)) is not None:
        pytest.skip(f'this OpenCV decodes {kind}')
    with pytest.raises(OSError, match=f'OpenCV, which loads images, does not decode {kind}'):
        image_size(file)


@pytest.mark.filterwarnings('error')
def test_an_image_above_pillows_limit(tmp_path: Path, run_tool: Callable) -> None:
    """OpenCV, which trains, decodes it; the header alone tells the size."""
    width, height = 20000, 10000
    limit = Image.MAX_IMAGE_PIXELS
    assert width * height > 2 * limit
    arguments = draw_instances(tmp_path)
    (tmp_path / 'train/1.jpg').write_bytes(png_of_zeros(width, height))
    change(arguments[1], 'images', 0, width=width, height=height)
    run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', tmp_path / 'own.py')
    assert Image.MAX_IMAGE_PIXELS == limit


def test_a_label_map_above_pillows_limit(tmp_path: Path, run_tool: Callable,
                                         capsys: pytest.CaptureFixture[str],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """mmseg would not load it."""
    arguments = draw_label_maps(tmp_path)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', WIDTH * HEIGHT // 3)
    said = faults_of(run_tool, capsys, leaf('sem_fpn'), *arguments)
    assert_said(
        said, f'has {WIDTH} x {HEIGHT} pixels, and Pillow, with which mmseg loads it, '
        f'refuses more than {WIDTH * HEIGHT // 3 * 2}')
    with pytest.raises(Image.DecompressionBombError):
        Image.open(tmp_path / 'masks/train/a.png')


def test_an_image_above_opencvs_limit(tmp_path: Path) -> None:
    file = tmp_path / 'image.png'
    header = struct.pack('>IIBBBBB', 2**16, 2**15, 1, 0, 0, 0, 0)
    file.write_bytes(b'\x89PNG\r\n\x1a\n' + png_chunk(b'IHDR', header) + png_chunk(b'IDAT'))
    with pytest.raises(OSError, match='OpenCV decodes 1073741824'):
        image_size(file)


@pytest.mark.parametrize('mode, pixel, expected', [
    ('L', 7, {7}),
    ('1', 1, {1}),
    ('P', 3, {3}),
    ('I;16', 5, {5}),
    ('I', 5, {5}),
    ('F', 2.0, {2}),
    ('I;16', 300, 'labels must be in 0 ... 255, got 300'),
    ('I', -1, 'labels must be in 0 ... 255, got -1'),
    ('F', 2.5, 'labels must be whole numbers'),
    ('F', float('nan'), 'labels must be in 0 ... 255, got nan'),
    ('RGB', (1, 1, 1), 'a label map has one channel, this has 3'),
    ('RGBA', (1, 1, 1, 1), 'a label map has one channel, this has 4'),
    ('LA', (1, 1), 'a label map has one channel, this has 2'),
])
def test_label_maps_of_all_modes(mode: str, pixel: object, expected: set[int] | str,
                                 tmp_path: Path) -> None:
    file = tmp_path / ('a.tif' if mode in 'IF' else 'a.png')
    image = Image.new(mode, (6, 4), pixel)
    if mode == 'P':
        image.putpalette(range(12))
    image.save(file)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            labels_of(file, (6, 4))
    else:
        assert labels_of(file, (6, 4)) == expected


def test_animated_label_maps_are_their_first_image(tmp_path: Path) -> None:
    """As mmseg loads them."""
    frames = [Image.new('L', (6, 4), label) for label in (1, 2)]
    frames[0].save(tmp_path / 'a.png', save_all=True, append_images=frames[1:])
    assert labels_of(tmp_path / 'a.png', (6, 4)) == {1}


def test_jpegs_are_no_label_maps(tmp_path: Path, run_tool: Callable,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path, mask_name='{}.jpg')
    said = faults_of(run_tool, capsys, leaf('sem_fpn'), *arguments)
    assert_said(said, 'is a JPEG, whose compression changes labels')


@given(
    kind=st.sampled_from(FORMATS),
    at=st.integers(0, 400),
    content=st.binary(max_size=6),
    end=st.integers(1, 400))
@example_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings('ignore')
def test_damaged_files_are_faults(kind: str, at: int, content: bytes, end: int,
                                  tmp_path: Path) -> None:
    """Pillow raises SyntaxError, struct.error, zlib.error and more of them."""
    file = io.BytesIO()
    Image.fromarray(NOISE).save(file, kind)
    damaged = bytearray(file.getvalue())
    damaged[at:at + len(content)] = content
    path = tmp_path / 'image'
    path.write_bytes(damaged[:len(damaged) * end // 400 + 1])
    for read in (image_size, lambda path: labels_of(path, (30, 20))):
        try:
            assert read(path)
        except (OSError, ValueError) as error:
            assert str(error)


@pytest.mark.parametrize('damage', [
    lambda content: content[:50],
    lambda content: content[:40] + b'\xff\xff' + content[42:],
    lambda content: content[:16] + bytes(8) + content[24:],
    lambda content: content.replace(b'IDAT', b'IDAX'),
    lambda content: b'',
])
def test_damaged_label_maps(damage: Callable[[bytes], bytes], tmp_path: Path, run_tool: Callable,
                            capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path)
    mask = tmp_path / 'masks/train/a.png'
    mask.write_bytes(damage(mask.read_bytes()))
    said = faults_of(run_tool, capsys, leaf('sem_fpn'), *arguments)
    assert_said(said, f'{mask} cannot be used')
