"""Run-length encodings (RLE) of masks, as COCO files have them.

An RLE is a dict with the ``size`` (height, width) and the compressed ``counts`` of runs of pixels
down the columns. ``counts`` are bytes, or a string in what is written as JSON.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from pycocotools import mask as coco_mask


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Return the RLE of a mask ``(H, W)`` of any type, in which 0 is the background."""
    return coco_mask.encode(np.asfortranarray(mask != 0, dtype=np.uint8))


def encode_masks(masks: np.ndarray) -> list[dict[str, Any]]:
    """Return the same RLEs as mmdet's ``encode_mask_results``, in a third of its time.

    Args:
        masks: ``(n, H, W)``, bool.
    """
    size = masks.shape[1], masks.shape[2]
    codes = []
    for mask, covered in zip(masks, masks.any(1), strict=True):
        columns = covered.nonzero()[0]
        left, right = (columns[0], columns[-1] + 1) if len(columns) else (0, 0)
        rows = mask[:, left:right].any(1).nonzero()[0]
        top, bottom = (rows[0], rows[-1] + 1) if len(rows) else (0, 0)
        codes.append(encode_crop(mask[top:bottom, left:right], top, left, size))
    return codes


def encode_crop(crop: np.ndarray, top: int, left: int, size: tuple[int, int]) -> dict[str, Any]:
    """Return the RLE of a mask that is empty outside of a crop, without creating the whole mask.

    Args:
        crop: ``(h, w)``, bool.
        top: First row of the crop in the mask.
        left: First column of the crop in the mask.
        size: Height and width of the mask.
    """
    height, width = size
    # Runs end with the columns of the crop, unless these reach the bottom and go on in the next
    # column. There, the columns of the crop must be those of the mask.
    above, below = (0, 1) if top + len(crop) < height else (top, 0)
    num_rows = above + len(crop) + below
    pixels = np.zeros(num_rows * crop.shape[1] + 2, bool)
    pixels[1:-1].reshape(crop.shape[1], num_rows)[:, above:above + len(crop)] = crop.T
    column, row = np.divmod((pixels[1:] != pixels[:-1]).nonzero()[0], num_rows)
    edges = (left + column) * height + top - above + row
    if not len(edges) or edges[-1] < height * width:
        edges = np.append(edges, height * width)
    counts = np.diff(edges, prepend=0).tolist()
    return coco_mask.frPyObjects(dict(size=[height, width], counts=counts), height, width)


def encode_segmentation(segmentation: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return the RLE of a segmentation of a COCO file.

    Args:
        segmentation: Polygons ``[[x, y, ...], ...]`` or an RLE, which may be uncompressed. It must
            have been checked, because pycocotools crashes on malformed ones.
        size: Height and width of the image.
    """
    if isinstance(segmentation, list):
        return coco_mask.merge(coco_mask.frPyObjects(segmentation, *size))
    if isinstance(segmentation['counts'], list):
        return coco_mask.frPyObjects(segmentation, *segmentation['size'])
    return segmentation


def merge_rles(codes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the RLE of the union of masks."""
    return coco_mask.merge(codes)


def decode_rle(code: dict[str, Any]) -> np.ndarray:
    """Return the mask of an RLE: ``(H, W)``, bool."""
    return coco_mask.decode(code).astype(bool)


def get_box(code: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return left, top, width and height of the object in pixels; zeros if the mask is empty."""
    return tuple(coco_mask.toBbox(code).tolist())


def get_area(code: dict[str, Any]) -> float:
    """Return the number of pixels of the object."""
    return float(coco_mask.area(code))


def make_json_rle(code: dict[str, Any]) -> dict[str, Any]:
    """Return an RLE of which ``json`` can write both values."""
    counts = code['counts']
    return dict(
        size=list(map(int, code['size'])),
        counts=counts.decode() if isinstance(counts, bytes) else counts)
