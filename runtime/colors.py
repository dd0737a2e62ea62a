"""Colors of classes without a palette."""
from __future__ import annotations

import colorsys

GOLDEN_RATIO = (5**0.5 - 1) / 2


def distinct_colors(num_colors: int) -> tuple[tuple[int, int, int], ...]:
    """Return RGB colors from 0 to 255 with evenly spread hues, the same in every call."""
    colors = []
    for index in range(num_colors):
        red, green, blue = colorsys.hsv_to_rgb(index * GOLDEN_RATIO % 1, 0.55 + 0.4 * (index % 2),
                                               0.95 - 0.25 * (index // 2 % 2))
        colors.append((round(red * 255), round(green * 255), round(blue * 255)))
    return tuple(colors)
