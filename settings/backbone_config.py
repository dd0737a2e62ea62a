"""Backbone settings in a config that is not built yet."""
from __future__ import annotations

from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone

from .registries import find_class


def get_backbone_class(model: ConfigDict) -> type[ColumnarBackbone] | None:
    """Return the backbone class of a model, or None if it is not a columnar backbone."""
    cls = find_class((model.get('backbone') or {}).get('type'), MODELS)
    return cls if isinstance(cls, type) and issubclass(cls, ColumnarBackbone) else None


def fill_backbone_settings(model: ConfigDict) -> None:
    """Write the backbone settings that are inferred from its weights into the config."""
    cls = get_backbone_class(model)
    if cls is not None and 'arch' in model.backbone:
        backbone = model.backbone
        for key, value in cls.get_implied_arguments(backbone.arch,
                                                    backbone.get('init_cfg')).items():
            if backbone.get(key) is None:
                backbone[key] = value
