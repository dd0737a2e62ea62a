"""Models that ``tools/export.py`` has written, without the libraries that trained them.

Needs numpy, onnxruntime and Pillow. This package is copied into each exported folder, as
``colonnade_runtime``:

    import colonnade_runtime
    model = colonnade_runtime.load('exported')
    result = model.predict('image.jpg')
"""
from .errors import ModelError
from .images import ImageError, read_image
from .model import Model, load
from .results import Instances, LabelMap, Maps, Result

__all__ = [
    'ImageError', 'Instances', 'LabelMap', 'Maps', 'Model', 'ModelError', 'Result', 'load',
    'read_image'
]
