"""Untrusted images and videos cannot exhaust memory, start programs or read other files."""
from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import mmcv
import numpy as np
import onnx
import pytest
from helpers.exported_by_hand import write_folder
from PIL import Image
from test_predict import SEGMENTER, predict, weights  # noqa: F401, fixtures

from colonnade import runtime
from colonnade.common.hashing import compute_sha256
from colonnade.evaluation.benchmark.measurement import MIB, measure_peak
from colonnade.inference.serving.uploads import Limits, UploadError, read_upload
from colonnade.inference.video import open_video
from colonnade.runtime import ImageError, ModelError, read_image


def make_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack('>I', len(content)) + kind + content + struct.pack(
        '>I', zlib.crc32(kind + content))


def make_png(width: int, height: int, *chunks: bytes) -> bytes:
    """Return a PNG whose header has another size than its pixels."""
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return b''.join((b'\x89PNG\r\n\x1a\n', make_chunk(b'IHDR', head), *chunks,
                     make_chunk(b'IDAT', zlib.compress(bytes(10**6))), make_chunk(b'IEND', b'')))


def make_text_bomb() -> bytes:
    return make_png(1, 1, make_chunk(b'zTXt', b'a\0\0' + zlib.compress(bytes(2**27))))


def make_animation(kind: str) -> bytes:
    """Return an animation of uniform frames."""
    frames = [Image.new('RGB', (200, 150), (n, 0, 0)) for n in range(5)]
    content = io.BytesIO()
    frames[0].save(content, kind, save_all=True, append_images=frames[1:])
    return content.getvalue()


EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%id) (r) file\n'
FILES = {  # name -> content, error
    'PNG bomb': (make_png(50000, 50000), 'has 2,500,000,000 pixels, more than the limit'),
    'PNG with impossible size': (make_png(2**31 - 1, 2**31 - 1), 'pixels, more than the limit'),
    'text in PNG': (make_text_bomb(), 'cannot be decoded: Decompressed data too large'),
    'SVG': (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
            'not a readable image'),
    'HTML': (b'<html><img src="file:///etc/passwd"></html>', 'not a readable image'),
    'EPS': (EPS, 'cannot be decoded: Unable to locate Ghostscript'),
    'GIF without frames': (b'GIF89a\xff\xff\xff\xff\0\0\0;',
                           'cannot be decoded|not a readable image'),
}


@pytest.mark.parametrize('name', FILES)
def test_dangerous_images_are_rejected(name: str, tmp_path: Path) -> None:
    content, says = FILES[name]
    assert len(content) < 200_000
    (tmp_path / 'a.jpg').write_bytes(content)

    def read() -> None:
        with pytest.raises(ImageError, match=f'a.jpg.*({says})'):
            read_image(tmp_path / 'a.jpg')
        with pytest.raises(UploadError):
            read_upload(content, Limits())

    assert measure_peak(read) < 200 * MIB


@pytest.mark.parametrize('kind', ['GIF', 'PNG', 'WEBP'])
def test_only_first_frame_is_decoded(kind: str, tmp_path: Path) -> None:
    (tmp_path / 'a.img').write_bytes(make_animation(kind))
    assert read_image(tmp_path / 'a.img').shape == (150, 200, 3)


def test_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and label maps, which mmseg reads with Pillow, start no program."""
    program, marker = tmp_path / 'bin/gs', tmp_path / 'made'
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ntouch {marker}\n')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', f'{program.parent}:{os.environ["PATH"]}')
    assert subprocess.run(['gs']).returncode == 0 and marker.exists()
    marker.unlink()
    for name in ('a.jpg', 'a.eps', 'a.png'):
        (tmp_path / name).write_bytes(EPS)
        with pytest.raises(ImageError, match='Ghostscript'):
            read_image(tmp_path / name)
        with pytest.raises(OSError, match='Ghostscript'):
            mmcv.imfrombytes(EPS, flag='unchanged', backend='pillow')
        assert cv2.imread(str(tmp_path / name)) is None
    assert not marker.exists()


MEMORY = """
import sys
from mmcv.transforms import LoadImageFromFile
from colonnade.common.process_memory import get_peak_memory
before = get_peak_memory()
try:
    LoadImageFromFile()(dict(img_path=sys.argv[1]))
except Exception as error:
    print(type(error).__name__)
print((get_peak_memory() - before) // 1024)
"""


@pytest.mark.slow
def test_training_rejects_png_bomb(tmp_path: Path) -> None:
    (tmp_path / 'a.png').write_bytes(make_png(50000, 50000))
    done = subprocess.run([sys.executable, '-c', MEMORY, tmp_path / 'a.png'],
                          capture_output=True,
                          text=True)
    *said, growth = done.stdout.split()
    assert said == ['error'], done.stderr
    assert int(growth) < 50_000  # KB


PLAYLISTS = {
    'HLS': '#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n',
    'concatenation': "ffconcat version 1.0\nfile '{}'\n",
}


@pytest.mark.parametrize('kind', PLAYLISTS)
def test_playlists_are_rejected(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    video = cv2.VideoWriter('secret.avi', cv2.VideoWriter_fourcc(*'MJPG'), 5, (32, 32))
    video.write(np.zeros((32, 32, 3), np.uint8))
    video.release()
    assert open_video(Path('secret.avi'), 1).size == (32, 32)
    Path('list.mp4').write_text(PLAYLISTS[kind].format('secret.avi'))
    assert cv2.VideoCapture('list.mp4').read()[0]  # FFmpeg would read it
    with pytest.raises(ImageError, match='list.mp4 is not a readable video'):
        open_video(Path('list.mp4'), 1)


@pytest.mark.parametrize('place', ['../secret.bin', '{}/secret.bin', 'link.bin'])
def test_graphs_with_external_weights(place: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / 'exported')
    (tmp_path / 'secret.bin').write_bytes(bytes(36))
    (folder / 'link.bin').symlink_to(tmp_path / 'secret.bin')
    model = onnx.load(folder / 'model.onnx')
    tensor = model.graph.initializer[0]
    tensor.ClearField('raw_data')
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key='location', value=place.format(tmp_path))
    (folder / 'model.onnx').write_bytes(model.SerializeToString())
    text = (folder / 'model.json').read_text()
    old = text.partition('"sha256": "')[2][:64]
    (folder / 'model.json').write_text(text.replace(old, compute_sha256(folder / 'model.onnx')))
    with pytest.raises(ModelError, match='(?i)external data path'):
        runtime.load(folder)


@pytest.mark.slow
def test_names_with_control_characters(
        predict: Callable,  # noqa: F811
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    """They cannot color the terminal or imitate log lines."""
    folder = tmp_path / 'images'
    folder.mkdir()
    Image.new('RGB', (64, 64)).save(folder / 'good.png')
    (folder / 'a\x1b[2J\x1b[31m\nwritten: all is well\u202egnp.png').write_bytes(b'no image')
    out = predict(SEGMENTER, folder, '--outputs', 'labels', status=3)
    said = capsys.readouterr()
    lines = (out / 'errors.txt').read_text().splitlines()
    for text in (said.out, said.err, *lines):
        assert '\x1b' not in text and '\u202e' not in text
    assert len(lines) == 1 and r'a\x1b[2J\x1b[31m\nwritten: all is well\u202egnp.png' in lines[0]
    assert not any(line.startswith('written: all') for line in said.err.splitlines())
