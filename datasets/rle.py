"""Run-length encodings (RLE) of masks, as in COCO files.

An RLE is a dict with ``size`` (height, width) and ``counts``, the compressed lengths of runs of
pixels down the columns. ``counts`` are bytes, or a string in JSON.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from pycocotools import mask as coco_mask
from torch import Tensor

MAX_PIXELS = 2**32 - 1  # of a mask, whose runs have lengths of 32 bits


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Return the RLE of a mask ``(H, W)`` of any type, in which 0 is the background."""
    return coco_mask.encode(np.asfortranarray(mask != 0, dtype=np.uint8))


def encode_masks(masks: np.ndarray) -> list[dict[str, Any]]:
    """Return the RLEs of bool masks ``(n, H, W)``: mmdet's ``encode_mask_results``, but faster."""
    size = masks.shape[1], masks.shape[2]
    rles = []
    for mask, covered in zip(masks, masks.any(1), strict=True):
        columns = covered.nonzero()[0]
        left, right = (columns[0], columns[-1] + 1) if len(columns) else (0, 0)
        rows = mask[:, left:right].any(1).nonzero()[0]
        top, bottom = (rows[0], rows[-1] + 1) if len(rows) else (0, 0)
        rles.append(encode_crop(mask[top:bottom, left:right], top, left, size))
    return rles


def encode_crop(crop: np.ndarray, top: int, left: int, size: tuple[int, int]) -> dict[str, Any]:
    """Return the RLE of a mask that is empty outside of a crop, without creating the mask.

    Args:
        crop: Bool array ``(h, w)``.
        top, left: First row and column of the crop in the mask.
        size: Height and width of the mask.
    """
    height, width = size
    # Runs end with the columns of the crop, unless these reach the bottom and continue in the next
    # column. In that case, the columns of the crop are extended to those of the mask.
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
        segmentation: Polygons ``[[x, y, ...], ...]`` or an RLE, also uncompressed. It must have
            been validated, because pycocotools crashes on malformed ones.
        size: Height and width of the image.
    """
    if isinstance(segmentation, list):
        return coco_mask.merge(coco_mask.frPyObjects(segmentation, *size))
    if isinstance(segmentation['counts'], list):
        return coco_mask.frPyObjects(segmentation, *segmentation['size'])
    return segmentation


def merge_rles(rles: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the RLE of the union of masks."""
    return coco_mask.merge(rles)


def decode_rle(rle: dict[str, Any]) -> np.ndarray:
    """Return the bool mask ``(H, W)`` of an RLE."""
    return coco_mask.decode(rle).astype(bool)


def list_runs(rle: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return column, first row, and row after the last of each vertical run of pixels of an object.

    The mask is not decoded, so that it may be as large as the image of a satellite.
    """
    counts = rle['counts']
    codes = np.frombuffer(counts.encode() if isinstance(counts, str) else counts, np.uint8) - 48
    # A number has five bits per character, the lowest first, and a sign; bit 5 is set if another
    # character follows. From the fourth on, it is the difference to the number before the last.
    last = np.flatnonzero(codes & 32 == 0)
    first = np.append(0, last[:-1] + 1)
    shifts = 5 * (np.arange(len(codes)) - np.repeat(first, last - first + 1))
    numbers = np.add.reduceat((codes & 31).astype(np.int64) << shifts, first)
    numbers -= np.where(codes[last] & 16, 1 << (shifts[last] + 5), 0)
    for start in (1, 2):
        numbers[start::2] = numbers[start::2].cumsum()
    edges = numbers.cumsum()
    edges = edges[:len(edges) // 2 * 2].reshape(-1, 2)
    start, end = edges[edges[:, 0] < edges[:, 1]].T
    height = rle['size'][0]
    columns = (end - 1) // height - start // height + 1
    column = np.repeat(start // height - columns.cumsum() + columns, columns)
    column += np.arange(len(column))
    start, end = (np.repeat(each, columns) - column * height for each in (start, end))
    return column, np.maximum(start, 0), np.minimum(end, height)


def get_box(rle: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return left, top, width and height of the object in pixels; zeros if the mask is empty."""
    return tuple(coco_mask.toBbox(rle).tolist())


def get_area(rle: dict[str, Any]) -> float:
    """Return the number of pixels of the object."""
    return float(coco_mask.area(rle))


def make_json_rle(rle: dict[str, Any]) -> dict[str, Any]:
    """Return an RLE that ``json`` can write."""
    counts = rle['counts']
    return dict(
        size=list(map(int, rle['size'])),
        counts=counts.decode() if isinstance(counts, bytes) else counts)


def encode_masks_for(metric: BaseMetric) -> None:
    """Make a COCO metric of mmdet receive encoded masks, which it would encode more slowly."""
    process: Callable[..., None] = metric.process

    def process_encoded(data_batch: Any, data_samples: Sequence[dict]) -> None:
        samples = []
        for sample in data_samples:
            instances = sample.get('pred_instances', {})
            if isinstance(instances.get('masks'), Tensor):
                masks = encode_masks(instances['masks'].detach().cpu().numpy())
                sample = {**sample, 'pred_instances': {**instances, 'masks': masks}}
            samples.append(sample)
        process(data_batch, samples)

    metric.process = process_encoded
