"""Checkpoints and packages of small models with random weights, and modified ones."""
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
from colonnade.inference.packages.creation import CardText, make_package
from colonnade.settings.reading import read_config

CLASSES = {
    'mask_rcnn': ('disc', 'square', 'triangle'),
    'sem_fpn': ('background', 'disc', 'square', 'triangle'),
}
PALETTE = ((10, 20, 30), (40, 50, 60), (70, 80, 90), (100, 110, 120))
HEADS = tuple(CLASSES)


def write_checkpoint(head: str, path: Path, **meta: Any) -> Path:
    """Write a checkpoint as training does, with further entries of ``meta``."""
    torch.manual_seed(0)
    dataset_meta = dict(classes=CLASSES[head], palette=list(PALETTE[:len(CLASSES[head])]))
    state = MODELS.build(read_config(config(head)).model).state_dict()
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dataset_meta, **meta)), path)
    return path


def write_package(head: str, folder: Path) -> Path:
    """Write a package of a model with random weights."""
    checkpoint = write_checkpoint(head, folder.with_name(f'{head}.pth'))
    make_package(load(config(head), checkpoint, device='cpu'), folder, CardText(folder.name))
    return folder


def draw_patches(height: int = 96, width: int = 128) -> np.ndarray:
    """Return RGB values of patches of random colors."""
    patches = np.random.default_rng(0).integers(0, 255, (height // 16, width // 16, 3), np.uint8)
    return patches.repeat(16, 0).repeat(16, 1)


def change_metadata(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Modify the content of ``model.json``."""
    path = folder / 'model.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def replace_file(folder: Path, name: str, content: str | bytes) -> None:
    """Replace a file of a package and its hash."""
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(content)
    entry = dict(sha256=compute_sha256(folder / name), bytes=len(content))
    change_metadata(folder, lambda metadata: metadata['files'].update({name: entry}))
