"""Images of any number of bands: reading, pretrained weights, and all commands on such data."""
from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import torch
from helpers.backbones import OURS, tiny
from helpers.synthetic_data import (HEIGHT, SHORT, WIDTH, assert_messages, coco_content,
                                    draw_label_maps, leaf, run_and_get_errors, train_and_test)
from mmengine.config import Config
from PIL import Image
from timm.models._manipulate import adapt_input_conv

from colonnade import load
from colonnade.datasets.bands import LoadBands, measure_bands
from colonnade.datasets.validation.image_files import read_image_size, read_size_of_any
from colonnade.export.features import get_size_limits
from colonnade.export.preprocessing import build_preprocess
from colonnade.inference.packages.package_errors import PackageError
from colonnade.inference.serving.uploads import Limits, read_upload
from colonnade.runtime import load as load_export
from colonnade.runtime.bands import read_bands, to_rgb
from colonnade.runtime.images import ImageError
from colonnade.runtime.metadata import Section
from colonnade.runtime.preprocessing import read_preprocess
from colonnade.runtime.resizing import resize_image
from colonnade.weights import load_weights
from colonnade.weights.state_dicts import WeightsError

NUM_BANDS = 5
BANDS = np.random.default_rng(0).integers(0, 4000, (HEIGHT, WIDTH, NUM_BANDS)).astype(np.uint16)


def write_tiff(path: Path, bands: np.ndarray = BANDS, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, bands, **dict(photometric='minisblack', planarconfig='contig') | options)


@pytest.fixture
def instances(tmp_path: Path) -> list[str | Path]:
    """Arguments of ``create-config`` for COCO files of five-band images."""
    for split, first in (('train', 1), ('val', 100)):
        content = coco_content(first=first)
        for image in content['images']:
            image['file_name'] = f'{image["id"]}.tif'
            write_tiff(tmp_path / split / image['file_name'])
        (tmp_path / f'{split}.json').write_text(json.dumps(content))
    return ['--coco', tmp_path / 'train.json', tmp_path / 'val.json',
            '--images', tmp_path / 'train', tmp_path / 'val']  # yapf: disable


@pytest.fixture
def label_maps(tmp_path: Path) -> list[str | Path]:
    """Arguments of ``create-config`` for label maps of five-band images."""
    arguments = draw_label_maps(tmp_path, image_name='{}.tif')
    for path in (tmp_path / 'images').rglob('*.tif'):
        write_tiff(path)
    return [*arguments, '--classes', 'a', 'b', '--label-zero', 'class']


@pytest.mark.parametrize('options', [
    {},
    dict(bands=BANDS.transpose(2, 0, 1), planarconfig='separate'),
    dict(bands=BANDS.transpose(2, 0, 1), planarconfig=None, metadata=None),
    dict(bands=BANDS.transpose(2, 0, 1), planarconfig=None, bigtiff=True, compression='zlib'),
], ids=['pixels', 'planes', 'pages', 'compressed'])  # yapf: disable
def test_reads_bands_of_tiffs(options: dict, tmp_path: Path) -> None:
    write_tiff(tmp_path / 'a.tif', **options)
    image = read_bands(tmp_path / 'a.tif')
    assert image.dtype == np.float32
    assert np.array_equal(image, BANDS)
    assert np.array_equal(read_bands((tmp_path / 'a.tif').read_bytes()), BANDS)


@pytest.mark.parametrize('nodata, missing', [('-9999', -9999), ('-3.4028234663852886e+38', -3.4e38),
                                             ('nan', np.nan), ('none', 0)])
def test_values_without_data(nodata: str, missing: float, tmp_path: Path) -> None:
    floats = BANDS.astype(np.float32)
    floats[0, 0] = np.finfo(np.float32).min if missing == -3.4e38 else missing
    write_tiff(tmp_path / 'a.tif', floats, extratags=[(42113, 's', 0, nodata, True)])
    image = read_bands(tmp_path / 'a.tif')
    assert not image[0, 0].any() and np.array_equal(image[1:], floats[1:])
    write_tiff(tmp_path / 'c.tif', extratags=[(42113, 'H', 2, (0, 7), True)])  # no text
    assert np.array_equal(read_bands(tmp_path / 'c.tif'), BANDS)
    write_tiff(tmp_path / 'b.tif', extratags=[(42113, 's', 0, str(BANDS[0, 0, 0]), True)])
    assert np.array_equal(
        read_bands(tmp_path / 'b.tif'), np.where(BANDS == BANDS[0, 0, 0], 0, BANDS))


def test_reads_other_types_and_repairs_values(tmp_path: Path) -> None:
    write_tiff(tmp_path / '8.tif', BANDS.astype(np.uint8))
    assert read_bands(tmp_path / '8.tif').dtype == np.uint8
    floats = BANDS.astype(np.float64)
    floats[0, 0] = np.nan, np.inf, -np.inf, 0.5, -1
    write_tiff(tmp_path / 'f.tif', floats)
    assert read_bands(tmp_path / 'f.tif')[0, 0].tolist() == [0, 0, 0, 0.5, -1]
    Image.fromarray(BANDS[..., :4].astype(np.uint8)).save(tmp_path / 'rgba.png')
    assert read_bands(tmp_path / 'rgba.png').shape == (HEIGHT, WIDTH, 4)
    write_tiff(tmp_path / 'gray.tif', BANDS[..., 0])
    assert read_bands(tmp_path / 'gray.tif').shape == (HEIGHT, WIDTH, 1)


def test_reads_a_file_per_band(tmp_path: Path) -> None:
    write_tiff(tmp_path / 'a_B1.tif', BANDS[..., 0])
    write_tiff(tmp_path / 'a_B2.tif', BANDS[::2, ::2, 1])  # of half the resolution
    Image.fromarray(BANDS[..., 2].astype(np.uint8)).save(tmp_path / 'a_B3.png')
    suffixes = ('_B1.tif', '_B2.tif', '_B3.png')
    image = read_bands(tmp_path / 'a_B1.tif', suffixes)
    assert np.array_equal(image[..., 0], BANDS[..., 0])
    assert np.array_equal(image[..., 1], BANDS[::2, ::2, 1].repeat(2, 0).repeat(2, 1))
    assert np.array_equal(image[..., 2], BANDS[..., 2].astype(np.uint8))
    with pytest.raises(ImageError, match='a_B2.tif does not end with _B1.tif'):
        read_bands(tmp_path / 'a_B2.tif', suffixes)
    write_tiff(tmp_path / 'a_B2.tif', BANDS[:7, ::2, 1])
    with pytest.raises(ImageError, match='a_B2.tif has 24 x 7 pixels, which is not an integer'):
        read_bands(tmp_path / 'a_B1.tif', suffixes)
    (tmp_path / 'a_B2.tif').unlink()
    with pytest.raises(ImageError, match='a_B2.tif: no such file'):
        read_bands(tmp_path / 'a_B1.tif', suffixes)
    with pytest.raises(ImageError, match='can only be read from its path'):
        read_bands(b'II*\0', suffixes)


def test_errors_name_file_and_cause(tmp_path: Path) -> None:
    file = tmp_path / 'a.tif'
    Image.fromarray(BANDS[..., :3].astype(np.uint8)).save(file, compression='tiff_lzw')
    with pytest.raises(ImageError, match=r'a.tif cannot be decoded: .*pip install imagecodecs'):
        read_bands(file)
    write_tiff(file)
    with pytest.raises(ImageError, match='a.tif: it has 1,920 pixels, more than the limit of 99'):
        read_bands(file, max_pixels=99)
    with pytest.raises(ImageError, match='a.tif: it has 5 bands, expected 4'):
        LoadBands(num_bands=4).read(file)
    for content in (b'', b'II*\0', file.read_bytes()[:200], b'no image'):
        file.write_bytes(content)
        with pytest.raises(ImageError, match='a.tif'):
            read_bands(file)
    with pytest.raises(ValueError, match='suffixes must be file name endings'):
        LoadBands(num_bands=2, suffixes=['_a.tif', '/../b.tif'])


def test_bands_are_counted_before_decoding() -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((8, 8, 5000), np.uint8), compression='zlib',
                     photometric='minisblack', planarconfig='contig')  # yapf: disable
    with pytest.raises(ImageError, match='it has 5000 bands, expected 5'):
        LoadBands(num_bands=5).read(file.getvalue())
    deep = cv2.imencode('.png', np.full((8, 8, 3), 1000, np.uint16))[1].tobytes()
    with pytest.raises(ImageError, match='it is a 16-bit image in RGB: save it as TIFF'):
        read_bands(deep)


def test_pages_written_apart_are_bands(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / 'a.tif') as file:
        for band in BANDS.transpose(2, 0, 1):
            file.write(band, photometric='minisblack')
    assert np.array_equal(read_bands(tmp_path / 'a.tif'), BANDS)
    assert read_image_size(tmp_path / 'a.tif', num_bands=NUM_BANDS) == (WIDTH, HEIGHT)
    Image.new('P', (8, 6)).save(tmp_path / 'palette.png')
    assert read_bands(tmp_path / 'palette.png').shape == (6, 8, 3)
    assert read_image_size(tmp_path / 'palette.png', num_bands=3) == (8, 6)


def test_sizes_of_rotated_images_for_conversions(tmp_path: Path) -> None:
    """Images without bands have the size that OpenCV decodes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (8, 6)).save(tmp_path / 'a.jpg', exif=exif)
    assert read_size_of_any(tmp_path / 'a.jpg') == (6, 8)
    write_tiff(tmp_path / 'a.tif')
    assert read_size_of_any(tmp_path / 'a.tif') == (WIDTH, HEIGHT)
    (tmp_path / 'b.tif').write_text('no image')
    with pytest.raises(OSError, match='it is not an image'):
        read_size_of_any(tmp_path / 'b.tif')


def test_check_finds_faults(label_maps: list, tmp_path: Path, run_tool: Callable,
                            capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = tmp_path / 'own.py', tmp_path / 'images'
    run_tool('create_config', leaf('sem_fpn'), *label_maps, '--in-channels', NUM_BANDS, '--out',
             config)
    write_tiff(folder / 'train/a.tif', BANDS[..., :4])
    (folder / 'train/b.tif').write_bytes(b'II*\0')
    write_tiff(folder / 'val/a.tif', BANDS[:20])
    with pytest.raises(SystemExit):
        run_tool('check_dataset', config)
    printed = capsys.readouterr().out
    for text in ('train/a.tif has 4 bands, expected 5', 'train/b.tif', 'has 48 x 40 pixels, but'):
        assert text in printed


def test_pictures_of_bands() -> None:
    assert np.array_equal(
        to_rgb(BANDS.astype(np.uint8), (2, 1, 0)),
        BANDS.astype(np.uint8)[..., [2, 1, 0]])
    picture = to_rgb(BANDS[..., :2].astype(np.float32))
    assert picture.dtype == np.uint8
    assert picture.min() == 0 and picture.max() == 255
    assert np.array_equal(picture[..., 1], picture[..., 2])  # the last band again


def test_measures_mean_and_std() -> None:
    images = [BANDS.astype(np.float32), BANDS[:9].astype(np.float32)]
    pixels = np.concatenate([image.reshape(-1, NUM_BANDS) for image in images])
    mean, std = measure_bands(images)
    np.testing.assert_allclose(mean, pixels.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, pixels.std(0), rtol=1e-6)
    assert measure_bands([np.full((2, 2, 1), 7., np.float32)]) == ([7.], [1.])


@pytest.mark.parametrize('before', [(37, 41), (40, 48), (64, 80)])
def test_runtime_resizes_floats_like_opencv(before: tuple[int, int]) -> None:
    image = np.resize(BANDS, (*before, NUM_BANDS)).astype(np.float32)
    expected = cv2.resize(image, (40, 32), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(resize_image(image, (32, 40)), expected, rtol=1e-4, atol=0.02)


@pytest.mark.parametrize('cls', OURS, ids=lambda cls: cls.__name__)
def test_adapts_pretrained_weights(cls: type, tmp_path: Path) -> None:
    pretrained = tiny(cls).eval()
    torch.save(pretrained.state_dict(), tmp_path / 'rgb.pth')
    bands = torch.randn(1, NUM_BANDS, 64, 64)

    repeated = tiny(cls, in_channels=NUM_BANDS)
    load_weights(repeated, tmp_path / 'rgb.pth')
    name, weight = repeated.get_input_weight()
    expected = adapt_input_conv(NUM_BANDS, pretrained.state_dict()[name])
    assert torch.equal(weight, expected)

    placed = tiny(cls, in_channels=NUM_BANDS, rgb_channels=(3, 0, 1)).eval()
    load_weights(placed, tmp_path / 'rgb.pth')
    for ours, theirs in zip(placed(bands), pretrained(bands[:, [3, 0, 1]]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.save(placed.state_dict(), tmp_path / 'five.pth')
    load_weights(tiny(cls, in_channels=NUM_BANDS), tmp_path / 'five.pth')
    with pytest.raises(WeightsError):
        load_weights(tiny(cls, in_channels=4), tmp_path / 'five.pth')
    with pytest.raises(ValueError, match=r'images must have shape \(B, 5, H, W\)'):
        placed(bands[:, :3])


def test_rejects_impossible_channels() -> None:
    with pytest.raises(ValueError, match='rgb_channels has no effect on three channels'):
        tiny(rgb_channels=(2, 1, 0))
    with pytest.raises(ValueError, match='in_channels must be at least 1'):
        tiny(in_channels=0)
    with pytest.raises(ValueError, match='rgb_channels must be three different indices from 0 to'):
        tiny(in_channels=4, rgb_channels=(0, 1, 4))


def test_segmenter(label_maps: list, tmp_path: Path, run_tool: Callable,
                   capsys: pytest.CaptureFixture[str]) -> None:
    """Training, evaluation, prediction, package and export."""
    config, image = tmp_path / 'own.py', tmp_path / 'images/val/a.tif'
    run_tool('create_config', leaf('sem_fpn'), *label_maps, '--in-channels', NUM_BANDS,
             '--rgb-channels', 2, 1, 0, '--out', config)  # yapf: disable
    printed = capsys.readouterr().out
    assert 'mean and std of the 5 bands are those of 2 of 2 training images' in printed
    cfg = Config.fromfile(config)
    np.testing.assert_allclose(cfg.model.data_preprocessor.mean, BANDS.mean((0, 1)), rtol=1e-3)
    assert 'PhotoMetricDistortion' not in str(cfg.train_dataloader.dataset.pipeline)
    run_tool('check_dataset', config)
    assert train_and_test(run_tool, config)['mIoU'] >= 0
    weights = tmp_path / 'run/iter_2.pth'
    model = load(config, weights)
    result = model.predict(image)
    assert result.labels.shape == (HEIGHT, WIDTH)
    assert result.draw().size[0] >= WIDTH
    for source in (BANDS, torch.from_numpy(BANDS.astype(np.float32)).permute(2, 0, 1),
                   image.read_bytes()):  # yapf: disable
        assert np.array_equal(model.predict(source).labels, result.labels)
    with pytest.raises(ImageError, match=r'expected an array of shape \(H, W, 5\)'):
        model.predict(BANDS[..., :3])
    with pytest.raises(ImageError, match='the model reads 5 bands'):
        model.predict(Image.new('RGB', (64, 64)))
    tiled = model.predict(image, tile=32)
    assert tiled.labels.shape == result.labels.shape

    run_tool('package', 'make', weights, '--out', tmp_path / 'package')
    packed = load(tmp_path / 'package')
    assert np.array_equal(packed.predict(image).labels, result.labels)
    preprocess = read_preprocess(
        Section(build_preprocess(model, get_size_limits(model.module)), 'model.json'))
    ready = model.module.data_preprocessor({
        key: [value]
        for key, value in model.prepare(model.bands.read(image)).items()
    })
    np.testing.assert_allclose(
        preprocess(preprocess.read(image)).array, ready['inputs'][0], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_export_and_estimate(label_maps: list, tmp_path: Path, run_tool: Callable) -> None:
    config, image = tmp_path / 'own.py', tmp_path / 'images/val/a.tif'
    run_tool('create_config', leaf('sem_fpn'), *label_maps, '--in-channels', NUM_BANDS, '--out',
             config)
    run_tool('train', config, '--estimate')
    train_and_test(run_tool, config)
    weights = tmp_path / 'run/iter_2.pth'
    labels = load(config, weights).predict(image).labels
    run_tool('export', config, weights, '--out', tmp_path / 'exported')
    exported = load_export(tmp_path / 'exported')
    assert (exported.predict(image).labels == labels).mean() > 0.99
    Image.new('RGB', (64, 64)).save(tmp_path / 'rgb.png')
    with pytest.raises(ImageError, match='rgb.png has 3 bands, expected 5'):
        exported.predict(tmp_path / 'rgb.png')


@pytest.mark.slow
def test_detector(instances: list, tmp_path: Path, run_tool: Callable) -> None:
    """Training, evaluation, browsing and prediction."""
    config = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), *instances, '--in-channels', NUM_BANDS, '--out',
             config)
    assert train_and_test(run_tool, config)['coco/bbox_mAP'] >= -1
    run_tool('browse_dataset', config, '--out', tmp_path / 'page.html')
    assert 'cannot be read' not in (tmp_path / 'page.html').read_text().replace(
        'Files that cannot be read', '')
    for number in (1, 2):
        run_tool('predict', config, tmp_path / 'run/iter_2.pth', tmp_path / 'val', '--max-inputs',
                 number, '--resume', '--out', tmp_path / 'predicted')  # yapf: disable
        assert len(list((tmp_path / 'predicted/visualizations').iterdir())) == number


@pytest.mark.slow
def test_files_of_bands(instances: list, tmp_path: Path, run_tool: Callable) -> None:
    for path in [*(tmp_path / 'train').iterdir(), *(tmp_path / 'val').iterdir()]:
        path.rename(path.with_name(f'{path.stem}_B1.tif'))
        write_tiff(path.with_name(f'{path.stem}_B2.tif'), BANDS[..., 0])
    for split in ('train', 'val'):
        file = tmp_path / f'{split}.json'
        file.write_text(file.read_text().replace('.tif', '_B1.tif'))
    config = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), *instances, '--in-channels', 6,
             '--band-suffixes', '_B1.tif', '_B2.tif', '--out', config)  # yapf: disable
    assert train_and_test(run_tool, config)['coco/bbox_mAP'] >= -1
    run_tool('predict', config, tmp_path / 'run/iter_2.pth', tmp_path / 'val', '--out',
             tmp_path / 'predicted')
    assert len(list((tmp_path / 'predicted/visualizations').iterdir())) == 2
    shards = tmp_path / 'shards'
    run_tool('make_shards', config, shards, '--data-root', tmp_path)
    run_tool('train', config, '--work-dir', tmp_path / 'sharded', '--data-root', shards, *SHORT)
    converted = tmp_path / 'converted.pth'
    run_tool('convert_checkpoint', tmp_path / 'run/iter_2.pth', converted)
    assert torch.load(converted)['state_dict']['backbone.patch_embed.proj.0.0.weight'].shape[1] == 6
    with pytest.raises(SystemExit, match='several files per image, which cannot be uploaded'):
        run_tool('serve', config, tmp_path / 'run/iter_2.pth', '--port', 0)


def test_label_maps_of_files_of_bands(label_maps: list, tmp_path: Path, run_tool: Callable,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / 'images').rglob('*.tif'):
        path.rename(path.with_name(f'{path.stem}_B1.tif'))
        write_tiff(path.with_name(f'{path.stem}_B2.tif'), BANDS[..., 0])
    run_tool('create_config', leaf('sem_fpn'), *label_maps, '--in-channels', 6, '--band-suffixes',
             '_B1.tif', '_B2.tif', '--out', tmp_path / 'own.py')  # yapf: disable
    printed = capsys.readouterr().out
    assert '2 training and 2 validation images' in printed and 'not used' not in printed


@pytest.mark.parametrize('options, message', [
    (['--rgb-channels', 0, 1, 2], '--band-suffixes and --rgb-channels require --in-channels'),
    (['--in-channels', 2, '--rgb-channels', 0, 1, 2], 'rgb_channels must be three different'),
])  # yapf: disable
def test_wrong_options(options: list, message: str, instances: list, tmp_path: Path,
                       run_tool: Callable) -> None:
    with pytest.raises(SystemExit, match=message):
        run_tool('create_config', leaf('mask_rcnn'), *instances, *options, '--out',
                 tmp_path / 'own.py')
    assert not (tmp_path / 'own.py').exists()


def test_other_numbers_of_bands(instances: list, run_tool: Callable) -> None:
    errors = run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances, '--in-channels', 4)
    assert_messages(errors, 'train/1.tif cannot be read: it has 5 bands, expected 4',
                    'val/100.tif cannot be read: it has 5 bands, expected 4')  # yapf: disable


def test_more_bands_are_refused_without_the_option(instances: list, run_tool: Callable) -> None:
    errors = run_and_get_errors(run_tool, leaf('mask_rcnn'), *instances)
    assert_messages(errors, 'it has 5 channels instead of one or three')


def test_mixing_steps_are_refused(instances: list, tmp_path: Path, run_tool: Callable) -> None:
    base = leaf('rtmdet_ins', 'nano_12_p16_slim_shapes')
    cfg = Config.fromfile(base)
    cfg.train_dataloader.dataset.pipeline.insert(2, dict(type='CachedMosaic'))
    cfg.dump(tmp_path / 'mosaic.py')
    with pytest.raises(SystemExit, match='CachedMosaic of the base config supports only RGB'):
        run_tool('create_config', tmp_path / 'mosaic.py', *instances, '--in-channels', NUM_BANDS,
                 '--out', tmp_path / 'own.py')


def test_uploads() -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, BANDS, photometric='minisblack', planarconfig='contig')
    limits, bands = Limits(), LoadBands(num_bands=NUM_BANDS)
    assert np.array_equal(read_upload(file.getvalue(), limits, bands), BANDS)
    with pytest.raises(ValueError, match='the image cannot be used: .* bands, expected 4'):
        read_upload(file.getvalue(), limits, LoadBands(num_bands=4))


@pytest.mark.slow
def test_untrusted_package_cannot_name_other_folders(label_maps: list, tmp_path: Path,
                                                     run_tool: Callable) -> None:
    config = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), *label_maps, '--in-channels', NUM_BANDS, '--out',
             config)
    train_and_test(run_tool, config)
    run_tool('package', 'make', tmp_path / 'run/iter_2.pth', '--out', tmp_path / 'package')
    file = tmp_path / 'package/config.py'
    text = file.read_text().replace('num_bands=5', "num_bands=5, suffixes=['a', '/../b']")
    assert '/../b' in text
    file.write_text(text)
    with pytest.raises(PackageError):
        load(tmp_path / 'package')
