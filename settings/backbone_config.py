"""Our backbone and pyramid in the config of a model, of which nothing is built."""
from __future__ import annotations

from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone
from colonnade.necks import Pyramid

from .registries import find_class


def backbone_of(model: ConfigDict) -> type[ColumnarBackbone] | None:
    """The class of a model's backbone_class, if it is one of ours."""
    backbone_class = find_class((model.get('backbone') or {}).get('type'), MODELS)
    return backbone_class if isinstance(backbone_class, type) and issubclass(
        backbone_class, ColumnarBackbone) else None


def pyramid_of(model: ConfigDict) -> type[Pyramid] | None:
    """The class of a model's neck, if it is one of ours."""
    neck = model.get('neck')
    pyramid = find_class(neck.get('type'), MODELS) if isinstance(neck, dict) else None
    return pyramid if isinstance(pyramid, type) and issubclass(pyramid, Pyramid) else None


def settle_backbone(model: ConfigDict) -> None:
    """Write into a config what follows from the weights' name, for those who read it without."""
    if (backbone_class := backbone_of(model)) is not None:
        backbone = model.backbone
        if 'arch' not in backbone:
            return
        for key, value in backbone_class.get_implied_arguments(backbone.arch,
                                                               backbone.get('init_cfg')).items():
            if backbone.get(key) is None:
                backbone[key] = value
