"""Dense prediction on columnar image transformers: load a model, predict, train, evaluate.

    import colonnade
    model = colonnade.load('sem_fpn/xcit_nano_12_p16_slim_shapes', 'iter_500.pth')
    result = model.predict('image.jpg')
    result.draw().save('prediction.png')

Names are imported on first access, so that ``import colonnade`` is fast.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from colonnade.configs import list_configs
    from colonnade.custom_data import create_config
    from colonnade.evaluation.testing import evaluate
    from colonnade.inference import ImageError, Instances, LabelMap, Model, PanopticMap, load
    from colonnade.runs import Run
    from colonnade.training import train
    from colonnade.weights import WeightsError

__all__ = [
    'ImageError', 'Instances', 'LabelMap', 'Model', 'PanopticMap', 'Run', 'WeightsError',
    'create_config', 'evaluate', 'list_configs', 'load', 'train'
]

__getattr__ = lazy_exports(
    __name__, {
        'list_configs': '.configs',
        'create_config': '.custom_data',
        'evaluate': '.evaluation.testing',
        'ImageError': '.inference',
        'Instances': '.inference',
        'LabelMap': '.inference',
        'Model': '.inference',
        'PanopticMap': '.inference',
        'load': '.inference',
        'Run': '.runs',
        'train': '.training',
        'WeightsError': '.weights',
    })


def __dir__() -> list[str]:
    return __all__
