"""TIFF images that are decoded to a temporary file."""
from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import tifffile

from colonnade.inference import large_tiffs
from colonnade.inference.large_tiffs import decode_to_disk
from colonnade.runtime.images import ImageError, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
ALPHA = np.concatenate([PIXELS, PIXELS[..., :1]], axis=2)
TILED = dict(tile=(16, 16), compression='zlib')
LIMIT = 2**30


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(large_tiffs, 'MAX_PIXELS', 37 * 53 - 1)
    return tmp_path / 'a.tif'


def get_file(values: np.ndarray | None) -> np.memmap:
    """Return the array on the disk that holds the values of a view."""
    while not isinstance(values, np.memmap):
        assert isinstance(values, np.ndarray)
        values = values.base
    return values


@pytest.mark.parametrize('values, options', [
    (PIXELS, dict(photometric='rgb')),
    (PIXELS, dict(photometric='rgb', **TILED)),
    (PIXELS.transpose(2, 0, 1), dict(photometric='rgb', planarconfig='separate')),
    (PIXELS[..., 0], dict(photometric='minisblack', **TILED)),
], ids=['pixels', 'tiles', 'planes', 'gray'])  # yapf: disable
def test_values(path: Path, values: np.ndarray, options: dict) -> None:
    tifffile.imwrite(path, values, **options)
    decoded = decode_to_disk(path, LIMIT)
    assert get_file(decoded).shape[:2] in ((37, 53), (3, 37))
    np.testing.assert_array_equal(decoded, read_image(path))


@pytest.mark.parametrize('values, options', [
    (PIXELS.astype(np.uint16), dict(photometric='rgb')),
    (PIXELS[..., 0], dict(photometric='miniswhite')),
    (PIXELS, dict(photometric='ycbcr', compression='zlib')),
    (PIXELS, dict(photometric='minisblack', planarconfig='contig')),
    (np.stack([PIXELS[..., 0]] * 4), dict(photometric='minisblack', volumetric=True)),
    (ALPHA, dict(photometric='rgb', extrasamples=['unassalpha'])),
    (PIXELS, dict(photometric='rgb', extratags=[(274, 'H', 1, 6, True)])),
    (PIXELS[1:], dict(photometric='rgb')),
], ids=['16 bits', 'inverted', 'YCbCr', 'channels', 'volume', 'alpha', 'rotated',
        'small'])  # yapf: disable
def test_other_images_are_read_into_memory(path: Path, values: np.ndarray, options: dict) -> None:
    tifffile.imwrite(path, values, **options)
    assert decode_to_disk(path, LIMIT) is None


def test_other_files(path: Path) -> None:
    assert decode_to_disk(PIXELS, LIMIT) is None
    assert decode_to_disk('a.png', LIMIT) is None
    path.write_bytes(b'II*\0')
    assert decode_to_disk(path, LIMIT) is None
    assert decode_to_disk('missing.tif', LIMIT) is None


def test_damaged_file(path: Path) -> None:
    tifffile.imwrite(path, PIXELS, photometric='rgb', **TILED)
    content = bytearray(path.read_bytes())
    content[-300:] = bytes(300)
    path.write_bytes(content)
    assert decode_to_disk(path, LIMIT) is None
    with pytest.raises(ImageError, match='a.tif cannot be decoded'):
        decode_to_disk(path, 1000)


def test_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(path, PIXELS, photometric='rgb')
    usage = namedtuple('Usage', 'free')
    monkeypatch.setattr(shutil, 'disk_usage', lambda _: usage(free=PIXELS.nbytes - 1))
    assert decode_to_disk(path, LIMIT) is None
    with pytest.raises(ImageError, match='a.tif needs 0 GB of disk, but .* set TMPDIR'):
        decode_to_disk(path, 1000)


@pytest.mark.slow
def test_images_above_the_limit_of_pillow(tmp_path: Path) -> None:
    """In 8 bits by the file, in 16 bits by Pillow, which also has a limit when it decodes."""
    side, path = 13_400, tmp_path / 'a.tif'
    tifffile.imwrite(path, np.zeros((side, side), np.uint8), photometric='minisblack')
    assert decode_to_disk(path, LIMIT).shape == (side, side, 3)
    tifffile.imwrite(path, np.full((side, side), 30_000, np.uint16), photometric='minisblack')
    assert decode_to_disk(path, LIMIT) is None
    assert read_image(path, max_pixels=LIMIT).shape == (side, side, 3)
