"""Image files of all formats as RGB values."""
from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
import pytest
from conftest import SHARED
from PIL import Image

from colonnade.runtime import images
from colonnade.runtime.images import ImageError, num_frames, read_image

GRADIENT = np.stack(np.meshgrid(np.arange(0, 256, 8), np.arange(0, 256, 16)), -1).astype(np.uint8)
PIXELS = np.dstack([GRADIENT, 255 - GRADIENT[..., :1]])  # (16, 32, 3)
IMAGE = Image.fromarray(PIXELS)
FORMATS = {
    'bmp': ('1', 'L', 'P', 'RGB'),
    'gif': ('1', 'L', 'P'),
    'jpg': ('L', 'RGB', 'YCbCr'),
    'png': ('1', 'L', 'LA', 'P', 'RGB', 'RGBA'),
    'tif': ('1', 'L', 'P', 'RGB'),
    'webp': ('RGB', 'RGBA'),
}


def save_image(path: Path, image: Image.Image = IMAGE, **options: Any) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize('suffix, mode', [(s, mode) for s in FORMATS for mode in FORMATS[s]])
def test_values_equal_mmcv(suffix: str, mode: str, tmp_path: Path) -> None:
    image = IMAGE.convert(mode)
    if mode == 'RGBA':
        image.putalpha(Image.fromarray(GRADIENT[..., 0]))
    path = save_image(tmp_path / f'a.{suffix}', image)
    found = read_image(path)
    assert found.shape == (16, 32, 3) and found.dtype == np.uint8
    expected = mmcv.imread(str(path), channel_order='rgb') if cv2.haveImageReader(str(path)) else \
        np.asarray(Image.open(path).convert('RGB'))  # OpenCV reads GIF since 4.12
    np.testing.assert_array_equal(found, expected)


def test_16_bits_become_8(tmp_path: Path) -> None:
    deep = PIXELS.astype(np.uint16) * 256 + 200
    for name, values in (('gray.png', deep[..., 0]), ('gray.tif', deep[..., 0]),
                         ('color.png', deep[..., ::-1]), ('color.tif', deep[..., ::-1])):
        cv2.imwrite(str(tmp_path / name), values)
        wanted = PIXELS if 'color' in name else np.repeat(PIXELS[..., :1], 3, axis=2)
        np.testing.assert_array_equal(read_image(tmp_path / name), wanted, name)
    (tmp_path / 'a.pgm').write_bytes(b'P5 2 1 65535 \x00\xff\x80\x00')
    assert read_image(tmp_path / 'a.pgm')[0, :, 0].tolist() == [0, 128]


def test_values_of_unknown_range_are_rejected(tmp_path: Path) -> None:
    wide = save_image(tmp_path / 'wide.tif',
                      Image.fromarray(np.array([[0, 70000]], dtype=np.int32)))
    with pytest.raises(ImageError, match='wide.tif: its values are signed'):
        read_image(wide)
    real = save_image(tmp_path / 'real.tif', Image.fromarray(np.array([[0.5]], dtype=np.float32)))
    with pytest.raises(ImageError, match='real.tif: its values are floating-point numbers'):
        read_image(real)


def test_cmyk_and_transparent_palettes(tmp_path: Path) -> None:
    inks = save_image(tmp_path / 'a.jpg', IMAGE.convert('CMYK'), quality=100)
    assert np.abs(read_image(inks).astype(int) - PIXELS).max() <= 4
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        colors = save_image(tmp_path / 'a.png', IMAGE.convert('P'), transparency=bytes(range(256)))
        np.testing.assert_array_equal(
            read_image(colors), np.array(IMAGE.convert('P').convert('RGB')))


ROTATIONS = {  # EXIF orientation -> rotation of the stored array
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90,
}


@pytest.mark.parametrize('orientation', ROTATIONS)
@pytest.mark.parametrize('suffix', ['jpg', 'png', 'tif', 'webp'])
def test_exif_orientation_is_applied(orientation: int, suffix: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x112] = orientation
    path = save_image(tmp_path / f'a.{suffix}', exif=exif)
    found = read_image(path)
    assert found.shape[:2] == ((16, 32) if orientation < 5 else (32, 16))
    if suffix != 'webp':  # rotated by OpenCV since 4.12
        np.testing.assert_array_equal(found, mmcv.imread(str(path), channel_order='rgb'))
    if suffix != 'tif':  # rotated by Pillow while decoding
        with Image.open(path) as image:
            stored = np.asarray(image.convert('RGB'))
        np.testing.assert_array_equal(found, ROTATIONS[orientation](stored))


@pytest.mark.parametrize('suffix', ['jpg', 'png', 'webp'])
@pytest.mark.parametrize('exif', [b'Exif\0\0nonsense', b'Exif\0\0II*\0', b'?'])
@pytest.mark.filterwarnings('ignore:Corrupt EXIF')
def test_damaged_exif_is_ignored(suffix: str, exif: bytes, tmp_path: Path) -> None:
    assert read_image(save_image(tmp_path / f'a.{suffix}', exif=exif)).shape == (16, 32, 3)


def test_first_frame_is_read(tmp_path: Path) -> None:
    frames = [IMAGE.rotate(180 * index) for index in range(3)]
    for suffix, exact in (('gif', False), ('webp', True), ('tif', True), ('png', True)):
        path = save_image(tmp_path / f'a.{suffix}', frames[0], save_all=True, lossless=True,
                          append_images=frames[1:])  # yapf: disable
        assert num_frames(path) == 3
        if exact:
            np.testing.assert_array_equal(read_image(path), PIXELS)
    assert num_frames(save_image(tmp_path / 'a.jpg')) == 1
    whole = (tmp_path / 'a.gif').read_bytes()
    for length in range(len(whole) // 2, len(whole), 7):  # damaged after the first frame
        (tmp_path / 'a.gif').write_bytes(whole[:length])
        assert read_image(tmp_path / 'a.gif').shape == (16, 32, 3)
        assert num_frames(tmp_path / 'a.gif') in (1, 2, 3)


def test_source_types(tmp_path: Path) -> None:
    path = save_image(tmp_path / 'a.png')
    content = path.read_bytes()
    with path.open('rb') as file:
        sources = [path, str(path), content, io.BytesIO(content), file, IMAGE, PIXELS]
        for source in sources:
            np.testing.assert_array_equal(read_image(source), PIXELS)


@pytest.mark.parametrize('name, content, says', [
    ('text.jpg', b'no image', 'text.jpg is not a readable image'),
    ('empty.png', b'', 'empty.png is empty: 0 bytes'),
    ('cut.jpg', None, 'cut.jpg cannot be decoded: .*truncated'),
    ('a\0b.jpg', None, 'cannot be decoded: embedded null'),
])
def test_invalid_files(name: str, content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if '\0' not in name:
        path.write_bytes(
            save_image(tmp_path / 'a.jpg').read_bytes()[:-60] if content is None else content)
    with pytest.raises(ImageError, match=says):
        read_image(path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match='a.jpg: no such file'):
        read_image(tmp_path / 'a.jpg')
    with pytest.raises(ImageError, match=f'{tmp_path} is a folder'):
        read_image(tmp_path)


@pytest.mark.parametrize('shape, kind', [((4, 4), np.uint8), ((4, 4, 4), np.uint8),
                                         ((4, 4, 3), np.float32), ((0, 4, 3), np.uint8)])
def test_invalid_arrays(shape: tuple[int, ...], kind: type) -> None:
    with pytest.raises(ImageError, match=r'uint8 array of RGB values \(H, W, 3\), got'):
        read_image(np.zeros(shape, dtype=kind))


def test_huge_images_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_image(tmp_path / 'a.png')
    assert images.MAX_PIXELS == 2 * Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings(
            'ignore', category=Image.DecompressionBombWarning)  # as in colonnade
        monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 300)
        assert read_image(path).shape == (16, 32, 3)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 200)
    with pytest.raises(ImageError, match='a.png has 512 pixels, more than the limit of 178'):
        read_image(path)
    assert read_image(path, max_pixels=2**30).shape == (16, 32, 3)
    assert Image.MAX_IMAGE_PIXELS == 200


@pytest.mark.skipif(not SHARED.is_dir(), reason='no sample images')
def test_real_images_equal_mmcv() -> None:
    paths = sorted(SHARED.glob('data/*/*/*.jpg'))[:12] + sorted(SHARED.glob('data/*/*/*/*.jpg'))[:6]
    assert paths
    for path in paths:
        np.testing.assert_array_equal(
            read_image(path), mmcv.imread(str(path), channel_order='rgb'), str(path))
