"""Images with other bit depths and channels: training and prediction see the same, or reject."""
from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
from helpers.synthetic_data import (assert_messages, draw_instances, draw_label_maps, leaf,
                                    run_and_get_errors)
from PIL import Image

from colonnade.datasets.bit_depth import ImageDepths
from colonnade.datasets.formats.data_format import find_files
from colonnade.datasets.validation.image_files import read_image_size
from colonnade.inference.inputs import walk
from colonnade.runtime.images import SUFFIXES, ImageError, read_image

tifffile = pytest.importorskip('tifffile')  # dependency of supervision and scikit-image
RANDOM = np.random.default_rng(0)
SIZE = (32, 40)  # height, width; JPEG 2000 needs 32


def draw(kind: type, channels: tuple[int, ...] = (), highest: int | None = None) -> np.ndarray:
    top = highest or np.iinfo(kind).max
    found = RANDOM.integers(0, top, (*SIZE, *channels), dtype=kind, endpoint=True)
    found.flat[0] = top
    return found


def write_tiff(path: Path,
               array: np.ndarray,
               colors: str = 'minisblack',
               **options: object) -> Path:
    planes = 'contig' if array.ndim == 3 else None
    tifffile.imwrite(path, array, photometric=colors, planarconfig=planes, **options)
    return path


READABLE = {  # name -> how it is written, a part of the warning
    'gray.png': (lambda path: cv2.imwrite(path, draw(np.uint8)), None),
    'palette.png': (lambda path: Image.fromarray(draw(np.uint8)).convert('P').save(path), None),
    'bits.tif': (lambda path: Image.fromarray(draw(np.uint8) > 99).save(path), None),
    'alpha.png': (lambda path: cv2.imwrite(path, draw(np.uint8, (4, ))), 'alpha'),
    'gray_alpha.png': (lambda path: Image.fromarray(draw(np.uint8, (2, ))).save(path),
                       'alpha'),
    'near_infrared.tif': (lambda path: write_tiff(path, draw(np.uint8, (4, )), 'rgb',
                                                  extrasamples=['unspecified']), 'extra channel'),
    'deep.png': (lambda path: cv2.imwrite(path, draw(np.uint16)), '16 bits'),
    'deep.tif': (lambda path: cv2.imwrite(path, draw(np.uint16)), '16 bits'),
    'deep.pgm': (lambda path: cv2.imwrite(path, draw(np.uint16)), '16 bits'),
    'deep_colors.png': (lambda path: cv2.imwrite(path, draw(np.uint16, (3, ))), '16 bits'),
    'small.jp2': (lambda path: cv2.imwrite(path, draw(np.uint8, (3, ))), None),
    'pages.tif': (lambda path: tifffile.imwrite(path, draw(np.uint8, (4, )).transpose(2, 0, 1),
                                                photometric='minisblack'), 'several pages'),
}  # yapf: disable


@pytest.mark.parametrize('name', READABLE)
def test_training_and_prediction_see_the_same(name: str, tmp_path: Path) -> None:
    path, depths = tmp_path / name, ImageDepths()
    write, remark = READABLE[name]
    write(str(path))
    assert read_image_size(path, depths) == SIZE[::-1]
    np.testing.assert_array_equal(read_image(path), mmcv.imread(str(path), channel_order='rgb'))
    assert depths.find_errors() == []
    assert bool(depths.find_warnings()) == bool(remark)
    assert_messages(depths.find_warnings(), *filter(None, [remark]))
    assert all(str(path) in said for said in depths.find_warnings())


def test_16_bit_tiff_colors_differ_by_rounding(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / 'a.tif'), draw(np.uint16, (3, )))
    seen = mmcv.imread(str(tmp_path / 'a.tif'), channel_order='rgb')
    assert np.abs(read_image(tmp_path / 'a.tif') - seen.astype(int)).max() <= 1


REJECTED = {  # name -> array, error
    'two.tif': (draw(np.uint8, (2, )), 'it has 2 channels'),
    'four.tif': (draw(np.uint8, (4, )), 'it has 4 channels'),
    'four_deep.tif': (draw(np.uint16, (4, )), 'it has 4 channels'),
    'thirteen.tif': (draw(np.uint16, (13, )), 'it has 13 channels'),
    'real.tif': (RANDOM.random(SIZE).astype(np.float32), 'floating-point numbers'),
    'double.tif': (RANDOM.random(SIZE), 'floating-point numbers'),
    'signed.tif': (draw(np.int16), 'are signed'),
    'wide.tif': (draw(np.uint32), 'instead of 8 or 16'),
}


@pytest.mark.parametrize('name', REJECTED)
def test_unsupported_images_are_rejected(name: str, tmp_path: Path) -> None:
    """The validation and prediction have the same message."""
    for big in (False, True):
        path = write_tiff(tmp_path / name, REJECTED[name][0], bigtiff=big)
        with pytest.raises(OSError, match=REJECTED[name][1]):
            read_image_size(path)
        for source in (path, path.read_bytes()):
            with pytest.raises(ImageError, match=REJECTED[name][1]):
                read_image(source)


DECODED_DIFFERENTLY = {  # by OpenCV and Pillow: name -> how it is written, error
    'alpha.tif': (lambda path: write_tiff(path, draw(np.uint8, (4, )), 'rgb'), 'is transparency'),
    'deep_alpha.tif': (lambda path: write_tiff(path, draw(np.uint16, (4, )), 'rgb'),
                       'is transparency'),
    'premultiplied.tif': (lambda path: write_tiff(path, draw(np.uint8, (4, )), 'rgb',
                                                  extrasamples=['assocalpha']), 'is transparency'),
    'pillow.tif': (lambda path: Image.fromarray(draw(np.uint8, (4, ))).save(path),
                   'is transparency'),
    'planes.tif': (lambda path: tifffile.imwrite(path, draw(np.uint16, (3, )).transpose(2, 0, 1),
                                                 photometric='rgb', planarconfig='separate'),
                   'channels of 16 bits are stored separately'),
    'inverted.tif': (lambda path: write_tiff(path, draw(np.uint16), 'miniswhite'), 'are inverted'),
    'lab.tif': (lambda path: Image.fromarray(draw(np.uint8, (3, ))).convert('LAB').save(path),
                'is not supported'),
    'ycbcr.tif': (lambda path: Image.fromarray(draw(np.uint8, (3, ))).convert('YCbCr').save(path),
                  'is not supported'),
    'deep.jp2': (lambda path: cv2.imwrite(path, draw(np.uint16, (), 4095)),
                 'a JPEG 2000 of 16 bits'),
    'deep_colors.jp2': (lambda path: cv2.imwrite(path, draw(np.uint16, (3, ))),
                        'a JPEG 2000 of 16 bits'),
    'short.pgm': (lambda path: Path(path).write_bytes(b'P5 2 1 100 \x00\x64'), 'value is 100'),
    'real.pfm': (lambda path: cv2.imwrite(path, RANDOM.random(SIZE).astype(np.float32)),
                 'floating-point numbers'),
}  # yapf: disable


@pytest.mark.parametrize('name', DECODED_DIFFERENTLY)
def test_images_decoded_differently_are_rejected(name: str, tmp_path: Path) -> None:
    write, says = DECODED_DIFFERENTLY[name]
    write(str(tmp_path / name))
    with pytest.raises(OSError, match=says):
        read_image_size(tmp_path / name)
    with pytest.raises(ImageError, match=says):
        read_image(tmp_path / name)


def test_dark_images_are_reported(tmp_path: Path) -> None:
    """They are reported next to one with the full range; a black image does not count."""
    depths = ImageDepths()
    for name, highest in (('whole', 65535), ('dark', 4095), ('dim', 9000), ('black', 0)):
        pixels = draw(np.uint16, (), highest) if highest else np.zeros(SIZE, np.uint16)
        cv2.imwrite(str(tmp_path / f'{name}.png'), pixels)
        read_image_size(tmp_path / f'{name}.png', depths)
    error, = depths.find_errors()
    assert error.startswith(f'1 images have 16-bit values of at most 4095: {tmp_path}')
    assert 'dark.png' in error
    assert_messages(depths.find_warnings(), '3 images have 16 bits')


@pytest.mark.parametrize('highest, suffix, channels', [(255, 'png', ()), (4095, 'png', (3, )),
                                                       (4095, 'tif', ()), (255, 'tif', (3, ))])
def test_12_bits_in_16_bit_files(highest: int, suffix: str, channels: tuple[int, ...],
                                 tmp_path: Path) -> None:
    """They would be black; the code in the message fixes them."""
    old, new = (tmp_path / f'{name}.{suffix}' for name in ('old', 'new'))
    cv2.imwrite(str(old), draw(np.uint16, channels, highest))
    depths = ImageDepths()
    read_image_size(old, depths)
    error, = depths.find_errors()
    assert f'at most {highest}: ' in error and f'sees the upper 8 bits, 0 to {highest >> 8}' in \
        error
    with pytest.raises(ImageError, match='the image would be black'):
        read_image(old)
    code = error[error.index('cv2.imwrite'):].partition('), using')[0] + ')'
    code = code.replace('old.png', str(old)).replace('new.png', str(new))
    exec(code, dict(cv2=cv2))
    assert read_image(new).max() == 255
    cv2.imwrite(str(old), draw(np.uint16, channels))  # one image of the whole range: all count
    read_image_size(old, depths)
    assert depths.find_errors() == []


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_bit_depth_errors_of_datasets(head: str, tmp_path: Path, run_tool: Callable) -> None:
    write = draw_instances if head == 'mask_rcnn' else draw_label_maps
    arguments = write(tmp_path)
    for path in sorted(tmp_path.rglob('*.jpg')):
        size = cv2.imread(str(path)).shape[:2]
        content = cv2.imencode('.png', np.full(size, 4000, np.uint16))[1]
        path.write_bytes(content.tobytes())
    said = run_and_get_errors(run_tool, leaf(head), *arguments)
    assert_messages(said, '4 images have 16-bit values of at most 4000')
    write_tiff(path, RANDOM.random(size).astype(np.float32))
    said = run_and_get_errors(run_tool, leaf(head), *arguments)
    assert_messages(said, 'cannot be read: its values are floating-point numbers')


def test_only_chunk_headers_of_png_are_read(tmp_path: Path) -> None:
    """This also holds for truncated files."""
    pixels = draw(np.uint8, (3, )).repeat(20, 0).repeat(20, 1)
    Image.fromarray(pixels).save(tmp_path / 'plain.png')
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / 'turned.png', exif=exif)
    assert read_image_size(tmp_path / 'plain.png') == pixels.shape[1::-1]
    assert read_image_size(tmp_path / 'turned.png') == pixels.shape[:2]
    content = (tmp_path / 'plain.png').read_bytes()
    (tmp_path / 'cut.png').write_bytes(content[:1000])
    assert read_image_size(tmp_path / 'cut.png') == pixels.shape[1::-1]
    (tmp_path / 'sparse.png').write_bytes(content[:60])
    with (tmp_path / 'sparse.png').open('r+b') as file:  # a chunk of 2 GB, of which nothing is read
        file.seek(33)
        file.write((2**31 - 1).to_bytes(4, 'big') + b'IDAT')
        file.truncate(2**31 + 100)
    tracemalloc.start()
    assert read_image_size(tmp_path / 'sparse.png') == pixels.shape[1::-1]
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize('suffix', SUFFIXES)
def test_training_and_prediction_find_same_files(suffix: str, tmp_path: Path) -> None:
    """Training rejects those that OpenCV does not decode."""
    path = tmp_path / f'a{suffix}'
    Image.fromarray(draw(np.uint8, (3, ))).save(path)
    assert read_image(path).shape == (*SIZE, 3)
    assert find_files(tmp_path, SUFFIXES) == [path] == list(walk(tmp_path, tmp_path / 'out'))
    if suffix in ('.avif', '.gif'):
        with pytest.raises(OSError, match='cannot decode (AVIF|GIF): save it as JPEG or PNG'):
            read_image_size(path)
    else:
        assert read_image_size(path) == SIZE[::-1]
