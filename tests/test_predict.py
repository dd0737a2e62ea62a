"""``colonnade predict``: its outputs, and how it resumes."""
from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import tifffile
import torch
from conftest import NO_WORKERS, ROOT
from helpers.random_models import random_checkpoint
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from colonnade.common.errors import FileError
from colonnade.common.locking import lock_folder
from colonnade.inference import video as video_files
from colonnade.inference.resume_log import ResumeLog
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
    """Run the command on a CPU; return the output folder, or match the error."""

    def run(leaf: str, *arguments: Any, status: int = 0, out: str = 'out', error: str = '') -> Path:
        command = ('predict', leaf, weights[leaf], *arguments, '--out', tmp_path / out)
        arguments = () if '--device' in arguments else ('--device', 'cpu')
        if error:
            with pytest.raises((SystemExit, AssertionError), match=error):
                run_tool(*command, *arguments)
        elif status:
            with pytest.raises(SystemExit) as stopped:
                run_tool(*command, *arguments)
            assert stopped.value.code == status
        else:
            run_tool(*command, *arguments)
        return tmp_path / out

    return run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Folder with three images, one of them in a subfolder."""
    folder = tmp_path / 'photos'
    (folder / 'in side').mkdir(parents=True)
    noise = np.random.default_rng(0)
    for name, size in (('a10.png', (30, 40)), ('a9.jpg', (40, 30)), ('in side/ü.jpg', (20, 20))):
        Image.fromarray(noise.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    return folder


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def list_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture
def geotiff(photos: Path) -> Path:
    """One more image in the folder, with a georeference."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    scale, place = (33550, 'd', 3, (10., 10., 0.), True), (33922, 'd', 6, (0., ) * 6, True)
    tifffile.imwrite(photos / 'map.tif', pixels, photometric='rgb', extratags=[scale, place])
    return photos / 'map.tif'


def test_georeferenced_image(predict: Predict, geotiff: Path) -> None:
    out = predict(SEGMENTER, geotiff, '--outputs', 'labels', 'results', '--label-offset', 1)
    labels = tifffile.imread(out / 'georeferenced/map.tif')
    np.testing.assert_array_equal(labels, Image.open(out / 'labels/map.png'))
    assert tifffile.TiffFile(out / 'georeferenced/map.tif').pages.first.tags[33550].value[0] == 10
    results = ('--outputs', 'results', '--threshold', 0.1)
    out = predict(DETECTOR, geotiff, *results, out='instances')
    features = read_json(out / 'georeferenced/map.geojson')['features']
    visible = [entry for entry in read_json(out / 'results.json')
               if entry['score'] >= 0.1 and coco_mask.area(entry['segmentation'])]  # yapf: disable
    assert len(features) == len(visible) > 0


def test_segmenter(predict: Predict, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, find_largest = [], label_maps.find_largest
    monkeypatch.setattr(label_maps, 'find_largest',
                        lambda *args: calls.append(0) or find_largest(*args))
    out = predict(SEGMENTER, photos, '--label-offset', 1)
    assert len(calls) == 3, 'the model is not fused'
    assert list_files(out) == {
        'settings.json', 'finished.jsonl', 'images.json', 'results.json', 'visualizations/a9.jpg',
        'visualizations/a10.jpg', 'visualizations/in side/ü.jpg', 'labels/a9.png', 'labels/a10.png',
        'labels/in side/ü.png'
    }
    content = read_json(out / 'images.json')
    assert [(image['id'], image['file_name'], image['height'], image['width'])
            for image in content['images']] == [(1, 'a9.jpg', 40, 30), (2, 'a10.png', 30, 40),
                                                (3, 'in side/ü.jpg', 20, 20)]
    names = {entry['id']: entry['name'] for entry in content['categories']}
    assert list(names) == [1, 2, 3, 4]
    for image, result in zip(content['images'], read_json(out / 'results.json'), strict=True):
        png = Image.open(out / 'labels' / Path(image['file_name']).with_suffix('.png'))
        assert png.mode == 'P' and png.size == (image['width'], image['height'])
        labels = np.array(png)
        shares = {names[label]: float((labels == label).mean()) for label in np.unique(labels)}
        assert result['image_id'] == image['id'] and result['shares'] == pytest.approx(shares)


def test_detector(predict: Predict, photos: Path) -> None:
    out = predict(DETECTOR, photos / '*.png', photos / 'a9.jpg', '--threshold', 0.8, '--tile-size',
                  32)
    assert not (out / 'labels').exists() and len(list_files(out / 'visualizations')) == 2
    results = COCO(out / 'images.json').loadRes(str(out / 'results.json'))
    assert set(results.getImgIds()) == {1, 2} and results.anns
    for entry in results.anns.values():
        image, = results.loadImgs(entry['image_id'])
        left, top, width, height = entry['bbox']
        assert 0 <= left <= left + width <= image['width'] + 1e-3
        assert 0 <= top <= top + height <= image['height'] + 1e-3
        assert results.annToMask(entry).shape == (image['height'], image['width'])


def test_results_equal_those_of_colonnade_test(run_tool: Callable, real_data: dict[str, Path],
                                               tmp_path: Path) -> None:
    """Entry by entry, with the IDs of the COCO file."""
    leaf, images = 'mask_rcnn/xcit_nano_12_p16_slim_coco', real_data['coco'] / 'val2017'
    checkpoint = random_checkpoint(leaf, tmp_path / 'a.pth')
    run_tool('test', leaf, checkpoint, '--data-root', real_data['coco'], '--work-dir', tmp_path,
             '--cfg-options', *NO_WORKERS[2:], 'test_dataloader.dataset.indices=3',
             f'test_evaluator.outfile_prefix={tmp_path}/a')
    expected = read_json(tmp_path / 'a.segm.json')
    annotations = real_data['coco'] / 'annotations/instances_val2017.json'
    ids = sorted({entry['image_id'] for entry in expected})
    run_tool('predict', leaf, checkpoint, *(images / f'{image_id:012}.jpg' for image_id in ids),
             '--ids-from', annotations, '--out', tmp_path / 'out', '--device', 'cpu')
    results = read_json(tmp_path / 'out/results.json')
    assert len(results) > 50
    texts, expected_texts = (sorted(json.dumps(entry, sort_keys=True) for entry in entries)
                             for entries in (results, expected))  # yapf: disable
    assert texts == expected_texts


def test_label_maps_equal_those_of_colonnade_test(run_tool: Callable, real_data: dict[str, Path],
                                                  tmp_path: Path) -> None:
    leaf = 'sem_fpn/xcit_nano_12_p16_slim_ade20k'
    checkpoint = random_checkpoint(leaf, tmp_path / 'a.pth')
    run_tool('test', leaf, checkpoint, '--data-root', real_data['ade'], '--work-dir', tmp_path,
             '--cfg-options', *NO_WORKERS[2:], 'test_dataloader.dataset.indices=2',
             f'test_evaluator.output_dir={tmp_path}/expected')
    expected = sorted((tmp_path / 'expected').iterdir())
    images = real_data['ade'] / 'images/validation'
    run_tool('predict', leaf, checkpoint, *(images / f'{path.stem}.jpg' for path in expected),
             '--label-offset', 1, '--outputs', 'labels', '--out', tmp_path / 'out', '--device',
             'cpu')
    assert len(expected) == 2
    for path in expected:
        labels = np.array(Image.open(path))
        assert len(np.unique(labels)) > 3
        np.testing.assert_array_equal(Image.open(tmp_path / 'out/labels' / path.name), labels)


def test_resume(predict: Predict, photos: Path, monkeypatch: pytest.MonkeyPatch,
                capsys: pytest.CaptureFixture) -> None:
    expected = predict(DETECTOR, photos, out='expected')
    add = ResumeLog.add

    def stop(log: ResumeLog, record: dict) -> None:
        add(log, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResumeLog, 'add', stop)
        out = predict(DETECTOR, photos, status=130)
    assert '--resume' in capsys.readouterr().err
    assert not (out / 'results.json').exists()
    with (out / 'finished.jsonl').open('a') as file:
        file.write('{"name": "torn')  # kill -9 can leave an incomplete line.
    predict(DETECTOR, photos, error='out already contains predictions: pass --resume')
    for option, message in ((('--threshold', 0.4), 'threshold 0.3, not threshold 0.4'),
                            (('--no-fuse', ), '--fuse, not --no-fuse')):
        predict(DETECTOR, photos, '--resume', *option, error=f'with {message}: choose another')
    predict(DETECTOR, photos, '--resume', '--fuse')  # the default
    assert '1 of 3 inputs already have predictions' in capsys.readouterr().out
    assert list_files(out) == list_files(expected)
    drawing = 'visualizations/a9.jpg'
    for name in ('results.json', 'images.json', drawing, 'visualizations/in side/ü.jpg'):
        assert (out / name).read_bytes() == (expected / name).read_bytes()
    before = (out / drawing).stat().st_mtime_ns
    predict(DETECTOR, photos, '--resume')
    assert (out / drawing).stat().st_mtime_ns == before


@pytest.mark.parametrize('error, message', [
    (OSError(28, 'No space left on device'), 'cannot write to .*out: .* No space left on device'),
    (torch.OutOfMemoryError('CUDA'), 'out of memory on cpu: set a smaller --batch-size'),
])
def test_full_disk_or_memory(error: Exception, message: str, predict: Predict, photos: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(ResumeLog, 'add', fail)
    predict(SEGMENTER, photos, error=f'^predict: .*{message}')


def test_output_folder_in_use(predict: Predict, photos: Path, tmp_path: Path) -> None:
    (tmp_path / 'out').mkdir()
    with lock_folder(tmp_path / 'out', ''):
        predict(SEGMENTER, photos, error='another process writes to .*out: wait until it ends')
    predict(SEGMENTER, photos, out='photos', error='photos contains files other than predictions')


UNUSUAL: dict[str, Callable[[Path], None]] = {
    'gray.png': lambda path: Image.new('L', (30, 20), 99).save(path),
    'deep.png': lambda path: cv2.imwrite(str(path), np.full((20, 30), 40000, dtype=np.uint16)),
    'clear.png': lambda path: Image.new('RGBA', (30, 20), (9, 99, 200, 50)).save(path),
    'indexed.gif': lambda path: Image.new('P', (30, 20), 3).save(path),
    'cmyk.jpg': lambda path: Image.new('CMYK', (30, 20), (9, 99, 200, 50)).save(path),
    'one.png': lambda path: Image.new('RGB', (1, 1)).save(path),
    'long.jpg': lambda path: Image.new('RGB', (5000, 300)).save(path),
    'moving.webp': lambda path: Image.new('RGB', (30, 20)).save(
        path, save_all=True, append_images=[Image.new('RGB', (30, 20), 'red')]),
}  # yapf: disable


def test_unusual_and_unreadable_images(predict: Predict, tmp_path: Path,
                                       capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / 'folder.jpg'
    folder.mkdir()
    for name, save in UNUSUAL.items():
        save(folder / name)
    (folder / 'loop').symlink_to(folder)
    (folder / 'text.jpg').write_text('no image')
    (folder / 'empty.png').touch()
    (folder / 'cut.jpg').write_bytes((folder / 'long.jpg').read_bytes()[:-99])
    (folder / 'gone.jpg').symlink_to(tmp_path / 'nowhere')
    (folder / '.hidden.jpg').touch()
    out = predict(SEGMENTER, folder, status=3)
    assert list_files(out / 'labels') == {f'{Path(name).stem}.png' for name in UNUSUAL}
    for image in read_json(out / 'images.json')['images']:
        labels = Image.open(out / 'labels' / Path(image['file_name']).with_suffix('.png'))
        assert labels.size == (image['width'], image['height'])
    errors = (out / 'errors.txt').read_text().splitlines()
    bad = ['cut.jpg', 'empty.png', 'gone.jpg', 'text.jpg']
    assert [Path(line.split()[0].rstrip(':')).name for line in errors] == bad
    printed = capsys.readouterr().err
    assert 'moving.webp: predicted only the first of 2 frames' in printed
    assert all(f'skipped: {line}' in printed for line in errors)
    assert f'4 of {len(UNUSUAL) + 4} inputs could not be read: {out / "errors.txt"}' in printed
    for name in bad:
        (folder / name).unlink()
    predict(SEGMENTER, folder, '--resume')
    assert not (out / 'errors.txt').exists()


def test_exif_rotation(predict: Predict, photos: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x112] = 6  # rotated by 90 degrees
    rotated = Image.open(photos / 'a10.png').transpose(Image.Transpose.ROTATE_90)
    (tmp_path / 'rotated').mkdir()
    rotated.save(tmp_path / 'rotated/a10.png', exif=exif)
    one = predict(DETECTOR, photos / 'a10.png', out='one')
    other = predict(DETECTOR, tmp_path / 'rotated', out='other')
    for name in ('results.json', 'images.json', 'visualizations/a10.jpg'):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def write_video(path: Path, *, num_frames: int = 5, size: tuple[int, int] = (32, 48)) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 10, size[::-1])
    for index in range(num_frames):
        writer.write(np.full((*size, 3), 40 * index % 256, dtype=np.uint8))
    writer.release()
    return path


def test_videos(predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    videos = (write_video(tmp_path / 'a.avi'), tmp_path / 'broken.mp4', tmp_path / 'text.mp4')
    videos[1].write_bytes(bytes(range(256)))
    videos[2].write_text('a text, which FFmpeg would draw\n' * 40)
    out = predict(SEGMENTER, *videos, '--frame-step', 2, '--outputs', 'visualizations', 'results',
                  'labels', status=3)  # yapf: disable
    printed = capsys.readouterr().err
    for name in ('broken.mp4', 'text.mp4'):
        assert f'{name} is not a readable video' in printed
    video = cv2.VideoCapture(str(out / 'visualizations/a.mp4'))
    assert [
        video.get(key) for key in (cv2.CAP_PROP_FRAME_COUNT, cv2.CAP_PROP_FPS,
                                   cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH)
    ] == [3, 5, 32, 48]
    with av.open(out / 'visualizations/a.mp4') as container:
        stream, = container.streams.video
        assert (stream.codec_context.name, stream.pix_fmt) == ('h264', 'yuv420p')  # for browsers
    lines = [json.loads(line) for line in (out / 'results/a.jsonl').read_text().splitlines()]
    assert [(line['frame'], line['seconds']) for line in lines] == [(0, 0), (2, 0.2), (4, 0.4)]
    assert list_files(out / 'labels') == {f'a.avi/{number:06}.png' for number in (0, 2, 4)}
    assert sum(lines[0]['entries'][0]['shares'].values()) == pytest.approx(1)
    entry, = read_json(out / 'images.json')['videos']
    assert (entry['file_name'], entry['frames'], entry['every']) == ('a.avi', 3, 2)


def test_videos_of_a_detector(predict: Predict, tmp_path: Path) -> None:
    out = predict(DETECTOR, write_video(tmp_path / 'a.avi', num_frames=2), '--outputs', 'results')
    assert list_files(out) == {
        'settings.json', 'finished.jsonl', 'images.json', 'results.json', 'results/a.jsonl'
    }
    first = json.loads((out / 'results/a.jsonl').read_text().splitlines()[0])
    assert {'category_id', 'bbox', 'score', 'segmentation'} == first['entries'][0].keys()


@pytest.mark.skipif(sys.platform == 'darwin', reason='names of files are UTF-8 there')
def test_names_in_other_encodings(predict: Predict, tmp_path: Path, photos: Path) -> None:
    folder = tmp_path / 'named'
    folder.mkdir()
    (photos / 'a9.jpg').rename(folder / 'caf\udce9.jpg')
    write_video(tmp_path / 'a.avi').rename(folder / 'caf\udce9.avi')
    (folder / 'bad\udce9.png').touch()
    out = predict(SEGMENTER, folder, status=3)
    assert list_files(out / 'labels') == {'caf\udce9.jpg.png'}
    assert list_files(out / 'visualizations') == {'caf\udce9.jpg.jpg', 'caf\udce9.avi.mp4'}
    assert r'bad\udce9.png is empty' in (out / 'errors.txt').read_text()


@pytest.mark.parametrize('quarters, cosine, sine', [(1, 0, -1), (2, -1, 0), (3, 0, 1)])
def test_rotated_videos(quarters: int, cosine: int, sine: int, tmp_path: Path) -> None:
    """Phones store the rotation in the header of the track."""
    path = tmp_path / 'a.mp4'
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


def test_other_encoders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Encoders that are missing, or need other hardware, are skipped."""
    monkeypatch.setattr(video_files, 'ENCODERS', {'no_encoder': {}, 'h264_nvenc': {}, 'mpeg4': {}})
    video_files.find_encoder.cache_clear()
    with open_writer(tmp_path / 'a.mp4', (32, 48), 5.) as write:
        write(np.zeros((32, 48, 3), dtype=np.uint8))
    video_files.find_encoder.cache_clear()
    with av.open(tmp_path / 'a.mp4') as container:
        assert container.streams.video[0].codec_context.name == 'mpeg4'


def test_damaged_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / 'a.avi', num_frames=50)
    content = path.read_bytes()
    path.write_bytes(content[:len(content) // 2])
    assert 10 < len(list(open_video(path, 1))) < 50


def test_video_on_a_full_disk(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(FileError, match='File too large'), \
                open_writer(tmp_path / 'a.mp4', (64, 64), 5.) as write:
            for _ in range(50):
                write(noise.integers(0, 255, (64, 64, 3), dtype=np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list_files(tmp_path)


@pytest.mark.parametrize('leaf, arguments, message', [
    (SEGMENTER, ['--threshold', 0.5], '--threshold applies only to detectors, but the model is a'),
    (SEGMENTER, ['--label-offset', 65534], '--label-offset must be at least 0'),
    (DETECTOR, ['--label-offset', 1], '--label-offset applies only to segmenters'),
    (DETECTOR, ['--outputs', 'labels'], '--outputs labels applies only to segmenters'),
    (DETECTOR, ['--threshold', 2], '--threshold must be between 0 and 1, got 2'),
    (DETECTOR, ['--opacity', -1], 'opacity must be between 0 and 1, got -1'),
    (DETECTOR, ['--batch-size', 0], '--batch-size must be at least 1, got 0'),
    (DETECTOR, ['--tile-overlap', 0.5], '--tile-overlap has no effect without --tile-size'),
    (DETECTOR, ['--tile-size', 0], 'the tile size must be at least 1'),
    (DETECTOR, ['--frame-step', 2], '--frame-step applies only to videos'),
    (DETECTOR, ['nowhere'], 'nowhere: no such file or folder'),
    (DETECTOR, ['--device', 'gpu'], 'device gpu cannot be used'),
    (DETECTOR, ['--ids-from', ROOT / 'README.md'], 'README.md is not a JSON file'),
])
def test_invalid_options(leaf: str, arguments: list, message: str, predict: Predict,
                         photos: Path) -> None:
    out = predict(leaf, photos, *arguments, error=f'^predict: .*{message}')
    assert not out.exists()


def test_wrong_positional_arguments(weights: dict[str, Path], run_tool: Callable,
                                    tmp_path: Path) -> None:
    first, second = weights.values()
    with pytest.raises(SystemExit, match='already contains weights: remove .*mask_rcnn.pth'):
        run_tool('predict', first, second, 'images', '--out', tmp_path / 'out')
    run = tmp_path / 'work_dirs/run'
    run.mkdir(parents=True)
    cases = {
        f'no INPUT after .* {first}': [SEGMENTER, first],
        f'no INPUT after {first}': [first],
        f'no INPUT after {run}': [run],
        'no CHECKPOINT and no INPUT after': [SEGMENTER],
        f'no such config file: .*rum; did you mean {run}': [run.with_name('rum'), 'a.jpg'],
        'no file, folder or shipped config has this name': [run / 'a', 'a.jpg'],
    }
    for message, arguments in cases.items():
        with pytest.raises(SystemExit, match=f'^predict: .*{message}'):
            run_tool('predict', *arguments, '--out', tmp_path / 'out')
    with pytest.raises(SystemExit, match=f'no image after {run}: pass image files'):
        run_tool('visualize', run, '--out', tmp_path / 'out')
