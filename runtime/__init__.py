"""Runtime of exported models, which needs only numpy, Pillow, and onnxruntime or OpenVINO.

This package is copied into each exported folder as ``colonnade_runtime``:

    import colonnade_runtime
    model = colonnade_runtime.load('exported')
    result = model.predict('image.jpg')
"""
from .images import ImageError, read_image
from .metadata import ModelError
from .model import Model, load
from .results import FeatureMaps, Instances, LabelMap, PanopticMap, Result

__all__ = [
    'FeatureMaps', 'ImageError', 'Instances', 'LabelMap', 'Model', 'ModelError', 'PanopticMap',
    'Result', 'load', 'read_image'
]
