"""Figures of feature maps: their three principal components as colors.

Shapes: ``C`` channels, ``h, w`` height and width of a map.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from colonnade.inference.model import Model

from ..options import VisualizationOptions
from .attention import Drawer, Images
from .figure_inputs import NamedMap, PreparedImage, name_maps, record_maps
from .layout import Drawing, Panel

DEVIATIONS = 2.  # standard deviations to either side of the mean that colors span
MIN_VARIANCE = 1e-12  # minimum, relative to the first component; less is rounding error


class PrincipalComponents:
    """Three directions of the greatest variance of vectors that are added in parts.

    The sign of a direction makes its largest entry positive.

    Attributes:
        mean: Mean of the vectors, ``(C,)``.
        vectors: A component in each column, ``(C, 3)``, fewer for fewer channels.
        variances: Variance of each component, ``(3,)``.
        share: Share of the components in the total variance, from 0 to 1.
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

    def fit(self) -> PrincipalComponents:
        """Compute the components of all vectors."""
        self.mean = torch.as_tensor(self.total) / self.count
        covariance = torch.as_tensor(self.products) / self.count - self.mean[:, None] * self.mean
        variances, vectors = torch.linalg.eigh(covariance)  # in ascending order
        variances, vectors = variances.flip(0).clamp_min(0), vectors.flip(1)
        largest = vectors.abs().argmax(0, keepdim=True)
        self.vectors = (vectors * vectors.gather(0, largest).sign())[:, :3]
        self.variances = variances[:3]
        total = variances.sum().clamp_min(torch.finfo(torch.double).tiny)
        self.share = float(self.variances.sum() / total)
        return self

    def to_colors(self, values: Tensor) -> np.ndarray:
        """Return RGB values ``(h, w, 3)`` from 0 to 1 of a map ``(C, h, w)``; the mean is gray."""
        centered = values.double().cpu().permute(1, 2, 0) - self.mean
        known = self.variances > MIN_VARIANCE * self.variances[:1]
        deviations = self.variances.sqrt().where(known, 1.)
        scaled = torch.where(known, centered @ self.vectors / deviations, 0.)
        colors = torch.full((*values.shape[1:], 3), 0.5, dtype=torch.double)
        colors[..., :scaled.shape[-1]] += scaled / (2 * DEVIATIONS)
        return colors.clamp(0, 1).float().numpy()


def make_feature_drawer(model: Model, options: VisualizationOptions, images: Images) -> Drawer:
    """Draw the principal components of each map of the backbone and each level of the pyramid.

    Each map has its own components, which all images share. Equal colors of two images are
    therefore equal features.
    """

    def compute_maps(image: PreparedImage) -> tuple[list[NamedMap], int]:
        """Return all maps, and how many of them are of the backbone."""
        with torch.no_grad(), record_maps(model.module) as maps:
            model.module.extract_feat(image.inputs)
        return name_maps(model, maps, image), len(maps.backbone)

    principal: list[PrincipalComponents] = []
    for image in images():
        parts, _ = compute_maps(image)
        principal = principal or [PrincipalComponents() for _ in parts]
        for each, part in zip(principal, parts, strict=True):
            each.add(part.crop_padding(image).flatten(1).mT)
    components = [each.fit() for each in principal]

    def draw(image: PreparedImage) -> Drawing:
        parts, num_backbone = compute_maps(image)
        panels = []
        for fitted, part in zip(components, parts, strict=True):
            colors = fitted.to_colors(part.crop_padding(image))
            panels.append(Panel(colors, f'{part.name}: {fitted.share:.0%}', part.stride))
        rows = [('backbone', panels[:num_backbone]), ('pyramid', panels[num_backbone:])]
        rows = [row for row in rows if row[1]]
        title = 'Features: 3 principal components and their share of variance'
        return Drawing(title, image.pixels, rows, interpolation=options.interpolation)

    return draw
