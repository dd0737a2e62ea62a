"""What looks wrong about the inputs of a model; only what can be told from the numbers."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

RGB_MEAN = (123.675, 116.28, 103.53)  # of ImageNet, from red to blue
SPREAD = 0.23  # standard deviation of ImageNet's values, of their range
FAR = 2.5  # such standard deviations of the mean of all inputs from 0


def order_fault(settings: Mapping[str, Any], converts: bool) -> str | None:
    """Whether a preprocessor's mean is of the other order of channels.

    Args:
        settings: Of the preprocessor.
        converts: Whether it swaps red and blue.
    """
    mean = settings.get('mean')
    if mean is None or len(mean) != 3:
        return None
    given = tuple(mean) if converts else tuple(mean)[::-1]
    if not np.allclose(given, RGB_MEAN[::-1], atol=0.5):
        return None
    return (f"The preprocessor's mean {list(mean)} is ImageNet's in the other order of channels: "
            'look at bgr_to_rgb, and at the order of mean and std.')


def range_fault(settings: Mapping[str, Any], largest: float, average: float) -> str | None:
    """Whether values are of another range than mean and std of a preprocessor.

    Args:
        settings: Of the preprocessor.
        largest: Of the values before it.
        average: Of those behind it.
    """
    if not math.isfinite(average):
        return 'Some inputs are not finite.'
    mean, std = settings.get('mean'), settings.get('std')
    if mean is None or std is None or (not any(mean) and set(std) == {1}):
        if largest <= 2:
            return None
        return ('Inputs are not normalised: the preprocessor has no mean and std, or 0 and 1, and '
                f'values reach {largest:.0f}.')
    if max(mean) > 2 and largest <= 1:
        return ('Values before normalisation are at most 1, and the mean is for values from 0 to '
                f'255: {list(mean)}.')
    if 0 < max(mean) <= 1 and largest > 2:
        return (f'Values before normalisation reach {largest:.0f}, and the mean is for values from '
                f'0 to 1: {list(mean)}.')
    spread = SPREAD * (255 if largest > 1 else 1) / float(np.mean(std))  # as far as std says
    if abs(average) > FAR * max(spread, 1):
        return f'The mean of all inputs is {average:.1f}, far from 0.'
    return None
