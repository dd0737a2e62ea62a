"""How values become colors."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, PowerNorm

OPACITY = 0.85  # of the greatest values that lie over an image; 0 is transparent


@dataclass(frozen=True)
class Scale:
    """How values become colors.

    Attributes:
        label: What the values are.
        low: Value of the first color.
        high: Value of the last color.
        colors: Name of a colormap.
        power: Exponent of the normalized values; 0.5 shows small values better.
        transparent: Whether low values are transparent, for maps over an image.
    """
    label: str
    low: float
    high: float
    colors: str = 'magma'
    power: float = 1.
    transparent: bool = False

    @classmethod
    def from_zero(cls,
                  label: str,
                  arrays: Iterable[np.ndarray],
                  share: float = 1.,
                  power: float = 1.) -> Scale:
        """Return a scale from 0 to the quantile ``share`` of all values."""
        high = float(np.quantile(np.concatenate([a.ravel() for a in arrays]), share))
        return cls(label, 0., high or 1., power=power)

    @classmethod
    def between(cls, label: str, arrays: Iterable[np.ndarray], share: float) -> Scale:
        """Return a scale between the quantiles ``1 - share`` and ``share`` of all values."""
        values = np.concatenate([a.ravel() for a in arrays])
        low, high = (float(x) for x in np.quantile(values, (1 - share, share)))
        return cls(label, low, high if high > low else low + 1)

    @classmethod
    def around_zero(cls, label: str, arrays: Iterable[np.ndarray], share: float = 1.) -> Scale:
        """Return a scale of two hues that extends as far below 0 as above."""
        high = cls.from_zero(label, (np.abs(a) for a in arrays), share).high
        return cls(label, -high, high, 'coolwarm')

    def mappable(self) -> ScalarMappable:
        """Return matplotlib's object that maps values to colors."""
        colors: Colormap = colormaps[self.colors]
        if self.transparent:
            table = colors(np.linspace(0, 1, 256))
            table[:, 3] = np.linspace(0, 1, 256)**0.5 * OPACITY
            colors = ListedColormap(table)
        return ScalarMappable(PowerNorm(self.power, self.low, self.high), colors)
