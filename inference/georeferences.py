"""Results in map coordinates for GeoTIFF images: label maps as GeoTIFF, instances as GeoJSON.

The tags are those of OGC GeoTIFF 1.1 (19-008r4).
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from colonnade.common.atomic_files import atomic_write
from colonnade.datasets.rle import list_runs
from colonnade.runtime.bit_depth import DECODER_ERRORS

from .large_tiffs import ORIENTATION, SUFFIXES, UPRIGHT
from .results import Instances, LabelMap

PIXEL_SCALE, TIE_POINTS, MATRIX, KEYS = 33550, 33922, 34264, 34735
DOUBLES, TEXTS = 34736, 34737  # values that keys refer to
TAGS = {PIXEL_SCALE: 'd', TIE_POINTS: 'd', MATRIX: 'd', KEYS: 'H', DOUBLES: 'd', TEXTS: 's'}
MODEL_TYPE, RASTER_TYPE = 1024, 1025  # keys
PROJECTED, GEOGRAPHIC = 1, 2  # values of the model type
CODES = {PROJECTED: 3072, GEOGRAPHIC: 2048}  # key of the EPSG code
PIXEL_IS_POINT = 2
UNKNOWN = (None, 0, 32767)  # undefined and user-defined codes
TILE = (256, 256)  # of written files


@dataclass(frozen=True)
class Georeference:
    """Position of an image on the map.

    Attributes:
        matrix: ``(a, b, c, d, e, f)``: the pixel corner in column ``x`` and row ``y`` is at
            ``(a x + b y + c, d x + e y + f)``.
        epsg: EPSG code of the coordinate system, or None if it has none.
        tags: TIFF tags, as lists of numbers or bytes.
    """
    matrix: tuple[float, ...]
    epsg: int | None
    tags: dict[int, Any]


def read_georeference(path: Path, size: tuple[int, int]) -> Georeference | None:
    """Return the georeference of an image of height and width ``size``; None if it has none.

    Only TIFF files have one that is read. One of control points alone does not count, nor does a
    malformed one.
    """
    from tifffile import TiffFile  # takes 0.2 s
    if path.suffix.lower() not in SUFFIXES:
        return None
    try:
        with TiffFile(path) as tiff:
            page = tiff.pages.first
            values = {tag.code: tag.value for tag in page.tags}
            if (page.imagelength, page.imagewidth) != tuple(size):
                return None
        tags = {code: _to_type(values[code], TAGS[code]) for code in TAGS if code in values}
        keys = {key: value for key, location, _, value in
                np.reshape(tags.get(KEYS, ()), (-1, 4))[1:].tolist()
                if not location}  # yapf: disable
        matrix = _find_matrix(tags, is_point=keys.get(RASTER_TYPE) == PIXEL_IS_POINT)
    except DECODER_ERRORS:
        return None
    if matrix is None or values.get(ORIENTATION, UPRIGHT) != UPRIGHT:
        return None
    models = [keys[MODEL_TYPE]] if MODEL_TYPE in keys else [*CODES]
    epsg = next((keys[CODES[model]] for model in models if CODES.get(model) in keys), None)
    return Georeference(matrix, None if epsg in UNKNOWN else epsg, tags)


def _to_type(value: Any, kind: str) -> Any:
    """Return the value of a tag as numbers or bytes of its type, or raise an error."""
    if kind == 's':
        return value if isinstance(value, bytes) else str.encode(value)
    return np.array(value, np.uint16 if kind == 'H' else float).ravel().tolist()


def _find_matrix(tags: dict[int, Any], *, is_point: bool) -> tuple[float, ...] | None:
    """Return the matrix of a :class:`Georeference`; with ``is_point``, tags mean pixel centers."""
    scale, points, full = (tags.get(code, ()) for code in (PIXEL_SCALE, TIE_POINTS, MATRIX))
    if len(full) == 16:
        a, b, _, c, d, e, _, f = full[:8]
    elif len(scale) >= 2 and len(points) >= 6:
        (a, e), (column, row, _, x, y, _) = scale[:2], points[:6]
        b, c, d, e, f = 0., x - a * column, 0., -e, y + e * row
    else:
        return None
    shift = 0.5 if is_point else 0.
    matrix = a, b, c - shift * (a + b), d, e, f - shift * (d + e)
    return matrix if np.isfinite(matrix).all() and a * e != b * d else None


def write_geotiff(path: Path, result: LabelMap, place: Georeference, first: int = 0) -> None:
    """Write a label map as a GeoTIFF with the palette, or with 16 bits if necessary.

    Args:
        path: ``.tif`` file.
        result: Label map.
        place: Georeference of its image.
        first: Label of the first class.
    """
    from tifffile import imwrite
    image = result.to_image(first)
    colors: dict[str, Any] = dict(photometric='minisblack')
    if image.mode == 'P':
        palette = np.zeros((256, 3), dtype=np.uint16)
        known = np.reshape(image.getpalette() or [], (-1, 3))
        palette[:len(known)] = known * 257
        colors = dict(photometric='palette', colormap=palette.T)
    tags = [(code, TAGS[code], len(value), value, True) for code, value in place.tags.items()]
    with atomic_write(path) as scratch:
        imwrite(
            scratch,
            np.asarray(image),
            compression='zlib',
            tile=TILE,
            metadata=None,
            extratags=tags,
            **colors)


def write_geojson(path: Path, result: Instances, place: Georeference,
                  categories: Sequence[int]) -> None:
    """Write the outlines of instances, along the edges of pixels, as GeoJSON.

    Coordinates are those of the map. GDAL reads their system from ``crs``, as in GeoJSON of 2008,
    where null means unknown. Instances with an empty mask are omitted.

    Args:
        path: ``.geojson`` file.
        result: Instances.
        place: Georeference of their image.
        categories: COCO category ID of each class.
    """
    name = f'urn:ogc:def:crs:EPSG::{place.epsg}'
    crs = None if place.epsg is None else dict(type='name', properties=dict(name=name))
    collection: dict[str, Any] = dict(type='FeatureCollection', crs=crs, features=[])
    a, b, c, d, e, f = place.matrix
    for index, box in enumerate(result.boxes.astype(float)):
        outline = shapely.box(*box) if result.masks is None else trace_mask(result.masks[index])
        if outline.is_empty:
            continue
        moved = shapely.transform(outline, lambda xy: xy @ [[a, d], [b, e]] + [c, f])
        label = result.labels[index]
        properties = {
            'class': result.classes[label],
            'category_id': int(categories[label]),
            'score': round(float(result.scores[index]), 4),
        }
        collection['features'].append(
            dict(
                type='Feature',
                properties=properties,
                geometry=json.loads(shapely.to_geojson(moved))))
    with atomic_write(path) as scratch:
        scratch.write_text(json.dumps(collection), encoding='utf-8')


def trace_mask(rle: dict[str, Any]) -> shapely.Geometry:
    """Return the outline of a mask along the edges of its pixels, with holes."""
    column, top, bottom = list_runs(rle)
    union = shapely.union_all(shapely.box(column, top, column + 1, bottom))
    return union.simplify(0)  # without points on straight lines
