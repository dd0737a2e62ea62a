"""GeoTIFF images: label maps and instances in map coordinates."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import tifffile

from colonnade.datasets.rle import encode_mask, list_runs
from colonnade.inference.georeferences import (Georeference, read_georeference, trace_mask,
                                               write_geojson, write_geotiff)
from colonnade.inference.results import Instances, LabelMap

HEIGHT, WIDTH = 40, 60
SCALE = (33550, 'd', 3, (10., 20., 0.), True)  # meters per pixel
TIE_POINT = (33922, 'd', 6, (2., 1., 0., 500_000., 4_000_000., 0.), True)
ROTATED = (34264, 'd', 16, (0., 2., 0., 7., 2., 0., 0., 9., 0., 0., 0., 0., 0., 0., 0., 1.), True)
CITATION = (34737, 's', 0, 'UTM zone 33N|', True)
SHAPES = [(60, 40, 1), (1, 1, 30), (30, 80, 2), (4, 4, 4)]


def make_keys(**values: int) -> tuple[int, str, int, tuple[int, ...], bool]:
    codes = dict(model=1024, raster=1025, geographic=2048, projected=3072)
    entries = [entry for name, value in values.items() for entry in (codes[name], 0, 1, value)]
    entries += [1026, 34737, 13, 0]  # refers to the citation
    return 34735, 'H', 4 + len(entries), (1, 1, 0, len(entries) // 4, *entries), True


def write_image(path: Path, *tags: Any, **options: Any) -> Path:
    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    extra = {tag[0]: tag for tag in (CITATION, *tags)}
    tifffile.imwrite(path, pixels, photometric='rgb', extratags=[*extra.values()], **options)
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return write_image(tmp_path / 'a.tif', SCALE, TIE_POINT, make_keys(projected=32633))


def read(path: Path) -> Georeference:
    place = read_georeference(path, (HEIGHT, WIDTH))
    assert place is not None
    return place


def test_scale_and_tie_point(image: Path) -> None:
    place = read(image)
    assert place.epsg == 32633
    assert place.matrix == (10, 0, 499_980, 0, -20, 4_000_020)


def test_several_tie_points(image: Path, tmp_path: Path) -> None:
    """With a scale, the first one counts, as in GDAL."""
    points = (33922, 'd', 12, (*TIE_POINT[3], 60., 40., 0., 7., 7., 0.), True)
    place = read(write_image(tmp_path / 'b.tif', SCALE, points, make_keys(projected=0)))
    assert (place.matrix, place.epsg) == (read(image).matrix, None)


def test_pixel_centers(tmp_path: Path) -> None:
    """The tie point is the center of its pixel."""
    keys = make_keys(model=2, raster=2, geographic=4326)
    place = read(write_image(tmp_path / 'a.tif', SCALE, TIE_POINT, keys))
    assert place.epsg == 4326
    assert place.matrix == (10, 0, 499_975, 0, -20, 4_000_030)


def test_system_without_model_type(tmp_path: Path) -> None:
    assert read(write_image(tmp_path / 'a.tif', SCALE, TIE_POINT,
                            make_keys(geographic=4326))).epsg == 4326


def test_matrix(tmp_path: Path) -> None:
    place = read(write_image(tmp_path / 'a.tif', ROTATED, make_keys(projected=32767)))
    assert place.epsg is None
    assert place.matrix == (0, 2, 7, 2, 0, 9)


def test_projection_without_code(tmp_path: Path) -> None:
    """The code is that of its geographic system, in which its coordinates are not."""
    keys = make_keys(model=1, geographic=4326)
    path = write_image(tmp_path / 'a.tif', SCALE, TIE_POINT, keys)
    assert read(path).epsg is None
    write_geojson(tmp_path / 'a.geojson', make_instances(masks=False), read(path), (1, 2))
    assert json.loads((tmp_path / 'a.geojson').read_text())['crs'] is None


@pytest.mark.parametrize('tags', [
    [SCALE, TIE_POINT, (34735, 'H', 5, (1, 1, 0, 1, 7), True)],
    [(33550, 'd', 1, (10., ), True), TIE_POINT],
    [(33550, 'd', 3, (float('nan'), 1., 0.), True), TIE_POINT],
    [(33550, 'd', 3, (0., 1., 0.), True), TIE_POINT],
    [(33922, 'd', 12, (0., ) * 12, True)],
    [SCALE, TIE_POINT, (34735, 'I', 8, (1, 1, 0, 1, 3072, 0, 1, 70_000), True)],
    [SCALE, TIE_POINT, (34736, 's', 0, 'a', True)],
    [SCALE, TIE_POINT, (34737, 'H', 2, (1, 2), True)],
], ids=['keys', 'one scale', 'NaN', 'zero', 'control points', 'types', 'text',
        'numbers'])  # yapf: disable
def test_malformed_georeferences(tags: list, tmp_path: Path) -> None:
    assert read_georeference(write_image(tmp_path / 'a.tif', *tags), (HEIGHT, WIDTH)) is None


def test_images_without_georeference(image: Path, tmp_path: Path) -> None:
    size = (HEIGHT, WIDTH)
    assert read_georeference(write_image(tmp_path / 'plain.tif'), size) is None
    assert read_georeference(write_image(tmp_path / 'scale.tif', SCALE), size) is None
    assert read_georeference(image, (HEIGHT, WIDTH - 1)) is None
    (tmp_path / 'b.tif').write_bytes(image.read_bytes()[:100])
    assert read_georeference(tmp_path / 'b.tif', size) is None
    turned = (274, 'H', 1, 6, True)
    tags = SCALE, TIE_POINT, make_keys(projected=32633), turned
    assert read_georeference(write_image(tmp_path / 'c.tif', *tags), size) is None


@pytest.mark.parametrize('num_classes, first', [(3, 0), (3, 1), (300, 0)])
def test_label_map(num_classes: int, first: int, image: Path, tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, num_classes, (HEIGHT, WIDTH)).astype(np.uint16)
    palette = tuple((i % 256, 0, 255) for i in range(num_classes))
    names = tuple(map(str, range(num_classes)))
    result = LabelMap(size=labels.shape, labels=labels, classes=names, palette=palette)
    path = tmp_path / 'out/a.tif'
    write_geotiff(path, result, read(image), first)
    assert read(path) == read(image)
    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages.first
        assert page.compression.name == 'ADOBE_DEFLATE' and page.is_tiled
        assert page.dtype == (np.uint8 if num_classes < 256 else np.uint16)
        np.testing.assert_array_equal(page.asarray(), labels + first)
        assert page.tags[34737].value.rstrip('\0') == CITATION[3]
        if num_classes < 256:
            np.testing.assert_array_equal(page.colormap[:, first:first + num_classes],
                                          257 * np.array(palette).T)


def test_other_tags_are_kept(tmp_path: Path) -> None:
    """A single parameter, and text that is not ASCII, which some programs write."""
    tags = (34736, 'd', 1, (6378137., ), True), (34737, 's', 0, 'Gauß-Krüger|'.encode(), True)
    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    tags = *tags, SCALE, TIE_POINT, make_keys(projected=31467)
    tifffile.imwrite(tmp_path / 'a.tif', pixels, photometric='rgb', extratags=tags)
    result = LabelMap(pixels.shape[:2], ('a', ), ((0, 0, 0), ), pixels[..., 0])
    write_geotiff(tmp_path / 'b.tif', result, read(tmp_path / 'a.tif'))
    assert read(tmp_path / 'b.tif').tags == read(tmp_path / 'a.tif').tags


def make_instances(masks: bool) -> Instances:
    mask = np.zeros((HEIGHT, WIDTH), dtype=bool)
    mask[10:20, 30:50], mask[12:14, 35:40] = True, False
    rles = tuple(map(encode_mask, (mask, np.zeros_like(mask)))) if masks else None
    return Instances(
        size=mask.shape,
        boxes=np.array([[30, 10, 50, 20], [0, 0, 1, 1]], dtype=np.float32),
        scores=np.array([0.9, 0.1], dtype=np.float32),
        labels=np.array([1, 0]),
        masks=rles,
        classes=('tree', 'roof'),
        palette=((0, 0, 0), ) * 2)


def test_instances(image: Path, tmp_path: Path) -> None:
    path = tmp_path / 'out/a.geojson'
    write_geojson(path, make_instances(masks=True), read(image), (5, 7))
    content = json.loads(path.read_text())
    assert content['crs']['properties']['name'] == 'urn:ogc:def:crs:EPSG::32633'
    feature, = content['features']  # the other mask is empty
    assert feature['properties'] == {'class': 'roof', 'category_id': 7, 'score': 0.9}
    outline = shapely.from_geojson(json.dumps(feature['geometry']))
    assert outline.bounds == (500_280, 3_999_620, 500_480, 3_999_820)
    assert outline.area == 190 * 10 * 20 and len(outline.interiors) == 1
    write_geojson(path, make_instances(masks=False), read(image), (5, 7))
    roof, tree = json.loads(path.read_text())['features']
    assert shapely.from_geojson(json.dumps(roof['geometry'])).area == 200 * 10 * 20
    assert tree['properties']['class'] == 'tree'


@pytest.mark.parametrize('density', [0, 0.02, 0.3, 0.98, 1])
def test_runs_and_outlines(density: float) -> None:
    rng = np.random.default_rng(0)
    for height, width, factor in SHAPES:
        mask = np.kron(rng.random((height, width)) < density, np.ones(
            (factor, factor))).astype(bool)
        rle, drawn = encode_mask(mask), np.zeros_like(mask)
        for column, top, bottom in zip(*list_runs(rle), strict=True):
            assert not drawn[top:bottom, column].any()
            drawn[top:bottom, column] = True
        np.testing.assert_array_equal(drawn, mask)
        assert trace_mask(rle).area == mask.sum()
