"""Panoptic segmentation from queries: Mask2Former, EoMT and PMT, by the steps of mmdet.

Shapes: ``K`` classes, ``Q`` queries, ``h, w`` predicted masks, ``H, W`` the image.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .metadata import Section
from .one_stage import apply_matrices, build_mask_matrices
from .preprocessing import PreparedImage
from .segmentation import Run, sigmoid


@dataclass(frozen=True)
class PanopticFusion:
    """Fusion of queries: each pixel belongs to the query with the largest score times mask."""
    num_classes: int
    num_things: int  # classes of objects, which precede the others
    min_score: float  # queries with a higher score take part
    min_fraction: float  # of a query's mask that must belong to it
    is_filtered: bool  # whether pixels below a probability of 0.5 belong to no segment
    mask_stride: float | None  # stride of masks in whole patches

    def __call__(self, image: PreparedImage, run: Run) -> np.ndarray:
        """Return the codes of segments ``(H, W)``, int64, see :func:`.number_segments`.

        Args:
            image: Prepared image.
            run: Function from ``(1, 3, H, W)`` to probabilities ``(1, Q, K + 1)`` and mask logits
                ``(1, Q, h, w)``.
        """
        probabilities, logits = (output[0] for output in run(image.array[None]))
        scores, labels = probabilities.max(1), probabilities.argmax(1)
        matrices = build_mask_matrices(logits.shape[1:], image, self.mask_stride)
        largest = np.full(image.size, -1, np.float32)
        owners, is_inside = np.full(image.size, -1), np.zeros(image.size, bool)
        areas = {}  # of the masks of queries
        for query in np.flatnonzero((labels < self.num_classes) & (scores > self.min_score)):
            mask = sigmoid(apply_matrices(logits[query], matrices))
            values, inside = scores[query] * mask, mask >= 0.5
            is_larger = values > largest
            owners[is_larger], largest[is_larger] = query, values[is_larger]
            is_inside[is_larger] = inside[is_larger]
            areas[query] = inside.sum()
        codes, num_objects = np.full(image.size, self.num_classes), 0
        for query, area in areas.items():
            owned = owners == query
            num_owned = owned.sum()
            if not (num_owned and area) or num_owned / area < self.min_fraction:
                continue
            is_thing = labels[query] < self.num_things
            num_objects += is_thing
            code = labels[query] + 1000 * num_objects * is_thing
            codes[owned & is_inside if self.is_filtered else owned] = code
        return codes


def read_panoptic(section: Section, num_classes: int) -> PanopticFusion:
    """Read the fusion of queries from ``model.json``."""
    section.get_choice('kind', 'panoptic_queries')
    return PanopticFusion(
        num_classes=num_classes,
        num_things=section.get_int('num_things'),
        min_score=section.get_float('least_score'),
        min_fraction=section.get_float('least_fraction'),
        is_filtered=section.get_bool('filter_low_score'),
        mask_stride=section.get_float('mask_stride', None))
