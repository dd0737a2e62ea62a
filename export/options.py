"""Options of exports, without slow imports."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.common.errors import UserError
from colonnade.common.options import option

CHOICES = dict(
    format=('onnx', 'openvino', 'pt2'),
    component=('model', 'features'),
    precision=('float32', 'int8'))


@dataclass
class ExportOptions:
    """Options of ``colonnade export``."""
    format: Literal['onnx', 'openvino', 'pt2'] = option(
        'file format: ONNX, OpenVINO or torch.export archive (default: %(default)s)', 'onnx')
    component: Literal['model', 'features'] = option(
        'export the full model, or the feature maps of its backbone and pyramid (default: '
        '%(default)s)', 'model')
    precision: Literal['float32', 'int8'] = option(
        'numeric precision; int8 is smaller and is calibrated on images (default: %(default)s)',
        'float32')
    calibration_images: Path | str | None = option(
        'folder of calibration images, required by --precision int8', metavar='DIR')
    num_images: int = option(
        'maximum number of calibration images (default: %(default)s)', 100, metavar='N')
    tolerance: float = option(
        'maximum deviation of the graphs from float64, relative to that of torch; more gives a '
        'warning, 10 times as much an error (default: %(default)g)',
        10.,
        metavar='FACTOR')

    def __post_init__(self) -> None:
        for key, choices in CHOICES.items():
            if (value := vars(self)[key]) not in choices:
                raise UserError(f'{key} must be {" or ".join(choices)}, got {value!r}')
        if not 1 <= self.tolerance < math.inf:
            raise UserError(f'--tolerance must be at least 1, got {self.tolerance:g}')
        if self.precision == 'int8' and self.calibration_images is None:
            raise UserError('--precision int8 requires --calibration-images')
        if self.precision != 'int8' and self.calibration_images is not None:
            raise UserError('--calibration-images requires --precision int8')
        if self.precision == 'int8' and self.format != 'onnx':
            raise UserError(f'--precision int8 requires --format onnx, got {self.format!r}')
