"""How values become colours."""
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
    """How values become colours.

    Attributes:
        label: What the values are.
        low, high: Those of the first and the last colour.
        colours: A colour map of matplotlib's.
        power: Of the share of the range that a colour stands for; 0.5 shows small values better.
        transparent: Let low values be transparent, for maps over an image.
    """
    label: str
    low: float
    high: float
    colours: str = 'magma'
    power: float = 1.
    transparent: bool = False

    @classmethod
    def from_zero(cls,
                  label: str,
                  arrays: Iterable[np.ndarray],
                  share: float = 1.,
                  power: float = 1.) -> Scale:
        """From 0 to the value that this ``share`` of all values does not exceed."""
        high = float(np.quantile(np.concatenate([a.ravel() for a in arrays]), share))
        return cls(label, 0., high or 1., power=power)

    @classmethod
    def between(cls, label: str, arrays: Iterable[np.ndarray], share: float) -> Scale:
        """Without the least and the greatest values, a share ``1 - share`` of all each."""
        values = np.concatenate([a.ravel() for a in arrays])
        low, high = (float(x) for x in np.quantile(values, (1 - share, share)))
        return cls(label, low, high if high > low else low + 1)

    @classmethod
    def around_zero(cls, label: str, arrays: Iterable[np.ndarray], share: float = 1.) -> Scale:
        """The same distance below and above 0, of two hues."""
        high = cls.from_zero(label, (np.abs(a) for a in arrays), share).high
        return cls(label, -high, high, 'coolwarm')

    def mappable(self) -> ScalarMappable:
        """Values to colours, as matplotlib wants them."""
        colours: Colormap = colormaps[self.colours]
        if self.transparent:
            table = colours(np.linspace(0, 1, 256))
            table[:, 3] = np.linspace(0, 1, 256)**0.5 * OPACITY
            colours = ListedColormap(table)
        return ScalarMappable(PowerNorm(self.power, self.low, self.high), colours)
