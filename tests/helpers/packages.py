"""Checkpoints and packages of small models with random weights, and forged ones."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import config
from mmengine.registry import MODELS

from colonnade.common.hashing import compute_sha256
from colonnade.inference import load
from colonnade.inference.packages.creation import Words, make_package
from colonnade.settings.reading import read_config

CLASSES = {
    'mask_rcnn': ('disc', 'square', 'triangle'),
    'sem_fpn': ('background', 'disc', 'square', 'triangle'),
}
PALETTE = ((10, 20, 30), (40, 50, 60), (70, 80, 90), (100, 110, 120))
HEADS = tuple(CLASSES)


def write_checkpoint(head: str, path: Path, **further: Any) -> Path:
    """A file as training writes it, with ``further`` entries of its ``meta``."""
    torch.manual_seed(0)
    meta = dict(classes=CLASSES[head], palette=list(PALETTE[:len(CLASSES[head])]))
    state = MODELS.build(read_config(config(head)).model).state_dict()
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=meta, **further)), path)
    return path


def write_package(head: str, checkpoint: Path, folder: Path, **settings: Any) -> list[str]:
    """The package of a checkpoint; returns what was changed."""
    model = load(config(head), checkpoint, device='cpu')
    return make_package(model, folder, Words(folder.name), **settings)


def some_image(height: int = 96, width: int = 128) -> np.ndarray:
    """RGB values of patches of different colours."""
    patches = np.random.default_rng(0).integers(0, 255, (height // 16, width // 16, 3), np.uint8)
    return patches.repeat(16, 0).repeat(16, 1)


def change_card(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what ``model.json`` holds."""
    path = folder / 'model.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def forge(folder: Path, name: str, content: bytes) -> None:
    """Exchange a file of a package, so that its hash is right."""
    (folder / name).write_bytes(content)
    entry = dict(sha256=compute_sha256(folder / name), bytes=len(content))
    change_card(folder, lambda card: card['files'].update({name: entry}))
