"""Maps of trunk and pyramid as colours: their three principal components.

Shapes: ``C`` channels, ``h, w`` a map's height and width.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from ..prediction.model import Model
from .layout import Drawing, Panel, Row
from .options import Options
from .seen import Maps, Seen, maps_of, names_of, stride_of

DEVIATIONS = 2.  # standard deviations to either side of the mean that colours span
LEAST = 1e-12  # share of the first component's variance below which one is rounding


class PrincipalComponents:
    """The three directions of the greatest variance of vectors that come piece by piece.

    The sign of a direction is the one by which its largest entry is positive.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | float = 0.
        self.products: Tensor | float = 0.

    def add(self, vectors: Tensor) -> None:
        """Take account of ``(N, C)``."""
        vectors = vectors.double().cpu()
        self.count += len(vectors)
        self.total = self.total + vectors.sum(0)
        self.products = self.products + vectors.mT @ vectors

    def fit(self) -> Components:
        """The components of all vectors so far."""
        mean = torch.as_tensor(self.total) / self.count
        covariance = torch.as_tensor(self.products) / self.count - mean[:, None] * mean
        variances, vectors = torch.linalg.eigh(covariance)  # from the least to the greatest
        variances, vectors = variances.flip(0).clamp_min(0), vectors.flip(1)
        largest = vectors.abs().argmax(0, keepdim=True)
        vectors = vectors * vectors.gather(0, largest).sign()
        share = variances[:3].sum() / variances.sum().clamp_min(torch.finfo(torch.double).tiny)
        return Components(mean, vectors[:, :3], variances[:3], float(share))


class Components:
    """Principal components, and how they become colours.

    Args:
        mean: ``(C,)``.
        vectors: A component in each column, ``(C, 3)``, fewer for fewer channels.
        variances: ``(3,)``.
        share: Of the whole variance, from 0 to 1.
    """

    def __init__(self, mean: Tensor, vectors: Tensor, variances: Tensor, share: float) -> None:
        self.mean, self.vectors, self.variances, self.share = mean, vectors, variances, share

    def colours(self, values: Tensor) -> np.ndarray:
        """Red, green and blue ``(h, w, 3)`` of a map ``(C, h, w)``, from 0 to 1.

        Gray is the mean, and colours end two standard deviations from it.
        """
        centred = values.double().cpu().permute(1, 2, 0) - self.mean
        spread = self.variances.sqrt()
        known = self.variances > LEAST * self.variances[:1]
        scaled = torch.where(known, centred @ self.vectors / spread.where(known, 1.), 0.)
        colours = torch.full((*values.shape[1:], 3), 0.5, dtype=torch.double)
        colours[..., :scaled.shape[-1]] += scaled / (2 * DEVIATIONS)
        return colours.clamp(0, 1).float().numpy()


def on_image(values: Tensor, seen: Seen, stride: float) -> Tensor:
    """The part ``(C, h, w)`` of a map ``(1, C, h, w)`` that is no padding."""
    height, width = (max(1, -int(-side // stride)) for side in seen.image.shape[:2])
    return values[0, :, :height, :width]


def feature_panels(model: Model, options: Options,
                   images: Callable[[], Iterable[Seen]]) -> Callable[[Seen], Drawing]:
    """What draws the principal components of each tap and each level of the pyramid.

    Components, their signs and colours are those of all images together, each map its own. Equal
    colours of two images are therefore equal features.

    Args:
        model: Whose maps are drawn.
        options: How.
        images: All images of the call.
    """
    patch_size = getattr(model.module.backbone, 'patch_size', None)

    def parts_of(maps: Maps, seen: Seen) -> list[tuple[Tensor, float]]:
        strides = [stride_of(x, seen, patch_size) for x in (*maps.taps, *maps.levels)]
        found = (*maps.taps, *maps.levels)
        return [(on_image(x, seen, s), s) for x, s in zip(found, strides, strict=True)]

    principal: list[PrincipalComponents] = []
    for seen in images():
        parts = parts_of(maps_of(model, seen), seen)
        principal = principal or [PrincipalComponents() for _ in parts]
        for each, (values, _) in zip(principal, parts, strict=True):
            each.add(values.flatten(1).mT)
    components = [each.fit() for each in principal]

    def draw(seen: Seen) -> Drawing:
        maps = maps_of(model, seen)
        panels = [
            Panel(fitted.colours(values), f'{name} · {fitted.share:.0%}', stride)
            for fitted, (values, stride), name in zip(
                components, parts_of(maps, seen), names_of(model, maps), strict=True)
        ]
        taps = len(maps.taps)
        rows = [Row('trunk', panels[:taps]), Row('pyramid', panels[taps:])]
        return Drawing(
            'Features: first three principal components, and their share of the variance',
            seen.image, [row for row in rows if row.panels],
            nearest=options.nearest)

    return draw
