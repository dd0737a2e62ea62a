"""Models that ``tools/export.py`` has written, without the libraries that trained them.

Needs numpy, onnxruntime and Pillow. This package is copied into each exported folder, as
``colonnade_runtime``:

    import colonnade_runtime
    model = colonnade_runtime.load('exported')
    result = model.predict('image.jpg')
"""
from .errors import ModelError
from .images import ImageError, read_image
from .instances import Instances
from .model import Model, load
from .results import LabelMap, Maps

__all__ = [
    'ImageError', 'Instances', 'LabelMap', 'Maps', 'Model', 'ModelError', 'load', 'read_image'
]
