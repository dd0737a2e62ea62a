"""Normalization of images of any number of bands."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import ImgDataPreprocessor

from colonnade.common.errors import UserError


class BandNormalization(ImgDataPreprocessor):
    """Data preprocessor for any number of bands, where mmengine's accepts one or three.

    Args:
        mean: Mean of each band.
        std: Standard deviation of each band.
        **kwargs: Other arguments of the data preprocessor.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], **kwargs: Any) -> None:
        if len(mean) != len(std):
            raise UserError('mean and std must have one value per band, got '
                            f'{len(mean)} and {len(std)}')
        super().__init__(**kwargs)
        self._enable_normalize = True
        for name, values in dict(mean=mean, std=std).items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), False)
