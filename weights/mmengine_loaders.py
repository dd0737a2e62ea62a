"""Replacement of mmengine's checkpoint loaders, which would run code of the files.

mmengine's loaders fall back to unpickling anything, and its runners and inferencers run the config
in a checkpoint as Python. :func:`replace_loaders` prevents both; ``colonnade.backbones`` calls it
on import. Then every checkpoint that mmengine, mmdet or mmseg load is read by
:func:`~.files.read_checkpoint`, and published models get Colonnade's names. That holds for paths,
``http://``, ``timm://``, ``open-mmlab://``, ``torchvision://``, ``s3://`` and others. Code that
calls ``torch.load`` itself is not changed.
"""
from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mmengine.logging import print_log
from mmengine.runner import checkpoint as mmengine_checkpoint

from .config_text import is_plain_config
from .downloads import fetch
from .files import read_checkpoint
from .formats import convert_published_model

#: keys of configs in checkpoints: mmengine runs the first when it resumes, the others for
#: inferencers without a config
CONFIGS = (('meta', 'config'), ('meta', 'cfg'), ('message_hub', 'runtime_info', 'cfg'))


def load_from_anywhere(filename: str, map_location: Any = None) -> dict[str, Any]:
    """Load a path, an ``http(s)://`` URL or ``timm://NAME`` to the CPU, as mmengine calls it."""
    return prepare(fetch(filename), filename)


def load_from_file(file: str | Path | BinaryIO,
                   map_location: Any = None,
                   weights_only: bool | None = None) -> dict[str, Any]:
    """Load a local file, or one that mmengine has opened, to the CPU."""
    if isinstance(file, (str, Path)):
        return prepare(fetch(file), str(file))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'checkpoint')
        path.write_bytes(file.read())
        return prepare(read_checkpoint(path), 'the checkpoint')


def replace_loaders() -> None:
    """Make mmengine load checkpoints by the functions above."""
    mmengine_checkpoint._safe_torch_load = load_from_file
    mmengine_checkpoint.load_from_http = load_from_anywhere
    for prefixes in ('', ('http://', 'https://'), 'timm://'):
        mmengine_checkpoint.CheckpointLoader.register_scheme(
            prefixes, load_from_anywhere, force=True)


def prepare(checkpoint: dict[str, Any], source: str) -> dict[str, Any]:
    """Convert published models, and strip configs that would run code."""
    checkpoint = strip_code(checkpoint, source)
    if isinstance(checkpoint.get('state_dict'), Mapping):
        checkpoint['state_dict'] = convert_published_model(checkpoint['state_dict'])
    return checkpoint


def strip_code(checkpoint: dict[str, Any], source: str | None = None) -> dict[str, Any]:
    """Return a copy of a checkpoint without configs that contain more than values.

    Args:
        checkpoint: Content of a file; it is not changed.
        source: Name of the file for a warning. Defaults to no warning.
    """
    checkpoint = dict(checkpoint)
    for *parents, key in CONFIGS:
        holder: Any = checkpoint
        for parent in parents:
            if not isinstance(holder.get(parent), Mapping):
                break
            holder[parent] = dict(holder[parent])
            holder = holder[parent]
        else:
            if key in holder and not is_plain_config(holder[key]):
                del holder[key]
                if source is None:
                    continue
                print_log(
                    f'{source}: ignoring its config, which contains more than plain values and '
                    'would be run as Python: pass a config file instead',
                    logger='current',
                    level=logging.WARNING)
    return checkpoint
