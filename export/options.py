"""Options of exports; importing them takes no time."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.common.errors import UserError
from colonnade.common.options import option

FORMATS = ('onnx', 'openvino', 'archive')
WHAT = ('model', 'features')
PRECISIONS = ('float32', 'int8')


@dataclass
class ExportOptions:
    """What to write, as ``colonnade export --help`` says it."""
    format: Literal['onnx', 'openvino', 'archive'] = option(
        'onnx, for onnxruntime and others (default), openvino, or an archive for torch', 'onnx')
    what: Literal['model', 'features'] = option(
        'the whole model (default), or the maps of its backbone and pyramid', 'model')
    precision: Literal['float32',
                       'int8'] = option('float32 (default), or int8: smaller, calibrated on images',
                                        'float32')
    calibrate: Path | str | None = option('folder of images, for --precision int8', metavar='DIR')
    num_images: int = option('of DIR to calibrate on (%(default)s)', 100, metavar='N')
    tolerance: float = option(
        'by how many times more than torch the graphs may deviate from float64 (%(default)g); up '
        'to 10 times that is a warning, more an error',
        10.,
        metavar='FACTOR')

    def __post_init__(self) -> None:
        for key, legal in (('format', FORMATS), ('what', WHAT), ('precision', PRECISIONS)):
            if getattr(self, key) not in legal:
                raise UserError(f'{key} must be {" or ".join(legal)}, got {getattr(self, key)!r}')
        if not 1 <= self.tolerance < math.inf:
            raise UserError('--tolerance must be at least 1, since it is by how many times more '
                            f'than torch the graph may deviate, got {self.tolerance:g}')
        if self.precision == 'int8' and self.calibrate is None:
            raise UserError('--precision int8 needs --calibrate: images of your own')
        if self.precision != 'int8' and self.calibrate is not None:
            raise UserError('--calibrate is for --precision int8')
        if self.precision == 'int8' and self.format != 'onnx':
            raise UserError(f'precision=int8 is for format=onnx, got {self.format!r}')
