"""Images and label maps of all formats and sizes, and damaged ones."""
from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.synthetic_data import (HEIGHT, WIDTH, assert_messages, change, draw_instances,
                                    draw_label_maps, leaf, run_and_get_errors)
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from PIL import Image

from colonnade.datasets.validation.image_files import read_image_size, read_label_values

FORMATS = ('JPEG', 'PNG', 'WEBP', 'TIFF', 'BMP', 'JPEG2000', 'MPO')
NOISE = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)


def encode_image(kind: str, orientation: int = 1) -> bytes:
    image, exif, file = Image.new('RGB', (30, 20)), Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(file, kind, exif=exif)
    return file.getvalue()


def make_png_chunk(name: bytes, content: bytes = b'') -> bytes:
    return struct.pack('>I', len(content)) + name + content + struct.pack(
        '>I', zlib.crc32(name + content))


def make_black_png(width: int, height: int) -> bytes:
    """Return a black PNG with one bit per pixel."""
    row = bytes(1 + (width + 7) // 8)
    packer = zlib.compressobj(9)
    content = b''.join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + make_png_chunk(b'IHDR', header) + make_png_chunk(
        b'IDAT', content) + make_png_chunk(b'IEND')


@pytest.mark.parametrize('kind', FORMATS)
@pytest.mark.parametrize('orientation', [1, 3, 5, 6, 8])
def test_size_equals_decoded_size(kind: str, orientation: int, tmp_path: Path) -> None:
    """OpenCV applies the EXIF orientation in some formats only."""
    file = tmp_path / 'image'
    file.write_bytes(encode_image(kind, orientation))
    height, width, _ = cv2.imdecode(np.frombuffer(file.read_bytes(), np.uint8), 1).shape
    assert read_image_size(file) == (width, height)


@pytest.mark.filterwarnings('ignore:Corrupt EXIF')
def test_late_and_damaged_exif_data(tmp_path: Path) -> None:
    file, exif = tmp_path / 'image', Image.Exif()
    exif[0x0112] = 6
    png = encode_image('PNG')
    png = png[:-12] + make_png_chunk(b'eXIf', exif.tobytes()[6:]) + png[-12:]
    jpeg = io.BytesIO()
    Image.new('RGB', (30, 20)).save(jpeg, 'JPEG', exif=b'Exif\0\0MM\0\x2a\0\0\xff\xff\xff')
    for content in (png, jpeg.getvalue()):
        file.write_bytes(content)
        height, width, _ = cv2.imdecode(np.frombuffer(content, np.uint8), 1).shape
        assert read_image_size(file) == (width, height)


@pytest.mark.parametrize('kind', ['GIF', 'AVIF'])
def test_formats_unsupported_by_opencv(kind: str, tmp_path: Path) -> None:
    file = tmp_path / 'image'
    file.write_bytes(encode_image(kind))
    if cv2.imread(str(file)) is not None:
        pytest.skip(f'this OpenCV decodes {kind}')
    with pytest.raises(OSError, match=f'OpenCV, which loads the images, cannot decode {kind}'):
        read_image_size(file)


@pytest.mark.filterwarnings('error')
def test_image_above_pillow_limit(tmp_path: Path, run_tool: Callable) -> None:
    """Training decodes it with OpenCV; only the header is read for its size."""
    width, height = 20000, 10000
    limit = Image.MAX_IMAGE_PIXELS
    assert width * height > 2 * limit
    arguments = draw_instances(tmp_path)
    (tmp_path / 'train/1.jpg').write_bytes(make_black_png(width, height))
    change(arguments[1], 'images', 0, width=width, height=height)
    run_tool('create_config', leaf('mask_rcnn'), *arguments, '--out', tmp_path / 'own.py')
    assert Image.MAX_IMAGE_PIXELS == limit


def test_label_map_above_pillow_limit(tmp_path: Path, run_tool: Callable,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """mmseg would not load it."""
    arguments = draw_label_maps(tmp_path)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', WIDTH * HEIGHT // 3)
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(
        said, f'has {WIDTH} x {HEIGHT} pixels, more than the '
        f'{WIDTH * HEIGHT // 3 * 2} that Pillow loads for mmseg')
    with pytest.raises(Image.DecompressionBombError):
        Image.open(tmp_path / 'masks/train/a.png')


def test_image_above_opencv_limit(tmp_path: Path) -> None:
    file = tmp_path / 'image.png'
    header = struct.pack('>IIBBBBB', 2**16, 2**15, 1, 0, 0, 0, 0)
    file.write_bytes(b'\x89PNG\r\n\x1a\n' + make_png_chunk(b'IHDR', header) +
                     make_png_chunk(b'IDAT'))
    with pytest.raises(OSError, match='more than the 1073741824 that OpenCV decodes'):
        read_image_size(file)


@pytest.mark.parametrize('mode, pixel, expected', [
    ('L', 7, {7}),
    ('1', 1, {1}),
    ('P', 3, {3}),
    ('I;16', 5, {5}),
    ('I', 5, {5}),
    ('F', 2.0, {2}),
    ('I;16', 300, 'labels must be 0 to 255, got 300'),
    ('I', -1, 'labels must be 0 to 255, got -1'),
    ('F', 2.5, 'labels must be integers'),
    ('F', float('nan'), 'labels must be 0 to 255, got nan'),
    ('RGB', (1, 1, 1), 'a label map must have one channel, got 3'),
    ('RGBA', (1, 1, 1, 1), 'a label map must have one channel, got 4'),
    ('LA', (1, 1), 'a label map must have one channel, got 2'),
])
def test_label_map_modes(mode: str, pixel: object, expected: set[int] | str,
                         tmp_path: Path) -> None:
    file = tmp_path / ('a.tif' if mode in 'IF' else 'a.png')
    image = Image.new(mode, (6, 4), pixel)
    if mode == 'P':
        image.putpalette(range(12))
    image.save(file)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            read_label_values(file, (6, 4))
    else:
        assert read_label_values(file, (6, 4)) == expected


def test_first_frame_of_animated_label_map_is_used(tmp_path: Path) -> None:
    frames = [Image.new('L', (6, 4), label) for label in (1, 2)]
    frames[0].save(tmp_path / 'a.png', save_all=True, append_images=frames[1:])
    assert read_label_values(tmp_path / 'a.png', (6, 4)) == {1}


def test_jpeg_label_maps_are_rejected(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path, mask_name='{}.jpg')
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(said, 'is a JPEG, whose compression changes labels')


@given(
    kind=st.sampled_from(FORMATS),
    at=st.integers(0, 400),
    content=st.binary(max_size=6),
    end=st.integers(1, 400))
@example_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings('ignore')
def test_damaged_files_raise_documented_errors(kind: str, at: int, content: bytes, end: int,
                                               tmp_path: Path) -> None:
    """Pillow itself raises SyntaxError, struct.error, zlib.error and others."""
    file = io.BytesIO()
    Image.fromarray(NOISE).save(file, kind)
    damaged = bytearray(file.getvalue())
    damaged[at:at + len(content)] = content
    path = tmp_path / 'image'
    path.write_bytes(damaged[:len(damaged) * end // 400 + 1])
    for read in (read_image_size, lambda path: read_label_values(path, (30, 20))):
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
def test_damaged_label_maps(damage: Callable[[bytes], bytes], tmp_path: Path,
                            run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path)
    mask = tmp_path / 'masks/train/a.png'
    mask.write_bytes(damage(mask.read_bytes()))
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(said, f'{mask} cannot be used')
