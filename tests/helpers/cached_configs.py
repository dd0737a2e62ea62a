"""Cache of configs, of which tests get copies."""
from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path

from mmengine.config import Config

from colonnade.settings.reading import prepare_library, read_config

read_once = cache(read_config)


def copy_config(path: Path) -> Config:
    """Return a copy of the config in a file that no test modifies."""
    cfg = deepcopy(read_once(path))
    prepare_library(cfg, str(path))
    return cfg
