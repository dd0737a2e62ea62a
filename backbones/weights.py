"""The former place of :mod:`colonnade.weights`; to be removed in the next release."""
from __future__ import annotations

import warnings

from colonnade.weights import WeightsError, load_weights  # noqa: F401

warnings.warn(
    'colonnade.backbones.weights has moved: import from colonnade.weights',
    DeprecationWarning,
    stacklevel=2)
