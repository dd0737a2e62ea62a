"""Feature maps of backbone and pyramid as colors: their three principal components.

Shapes: ``C`` channels, ``h, w`` a map's height and width.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from colonnade.inference.model import Model

from .activations import Seen, compute_maps, named_maps
from .attention import Draw, Images
from .figure_options import Options
from .layout import Drawing, Panel, PanelRow

DEVIATIONS = 2.  # standard deviations to either side of the mean that colors span
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
        """Add vectors ``(N, C)``."""
        vectors = vectors.double().cpu()
        self.count += len(vectors)
        self.total = self.total + vectors.sum(0)
        self.products = self.products + vectors.mT @ vectors

    def fit(self) -> Components:
        """Return the components of all vectors so far."""
        mean = torch.as_tensor(self.total) / self.count
        covariance = torch.as_tensor(self.products) / self.count - mean[:, None] * mean
        variances, vectors = torch.linalg.eigh(covariance)  # from the least to the greatest
        variances, vectors = variances.flip(0).clamp_min(0), vectors.flip(1)
        largest = vectors.abs().argmax(0, keepdim=True)
        vectors = vectors * vectors.gather(0, largest).sign()
        share = variances[:3].sum() / variances.sum().clamp_min(torch.finfo(torch.double).tiny)
        return Components(mean, vectors[:, :3], variances[:3], float(share))


@dataclass(frozen=True)
class Components:
    """Principal components, and how they become colors.

    Attributes:
        mean: ``(C,)``.
        vectors: A component in each column, ``(C, 3)``, fewer for fewer channels.
        variances: ``(3,)``.
        share: Fraction of the whole variance, from 0 to 1.
    """
    mean: Tensor
    vectors: Tensor
    variances: Tensor
    share: float

    def colors(self, values: Tensor) -> np.ndarray:
        """Return red, green and blue ``(h, w, 3)`` of a map ``(C, h, w)``, from 0 to 1.

        Gray is the mean, and colors end two standard deviations from it.
        """
        centred = values.double().cpu().permute(1, 2, 0) - self.mean
        spread = self.variances.sqrt()
        known = self.variances > LEAST * self.variances[:1]
        scaled = torch.where(known, centred @ self.vectors / spread.where(known, 1.), 0.)
        colors = torch.full((*values.shape[1:], 3), 0.5, dtype=torch.double)
        colors[..., :scaled.shape[-1]] += scaled / (2 * DEVIATIONS)
        return colors.clamp(0, 1).float().numpy()


def feature_panels(model: Model, options: Options, images: Images) -> Draw:
    """Principal components of each feature map and each level of the pyramid.

    Components, their signs and colors are those of all images together, each map its own. Equal
    colors of two images are therefore equal features.
    """
    principal: list[PrincipalComponents] = []
    for seen in images():
        parts = named_maps(model, compute_maps(model, seen), seen)
        principal = principal or [PrincipalComponents() for _ in parts]
        for each, part in zip(principal, parts, strict=True):
            each.add(part.on_image(seen).flatten(1).mT)
    components = [each.fit() for each in principal]

    def draw(seen: Seen) -> Drawing:
        maps, panels = compute_maps(model, seen), []
        for fitted, part in zip(components, named_maps(model, maps, seen), strict=True):
            colors = fitted.colors(part.on_image(seen))
            panels.append(Panel(colors, f'{part.name}: {fitted.share:.0%}', part.stride))
        taps = len(maps.taps)
        rows = [PanelRow('backbone', panels[:taps]), PanelRow('pyramid', panels[taps:])]
        title = 'Features: 3 principal components and their share of variance'
        return Drawing(
            title, seen.image, [row for row in rows if row.panels], nearest=options.nearest)

    return draw
