"""Our trunk and pyramid in the config of a model, of which nothing is built."""
from __future__ import annotations

from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone
from colonnade.necks import Pyramid

from .registries import find_class


def trunk_of(model: ConfigDict) -> type[ColumnarBackbone] | None:
    """The class of a model's trunk, if it is one of ours."""
    trunk = find_class((model.get('backbone') or {}).get('type'), MODELS)
    return trunk if isinstance(trunk, type) and issubclass(trunk, ColumnarBackbone) else None


def pyramid_of(model: ConfigDict) -> type[Pyramid] | None:
    """The class of a model's neck, if it is one of ours."""
    neck = model.get('neck')
    pyramid = find_class(neck.get('type'), MODELS) if isinstance(neck, dict) else None
    return pyramid if isinstance(pyramid, type) and issubclass(pyramid, Pyramid) else None


def settle_trunk(model: ConfigDict) -> None:
    """Write into a config what follows from the weights' name, for those who read it without."""
    if (trunk := trunk_of(model)) is not None:
        backbone = model.backbone
        if 'arch' not in backbone:
            return
        for key, value in trunk.implied(backbone.arch, backbone.get('init_cfg')).items():
            if backbone.get(key) is None:
                backbone[key] = value
