"""Fuzzing of images and label maps."""
from __future__ import annotations

import io
import zlib
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
from helpers.fuzzing import attempt, changed_bytes, fuzz, limited
from hypothesis import event, given
from hypothesis import strategies as st
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from colonnade.datasets.validation.image_files import read_image_size, read_label_values
from colonnade.inference.serving.uploads import Limits, UploadError, read_upload
from colonnade.runtime.images import ImageError, num_frames, read_image

pytestmark = pytest.mark.filterwarnings('ignore')  # Pillow warns of damaged tags
WIDTH, HEIGHT = 40, 24
PIXELS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
LABELS = np.resize(np.arange(6, dtype=np.uint8), (HEIGHT, WIDTH))
IMAGE = Image.fromarray(PIXELS)


def encode_image(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def make_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


#: one file per format of datasets and uploads
FILES = dict(
    jpeg=encode_image(IMAGE, 'JPEG'),
    turned=encode_image(IMAGE, 'JPEG', exif=make_exif(6)),
    progressive=encode_image(IMAGE, 'JPEG', progressive=True),
    cmyk=encode_image(IMAGE.convert('CMYK'), 'JPEG'),
    png=encode_image(IMAGE, 'PNG'),
    turned_png=encode_image(IMAGE, 'PNG', exif=make_exif(8)),
    palette=encode_image(IMAGE.quantize(16), 'PNG', transparency=3),
    deep=encode_image(Image.fromarray(LABELS.astype(np.uint16) * 9000), 'PNG'),
    gif=encode_image(IMAGE, 'GIF', save_all=True, append_images=[IMAGE.rotate(180)]),
    webp=encode_image(IMAGE, 'WEBP'),
    tiff=encode_image(IMAGE, 'TIFF', compression='tiff_lzw'),
    bmp=encode_image(IMAGE, 'BMP'),
    ppm=encode_image(IMAGE, 'PPM'))
KINDS = dict(jpeg='jpg', turned='jpg', progressive='jpg', cmyk='jpg', tiff='tif')
SUFFIX = {
    name: KINDS.get(name, 'png' if 'p' in name[:3] or name == 'deep' else name)
    for name in FILES
} | dict(
    ppm='ppm', turned_png='png', bmp='bmp', webp='webp')


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('images')


@st.composite
def images(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw the suffix and the content of a damaged image."""
    name = draw(st.sampled_from(list(FILES)))
    content = draw(changed_bytes(FILES[name], draw(st.integers(1, 4))))
    return SUFFIX[name], fix_checksums(content) if draw(st.booleans()) else content


def fix_checksums(content: bytes) -> bytes:
    """Return a PNG with valid checksums of its chunks; other files are unchanged."""
    data, at = bytearray(content), 8
    while data.startswith(b'\x89PNG') and at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at:at + 4], 'big')
        if end + 4 > len(data):
            break
        data[end:end + 4] = zlib.crc32(data[at + 4:end]).to_bytes(4, 'big')
        at = end + 4
    return bytes(data)


@fuzz(few=100, many=20000)
@given(image=images())
def test_images(image: tuple[str, bytes], folder: Path) -> None:
    """An image is rejected by name or decoded to RGB, equally from a file and its bytes."""
    suffix, content = image
    path = folder / f'changed.{suffix}'
    path.write_bytes(content)
    pixels = attempt(lambda: read_image(path), ImageError, names=str(path))
    same = attempt(lambda: read_image(content), ImageError)
    frames = num_frames(path)
    assert frames >= 1
    assert (pixels is None) == (same is None)
    if pixels is not None and same is not None:
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
        np.testing.assert_array_equal(pixels, same)


@fuzz(few=60, many=8000)
@given(image=images())
def test_uploads(image: tuple[str, bytes]) -> None:
    """An upload is rejected with a status, or is within the limits."""
    limits = Limits(max_bytes=10**6, max_pixels=10**6)
    pixels = attempt(lambda: read_upload(image[1], limits), UploadError)
    if pixels is not None:
        assert pixels.shape[0] * pixels.shape[1] <= limits.max_pixels


@fuzz(few=100, many=20000)
@given(image=images())
def test_image_sizes(image: tuple[str, bytes], folder: Path) -> None:
    """An image is rejected, or mmcv decodes it to the size that was read."""
    suffix, content = image
    path = folder / f'changed.{suffix}'
    path.write_bytes(content)
    size = attempt(lambda: read_image_size(path), OSError)
    if size is None or size[0] * size[1] > 10**7:
        return
    try:
        with limited():
            decoded = mmcv.imfrombytes(content)
    except cv2.error:
        decoded = None
    if decoded is None:
        event('only the header is intact')  # training names the file
    else:
        assert decoded.shape[1::-1] == size


def make_label_files() -> dict[str, bytes]:
    """Return label maps as various programs save them."""
    gray = Image.fromarray(LABELS)
    paletted = gray.copy()
    paletted.putpalette(list(range(256)) * 3)
    return dict(
        gray=encode_image(gray, 'PNG'),
        palette=encode_image(paletted, 'PNG'),
        bits=encode_image(Image.fromarray(LABELS > 2), 'PNG'),
        deep=encode_image(Image.fromarray(LABELS.astype(np.uint16)), 'PNG'),
        tiff=encode_image(gray, 'TIFF'),
        floats=encode_image(Image.fromarray(LABELS.astype(np.float32)), 'TIFF'),
        bmp=encode_image(gray, 'BMP'),
        gif=encode_image(gray, 'GIF'),
        webp=encode_image(gray, 'WEBP', lossless=True),
        colours=encode_image(IMAGE, 'PNG'))


LABEL_FILES = make_label_files()


@fuzz(few=100, many=20000)
@given(draw=st.data())
def test_label_maps(draw: st.DataObject, folder: Path) -> None:
    """A label map is rejected, or mmseg loads the labels that were read."""
    name = draw.draw(st.sampled_from(list(LABEL_FILES)))
    path = folder / f'labels.{name}'
    path.write_bytes(fix_checksums(draw.draw(changed_bytes(LABEL_FILES[name]))))
    labels = attempt(lambda: read_label_values(path, (WIDTH, HEIGHT)))
    if labels is None:
        return
    with limited():
        loaded = LoadAnnotations()(
            dict(seg_map_path=str(path), seg_fields=[], reduce_zero_label=False))
    assert loaded['gt_seg_map'].shape == (HEIGHT, WIDTH)
    assert set(np.unique(loaded['gt_seg_map']).tolist()) == labels
