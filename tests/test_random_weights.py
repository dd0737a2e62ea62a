"""Models of trials have random weights, and nothing is downloaded for them."""
from __future__ import annotations

from typing import Any

import pytest

from colonnade.models.building import drop_pretrained


@pytest.mark.parametrize('backbone, kept', [
    (dict(pretrained='timm://a'), dict()),
    (dict(pretrained=True), dict()),
    (dict(pretrained=False), dict(pretrained=False)),
    (dict(init_cfg=dict(type='Pretrained', checkpoint='a.pth'), depth=3), dict(depth=3)),
    (dict(init_cfg=[dict(type='Pretrained', checkpoint='a.pth'), dict(type='Kaiming')]),
     dict(init_cfg=[dict(type='Kaiming')])),
    (dict(init_cfg=dict(checkpoint='a.pth')), dict()),
])  # yapf: disable
def test_no_weights_are_named(backbone: dict[str, Any], kept: dict[str, Any]) -> None:
    changes: list[str] = []
    assert drop_pretrained(dict(backbone=backbone), 'model', changes) == dict(backbone=kept)
    assert len(changes) == (backbone != kept)
    assert all(change.startswith('model.backbone.') for change in changes)
