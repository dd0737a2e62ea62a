"""Models with random weights."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from conftest import config
from mmengine.registry import MODELS, init_default_scope

from colonnade.engine.launch import read_config
from colonnade.engine.random_weights import random_model
from colonnade.engine.transplant.trial import trial_fault


@pytest.fixture
def nan_in_new_memory() -> Iterator[None]:
    """What nothing has written to holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures('nan_in_new_memory')
def test_no_parameter_holds_anything() -> None:
    """DINO's embedding of levels holds anything once it is built."""
    cfg = read_config(config('dino'))
    init_default_scope(cfg.default_scope)
    assert not any(value.isnan().any() for value in random_model(cfg.model).parameters())
    assert trial_fault(cfg) is None
    assert MODELS.build(cfg.model).level_embed.isnan().all()


def test_nothing_is_downloaded() -> None:
    cfg = read_config(config('sem_fpn'))
    init_default_scope(cfg.default_scope)
    missing = dict(type='Pretrained', checkpoint='nowhere.pth')
    cfg.model.backbone.init_cfg, cfg.model.decode_head.init_cfg = missing, [missing]
    before = cfg.to_dict()
    random_model(cfg.model)
    assert cfg.to_dict() == before
