"""What looks wrong about the inputs of a model; only what can be told from the numbers."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from colonnade.settings.findings import Finding

PLACES = ('model.data_preprocessor', )
RGB_MEAN = (123.675, 116.28, 103.53)  # of ImageNet, from red to blue
SPREAD = 0.23  # standard deviation of ImageNet's values, of their range
FAR = 2.5  # such standard deviations of the mean of all inputs from 0


def order_fault(settings: Mapping[str, Any], converts: bool) -> Finding | None:
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
    text = f"The preprocessor's mean {list(mean)} is ImageNet's in the other order of channels: " \
           'look at bgr_to_rgb, and at the order of mean and std.'
    return Finding('channel-mean', text, PLACES)


def range_fault(settings: Mapping[str, Any], largest: float, average: float) -> Finding | None:
    """Whether values are of another range than mean and std of a preprocessor.

    Args:
        settings: Of the preprocessor.
        largest: Of the values before it.
        average: Of those behind it.
    """
    text, mean, std = '', settings.get('mean'), settings.get('std')
    if not math.isfinite(average):
        text = 'Some inputs are not finite.'
    elif mean is None or std is None or (not any(mean) and set(std) == {1}):
        if largest > 2:
            text = 'Inputs are not normalised: the preprocessor has no mean and std, or 0 and 1, ' \
                   f'and values reach {largest:.0f}.'
    elif max(mean) > 2 and largest <= 1:
        text = 'Values before normalisation are at most 1, and the mean is for values from 0 to ' \
               f'255: {list(mean)}.'
    elif 0 < max(mean) <= 1 and largest > 2:
        text = f'Values before normalisation reach {largest:.0f}, and the mean is for values ' \
               f'from 0 to 1: {list(mean)}.'
    elif abs(average) > FAR * max(1, SPREAD * (255 if largest > 1 else 1) / float(np.mean(std))):
        text = f'The mean of all inputs is {average:.1f}, far from 0.'  # by what std says
    return Finding('channel-mean', text, PLACES) if text else None
