"""``tools/predict.py``: what it writes, and how it goes on where it stopped."""
from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conftest import ROOT
from helpers.random_models import random_checkpoint
from PIL import Image
from pycocotools.coco import COCO

from colonnade.common.errors import FileError
from colonnade.common.locking import lock_folder
from colonnade.inference.resume_log import Records
from colonnade.inference.video import open_video, open_writer
from colonnade.models.fusion import label_maps

SEGMENTER = 'sem_fpn/xcit_nano_12_p16_slim_shapes'
DETECTOR = 'mask_rcnn/xcit_nano_12_p16_slim_shapes'
Predict = Callable[..., Path]


@pytest.fixture(scope='module')
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('weights')
    return {leaf: random_checkpoint(leaf, folder / f'{leaf.partition("/")[0]}.pth')
            for leaf in (SEGMENTER, DETECTOR)}  # yapf: disable


@pytest.fixture
def predict(run_tool: Callable, weights: dict[str, Path], tmp_path: Path) -> Predict:
    """Run the tool on a CPU, with status 0 or another; returns the folder that it writes."""

    def run(leaf: str, *arguments: Any, status: int = 0, out: str = 'out') -> Path:
        command = ['predict', leaf, weights[leaf], *arguments, '--out', tmp_path / out]
        if status:
            with pytest.raises(SystemExit) as stopped:
                run_tool(*command, '--device', 'cpu')
            assert stopped.value.code == status
        else:
            run_tool(*command, '--device', 'cpu')
        return tmp_path / out

    return run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images, two of them in a folder below."""
    folder = tmp_path / 'photos'
    (folder / 'in side').mkdir(parents=True)
    noise = np.random.default_rng(0)
    for name, size in (('a10.png', (30, 40)), ('a9.jpg', (40, 30)), ('in side/ü.jpg', (20, 20))):
        Image.fromarray(noise.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


def test_a_segmenter(predict: Predict, photos: Path, capsys: pytest.CaptureFixture,
                     monkeypatch: pytest.MonkeyPatch) -> None:
    spared, largest = [], label_maps.largest
    monkeypatch.setattr(label_maps, 'largest', lambda *args: spared.append(0) or largest(*args))
    out = predict(SEGMENTER, photos, '--first-label', 1)
    assert len(spared) == 3
    assert files_in(out) == {
        'settings.json', 'finished.jsonl', 'images.json', 'results.json', 'pictures/a9.jpg',
        'pictures/a10.jpg', 'pictures/in side/ü.jpg', 'labels/a9.png', 'labels/a10.png',
        'labels/in side/ü.png'
    }
    about = read(out / 'images.json')
    assert [(image['id'], image['file_name'], image['height'], image['width'])
            for image in about['images']] == [(1, 'a9.jpg', 40, 30), (2, 'a10.png', 30, 40),
                                              (3, 'in side/ü.jpg', 20, 20)]
    assert [entry['id'] for entry in about['categories']] == [1, 2, 3, 4]
    names = {entry['id']: entry['name'] for entry in about['categories']}
    for image, result in zip(about['images'], read(out / 'results.json'), strict=True):
        labels = Image.open(out / 'labels' / Path(image['file_name']).with_suffix('.png'))
        assert labels.mode == 'P' and labels.size == (image['width'], image['height'])
        found = np.array(labels)
        shares = {names[label]: float((found == label).mean()) for label in np.unique(found)}
        assert result['image_id'] == image['id'] and result['shares'] == pytest.approx(shares)
    assert 'written: ' in capsys.readouterr().out


def test_a_detector(predict: Predict, photos: Path) -> None:
    out = predict(DETECTOR, photos / '*.png', photos / 'a9.jpg', '--threshold', 0.8, '--tile', 32)
    assert not (out / 'labels').exists() and len(files_in(out / 'pictures')) == 2
    found = COCO(out / 'images.json').loadRes(str(out / 'results.json'))
    assert set(found.getImgIds()) == {1, 2} and found.anns
    for entry in found.anns.values():
        image, = found.loadImgs(entry['image_id'])
        left, top, width, height = entry['bbox']
        assert 0 <= left <= left + width <= image['width'] + 1e-3
        assert 0 <= top <= top + height <= image['height'] + 1e-3
        assert found.annToMask(entry).shape == (image['height'], image['width'])


def test_it_goes_on_where_it_was_stopped(predict: Predict, photos: Path,
                                         monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture) -> None:
    whole = predict(DETECTOR, photos, out='whole')
    add = Records.add

    def stop(records: Records, record: dict) -> None:
        add(records, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Records, 'add', stop)
        out = predict(DETECTOR, photos, status=130)
    assert 'the same command with --resume goes on' in capsys.readouterr().err
    assert not (out / 'results.json').exists()
    with (out / 'finished.jsonl').open('a') as file:
        file.write('{"name": "torn')  # as kill -9 may leave it
    message = f'predict: {out} holds predictions: --resume goes on with them, or name another --out'
    predict(DETECTOR, photos, status=message)  # type: ignore[arg-type]
    for option, says in ((('--threshold', 0.4), 'threshold 0.3, and now it is threshold 0.4'),
                         (('--no-fuse', ), '--fuse, and now it is --no-fuse')):
        with pytest.raises(AssertionError, match=f'with {says}: name another'):
            predict(DETECTOR, photos, '--resume', *option, status=1)
    predict(DETECTOR, photos, '--resume', '--fuse')  # as by default
    assert '1 of 3 are finished' in capsys.readouterr().out
    assert files_in(out) == files_in(whole)
    for name in ('results.json', 'images.json', 'pictures/a9.jpg', 'pictures/in side/ü.jpg'):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    before = (out / 'pictures/a9.jpg').stat().st_mtime_ns
    predict(DETECTOR, photos, '--resume')  # nothing is left
    assert (out / 'pictures/a9.jpg').stat().st_mtime_ns == before


@pytest.mark.parametrize('error, says', [
    (OSError(28, 'No space left on device'), 'out cannot be written: .* No space left on device'),
    (torch.OutOfMemoryError('CUDA'), 'the memory of cpu is full: set a smaller --batch-size'),
])
def test_shortages(error: Exception, says: str, weights: dict[str, Path], photos: Path,
                   run_tool: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Records, 'add', fail)
    with pytest.raises(SystemExit, match=f'^predict: .*{says}'):
        run_tool('predict', SEGMENTER, weights[SEGMENTER], photos, '--out', tmp_path / 'out')


def test_two_processes_do_not_write_to_a_folder(predict: Predict, photos: Path,
                                                tmp_path: Path) -> None:
    (tmp_path / 'out').mkdir()
    with lock_folder(tmp_path / 'out', ''):
        with pytest.raises(AssertionError, match='another process writes to .*out: wait for its'):
            predict(SEGMENTER, photos, status=1)


AWKWARD: dict[str, Callable[[Path], None]] = {
    'gray.png': lambda path: Image.new('L', (30, 20), 99).save(path),
    'deep.png': lambda path: cv2.imwrite(str(path), np.full((20, 30), 40000, dtype=np.uint16)),
    'clear.png': lambda path: Image.new('RGBA', (30, 20), (9, 99, 200, 50)).save(path),
    'indexed.gif': lambda path: Image.new('P', (30, 20), 3).save(path),
    'inks.jpg': lambda path: Image.new('CMYK', (30, 20), (9, 99, 200, 50)).save(path),
    'one.png': lambda path: Image.new('RGB', (1, 1)).save(path),
    'long.jpg': lambda path: Image.new('RGB', (5000, 300)).save(path),
    'moving.webp': lambda path: Image.new('RGB', (30, 20)).save(
        path, save_all=True, append_images=[Image.new('RGB', (30, 20), 'red')]),
}  # yapf: disable


def test_awkward_images(predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / 'folder.jpg'
    folder.mkdir()
    for name, save in AWKWARD.items():
        save(folder / name)
    (folder / 'loop').symlink_to(folder)
    (folder / 'text.jpg').write_text('no image')
    (folder / 'empty.png').touch()
    (folder / 'cut.jpg').write_bytes((folder / 'long.jpg').read_bytes()[:-99])
    (folder / 'gone.jpg').symlink_to(tmp_path / 'nowhere')
    (folder / '.hidden.jpg').touch()
    out = predict(SEGMENTER, folder, status=3)
    assert files_in(out / 'labels') == {f'{Path(name).stem}.png' for name in AWKWARD}
    for image in read(out / 'images.json')['images']:
        labels = Image.open(out / 'labels' / Path(image['file_name']).with_suffix('.png'))
        assert labels.size == (image['width'], image['height'])
    errors = (out / 'errors.txt').read_text().splitlines()
    bad = ('cut.jpg', 'empty.png', 'gone.jpg', 'text.jpg')
    assert [Path(line.split()[0].rstrip(':')).name for line in errors] == list(bad)
    shown = capsys.readouterr().err
    assert 'moving.webp: the first of 2 frames' in shown
    assert all(f'skipped: {line}' in shown for line in errors)
    assert f'4 of {len(AWKWARD) + 4} inputs could not be read: {out / "errors.txt"}' in shown
    for name in bad:
        (folder / name).unlink()
    predict(SEGMENTER, folder, '--resume')
    assert not (out / 'errors.txt').exists()


def test_an_image_that_is_to_be_turned(predict: Predict, photos: Path, tmp_path: Path) -> None:
    """Boxes, masks and picture are those of the turned image."""
    upright = Image.open(photos / 'a10.png')
    exif = Image.Exif()
    exif[0x112] = 6  # turned right by a quarter
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    (tmp_path / 'turned').mkdir()
    turned.save(tmp_path / 'turned/a10.png', exif=exif)
    one = predict(DETECTOR, photos / 'a10.png', out='one')
    other = predict(DETECTOR, tmp_path / 'turned', out='other')
    for name in ('results.json', 'images.json', 'pictures/a10.jpg'):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def film(path: Path, *, num_frames: int = 5, size: tuple[int, int] = (32, 48)) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 10, size[::-1])
    for index in range(num_frames):
        writer.write(np.full((*size, 3), 40 * index % 256, dtype=np.uint8))
    writer.release()
    return path


def test_videos(predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = film(tmp_path / 'film.avi')
    (tmp_path / 'broken.mp4').write_bytes(bytes(range(256)))
    (tmp_path / 'text.mp4').write_text('a text, which FFmpeg would draw\n' * 40)
    films = (path, tmp_path / 'broken.mp4', tmp_path / 'text.mp4')
    out = predict(SEGMENTER, *films, '--every', 2, '--outputs', 'pictures', 'results', 'labels',
                  status=3)  # yapf: disable
    said = capsys.readouterr().err
    for name in ('broken.mp4', 'text.mp4'):
        assert f'{name} is no video that can be read' in said
    shown = cv2.VideoCapture(str(out / 'pictures/film.mp4'))
    about = [
        shown.get(key) for key in (cv2.CAP_PROP_FRAME_COUNT, cv2.CAP_PROP_FPS,
                                   cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH)
    ]
    assert about == [3, 5, 32, 48]
    lines = [json.loads(line) for line in (out / 'results/film.jsonl').read_text().splitlines()]
    assert [(line['frame'], line['seconds']) for line in lines] == [(0, 0), (2, 0.2), (4, 0.4)]
    assert files_in(out / 'labels') == {f'film.avi/{number:06}.png' for number in (0, 2, 4)}
    assert sum(lines[0]['entries'][0]['shares'].values()) == pytest.approx(1)
    entry, = read(out / 'images.json')['videos']
    assert (entry['file_name'], entry['frames'], entry['every']) == ('film.avi', 3, 2)


@pytest.mark.skipif(sys.platform == 'darwin', reason='names of files are UTF-8 there')
def test_names_in_other_encodings(predict: Predict, tmp_path: Path, photos: Path) -> None:
    folder = tmp_path / 'named'
    folder.mkdir()
    (photos / 'a9.jpg').rename(folder / 'caf\udce9.jpg')
    film(tmp_path / 'film.avi').rename(folder / 'caf\udce9.avi')
    (folder / 'bad\udce9.png').touch()
    out = predict(SEGMENTER, folder, status=3)
    assert files_in(out / 'labels') == {'caf\udce9.jpg.png'}
    assert files_in(out / 'pictures') == {'caf\udce9.jpg.jpg', 'caf\udce9.avi.mp4'}
    assert r'bad\udce9.png is empty' in (out / 'errors.txt').read_text()


@pytest.mark.parametrize('quarters, cosine, sine', [(1, 0, -1), (2, -1, 0), (3, 0, 1)])
def test_rotated_videos(quarters: int, cosine: int, sine: int, tmp_path: Path) -> None:
    """Phones write videos as the sensor sees them, with a rotation in the header of the track."""
    path = tmp_path / 'film.mp4'
    with open_writer(path, (32, 48), 5.) as write:
        write(np.arange(32 * 48 * 3, dtype=np.uint8).reshape(32, 48, 3))
    frame, = open_video(path, 1)
    content = path.read_bytes()
    start = content.index(b'tkhd') + 44
    matrix = [65536 * value for value in (cosine, -sine, 0, sine, cosine, 0)]
    path.write_bytes(content[:start] + struct.pack('>6i', *matrix) + content[start + 24:])
    video = open_video(path, 1)
    rotated, = video
    np.testing.assert_array_equal(rotated, np.rot90(frame, -quarters))
    assert video.size == rotated.shape[:2]


def test_damaged_videos(tmp_path: Path) -> None:
    path = film(tmp_path / 'film.avi', num_frames=50)
    content = path.read_bytes()
    path.write_bytes(content[:len(content) // 2])
    assert 10 < len(list(open_video(path, 1))) < 50


def test_videos_on_a_full_disk(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(FileError, match='File too large'), \
                open_writer(tmp_path / 'film.mp4', (64, 64), 5.) as write:
            for _ in range(50):
                write(noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not files_in(tmp_path)


def test_videos_of_a_detector(predict: Predict, tmp_path: Path) -> None:
    out = predict(DETECTOR, film(tmp_path / 'film.avi', num_frames=2), '--outputs', 'results')
    assert files_in(out) == {
        'settings.json', 'finished.jsonl', 'images.json', 'results.json', 'results/film.jsonl'
    }
    first = json.loads((out / 'results/film.jsonl').read_text().splitlines()[0])
    assert {'category_id', 'bbox', 'score', 'segmentation'} == first['entries'][0].keys()


@pytest.mark.parametrize('leaf, arguments, says', [
    (SEGMENTER, ['--threshold', 0.5], '--threshold is of a detector'),
    (SEGMENTER, ['--first-label', 65534], '--first-label is from 0 on'),
    (DETECTOR, ['--first-label', 1], '--first-label is of a segmenter'),
    (DETECTOR, ['--outputs', 'labels'], '--outputs labels is of a segmenter'),
    (DETECTOR, ['--threshold', 2], '--threshold is from 0 to 1, got 2'),
    (DETECTOR, ['--opacity', -1], 'opacity is from 0 to 1, got -1'),
    (DETECTOR, ['--batch-size', 0], '--batch-size must be at least 1, got 0'),
    (DETECTOR, ['--overlap', 0.5], '--overlap is of tiles: it needs --tile'),
    (DETECTOR, ['--tile', 0], 'a tile has at least one pixel'),
    (DETECTOR, ['--every', 2], '--every is of videos, and there are none'),
    (DETECTOR, ['nowhere'], 'nowhere: no such file or folder'),
    (DETECTOR, ['--device', 'gpu'], 'device gpu cannot be used'),
    (DETECTOR, ['--annotations', ROOT / 'README.md'], 'README.md is no JSON file'),
])
def test_what_it_refuses(leaf: str, arguments: list, says: str, weights: dict[str, Path],
                         photos: Path, run_tool: Callable, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f'^predict: .*{says}'):
        run_tool('predict', leaf, weights[leaf], photos, *arguments, '--out', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_two_sets_of_weights(weights: dict[str, Path], run_tool: Callable, tmp_path: Path) -> None:
    first, second = weights.values()
    with pytest.raises(SystemExit, match='has weights of its own: leave out .*mask_rcnn.pth'):
        run_tool('predict', first, second, 'images', '--out', tmp_path / 'out')
    with pytest.raises(SystemExit, match='no INPUT behind'):
        run_tool('predict', SEGMENTER, first, '--out', tmp_path / 'out')


def test_folders_of_others_are_not_written_to(predict: Predict, photos: Path) -> None:
    with pytest.raises(AssertionError, match='photos holds other files than predictions'):
        predict(SEGMENTER, photos, out='photos', status=1)
