"""Label maps at the resolution of patches: how much of a patch each class covers.

Shapes: ``H, W`` height and width of a label map, ``h, w`` the grid of patches, ``K`` classes.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from colonnade.datasets.custom.label_maps import IGNORED


@dataclass(frozen=True)
class SoftLabels:
    """The share of each patch that each class covers; few are not 0, which alone are kept.

    Attributes:
        num_patches: Patches of the image, ``h w``.
        num_classes: ``K``.
        places: Patch times ``K`` plus class, ``(n)``.
        shares: Share of that patch, ``(n)``; of a patch at most 1, less if pixels are unlabelled.
    """
    num_patches: int
    num_classes: int
    places: Tensor
    shares: Tensor

    def dense(self) -> Tensor:
        """All shares, ``(h w, K)``."""
        shares = torch.zeros(self.num_patches * self.num_classes)
        shares[self.places] = self.shares
        return shares.view(self.num_patches, self.num_classes)

    def labelled(self) -> Tensor:
        """Patches that have a labelled pixel, ascending."""
        return self.places.div(self.num_classes, rounding_mode='floor').unique()


def soft_labels(label_map: np.ndarray, grid: tuple[int, int], num_classes: int) -> SoftLabels:
    """The shares of classes in each patch. A pixel belongs to the patch that its centre lies in.

    Args:
        label_map: ``(H, W)``; label 255 is left out.
        grid: ``(h, w)``, which covers the whole label map.
        num_classes: ``K``; labels are below it.
    """
    rows, columns = (((2 * np.arange(pixels) + 1) * patches) // (2 * pixels)
                     for pixels, patches in zip(label_map.shape, grid, strict=True))
    patch = rows[:, None] * grid[1] + columns
    labelled = label_map != IGNORED
    num_patches = grid[0] * grid[1]
    counts = np.bincount(
        patch[labelled] * num_classes + label_map[labelled], minlength=num_patches * num_classes)
    pixels = np.bincount(patch.ravel(), minlength=num_patches)
    places = counts.nonzero()[0]
    shares = counts[places] / pixels[places // num_classes]
    return SoftLabels(num_patches, num_classes, torch.from_numpy(places),
                      torch.from_numpy(shares).float())
